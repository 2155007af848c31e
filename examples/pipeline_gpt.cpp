// Trains the GPT of train_gpt.cpp in a pipeline of two stages, each sharded over its own ranks. The pipeline is this
// trainer's: it cuts the layers into stages, gives every stage's ranks to a model of their own, and sends activations
// and their gradients between stages. The library is told the order of the passes and gathers and reduces along it.
#include "gpt/pipeline.hpp"

#include "gpt/allocations.hpp"
#include "gpt/counted_units.hpp"
#include "gpt/launch.hpp"
#include "gpt/link.hpp"
#include "gpt/model.hpp"
#include "gpt/options.hpp"
#include "gpt/pipeline_report.hpp"
#include "gpt/random.hpp"
#include "gpt/report.hpp"
#include "gpt/schedule.hpp"
#include "gpt/text.hpp"
#include "gpt/weights_hash.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace gpt;
using reshard::phase;

/// The parameters of one layer: a unit of the model, and handles to its parameters in the order of their list.
template <class Model>
struct unit {
    using Real = typename Model::compute_type;

    unit(Model& model, const std::string& name, std::vector<parameter_facts> list)
        : facts(std::move(list)), of(model.add_unit(name, specs(facts))) {
        for (const parameter_facts& p : facts) {
            handles.push_back(of.layout().parameter(p.name));
        }
    }
    static std::vector<reshard::parameter_spec> specs(const std::vector<parameter_facts>& list) {
        std::vector<reshard::parameter_spec> out;
        for (const parameter_facts& p : list) {
            out.push_back({p.name, p.shape, {.group = p.decays ? "" : "plain"}});
        }
        return out;
    }

    /// Pointers into an open scope.
    template <template <class> class Pointers>
    auto weights(const auto& scope) const {
        return point<Pointers<const Real>>([&](std::size_t i) { return scope[handles[i]].data(); });
    }
    template <template <class> class Pointers>
    auto gradients(auto& scope) const {
        return point<Pointers<Real>>([&](std::size_t i) { return scope.gradient(handles[i]).data(); });
    }

    std::vector<parameter_facts> facts;
    typename Model::unit& of;
    std::vector<reshard::parameter<Real>> handles;
};

/// `Link` has send(span, rank) and receive(span, rank), as mpi_session has.
template <class Real, class Communicator, class Link>
class trainer {
    using policy = decltype(chosen_policy<Real>(options{}));
    using model_type = reshard::sharded_model<policy, counted_units<Communicator>>;

    /// Layers of this stage that follow one another: units [first, first + count) of the model.
    struct chunk {
        std::size_t first = 0, count = 0, blocks = 0;
        bool embeds = false, ends = false;         // has the first, the last layers of all
        std::vector<activations<Real>> kept = {};  // by microbatch: from its forward to the end of its backward
    };

public:
    trainer(const options& chosen, Communicator world, Link& link)
        : options_(chosen),
          link_(link),
          shards_(world.size() / stages),
          stage_(world.rank() / shards_),
          shard_(static_cast<integer>(world.rank() % shards_)),
          partner_((stages - 1 - stage_) * shards_ + world.rank() % shards_),
          timeline_(timeline_of(chosen.schedule, microbatches())),
          text_(text::read(chosen.text, static_cast<std::size_t>(chosen.shape.context), chosen.seed)),
          sequences_(chosen.batch / chosen.microbatches / static_cast<integer>(shards_)),
          batches_(microbatches()),
          journal_(chosen, world.rank() == 0),
          group_(world.split(stage_, world.rank())),
          model_({group_.view(), counts_, unit_counts_}, {.average_over_ranks = false}, chosen_policy<Real>(chosen)),
          optimizer_(model_,
                     {.beta2 = 0.95, .weight_decay = chosen.weight_decay, .groups = {{"plain", {.weight_decay = 0}}}}),
          loss_(model_.add_metric("loss")),
          tied_squares_(model_.add_metric("tied squares")) {
        for (std::size_t c = stage_; c < chunks(); c += stages) {
            add_chunk(c);
        }
        model_.initialize([&](const reshard::parameter_info& p, std::size_t first, std::span<Real> values) {
            const bool table = p.name == "wte" || p.name == "wpe";  // one unit in trainers without a pipeline
            fill_initial(values, chosen.seed, table ? "embedding" : p.unit, units_[p.unit_index].facts[p.index], first);
        });
        for (const auto& slice : model_.owned()) {
            if (slice.parameter.name == "wte") {
                tied_.push_back({slice.arena_offset, slice.count});
                theirs_.resize(std::max(theirs_.size(), slice.count));
            }
        }
        plan_passes();
        journal_.say("stage " + std::to_string(stage_) + " of " + std::to_string(stages) + '\n' + model_.describe());
        traffic_.end_setup();
    }

