// The example trainers' layers against slow loops that follow the formulas, and their gradients, layer by layer and
// for every parameter of the whole model, against finite differences in double.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "gpt/model.hpp"
#include "gpt/random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

using namespace gpt;
using numbers = std::vector<double>;

namespace {

numbers random_numbers(integer count, const char* purpose, double scale = 1, double mean = 0) {
    numbers out(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = mean + scale * normal(7, purpose_of(purpose), i);
    }
    return out;
}

std::vector<std::uint8_t> random_bytes(integer count, const char* purpose) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<std::uint8_t>(draw(7, purpose_of(purpose), i));
    }
    return out;
}

double dot(const numbers& a, const numbers& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

/// d value() / d x by the five-point rule: its error is of order step^4.
double slope(double& x, const std::function<double()>& value) {
    const double step = 1e-3, kept = x;
    const auto at = [&](double offset) {
        x = kept + offset;
        return value();
    };
    const double result = (at(-2 * step) - 8 * at(-step) + 8 * at(step) - at(2 * step)) / (12 * step);
    x = kept;
    return result;
}

/// Largest |gradient - slope| / max(|gradient|, |slope|, floor) over the numbers of `x`.
double worst_error(std::span<double> x, std::span<const double> gradient, const std::function<double()>& value,
                   double floor = 1e-4) {
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = slope(x[i], value);
        const double size = std::max({std::abs(gradient[i]), std::abs(expected), floor});
        worst = std::max(worst, std::abs(gradient[i] - expected) / size);
    }
    return worst;
}

double largest_difference(const numbers& a, const numbers& b) {
    REQUIRE(a.size() == b.size());
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        worst = std::max(worst, std::abs(a[i] - b[i]));
    }
    return worst;
}

constexpr double tolerance = 1e-7;  // relative; what the five-point rule allows

/// The whole model over one vector of parameters, with all numbers away from their special initial values.
struct whole_model {
    whole_model(const model_shape& shape, integer sequences) : acts(shape, sequences) {
        add(embedding_parameters(shape));
        for (integer l = 0; l < shape.layers; ++l) {
            add(block_parameters(shape));
        }
        add(norm_parameters(shape));
        weights.resize(size);
        gradients.resize(size);
        for (std::size_t i = 0; i < size; ++i) {
            weights[i] = 0.3 * normal(11, 1, i);
        }
    }

    void add(std::vector<parameter_facts> list) {
        std::vector<std::size_t> starts;
        for (auto& p : list) {
            starts.push_back(size);
            size += p.count();
        }
        lists.push_back(list);
        places.push_back(starts);
    }

    template <template <class> class Pointers>
    auto w(std::size_t unit) const {
        return point<Pointers<const double>>([&](std::size_t i) { return weights.data() + places[unit][i]; });
    }
    template <template <class> class Pointers>
    auto g(std::size_t unit) {
        return point<Pointers<double>>([&](std::size_t i) { return gradients.data() + places[unit][i]; });
    }

    void forward(std::span<const std::uint8_t> inputs) {
        embedding_forward(acts, inputs, w<embedding_pointers>(0));
        for (std::size_t l = 0; l < acts.blocks.size(); ++l) {
            block_forward(acts, l, w<block_pointers>(l + 1));
        }
        norm_forward(acts, w<norm_pointers>(lists.size() - 1));
        head_forward(acts, w<embedding_pointers>(0));
    }

    double loss(std::span<const std::uint8_t> inputs, std::span<const std::uint8_t> targets) {
        forward(inputs);
        return loss_sum<double>(acts, targets);
    }

    void backward(std::span<const std::uint8_t> inputs, std::span<const std::uint8_t> targets, double factor) {
        const std::size_t last = lists.size() - 1;
        head_backward(acts, targets, factor, w<embedding_pointers>(0), g<embedding_pointers>(0));
        norm_backward(acts, w<norm_pointers>(last), g<norm_pointers>(last));
        for (std::size_t l = acts.blocks.size(); l-- > 0;) {
            block_backward(acts, l, w<block_pointers>(l + 1), g<block_pointers>(l + 1));
        }
        embedding_backward(acts, inputs, g<embedding_pointers>(0));
    }

