// Trains the oracle's net through a sharded model, scope by scope; how tests of the engine drive it.
#pragma once

#include <reshard/comm/counted.hpp>
#include <reshard/comm/self.hpp>
#include <reshard/comm/threads.hpp>
#include <reshard/optim/adamw.hpp>
#include <reshard/optim/sgd.hpp>
#include <reshard/policy/runtime.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "oracle.hpp"

namespace toy {

using reshard::any_reshard;
using reshard::any_sharding;
using reshard::counted;
using reshard::counter;
using reshard::precision;
using reshard::run_threads;
using reshard::runtime_policy;
using reshard::self_communicator;
using reshard::sharded_model;
using reshard::thread_options;
using reshard::threads_communicator;

inline const char* const strategies[] = {"no_shard", "shard_optimizer", "shard_gradients", "full_shard"};
inline const char* const reshards[] = {"reshard_always", "reshard_never", "keep_until_step", "keep_last:1"};

template <class Precision = precision<float>>
runtime_policy<Precision> parse_policy(const std::string& strategy, const std::string& reshard, bool once = false) {
    const std::string whole = once ? "accumulate_unsharded:" + reshard : reshard;
    return {any_sharding::parse(strategy), any_reshard::parse(whole)};
}

/// "full_shard + keep_last:1, once, 4 ranks, 3 microbatches".
inline std::string named(const std::string& strategy, const std::string& reshard, bool once, std::size_t ranks,
                         std::size_t microbatches) {
    return strategy + " + " + reshard + (once ? ", once, " : ", ") + std::to_string(ranks) + " ranks, " +
           std::to_string(microbatches) + " microbatches";
}

/// Under a sanitizer everything takes ten times as long: long lists of cases are thinned out.
inline bool sanitized() { return std::getenv("RESHARD_TEST_SANITIZED") != nullptr; }
inline std::vector<std::size_t> thinned(std::vector<std::size_t> counts) {
    if (sanitized() && counts.size() > 1) counts = {counts[1]};
    return counts;
}

/// Numbers of the optimizers as the tests use them.
inline reshard::adamw_options adamw_numbers() {
    const oracle::adamw_numbers o;
    return {o.rate, o.beta1, o.beta2, o.epsilon, o.decay, {{"bias", {.weight_decay = 0}}}};
}
inline reshard::sgd_options sgd_numbers(const oracle::sgd_numbers& o = {}) {
    return {o.rate, o.momentum, o.dampening, o.decay, o.nesterov, {{"bias", {}}}};
}

struct trainer_options {
    bool sgd = false;
    reshard::adamw_options adamw = adamw_numbers();
    reshard::sgd_options sgd_with = sgd_numbers();
    reshard::model_options model = {};
    std::size_t max_microbatches = 4;
    bool averaged = true;  // false: gradients are sums over samples, ranks and microbatches
};

/// Everything a rank owns, by unit and parameter (w, b, s); NaN elsewhere.
struct owned_values {
    using table = std::vector<std::array<std::vector<double>, 3>>;
    table weights, first, second;
    std::uint64_t steps = 0, applied = 0;
};

inline bool same_bits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

/// Joins what all ranks own. `whole` is false if an element is missing, or held with different bits by two ranks.
struct joined_values {
    owned_values all;
    bool whole = true;
};
inline joined_values join(const std::vector<owned_values>& ranks) {
    joined_values out{ranks.front(), true};
    const auto merge = [&](owned_values::table& into, const owned_values::table& from) {
        for (std::size_t u = 0; u < into.size(); ++u) {
            for (std::size_t p = 0; p < 3; ++p) {
                for (std::size_t i = 0; i < into[u][p].size(); ++i) {
                    double& mine = into[u][p][i];
                    const double theirs = from[u][p][i];
                    if (std::isnan(theirs)) continue;
                    if (!std::isnan(mine) && !same_bits(mine, theirs)) out.whole = false;
                    mine = theirs;
                }
            }
        }
    };
    for (const owned_values& one : ranks) {
        merge(out.all.weights, one.weights);
        merge(out.all.first, one.first);
        merge(out.all.second, one.second);
        if (one.steps != out.all.steps || one.applied != out.all.applied) out.whole = false;
    }
    for (const auto& unit : out.all.weights) {
        for (const auto& part : unit) {
            for (const double value : part) out.whole = out.whole && !std::isnan(value);
        }
    }
    return out;
}
inline bool same_table(const owned_values::table& a, const owned_values::table& b) {
    for (std::size_t u = 0; u < a.size(); ++u) {
        for (std::size_t p = 0; p < 3; ++p) {
            for (std::size_t i = 0; i < a[u][p].size(); ++i) {
                if (std::isnan(a[u][p][i]) && std::isnan(b[u][p][i])) continue;
                if (!same_bits(a[u][p][i], b[u][p][i])) return false;
            }
        }
    }
    return true;
}
/// Weights, both moments, steps and applied steps: all to the bit.
inline bool same_values(const owned_values& a, const owned_values& b) {
    return a.steps == b.steps && a.applied == b.applied && same_table(a.weights, b.weights) &&
           same_table(a.first, b.first) && same_table(a.second, b.second);
}
template <class Number>
bool same_weights(const owned_values& a, const std::vector<oracle::layer_values<Number>>& b) {
    for (std::size_t u = 0; u < b.size(); ++u) {
        const std::vector<Number>* parts[] = {&b[u].w, &b[u].b, &b[u].s};
        for (std::size_t p = 0; p < 3; ++p) {
            for (std::size_t i = 0; i < parts[p]->size(); ++i) {
                if (a.weights[u][p][i] != static_cast<double>((*parts[p])[i])) return false;
            }
        }
    }
    return true;
}

template <class Policy, class Communicator>
class trainer {
public:
    using model_type = sharded_model<Policy, Communicator>;
    using compute_type = typename model_type::compute_type;
    using gradient_type = typename model_type::gradient_type;
    using number = reshard::arithmetic<compute_type>;
    using handle = reshard::parameter<compute_type>;
    using stream_ref = typename model_type::stream_ref;