    void train() {
        for (integer step = 0; step < options_.steps; ++step) {
            if (options_.eval_every > 0 && step % options_.eval_every == 0) {
                journal_.validation(step, validate());
            }
            journal_.begin_step();
            const std::size_t allocated = allocations();
            unit_counts_.counting = true;
            run_schedule(step);
            tie_embedding();
            const auto [loss, norm] = loss_and_norm();
            const double learning_rate = learning_rate_at(step, options_.steps, options_.learning_rate);
            const bool odd_loss = losses_.rejects(loss, options_.outlier_limit);
            const bool skipped = norms_.rejects(norm, options_.outlier_limit) || odd_loss;
            if (skipped) {
                model_.discard_step();
            } else {
                const double factor = norm > options_.clip_norm ? options_.clip_norm / norm : 1;
                optimizer_.step({.learning_rate = learning_rate, .gradient_scale = factor});
            }
            unit_counts_.counting = false;
            count_step(skipped, allocations() - allocated);
            journal_.end_step({loss, norm, learning_rate, skipped});
        }
        journal_.validation(options_.steps, validate());
        report();
    }

private:
    // ------------------------------------------------------------------------------------------------- the stage
    std::size_t chunks() const { return stages * chunks_of_a_stage(options_.schedule); }
    std::size_t microbatches() const { return static_cast<std::size_t>(options_.microbatches); }
    chunk& chunk_of(std::size_t number) { return chunks_[number / stages]; }
    unit<model_type>& block(const chunk& c, std::size_t l) { return units_[c.first + (c.embeds ? 2 : 0) + l]; }
    unit<model_type>& table() { return units_[0]; }                      // of the first chunk
    unit<model_type>& places() { return units_[1]; }                     // of the first chunk
    unit<model_type>& last_norm() { return units_[units_.size() - 2]; }  // of the last chunk
    unit<model_type>& head() { return units_.back(); }                   // of the last chunk

    void add_unit(const std::string& name, std::vector<parameter_facts> list) {
        units_.emplace_back(model_, name, std::move(list));
        unit_counts_.add_unit(name);
    }

    /// The tied table is a unit of its own at both ends, so that both are cut alike: rank r here and rank r there own
    /// the same rows.
    void add_chunk(std::size_t number) {
        model_shape shape = options_.shape;
        const std::size_t layers = static_cast<std::size_t>(shape.layers), before = number * layers / chunks();
        chunk c;
        c.first = units_.size();
        c.blocks = (number + 1) * layers / chunks() - before;
        c.embeds = number == 0;
        c.ends = number + 1 == chunks();
        const auto tables = embedding_parameters(shape);
        if (c.embeds) {
            add_unit("wte", {tables[0]});
            add_unit("wpe", {tables[1]});
        }
        for (std::size_t l = before; l < before + c.blocks; ++l) {
            add_unit("h." + std::to_string(l), block_parameters(shape));
        }
        if (c.ends) {
            add_unit("ln_f", norm_parameters(shape));
            add_unit("wte", {tables[0]});
        }
        c.count = units_.size() - c.first;
        shape.layers = static_cast<integer>(c.blocks);
        c.kept.assign(microbatches(), activations<Real>(shape, sequences_, options_.schedule == "split"));
        for (auto& a : c.kept) {
            a.rows = sequences_ * shape.context;
        }
        chunks_.push_back(std::move(c));
    }

    /// This stage's part of the timeline, as the model wants it: passes over stretches of its units.
    void plan_passes() {
        for (const tick& now : timeline_) {
            if (const auto& mine = now[stage_]) {
                passes_.push_back(
                    {mine->what, mine->microbatch, chunk_of(mine->chunk).first, chunk_of(mine->chunk).count});
            }
        }
        unit_forecast_ = unit_forecast(model_.plan(), passes_, microbatches());
    }

    // -------------------------------------------------------------------------------------------------- one step
    void run_schedule(integer step) {
        for (std::size_t m = 0; m < microbatches(); ++m) {
            text_.training(batches_[m], step, (static_cast<integer>(m * shards_) + shard_) * sequences_, sequences_);
        }
        loss_sum_ = 0;
        model_.begin_step({.microbatches = microbatches(), .schedule = passes_});
        for (const tick& now : timeline_) {
            if (const auto& mine = now[stage_]) {
                run(*mine);
            }
            pass_on(now[stage_], now[stages - 1 - stage_]);
        }
    }

