// SGD on the owned slices: one pass over the arena, behind the commit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../engine/model.hpp"
#include "settings.hpp"

namespace reshard {
inline namespace v0 {

/// What differs in a group of parameters from the optimizer's own numbers.
struct sgd_group {
    setting weight_decay = {};
    setting learning_rate_scale = {};  // multiplies the step's learning rate
};

/// A group's name, as in parameter_options.group, and its numbers.
struct named_sgd_group {
    std::string name;
    sgd_group numbers = {};
};

/// Defaults are PyTorch's. A momentum of 0 needs no state.
struct sgd_options {
    double learning_rate = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
    bool nesterov = false;
    std::vector<named_sgd_group> groups = {};
};

/// Numbers of one step; what is left out is as in the options. The same on all ranks.
struct sgd_step {
    setting learning_rate = {}, momentum = {}, dampening = {}, weight_decay = {};
    double gradient_scale = 1;  // a late factor of the gradients, before clipping
    double clip_norm = 0;       // 0: no clipping
};

/// Stochastic gradient descent as in PyTorch: decay is added to the gradient, momentum starts as the first gradient.
/// Make it before the model is built; it must live as long as the model takes steps.
template <class Model>
class sgd {
    using State = typename Model::state_type;

public:
    explicit sgd(Model& model, sgd_options options = {})
        : model_(model),
          options_(std::move(options)),
          with_momentum_(options_.momentum != 0) {
        if (with_momentum_) momentum_ = model.add_state("momentum");
        for (const named_sgd_group& group : options_.groups) names_.push_back(group.name);
        check(numbers_of(options_, {}, {}));
        for (const named_sgd_group& group : options_.groups) check(numbers_of(options_, {}, group.numbers));
    }
    ~sgd() { device_.settle(compute_); }  // which may still read the tables
    sgd(const sgd&) = delete;
    sgd& operator=(const sgd&) = delete;

    /// Ends the step: one commit, then the update if all ranks voted for it and every gradient is finite; model.outcome()
    /// tells. Throws argument_error before anything is sent.
    void step(const sgd_step& now = {}) {
        State& state = model_.internals();
        detail::require_step_through(state, "step()");
        if (tables_.empty()) {
            ranges_ = detail::group_ranges(state, names_, "sgd");
            tables_.fill(ranges_, state.device);
        }
        groups_.clear();
        groups_.push_back(numbers_of(options_, now, {}));
        for (const named_sgd_group& group : options_.groups) groups_.push_back(numbers_of(options_, now, group.numbers));
        for (const sgd_range& group : groups_) check(group);
        std::vector<sgd_range>& table = tables_.next(state.device);
        for (std::size_t r = 0; r < ranges_.size(); ++r) {
            sgd_range row = groups_[ranges_[r].group];
            row.begin = ranges_[r].begin;
            row.count = ranges_[r].count;
            table[r] = row;
        }
        model_.step({now.gradient_scale, now.clip_norm, 0}, {&sgd::update, this});
    }

private:
    static sgd_range numbers_of(const sgd_options& options, const sgd_step& now, const sgd_group& group) {
        return {0, 0,
                now.learning_rate.or_else(options.learning_rate) * group.learning_rate_scale.or_else(1),
                now.momentum.or_else(options.momentum),
                now.dampening.or_else(options.dampening),
                group.weight_decay.or_else(now.weight_decay.or_else(options.weight_decay)),
                options.nesterov};
    }
    static void check(const sgd_range& numbers) {
        constexpr double any = 1e308;
        detail::require_number("sgd", "learning_rate", numbers.learning_rate, 0, any);
        detail::require_number("sgd", "momentum", numbers.momentum, 0, any);
        detail::require_number("sgd", "dampening", numbers.dampening, 0, any);
        detail::require_number("sgd", "weight_decay", numbers.weight_decay, 0, any);
    }

    /// Runs between vote and the next use of the weights. One kernel: it is enqueued, or this throws.
    static void update(void* self) { static_cast<sgd*>(self)->enqueue_update(); }
    void enqueue_update() {
        using moment_type = typename State::moment_type;
        State& state = model_.internals();
        const auto& table = tables_.now();
        auto* momentum = with_momentum_ ? reinterpret_cast<moment_type*>(state.moments[momentum_.index].data()) : nullptr;
        state.device.sgd(table.data(), table.size(), state.outcome(),
                           reinterpret_cast<typename State::master_type*>(state.masters.data()),
                           reinterpret_cast<const typename State::accumulate_type*>(state.gradients.data()),
                           momentum, state.compute);
        tables_.mark_read(state.device, state.compute);
    }

    Model& model_;
    typename State::device_type device_ = model_.internals().device;
    typename State::stream_ref compute_ = model_.internals().compute;
    sgd_options options_;
    bool with_momentum_;
    state_handle momentum_;
    std::vector<std::string> names_;
    std::vector<detail::group_range> ranges_;
    std::vector<sgd_range> groups_;
    detail::range_tables<sgd_range, typename State::device_type> tables_;
};

}  // namespace v0
}  // namespace reshard