    activations<double> acts;
    std::vector<std::vector<parameter_facts>> lists;
    std::vector<std::vector<std::size_t>> places;
    std::size_t size = 0;
    numbers weights, gradients;
};

}  // namespace

TEST_CASE("layernorm follows its formula and its gradients are slopes") {
    const integer rows = 3, width = 7;
    auto in = random_numbers(rows * width, "in", 2, 1), weight = random_numbers(width, "weight"),
         bias = random_numbers(width, "bias");
    const auto seen = random_numbers(rows * width, "seen");
    numbers out(in.size()), mean(3), inverse(3);
    const auto value = [&] {
        layernorm_forward(out.data(), mean.data(), inverse.data(), in.data(), weight.data(), bias.data(), rows, width);
        return dot(out, seen);
    };
    value();
    numbers expected(in.size());
    for (std::size_t r = 0; r < 3; ++r) {
        double sum = 0, squares = 0;
        for (std::size_t i = 0; i < 7; ++i) {
            sum += in[r * 7 + i];
            squares += in[r * 7 + i] * in[r * 7 + i];
        }
        const double variance = squares / 7 - sum / 7 * sum / 7;
        for (std::size_t i = 0; i < 7; ++i) {
            expected[r * 7 + i] = (in[r * 7 + i] - sum / 7) / std::sqrt(variance + 1e-5) * weight[i] + bias[i];
        }
    }
    CHECK(largest_difference(out, expected) < 1e-12);

    numbers din(in.size(), 0.5), dweight(weight.size(), 0.25), dbias(bias.size(), 0.125);  // added to, not written
    layernorm_backward_input(din.data(), seen.data(), in.data(), mean.data(), inverse.data(), weight.data(), rows,
                             width);
    layernorm_backward_weight(dweight.data(), dbias.data(), seen.data(), in.data(), mean.data(), inverse.data(), rows,
                              width);
    for (double& d : din) {
        d -= 0.5;
    }
    for (double& d : dweight) {
        d -= 0.25;
    }
    for (double& d : dbias) {
        d -= 0.125;
    }
    CHECK(worst_error(in, din, value) < tolerance);
    CHECK(worst_error(weight, dweight, value) < tolerance);
    CHECK(worst_error(bias, dbias, value) < tolerance);
}

TEST_CASE("matmul follows its formula and its gradients are slopes") {
    const integer rows = 5, inputs = 3, outputs = 7;
    auto in = random_numbers(rows * inputs, "in"), weight = random_numbers(outputs * inputs, "weight"),
         bias = random_numbers(outputs, "bias");
    const auto seen = random_numbers(rows * outputs, "seen");
    numbers out(seen.size()), expected(seen.size());
    const auto value = [&] {
        matmul_forward(out.data(), in.data(), weight.data(), bias.data(), rows, inputs, outputs);
        return dot(out, seen);
    };
    value();
    for (std::size_t r = 0; r < 5; ++r) {
        for (std::size_t o = 0; o < 7; ++o) {
            expected[r * 7 + o] = bias[o];
            for (std::size_t i = 0; i < 3; ++i) {
                expected[r * 7 + o] += in[r * 3 + i] * weight[o * 3 + i];
            }
        }
    }
    CHECK(largest_difference(out, expected) < 1e-12);

    numbers din(in.size(), 9), dweight(weight.size(), 0.25), dbias(bias.size(), 0.125);  // din is written
    matmul_backward_input(din.data(), seen.data(), weight.data(), rows, inputs, outputs);
    matmul_backward_weight(dweight.data(), dbias.data(), seen.data(), in.data(), rows, inputs, outputs);
    for (double& d : dweight) {
        d -= 0.25;
    }
    for (double& d : dbias) {
        d -= 0.125;
    }
    CHECK(worst_error(in, din, value) < tolerance);
    CHECK(worst_error(weight, dweight, value) < tolerance);
    CHECK(worst_error(bias, dbias, value) < tolerance);

    matmul_forward<double>(out.data(), in.data(), weight.data(), nullptr, rows, inputs, outputs);
    for (std::size_t i = 0; i < out.size(); ++i) {
        CHECK(out[i] == doctest::Approx(expected[i] - bias[i % 7]).epsilon(1e-12));
    }
}