    void run(const work& now) {
        chunk& c = chunk_of(now.chunk);
        switch (now.what) {
        case phase::forward:
            return forward(c, now.microbatch);
        case phase::backward:
            return backward(c, now.microbatch);
        case phase::backward_input:
            return backward_input(c, now.microbatch);
        case phase::backward_weight:
            return backward_weight(c, now.microbatch);
        }
    }

    /// Results of a tick go to the stage that needs them, and theirs come here. Both stages know both passes, and the
    /// first one sends first, so nobody waits in a circle.
    void pass_on(const std::optional<work>& mine, const std::optional<work>& theirs) {
        const auto out = mine ? mine->next_chunk(chunks()) : std::nullopt;
        const auto in = theirs ? theirs->next_chunk(chunks()) : std::nullopt;
        const auto send = [&] {
            if (out) {
                const auto& a = chunk_of(mine->chunk).kept[mine->microbatch];
                link_.send(stream_of(a, mine->is_forward() ? a.stream(a.blocks.size()) : a.dstream.data()), partner_);
            }
        };
        const auto receive = [&] {
            if (in) {
                auto& a = chunk_of(*in).kept[theirs->microbatch];
                link_.receive(stream_of(a, theirs->is_forward() ? a.embedded.data() : a.dstream.data()), partner_);
            }
        };
        stage_ == 0 ? (send(), receive()) : (receive(), send());
    }
    /// A residual stream, or its gradient: what stages send each other.
    template <class Number>
    static std::span<Number> stream_of(const activations<Real>& a, Number* data) {
        return {data, static_cast<std::size_t>(a.rows * a.shape.width)};
    }

    void forward(chunk& c, std::size_t m) {
        auto& a = c.kept[m];
        if (c.embeds) {
            {
                const auto scope = table().of.forward(m);
                table_forward(a, batches_[m].inputs, scope[table().handles[0]].data());
            }
            const auto scope = places().of.forward(m);
            places_forward(a, scope[places().handles[0]].data());
        }
        for (std::size_t l = 0; l < c.blocks; ++l) {
            const auto scope = block(c, l).of.forward(m);
            block_forward(a, l, block(c, l).template weights<block_pointers>(scope));
        }
        if (c.ends) {
            {
                const auto scope = last_norm().of.forward(m);
                norm_forward(a, last_norm().template weights<norm_pointers>(scope));
            }
            const auto scope = head().of.forward(m);
            head_forward(a, {scope[head().handles[0]].data(), nullptr});
            loss_sum_ += loss_sum<Real>(a, batches_[m].targets);
        }
    }

    /// Gradients are those of the mean loss over the global batch.
    double loss_factor() const { return 1.0 / static_cast<double>(options_.tokens()); }

    void backward(chunk& c, std::size_t m) {
        auto& a = c.kept[m];
        if (c.ends) {
            {
                auto scope = head().of.backward(m);
                const auto& wte = head().handles[0];
                head_backward(a, batches_[m].targets, loss_factor(), {scope[wte].data(), nullptr},
                              {scope.gradient(wte).data(), nullptr});
            }
            auto scope = last_norm().of.backward(m);
            norm_backward(a, last_norm().template weights<norm_pointers>(scope),
                          last_norm().template gradients<norm_pointers>(scope));
        }
        for (std::size_t l = c.blocks; l-- > 0;) {
            auto scope = block(c, l).of.backward(m);
            block_backward(a, l, block(c, l).template weights<block_pointers>(scope),
                           block(c, l).template gradients<block_pointers>(scope));
        }
        if (c.embeds) {
            {
                auto scope = places().of.backward(m);
                places_backward(a, scope.gradient(places().handles[0]).data());
            }
            auto scope = table().of.backward(m);
            table_backward(a, batches_[m].inputs, scope.gradient(table().handles[0]).data());
        }
    }