    trainer(const oracle::net& net, Communicator world, const Policy& policy, const trainer_options& options = {})
        : trainer(net, world, policy, options, world.device().caller()) {}
    trainer(const oracle::net& net, Communicator world, const Policy& policy, const trainer_options& options,
            stream_ref compute)
        : shape(net), model(world, model_options_of(options), policy, compute), compute_(compute), options_(options) {
        if (options.sgd) {
            by_sgd.emplace(model, options.sgd_with);
        } else {
            by_adamw.emplace(model, options.adamw);
        }
        for (std::size_t u = 0; u < net.units(); ++u) declare(u);
        if (net.tied) {
            auto order = units;
            order.push_back(units[0]);
            model.set_order(order);
        }
        make_buffers();
        model.initialize([&](const reshard::parameter_info& info, std::size_t offset, auto values) {
            const std::size_t parameter = info.name == "w" ? 0 : info.name == "b" ? 1 : 2;
            for (std::size_t i = 0; i < values.size(); ++i) {
                values[i] = static_cast<typename model_type::master_type>(
                    oracle::initial(shape, info.unit_index, parameter, offset + i));
            }
        });
    }

private:
    std::vector<std::vector<std::vector<number>>> values_, slopes_;  // before the model: queued work reads them
    double evaluated_ = 0;

public:
    oracle::net shape;
    std::vector<double> losses = std::vector<double>(64, 0.0);  // of this rank, by step
    model_type model;
    std::vector<typename model_type::unit*> units;
    std::optional<reshard::adamw<model_type>> by_adamw;
    std::optional<reshard::sgd<model_type>> by_sgd;
    std::function<void(const char*)> at_point;      // called between all operations, may throw
    std::vector<const void*>* addresses = nullptr;  // where scopes showed things
    std::size_t data_step = 0;                      // which data forwards read
    reshard::adamw_step adamw_now = {};
    reshard::sgd_step sgd_now = {};

