// Trains a small GPT of bytes with parameters, gradients and optimizer state sharded over ranks: plain_gpt.cpp beside
// it with the library. Layers, loop and numbers are the same.
#include "gpt/allocations.hpp"
#include "gpt/launch.hpp"
#include "gpt/model.hpp"
#include "gpt/options.hpp"
#include "gpt/random.hpp"
#include "gpt/report.hpp"
#include "gpt/sample.hpp"
#include "gpt/schedule.hpp"
#include "gpt/text.hpp"
#include "gpt/traffic.hpp"
#include "gpt/weights_hash.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace gpt;

/// The parameters of one layer: a unit of the model, and handles to its parameters in the order of their list.
template <class Model>
struct unit {
    using Real = typename Model::compute_type;

    unit(Model& model, std::string name, const std::vector<parameter_facts>& list, std::size_t uses = 1)
        : layout(model.layout(specs(list))), of(model.add_unit(std::move(name), layout, {.uses = uses})) {
        for (const parameter_facts& p : list) {
            handles.push_back(layout.parameter(p.name));
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

    const typename Model::layout_type& layout;
    typename Model::unit& of;
    std::vector<reshard::parameter<Real>> handles;
};

template <class Real, class Communicator>
class trainer {
    using policy = decltype(chosen_policy<Real>(options{}));
    using model_type = reshard::sharded_model<policy, reshard::counted<Communicator>>;

public:
    trainer(const options& chosen, Communicator world)
        : options_(chosen),
          rank_(static_cast<integer>(world.rank())),
          text_(text::read(chosen.text, static_cast<std::size_t>(chosen.shape.context), chosen.seed)),
          sequences_(chosen.batch / chosen.microbatches / chosen.ranks),
          activations_(chosen.shape, sequences_),
          journal_(chosen, world.rank() == 0),
          model_({world, counts_}, {.average_over_ranks = false}, chosen_policy<Real>(chosen)),
          tokens_(model_, "embedding", embedding_parameters(chosen.shape), 2),  // at both ends
          blocks_(make_blocks(chosen.shape)),
          last_(model_, "ln_f", norm_parameters(chosen.shape)),
          optimizer_(model_,
                     {.beta2 = 0.95, .weight_decay = chosen.weight_decay, .groups = {{"plain", {.weight_decay = 0}}}}),
          loss_(model_.add_metric("loss")) {
        std::vector<typename model_type::unit*> order{&tokens_.of};
        for (auto& block : blocks_) {
            order.push_back(&block.of);
        }
        order.insert(order.end(), {&last_.of, &tokens_.of});
        model_.set_order(order);
        model_.initialize([&](const reshard::parameter_info& p, std::size_t first, std::span<Real> values) {
            fill_initial(values, chosen.seed, p.unit, facts_of(p), first);
        });
        journal_.say(model_.describe());
        traffic_.end_setup();
    }

    void train() {
        for (integer step = 0; step < options_.steps; ++step) {
            if (options_.eval_every > 0 && step % options_.eval_every == 0) {
                journal_.validation(step, validate());
            }
            journal_.begin_step();
            const std::size_t allocated = allocations();
            const double loss = accumulate(step);
            const double norm = model_.gradient_norm();
            const double learning_rate = learning_rate_at(step, options_.steps, options_.learning_rate);
            const bool odd_loss = losses_.rejects(loss, options_.outlier_limit);
            const bool skipped = norms_.rejects(norm, options_.outlier_limit) || odd_loss;
            if (skipped) {
                model_.discard_step();
            } else {
                optimizer_.step({.learning_rate = learning_rate, .clip_norm = options_.clip_norm});
            }
            count_step(skipped, allocations() - allocated);
            journal_.end_step({loss, norm, learning_rate, skipped});
        }
        journal_.validation(options_.steps, validate());
        if (options_.sample_bytes > 0) {
            journal_.say("sample:\n" + printable(sample()));
        }
        report();
    }

private:
    void forward(std::span<const std::uint8_t> inputs) {
        {
            const auto scope = tokens_.of.forward();
            embedding_forward(activations_, inputs, tokens_.template weights<embedding_pointers>(scope));
        }
        for (std::size_t l = 0; l < blocks_.size(); ++l) {
            const auto scope = blocks_[l].of.forward();
            block_forward(activations_, l, blocks_[l].template weights<block_pointers>(scope));
        }
        {
            const auto scope = last_.of.forward();
            norm_forward(activations_, last_.template weights<norm_pointers>(scope));
        }
        const auto scope = tokens_.of.forward();
        head_forward(activations_, tokens_.template weights<embedding_pointers>(scope));
    }

    /// Adds the gradient of `factor` times the sum of losses.
    void backward(const batch& b, double factor) {
        {
            auto scope = tokens_.of.backward();
            head_backward(activations_, b.targets, factor, tokens_.template weights<embedding_pointers>(scope),
                          tokens_.template gradients<embedding_pointers>(scope));
        }
        {
            auto scope = last_.of.backward();
            norm_backward(activations_, last_.template weights<norm_pointers>(scope),
                          last_.template gradients<norm_pointers>(scope));
        }
        for (std::size_t l = blocks_.size(); l-- > 0;) {
            auto scope = blocks_[l].of.backward();
            block_backward(activations_, l, blocks_[l].template weights<block_pointers>(scope),
                           blocks_[l].template gradients<block_pointers>(scope));
        }
        auto scope = tokens_.of.backward();
        embedding_backward(activations_, b.inputs, tokens_.template gradients<embedding_pointers>(scope));
    }

    /// Gradients of the mean loss over the global batch; gives that loss.
    double accumulate(integer step) {
        model_.begin_step({.microbatches = static_cast<std::size_t>(options_.microbatches)});
        double sum = 0;
        for (integer m = 0; m < options_.microbatches; ++m) {
            text_.training(batch_, step, (m * options_.ranks + rank_) * sequences_, sequences_);
            forward(batch_.inputs);
            sum += loss_sum<Real>(activations_, batch_.targets);
            backward(batch_, 1.0 / static_cast<double>(options_.tokens()));
        }
        model_.set_metric(loss_, sum);
        return model_.metric_sum(loss_) / static_cast<double>(options_.tokens());
    }

    /// Mean loss over four global batches of text that is not trained on.
    double validate() {
        const integer rounds = 4 * options_.microbatches, total = rounds * options_.ranks * sequences_;
        double sum = 0;
        {
            const auto evaluation = model_.evaluate();
            for (integer r = 0; r < rounds; ++r) {
                text_.validation(batch_, total, (r * options_.ranks + rank_) * sequences_, sequences_);
                forward(batch_.inputs);
                sum += loss_sum<Real>(activations_, batch_.targets);
            }
        }
        model_.set_metric(loss_, sum);
        const double mean = model_.metric_sum(loss_) / static_cast<double>(4 * options_.tokens());
        count_evaluation(static_cast<std::size_t>(rounds), 1);
        return mean;
    }

    /// All ranks together: each gather needs all of them.
    std::string sample() {
        const auto evaluation = model_.evaluate();
        std::size_t passes = 0;
        std::string written = sample_text(
            activations_, [&](std::span<const std::uint8_t> inputs) { ++passes, forward(inputs); },
            static_cast<std::size_t>(options_.sample_bytes), options_.temperature, options_.seed);
        count_evaluation(passes, 0);
        return written;
    }

    std::vector<unit<model_type>> make_blocks(const model_shape& shape) {
        std::vector<unit<model_type>> blocks;
        for (integer l = 0; l < shape.layers; ++l) {
            blocks.emplace_back(model_, "h." + std::to_string(l), block_parameters(shape));
        }
        return blocks;
    }
    const parameter_facts& facts_of(const reshard::parameter_info& p) const {
        const std::size_t blocks = blocks_.size();
        return p.unit_index == 0        ? facts_[0][p.index]
               : p.unit_index <= blocks ? facts_[1][p.index]
                                        : facts_[2][p.index];
    }

    // -------------------------------------------------------------------------------------------------- report
    void count_step(bool skipped, std::size_t allocated) {
        traffic_.end_train();
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
    }

    void report() {
        weights_hash hash;
        {
            const auto evaluation = model_.evaluate();
            const auto add = [&](unit<model_type>& u) {
                const auto scope = u.of.forward();
                for (const auto& handle : u.handles) {
                    hash.add(scope[handle]);
                }
            };
            add(tokens_);
            for (auto& block : blocks_) {
                add(block);
            }
            add(last_);
            const auto again = tokens_.of.forward();  // completes the pass
        }
        count_evaluation(1, 0);
        const sharding_facts facts{model_.report(), &traffic_, forecast_.sum, allocated_};
        journal_.say(to_table(facts));
        auto all = journal_.facts();
        all.update(to_json(facts));
        all["weights_xxh3"] = hash.text();
        journal_.write(all);
    }

    options options_;
    integer rank_;
    text text_;
    integer sequences_;  // of a rank and microbatch
    activations<Real> activations_;
    journal journal_;
    reshard::counter counts_;
    traffic_split traffic_{counts_};
    evaluation_forecast forecast_;
    std::size_t allocated_ = 0;  // in steps after the first
    std::vector<parameter_facts> facts_[3] = {embedding_parameters(options_.shape), block_parameters(options_.shape),
                                              norm_parameters(options_.shape)};
    model_type model_;
    unit<model_type> tokens_;
    std::vector<unit<model_type>> blocks_;
    unit<model_type> last_;
    reshard::adamw<model_type> optimizer_;
    reshard::metric loss_;
    batch batch_;
    outlier_detector losses_, norms_;
};

int main(int argc, char** argv) {
    return guarded("train_gpt", [&] {
        options chosen = parse_options(argc, argv, true);
        launch(chosen, argc, argv, [&](auto world) {
            if (chosen.type == "double") {
                trainer<double, decltype(world)>(chosen, world).train();
            } else {
                trainer<float, decltype(world)>(chosen, world).train();
            }
        });
    });
}