    /// Gradients of the activations: what the other stage waits for.
    void backward_input(chunk& c, std::size_t m) {
        auto& a = c.kept[m];
        if (c.ends) {
            {
                const auto scope = head().of.backward_input(m);
                head_backward_input(a, batches_[m].targets, loss_factor(), {scope[head().handles[0]].data(), nullptr});
            }
            const auto scope = last_norm().of.backward_input(m);
            norm_backward_input(a, last_norm().template weights<norm_pointers>(scope));
        }
        for (std::size_t l = c.blocks; l-- > 0;) {
            const auto scope = block(c, l).of.backward_input(m);
            block_backward_input(a, l, block(c, l).template weights<block_pointers>(scope));
        }
        if (c.embeds) {  // bytes have no gradient; the list has the tables all the same
            {
                const auto scope = places().of.backward_input(m);
            }
            const auto scope = table().of.backward_input(m);
        }
    }

    /// Gradients of the weights: nobody waits for them but the end of the step.
    void backward_weight(chunk& c, std::size_t m) {
        auto& a = c.kept[m];
        if (c.ends) {
            {
                auto scope = head().of.backward_weight(m);
                head_backward_weight(a, {scope.gradient(head().handles[0]).data(), nullptr});
            }
            auto scope = last_norm().of.backward_weight(m);
            norm_backward_weight(a, last_norm().template gradients<norm_pointers>(scope));
        }
        for (std::size_t l = c.blocks; l-- > 0;) {
            auto scope = block(c, l).of.backward_weight(m);
            block_backward_weight(a, l, block(c, l).template gradients<block_pointers>(scope));
        }
        if (c.embeds) {
            {
                auto scope = places().of.backward_weight(m);
                places_backward(a, scope.gradient(places().handles[0]).data());
            }
            auto scope = table().of.backward_weight(m);
            table_backward(a, batches_[m].inputs, scope.gradient(table().handles[0]).data());
        }
    }

    // ------------------------------------------------------------------------------------ the end of a step
    /// Both ends of the model hold the table, and each has found its own part of the gradient. After the last backward
    /// and before the norm each adds the other's part: equal sums, so that both copies take equal steps.
    void tie_embedding() {
        const std::span<Real> gradients = model_.write_gradients();
        double squares = 0;
        for (const auto& [first, count] : tied_) {
            const std::span<Real> mine = gradients.subspan(first, count), theirs(theirs_.data(), count);
            swap<Real>(mine, theirs);
            for (std::size_t i = 0; i < count; ++i) {
                mine[i] += theirs[i];
                squares += static_cast<double>(mine[i]) * static_cast<double>(mine[i]);
            }
        }
        const auto& plan = model_.plan();
        const std::size_t holders = plan.ranks / plan.divided_by(plan.units[units_.size() - 1].optimizer);
        model_.set_metric(tied_squares_, squares / static_cast<double>(holders));
        model_.set_metric(loss_, loss_sum_);
    }

    /// Mean loss over the global batch, and norm of the gradient of the whole model, the table counted once: the same
    /// bits on all ranks of both stages, so that both clip and skip alike.
    std::pair<double, double> loss_and_norm() {
        const double norm = model_.gradient_norm();
        const std::array<double, 3> mine{model_.metric_sum(loss_), norm * norm,
                                         stage_ == 0 ? 0 : model_.metric_sum(tied_squares_)};
        std::array<double, 3> theirs{};
        swap<double>(mine, theirs);
        return {(mine[0] + theirs[0]) / static_cast<double>(options_.tokens()),
                std::sqrt(mine[1] + theirs[1] - (mine[2] + theirs[2]))};
    }

    template <class Number>
    void swap(std::span<const Number> mine, std::span<Number> theirs) {
        if (stage_ == 0) {
            link_.send(mine, partner_);
            link_.receive(theirs, partner_);
        } else {
            link_.receive(theirs, partner_);
            link_.send(mine, partner_);
        }
    }

    /// Mean loss over four global batches of text that is not trained on: forwards alone, one microbatch at a time.
    double validate() {
        const integer shards = static_cast<integer>(shards_), rounds = 4 * options_.microbatches;
        loss_sum_ = 0;
        {
            const auto evaluation = model_.evaluate();
            for (integer r = 0; r < rounds; ++r) {
                text_.validation(batches_[0], rounds * shards * sequences_, (r * shards + shard_) * sequences_,
                                 sequences_);
                evaluate_batch();
            }
        }
        model_.set_metric(loss_, loss_sum_);
        const std::array<double, 1> mine{model_.metric_sum(loss_)};
        std::array<double, 1> theirs{};
        swap<double>(mine, theirs);
        count_evaluation(static_cast<std::size_t>(rounds), 1);
        return (mine[0] + theirs[0]) / static_cast<double>(4 * options_.tokens());
    }
    void evaluate_batch() {
        for (std::size_t number = 0; number < chunks(); ++number) {
            const std::optional<work> now = work{phase::forward, 0, number};
            const bool here = number % stages == stage_;
            if (here) {
                run(*now);
            }
            pass_on(here ? now : std::nullopt, here ? std::nullopt : now);
        }
    }