    // Plain loop.
    void train(std::size_t microbatches) {
        begin(microbatches);
        for (std::size_t m = 0; m < microbatches; ++m) {
            forward(m);
            backward(m);
        }
        step();
    }
    void begin(std::size_t microbatches, std::span<const reshard::pass> schedule = {}) {
        point("before begin_step");
        data_step = model.steps();
        losses[data_step] = 0;
        microbatches_ = microbatches;
        model.begin_step({.microbatches = microbatches, .schedule = schedule});
        point("after begin_step");
    }
    void step() {
        point("before step");
        if (by_sgd) {
            by_sgd->step(sgd_now);
        } else {
            by_adamw->step(adamw_now);
        }
        point("after step");
    }
    /// A step through a schedule of passes.
    void train(std::size_t microbatches, std::span<const reshard::pass> schedule) {
        begin(microbatches, schedule);
        for (const reshard::pass& one : schedule) run(one);
        step();
    }
    void run(const reshard::pass& one) {
        const std::size_t last = one.count == reshard::all_uses ? shape.uses() : one.first + one.count;
        if (one.what == reshard::phase::forward) {
            if (one.first == 0) load(one.microbatch, first_of(one.microbatch), per_microbatch());
            for (std::size_t use = one.first; use < last; ++use) forward_use(one.microbatch, use);
            if (last == shape.uses()) take_loss(one.microbatch);
            return;
        }
        for (std::size_t use = last; use-- > one.first;) {
            if (one.what == reshard::phase::backward) backward_use(one.microbatch, use);
            if (one.what == reshard::phase::backward_input) input_use(one.microbatch, use);
            if (one.what == reshard::phase::backward_weight) weight_use(one.microbatch, use);
        }
    }

    std::size_t per_microbatch() const { return shape.batch / (model.ranks() * microbatches_); }
    std::size_t first_of(std::size_t m) const { return (model.rank() * microbatches_ + m) * per_microbatch(); }

    void forward(std::size_t m) { forward(m, first_of(m), per_microbatch()); }
    void forward(std::size_t m, std::size_t first, std::size_t count) {
        load(m, first, count);
        for (std::size_t use = 0; use < shape.uses(); ++use) forward_use(m, use);
        take_loss(m);
    }
    void backward(std::size_t m) {
        for (std::size_t use = shape.uses(); use-- > 0;) backward_use(m, use);
    }

    /// Numbers into the first buffer.
    void load(std::size_t m, std::size_t first, std::size_t count) {
        samples_[m] = {first, count};
        launch([this, m, first, count, now = data_step] {
            for (std::size_t k = 0; k < count; ++k) {
                for (std::size_t i = 0; i < shape.widths[0]; ++i) {
                    values_[m][0][k * shape.widths[0] + i] =
                        static_cast<number>(oracle::input(shape, now, first + k, i));
                }
            }
        });
    }
    void take_loss(std::size_t m) {
        const auto [first, count] = samples_[m];
        launch([this, m, first = first, count = count, now = data_step] {
            const double share = options_.averaged ? static_cast<double>(count) : 1;
            const double part = oracle::loss_and_slopes(shape, now, first, count, values_[m].back().data(),
                                                        slopes_[m].back().data(), share);
            losses[now] += part;
        });
    }

    void forward_use(std::size_t m, std::size_t use) {
        point("before forward");
        {
            auto scope = unit_of(use).forward(m);
            point("in forward");
            compute(scope, m, use, values_[m][use + 1].data(), [](const auto& call) { call.forward(); });
        }
        point("after forward");
    }
    void backward_use(std::size_t m, std::size_t use) {
        point("before backward");
        {
            auto scope = unit_of(use).backward(m);
            point("in backward");
            auto call = call_of(scope, m, use);
            with_gradients(scope, call, use);
            call.out = slopes_[m][use].data();
            launch([call] {
                call.backward_weight();
                call.backward_input();
            });
        }
        point("after backward");
    }
    void input_use(std::size_t m, std::size_t use) {
        auto scope = unit_of(use).backward_input(m);
        compute(scope, m, use, slopes_[m][use].data(), [](const auto& call) { call.backward_input(); });
    }
    void weight_use(std::size_t m, std::size_t use) {
        auto scope = unit_of(use).backward_weight(m);
        auto call = bare_call(m, use);
        with_gradients(scope, call, use);
        launch([call] { call.backward_weight(); });
    }
    void recompute_use(std::size_t m, std::size_t use) {
        auto scope = unit_of(use).recompute();
        compute(scope, m, use, values_[m][use + 1].data(), [](const auto& call) { call.forward(); });
    }

