// Trains a small GPT of bytes on one process, written without the library: the measure for train_gpt.cpp beside it.
#include "gpt/model.hpp"
#include "gpt/options.hpp"
#include "gpt/random.hpp"
#include "gpt/report.hpp"
#include "gpt/sample.hpp"
#include "gpt/schedule.hpp"
#include "gpt/text.hpp"
#include "gpt/weights_hash.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace gpt;

/// The parameters of one layer, with everything a trainer keeps for them: four arenas of one length.
template <class Real>
struct unit {
    unit(std::string chosen, std::vector<parameter_facts> list) : name(std::move(chosen)), parameters(std::move(list)) {
        for (const parameter_facts& p : parameters) {
            starts.push_back(weights.size());
            weights.resize(weights.size() + p.count());
        }
        gradients.resize(weights.size());
        first_moments.resize(weights.size());
        second_moments.resize(weights.size());
    }

    /// Pointers to weights (const Real) or gradients (Real).
    template <template <class> class Pointers>
    auto weight_pointers() const {
        return point<Pointers<const Real>>([&](std::size_t i) { return weights.data() + starts[i]; });
    }
    template <template <class> class Pointers>
    auto gradient_pointers() {
        return point<Pointers<Real>>([&](std::size_t i) { return gradients.data() + starts[i]; });
    }

    std::string name;
    std::vector<parameter_facts> parameters;
    std::vector<std::size_t> starts;
    std::vector<Real> weights, gradients, first_moments, second_moments;
};

template <class Real>
class trainer {
public:
    explicit trainer(const options& chosen)
        : options_(chosen),
          text_(text::read(chosen.text, static_cast<std::size_t>(chosen.shape.context), chosen.seed)),
          sequences_(chosen.batch / chosen.microbatches),
          activations_(chosen.shape, sequences_),
          journal_(chosen, true) {
        units_.emplace_back("embedding", embedding_parameters(chosen.shape));
        for (integer l = 0; l < chosen.shape.layers; ++l) {
            units_.emplace_back("h." + std::to_string(l), block_parameters(chosen.shape));
        }
        units_.emplace_back("ln_f", norm_parameters(chosen.shape));
        for (auto& u : units_) {
            for (std::size_t i = 0; i < u.parameters.size(); ++i) {
                const std::span<Real> values(u.weights.data() + u.starts[i], u.parameters[i].count());
                fill_initial(values, chosen.seed, u.name, u.parameters[i]);
            }
        }
    }