TEST_CASE("attention follows its formula, sees no future, and its gradient is the slope") {
    const integer sequences = 2, context = 5, heads = 3, width = 6;
    auto qkv = random_numbers(sequences * context * 3 * width, "qkv");
    const auto seen = random_numbers(sequences * context * width, "seen");
    numbers out(seen.size()), attention(2 * 3 * 5 * 5, 9), expected(seen.size());
    const auto value = [&] {
        attention_forward(out.data(), attention.data(), qkv.data(), sequences, context, width, heads);
        return dot(out, seen);
    };
    value();
    const auto at = [&](std::size_t s, std::size_t t, std::size_t part, std::size_t h, std::size_t i) {
        return qkv[(s * 5 + t) * 18 + part * 6 + h * 2 + i];
    };
    for (std::size_t s = 0; s < 2; ++s) {
        for (std::size_t h = 0; h < 3; ++h) {
            for (std::size_t t = 0; t < 5; ++t) {
                double total = 0;
                for (std::size_t past = 0; past <= t; ++past) {
                    const double score =
                        at(s, t, 0, h, 0) * at(s, past, 1, h, 0) + at(s, t, 0, h, 1) * at(s, past, 1, h, 1);
                    const double weight = std::exp(score / std::sqrt(2.0));
                    total += weight;
                    for (std::size_t i = 0; i < 2; ++i) {
                        expected[(s * 5 + t) * 6 + h * 2 + i] += weight * at(s, past, 2, h, i);
                    }
                }
                for (std::size_t i = 0; i < 2; ++i) {
                    expected[(s * 5 + t) * 6 + h * 2 + i] /= total;
                }
            }
        }
    }
    CHECK(largest_difference(out, expected) < 1e-12);

    numbers dqkv(qkv.size(), 9), scratch(25, 9);
    attention_backward(dqkv.data(), scratch.data(), seen.data(), qkv.data(), attention.data(), sequences, context,
                       width, heads);
    CHECK(worst_error(qkv, dqkv, value) < tolerance);
}

TEST_CASE("gelu follows its formula and its gradient is the slope") {
    auto in = random_numbers(23, "in", 2);
    const auto seen = random_numbers(23, "seen");
    numbers out(23), din(23, 9), scratch(23);
    const auto value = [&] {
        gelu_forward(out.data(), in.data(), 23);
        return dot(out, seen);
    };
    value();
    for (std::size_t i = 0; i < 23; ++i) {
        const double x = in[i];
        const double inner = std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
        const double expected = 0.5 * x * (1 + std::tanh(inner));
        CHECK(out[i] == doctest::Approx(expected).epsilon(1e-12));
    }
    gelu_backward(din.data(), scratch.data(), seen.data(), in.data(), 23);
    CHECK(worst_error(in, din, value) < tolerance);
    numbers in_place = seen;
    gelu_backward(in_place.data(), scratch.data(), in_place.data(), in.data(), 23);
    CHECK(in_place == din);
}

TEST_CASE("cross entropy follows its formula and its gradient is the slope") {
    const integer rows = 4, many = 9;
    auto logits = random_numbers(rows * many, "logits", 3);
    const std::vector<std::uint8_t> targets{3, 0, 8, 3};
    const auto value = [&] {
        numbers copy = logits;
        return cross_entropy_forward(copy.data(), targets.data(), rows, many);
    };
    double expected = 0;
    for (std::size_t r = 0; r < 4; ++r) {
        double total = 0;
        for (std::size_t i = 0; i < 9; ++i) {
            total += std::exp(logits[r * 9 + i]);
        }
        expected -= std::log(std::exp(logits[r * 9 + targets[r]]) / total);
    }
    CHECK(value() == doctest::Approx(expected).epsilon(1e-12));

    numbers gradient = logits;
    cross_entropy_forward(gradient.data(), targets.data(), rows, many);
    cross_entropy_backward(gradient.data(), targets.data(), 0.25, rows, many);
    CHECK(worst_error(logits, gradient, [&] { return 0.25 * value(); }) < tolerance);

    logits.assign(logits.size(), 1e4);  // large logits stay finite
    CHECK(value() == doctest::Approx(4 * std::log(9.0)).epsilon(1e-12));
}