    /// The loss of samples of the present data, without training; on the present stream, ready when it is.
    double evaluate(std::size_t first, std::size_t count, std::size_t m = 0) {
        double* out = &evaluated_;
        {
            auto evaluating = model.evaluate();
            load(m, first, count);
            for (std::size_t use = 0; use < shape.uses(); ++use) {
                auto scope = unit_of(use).forward();
                compute(scope, m, use, values_[m][use + 1].data(), [](const auto& call) { call.forward(); });
            }
            launch([this, m, first, count, out] {
                *out = oracle::loss_and_slopes(shape, data_step, first, count, values_[m].back().data(),
                                               slopes_[m].back().data(), static_cast<double>(count));
            });
        }
        return *out;
    }

    /// What this rank owns now; waits for the last step.
    owned_values owned() {
        owned_values out;
        const auto outcome = model.outcome();
        out.steps = model.steps();
        out.applied = outcome.applied;
        for (std::size_t u = 0; u < shape.units(); ++u) {
            const std::size_t rows = shape.widths[u + 1], columns = shape.widths[u];
            const std::size_t counts[] = {rows * columns, rows, shape.frozen_part(u) ? rows : 0};
            out.weights.emplace_back();
            for (std::size_t p = 0; p < 3; ++p) {
                out.weights[u][p].assign(counts[p], std::numeric_limits<double>::quiet_NaN());
            }
        }
        out.first = out.second = out.weights;
        const std::size_t moments = by_sgd ? model.internals().moments.size() : 2;
        for (const auto& slice : model.owned()) {
            const std::size_t u = slice.parameter.unit_index, p = parameter_of(slice.parameter.name);
            for (std::size_t i = 0; i < slice.count; ++i) {
                const std::size_t at = slice.global_offset + i;
                out.weights[u][p][at] = static_cast<double>(slice.master[i]);
                if (slice.gradient == nullptr) continue;
                if (moments > 0) out.first[u][p][at] = static_cast<double>(model.state({0})[slice.arena_offset + i]);
                if (moments > 1) out.second[u][p][at] = static_cast<double>(model.state({1})[slice.arena_offset + i]);
            }
        }
        return out;
    }

    typename model_type::unit& unit_of(std::size_t use) { return *units[shape.unit_of(use)]; }
    static std::size_t parameter_of(std::string_view name) { return name == "w" ? 0 : name == "b" ? 1 : 2; }
    handle weight_handle(std::size_t u) const { return w_[u]; }
    handle bias_handle(std::size_t u) const { return b_[u]; }

    template <class Work>
    void launch(Work work) {
        model.internals().device.launch(compute_, work);
    }

private:
    using call_type = oracle::layer_call<number, compute_type, gradient_type>;