    void train() {
        for (integer step = 0; step < options_.steps; ++step) {
            if (options_.eval_every > 0 && step % options_.eval_every == 0) {
                journal_.validation(step, validate());
            }
            journal_.begin_step();
            const double loss = accumulate(step);
            const double norm = gradient_norm();
            const double learning_rate = learning_rate_at(step, options_.steps, options_.learning_rate);
            const bool odd_loss = losses_.rejects(loss, options_.outlier_limit);
            const bool skipped = norms_.rejects(norm, options_.outlier_limit) || odd_loss;
            if (!skipped) {
                update(learning_rate, norm > options_.clip_norm ? options_.clip_norm / norm : 1);
            }
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
        embedding_forward(activations_, inputs, tokens().template weight_pointers<embedding_pointers>());
        for (std::size_t l = 0; l < blocks(); ++l) {
            block_forward(activations_, l, block(l).template weight_pointers<block_pointers>());
        }
        norm_forward(activations_, last().template weight_pointers<norm_pointers>());
        head_forward(activations_, tokens().template weight_pointers<embedding_pointers>());
    }

    /// Adds the gradient of `factor` times the sum of losses.
    void backward(const batch& b, double factor) {
        head_backward(activations_, b.targets, factor, tokens().template weight_pointers<embedding_pointers>(),
                      tokens().template gradient_pointers<embedding_pointers>());
        norm_backward(activations_, last().template weight_pointers<norm_pointers>(),
                      last().template gradient_pointers<norm_pointers>());
        for (std::size_t l = blocks(); l-- > 0;) {
            block_backward(activations_, l, block(l).template weight_pointers<block_pointers>(),
                           block(l).template gradient_pointers<block_pointers>());
        }
        embedding_backward(activations_, b.inputs, tokens().template gradient_pointers<embedding_pointers>());
    }

    /// Gradients of the mean loss over the global batch; gives that loss.
    double accumulate(integer step) {
        for (auto& u : units_) {
            std::fill(u.gradients.begin(), u.gradients.end(), Real(0));
        }
        double sum = 0;
        for (integer m = 0; m < options_.microbatches; ++m) {
            text_.training(batch_, step, m * sequences_, sequences_);
            forward(batch_.inputs);
            sum += loss_sum<Real>(activations_, batch_.targets);
            backward(batch_, 1.0 / static_cast<double>(options_.tokens()));
        }
        return sum / static_cast<double>(options_.tokens());
    }

    /// Mean loss over four global batches of text that is not trained on.
    double validate() {
        const integer rounds = 4 * options_.microbatches;
        double sum = 0;
        for (integer r = 0; r < rounds; ++r) {
            text_.validation(batch_, rounds * sequences_, r * sequences_, sequences_);
            forward(batch_.inputs);
            sum += loss_sum<Real>(activations_, batch_.targets);
        }
        return sum / static_cast<double>(4 * options_.tokens());
    }

    std::string sample() {
        return sample_text(
            activations_, [&](std::span<const std::uint8_t> inputs) { forward(inputs); },
            static_cast<std::size_t>(options_.sample_bytes), options_.temperature, options_.seed);
    }

    double gradient_norm() const {
        double sum = 0;
        for (const auto& u : units_) {
            for (const Real g : u.gradients) {
                sum += static_cast<double>(g) * static_cast<double>(g);
            }
        }
        return std::sqrt(sum);
    }

    /// AdamW; gradients times `factor`.
    void update(double learning_rate, double factor) {
        const double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
        ++updates_;
        const Real unbias1 = static_cast<Real>(1 / (1 - std::pow(beta1, updates_)));
        const Real unbias2 = static_cast<Real>(1 / (1 - std::pow(beta2, updates_)));
        const Real rate = static_cast<Real>(learning_rate);
        for (auto& u : units_) {
            for (std::size_t p = 0; p < u.parameters.size(); ++p) {
                const Real decay = static_cast<Real>(u.parameters[p].decays ? options_.weight_decay : 0);
                const auto count = static_cast<integer>(u.parameters[p].count());
                auto weight = line(u.weights.data() + u.starts[p], count);
                auto first = line(u.first_moments.data() + u.starts[p], count);
                auto second = line(u.second_moments.data() + u.starts[p], count);
                const auto gradient = line(u.gradients.data() + u.starts[p], count) * static_cast<Real>(factor);
                first += (gradient - first) * static_cast<Real>(1 - beta1);
                second += (gradient.square() - second) * static_cast<Real>(1 - beta2);
                weight -= rate *
                          (first * unbias1 / ((second * unbias2).sqrt() + static_cast<Real>(epsilon)) + decay * weight);
            }
        }
    }

    void report() const {
        weights_hash hash;
        for (const auto& u : units_) {
            hash.add(std::span<const Real>(u.weights));
        }
        journal_.finish(hash.text());
    }

    unit<Real>& tokens() { return units_.front(); }
    unit<Real>& block(std::size_t l) { return units_[l + 1]; }
    unit<Real>& last() { return units_.back(); }
    std::size_t blocks() const { return units_.size() - 2; }

    options options_;
    text text_;
    integer sequences_;  // of a microbatch
    activations<Real> activations_;
    journal journal_;
    std::vector<unit<Real>> units_;
    batch batch_;
    outlier_detector losses_, norms_;
    int updates_ = 0;
};

int main(int argc, char** argv) {
    return guarded("plain_gpt", [&] {
        const options chosen = parse_options(argc, argv, false);
        if (chosen.type == "double") {
            trainer<double>(chosen).train();
        } else {
            trainer<float>(chosen).train();
        }
    });
}