TEST_CASE("embedding adds token and position, and its gradients are slopes") {
    const integer rows = 6, context = 3, width = 5;
    auto table = random_numbers(256 * width, "table"), positions = random_numbers(context * width, "positions");
    const std::vector<std::uint8_t> tokens{0, 255, 9, 9, 9, 200};
    const auto seen = random_numbers(rows * width, "seen");
    numbers out(seen.size());
    const auto value = [&] {
        lookup_forward(out.data(), tokens.data(), table.data(), rows, width);
        positions_forward(out.data(), positions.data(), rows, context, width);
        return dot(out, seen);
    };
    value();
    CHECK(out[1 * 5 + 2] == table[255 * 5 + 2] + positions[1 * 5 + 2]);
    CHECK(out[5 * 5 + 4] == table[200 * 5 + 4] + positions[2 * 5 + 4]);

    numbers dtable(table.size()), dpositions(positions.size());
    lookup_backward(dtable.data(), seen.data(), tokens.data(), rows, width);
    positions_backward(dpositions.data(), seen.data(), rows, context, width);
    CHECK(worst_error(table, dtable, value) < tolerance);
    CHECK(worst_error(positions, dpositions, value) < tolerance);
}

TEST_CASE("every parameter of the whole model: the gradient is the slope of the mean loss") {
    const std::array<model_shape, 4> shapes{{{2, 6, 3, 5}, {1, 4, 1, 1}, {3, 3, 3, 2}, {1, 10, 2, 7}}};
    for (const model_shape& shape : shapes) {
        const integer sequences = 3;
        const auto tokens = static_cast<std::size_t>(sequences * shape.context);
        const auto inputs = random_bytes(sequences * shape.context, "inputs");
        const auto targets = random_bytes(sequences * shape.context, "targets");
        const double factor = 1.0 / static_cast<double>(tokens);
        whole_model model(shape, sequences);
        model.loss(inputs, targets);
        model.backward(inputs, targets, factor);
        const auto value = [&] { return factor * model.loss(inputs, targets); };
        for (std::size_t u = 0; u < model.lists.size(); ++u) {
            for (std::size_t p = 0; p < model.lists[u].size(); ++p) {
                const std::size_t start = model.places[u][p], count = model.lists[u][p].count();
                CAPTURE(shape.layers);
                CAPTURE(shape.width);
                CAPTURE(u);
                CAPTURE(model.lists[u][p].name);
                const std::span<const double> gradient(model.gradients.data() + start, count);
                CHECK(worst_error({model.weights.data() + start, count}, gradient, value) < 1e-6);
                const bool moved = std::any_of(gradient.begin(), gradient.end(), [](double g) { return g != 0; });
                CHECK(moved);  // a gradient that is nothing would be below the floor of the comparison
            }
        }
    }
}

TEST_CASE("gradients of three microbatches add up to those of the whole batch, and so do losses") {
    const model_shape shape{2, 8, 2, 5};
    const auto inputs = random_bytes(6 * 5, "inputs"), targets = random_bytes(6 * 5, "targets");
    whole_model once(shape, 6), parts(shape, 2);
    const double loss = once.loss(inputs, targets);
    once.backward(inputs, targets, 1.0 / 30);
    double sum = 0;
    for (std::size_t m = 0; m < 3; ++m) {
        const auto in = std::span(inputs).subspan(m * 10, 10), out = std::span(targets).subspan(m * 10, 10);
        sum += parts.loss(in, out);
        parts.backward(in, out, 1.0 / 30);
    }
    CHECK(sum == doctest::Approx(loss).epsilon(1e-13));
    CHECK(largest_difference(once.gradients, parts.gradients) < 1e-14);
}

TEST_CASE("a later byte changes no earlier logit, and a smaller forward leaves the rest alone") {
    const model_shape shape{2, 8, 2, 6};
    whole_model model(shape, 3);
    auto inputs = random_bytes(6, "inputs");
    model.forward(inputs);
    const numbers before(model.acts.logits.begin(), model.acts.logits.begin() + 6 * vocabulary);
    inputs[4] = static_cast<std::uint8_t>(inputs[4] + 1);
    model.forward(inputs);
    for (std::size_t i = 0; i < before.size(); ++i) {
        if (i < 4 * static_cast<std::size_t>(vocabulary)) {
            REQUIRE(model.acts.logits[i] == before[i]);
        }
    }
    CHECK(model.acts.logits[5 * 256 + 1] != before[5 * 256 + 1]);
}