    // -------------------------------------------------------------------------------------------------- report
    void count_step(bool skipped, std::size_t allocated) {
        traffic_.end_train();
        unit_forecast_.add_step(weights_seen_, skipped);
        weights_seen_ = skipped;
        if (!skipped) {
            forecast_.new_weights();
        }
        if (model_.steps() > 1) {
            allocated_ += allocated;
        }
    }
    void count_evaluation(std::size_t passes, std::size_t sums) {
        traffic_.end_evaluate();
        forecast_.add(model_.plan(), passes, sums);
        weights_seen_ = true;
    }

    /// The tied table of this stage.
    std::string embedding_hash() {
        weights_hash hash;
        {
            const auto evaluation = model_.evaluate();
            for (auto& u : units_) {
                const auto scope = u.of.forward();
                if (u.of.name() == "wte") {
                    hash.add(scope[u.handles[0]]);
                }
            }
        }
        count_evaluation(1, 0);
        return hash.text();
    }

    /// The first rank writes for both stages.
    void report() {
        const std::string hash = embedding_hash();
        const sharding_facts sharding{model_.report(), &traffic_, forecast_.sum, allocated_};
        const nlohmann::ordered_json mine =
            to_json(stage_facts{stage_, sharding, &unit_counts_, &unit_forecast_, hash});
        if (stage_ != 0) {
            const std::string words = mine.dump();
            const std::array<std::size_t, 1> length{words.size()};
            link_.send(std::span<const std::size_t>(length), partner_);
            link_.send(std::span<const char>(words), partner_);
            return;
        }
        std::array<std::size_t, 1> length{};
        link_.receive(std::span<std::size_t>(length), partner_);
        std::string words(length[0], ' ');
        link_.receive(std::span<char>(words), partner_);
        auto all = journal_.facts();
        all["schedule"] = options_.schedule;
        all["stages"] = {mine, nlohmann::ordered_json::parse(words)};
        journal_.say(units_table(all["stages"]));
        journal_.write(all);
    }

    options options_;
    Link& link_;
    std::size_t shards_, stage_;
    integer shard_;
    std::size_t partner_;  // the rank of the other stage with the same shard
    std::vector<tick> timeline_;
    std::vector<reshard::pass> passes_;
    text text_;
    integer sequences_;  // of a rank and microbatch
    std::vector<batch> batches_;
    journal journal_;
    reshard::counter counts_;
    unit_counter unit_counts_;
    traffic_split traffic_{counts_};
    evaluation_forecast forecast_;
    unit_forecast unit_forecast_;
    bool weights_seen_ = false;  // since they changed
    std::size_t allocated_ = 0;  // in steps after the first
    typename Communicator::owner group_;
    model_type model_;
    std::deque<unit<model_type>> units_;
    std::vector<chunk> chunks_;
    reshard::adamw<model_type> optimizer_;
    reshard::metric loss_, tied_squares_;
    std::vector<std::pair<std::size_t, std::size_t>> tied_;  // where this rank's rows of the table lie in the arenas
    std::vector<Real> theirs_;
    double loss_sum_ = 0;
    outlier_detector losses_, norms_;
};

template <class Communicator, class Link>
void train(const options& chosen, Communicator world, Link& link) {
    if (chosen.type == "double") {
        trainer<double, Communicator, Link>(chosen, world, link).train();
    } else {
        trainer<float, Communicator, Link>(chosen, world, link).train();
    }
}

int main(int argc, char** argv) {
    return guarded("pipeline_gpt", [&] {
        options chosen = parse_options(argc, argv, true, stages);
        Eigen::setNbThreads(1);
        if (chosen.backend == "mpi") {
            launch_mpi(chosen, argc, argv, [&](auto& session) { train(chosen, session.world(), session); });
            return;
        }
        meeting_places places(static_cast<std::size_t>(chosen.ranks));
        reshard::run_threads(static_cast<std::size_t>(chosen.ranks), [&](reshard::threads_communicator world) {
            thread_link link(places, world.rank());
            try {
                train(chosen, world, link);
            } catch (...) {
                places.close(world.rank());
                throw;
            }
        });
    });
}