    static reshard::model_options model_options_of(const trainer_options& options) {
        reshard::model_options out = options.model;
        out.average_over_ranks = out.average_over_microbatches = options.averaged;
        return out;
    }
    void declare(std::size_t u) {
        const std::size_t rows = shape.widths[u + 1], columns = shape.widths[u];
        const auto write = shape.overwrites ? reshard::gradient_write::overwrites : reshard::gradient_write::adds;
        std::vector<reshard::parameter_spec> parameters = {
            {"w", {rows, columns}, {.group = {}, .trainable = true, .write = write, .type = {}}},
            {"b", {rows}, {.group = "bias", .trainable = true, .write = {}, .type = {}}}};
        if (shape.frozen_part(u)) {
            parameters.push_back({"s", {rows}, {.group = {}, .trainable = false, .write = {}, .type = {}}});
        }
        auto& unit = model.add_unit("layer." + std::to_string(u), parameters,
                                    {.uses = shape.tied && u == 0 ? std::size_t{2} : std::size_t{1}});
        units.push_back(&unit);
        w_.push_back(unit.layout().parameter("w"));
        b_.push_back(unit.layout().parameter("b"));
        s_.push_back(shape.frozen_part(u) ? unit.layout().parameter("s") : w_.back());
    }
    void make_buffers() {
        samples_.resize(options_.max_microbatches);
        values_.resize(options_.max_microbatches);
        slopes_.resize(options_.max_microbatches);
        for (std::size_t m = 0; m < options_.max_microbatches; ++m) {
            for (std::size_t use = 0; use <= shape.uses(); ++use) {
                const std::size_t width = use < shape.uses() ? shape.inputs(use) : shape.outputs(use - 1);
                values_[m].emplace_back(shape.batch * width);
                slopes_[m].emplace_back(shape.batch * width);
            }
        }
    }
    void point(const char* where) {
        if (at_point) at_point(where);
    }
    void note(const void* address) {
        if (addresses != nullptr) addresses->push_back(address);
    }

    call_type bare_call(std::size_t m, std::size_t use) {
        call_type call;
        const std::size_t u = shape.unit_of(use);
        call.transposed = shape.transposed(use);
        call.x = values_[m][use].data();
        call.y = values_[m][use + 1].data();
        call.slopes = slopes_[m][use + 1].data();
        call.rows = static_cast<std::uint16_t>(shape.widths[u + 1]);
        call.columns = static_cast<std::uint16_t>(shape.widths[u]);
        call.samples = static_cast<std::uint16_t>(samples_[m].second);
        call.squashed = use + 1 < shape.uses();
        call.whole = shape.whole;
        return call;
    }
    template <class Scope>
    call_type call_of(Scope& scope, std::size_t m, std::size_t use) {
        call_type call = bare_call(m, use);
        const std::size_t u = shape.unit_of(use);
        call.w = scope[w_[u]].data();
        note(call.w);
        if (call.transposed) return call;
        call.b = scope[b_[u]].data();
        note(call.b);
        if (shape.frozen_part(u)) call.s = scope[s_[u]].data();
        note(call.s);
        return call;
    }
    template <class Scope>
    void with_gradients(Scope& scope, call_type& call, std::size_t use) {
        const std::size_t u = shape.unit_of(use);
        call.dw = scope.gradient(w_[u]).data();
        call.overwrite = scope.beta(w_[u]) == gradient_type(0);
        note(call.dw);
        if (call.transposed) return;
        call.db = scope.gradient(b_[u]).data();
        note(call.db);
    }
    template <class Scope, class Kernel>
    void compute(Scope& scope, std::size_t m, std::size_t use, number* out, Kernel kernel) {
        call_type call = call_of(scope, m, use);
        call.out = out;
        launch([call, kernel] { kernel(call); });
    }

    stream_ref compute_;
    trainer_options options_;
    std::size_t microbatches_ = 1;
    std::vector<handle> w_, b_, s_;
    std::vector<std::pair<std::size_t, std::size_t>> samples_;  // per microbatch in flight: first, count
};

/// Three steps of two microbatches with three evaluated batches before, between, behind and inside them, if wished.
template <class Trainer>
void train_three_steps(Trainer& one, bool validating) {
    const auto validate = [&] {
        for (int batch = 0; validating && batch < 3; ++batch) one.evaluate(0, 4, 3);
    };
    validate();
    for (int s = 0; s < 3; ++s) {
        one.begin(2);
        for (std::size_t m = 0; m < 2; ++m) {
            one.forward(m);
            if (s == 1) validate();
            one.backward(m);
        }
        one.step();
        validate();
    }
}

}  // namespace toy
