// A chain of small layers and its training in plain loops: the right answers, made without the library.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace oracle {

/// Layers y = tanh(w x + b + s) of odd sizes, one unit each; w is {out, in}, s is frozen and only in layer 1. The last
/// use is without tanh. Tied: layer 0 is used a second time at the end, transposed and without b. `whole`: everything
/// is folded to small whole numbers, so that all sums are exact and yet depend on every bit of the weights.
struct net {
    std::vector<std::size_t> widths = {5, 7, 3, 6, 4, 7};
    bool tied = false, overwrites = false, whole = false;
    std::size_t batch = 144;  // of all ranks and microbatches together

    std::size_t units() const { return widths.size() - 1; }
    std::size_t uses() const { return units() + (tied ? 1 : 0); }
    std::size_t unit_of(std::size_t use) const { return use < units() ? use : 0; }
    bool transposed(std::size_t use) const { return use >= units(); }
    std::size_t inputs(std::size_t use) const { return transposed(use) ? widths[1] : widths[use]; }
    std::size_t outputs(std::size_t use) const { return transposed(use) ? widths[0] : widths[use + 1]; }
    bool frozen_part(std::size_t unit) const { return unit == 1; }
};

inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
    std::uint64_t z = a * 0x9e3779b97f4a7c15u + b * 0xd1342543de82ef95u + c * 0xbf58476d1ce4e5b9u + d + 1;
    for (int round = 0; round < 3; ++round) {
        z ^= z >> 29;
        z *= 0x94d049bb133111ebu;
        z ^= z >> 32;
    }
    return z;
}
/// A number that depends on nothing but its arguments: in (-1, 1), or one of -2 .. 2.
inline double draw(bool whole, std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
    const std::uint64_t bits = mixed(a, b, c, d);
    if (whole) return static_cast<double>(bits % 5) - 2;
    return static_cast<double>(bits % 2000001) / 1000000.0 - 1;
}
inline double initial(const net& n, std::size_t unit, std::size_t parameter, std::size_t element) {
    const double value = draw(n.whole, 1, unit, parameter, element);
    return n.whole ? value : value * 0.6;
}
inline double input(const net& n, std::size_t step, std::size_t sample, std::size_t i) {
    return draw(n.whole, 2 + step, sample, 0, i);
}
inline double target(const net& n, std::size_t step, std::size_t sample, std::size_t i) {
    return draw(n.whole, 2 + step, sample, 1, i);
}

/// The whole number of -2 .. 2 (or -1 .. 1) that `value` is modulo 5 (or 3).
template <class Number>
Number folded(Number value, int modulus) {
    const Number m = static_cast<Number>(modulus);
    return value - m * std::floor(value / m) - static_cast<Number>(modulus / 2);
}

/// One use of a layer on `samples` samples. Pointers may be null where a pass does not need them.
template <class Number, class Weight, class Gradient>
struct layer_call {
    const Weight *w = nullptr, *b = nullptr, *s = nullptr;
    Gradient *dw = nullptr, *db = nullptr;
    const Number *x = nullptr, *y = nullptr;  // inputs, outputs
    Number* out = nullptr;                    // what is written: outputs, or slopes of the inputs
    const Number* slopes = nullptr;           // of the outputs
    std::uint16_t rows = 0, columns = 0, samples = 0;
    bool transposed = false, squashed = false, whole = false, overwrite = false;

    Number weight(const Weight* from, std::size_t i) const {
        const Number value = static_cast<Number>(from[i]);
        return whole ? folded(value, 3) : value;
    }
    std::size_t in() const { return transposed ? rows : columns; }
    std::size_t out_width() const { return transposed ? columns : rows; }
    std::size_t at(std::size_t o, std::size_t i) const { return transposed ? i * columns + o : o * columns + i; }

    void forward() const {
        for (std::size_t n = 0; n < samples; ++n) {
            for (std::size_t o = 0; o < out_width(); ++o) {
                Number sum = 0;
                for (std::size_t i = 0; i < in(); ++i) sum += weight(w, at(o, i)) * x[n * in() + i];
                if (b != nullptr) sum += weight(b, o);
                if (s != nullptr) sum += weight(s, o);
                out[n * out_width() + o] = whole ? folded(sum, 5) : squashed ? std::tanh(sum) : sum;
            }
        }
    }
    Number slope(std::size_t n, std::size_t o) const {
        const std::size_t k = n * out_width() + o;
        return squashed && !whole ? slopes[k] * (1 - y[k] * y[k]) : slopes[k];
    }
    void backward_input() const {
        for (std::size_t n = 0; n < samples; ++n) {
            for (std::size_t i = 0; i < in(); ++i) {
                Number sum = 0;
                for (std::size_t o = 0; o < out_width(); ++o) sum += weight(w, at(o, i)) * slope(n, o);
                out[n * in() + i] = whole ? folded(sum, 5) : sum;
            }
        }
    }
    void backward_weight() const {
        for (std::size_t k = 0; overwrite && k < std::size_t{rows} * columns; ++k) dw[k] = 0;
        for (std::size_t n = 0; n < samples; ++n) {
            for (std::size_t o = 0; o < out_width(); ++o) {
                const Number here = slope(n, o);
                for (std::size_t i = 0; i < in(); ++i) {
                    dw[at(o, i)] = static_cast<Gradient>(dw[at(o, i)] + here * x[n * in() + i]);
                }
                if (db != nullptr) db[o] = static_cast<Gradient>(db[o] + here);
            }
        }
    }
};

/// The loss of `samples` samples and its slopes, each divided by `share`.
template <class Number>
double loss_and_slopes(const net& n, std::size_t step, std::size_t first, std::size_t samples, const Number* y,
                       Number* slopes, double share) {
    const std::size_t width = n.outputs(n.uses() - 1);
    double loss = 0;
    for (std::size_t k = 0; k < samples; ++k) {
        for (std::size_t i = 0; i < width; ++i) {
            const Number wanted = static_cast<Number>(target(n, step, first + k, i));
            const Number off = y[k * width + i] - wanted;
            loss += n.whole ? static_cast<double>(y[k * width + i] * wanted)
                            : 0.5 * static_cast<double>(off) * static_cast<double>(off);
            slopes[k * width + i] = n.whole ? wanted : off / static_cast<Number>(share);
        }
    }
    return loss / share;
}

/// Weights of one layer and what belongs to them.
template <class Number>
struct layer_values {
    std::vector<Number> w, b, s;
};

/// AdamW or SGD as a textbook writes them, on one flat vector of layers.
struct adamw_numbers {
    double rate = 0.01, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, decay = 0.01;
};
struct sgd_numbers {
    double rate = 1, momentum = 0, dampening = 0, decay = 0;
    bool nesterov = false;
};

/// Trains the net on the whole batch in one piece.
template <class Number>
class trainer {
public:
    explicit trainer(const net& shape) : net_(shape) {
        for (std::size_t u = 0; u < net_.units(); ++u) {
            const std::size_t rows = net_.widths[u + 1], columns = net_.widths[u];
            weights.push_back({std::vector<Number>(rows * columns), std::vector<Number>(rows), {}});
            if (net_.frozen_part(u)) weights.back().s.resize(rows);
            fill(u, 0, weights[u].w);
            fill(u, 1, weights[u].b);
            fill(u, 2, weights[u].s);
        }
        gradients = weights;
        first = second = zeros();
    }

    std::vector<layer_values<Number>> weights, gradients, first, second;
    std::uint64_t applied = 0;

    /// Gradients of the mean loss (whole: of the sum) over samples [from, from + count), all divided by `share`.
    double run(std::size_t step, std::size_t from, std::size_t count, double share) {
        gradients = zeros();
        return add(step, from, count, share);
    }
    double add(std::size_t step, std::size_t from, std::size_t count, double share) {
        std::vector<std::vector<Number>> values(net_.uses() + 1), slopes(net_.uses() + 1);
        for (std::size_t use = 0; use <= net_.uses(); ++use) {
            const std::size_t width = use < net_.uses() ? net_.inputs(use) : net_.outputs(use - 1);
            values[use].resize(count * width);
            slopes[use].resize(count * width);
        }
        for (std::size_t k = 0; k < count; ++k) {
            for (std::size_t i = 0; i < net_.widths[0]; ++i) {
                values[0][k * net_.widths[0] + i] = static_cast<Number>(input(net_, step, from + k, i));
            }
        }
        for (std::size_t use = 0; use < net_.uses(); ++use) {
            auto call = call_of(use, count, values);
            call.out = values[use + 1].data();
            call.forward();
        }
        const double loss = loss_and_slopes(net_, step, from, count, values.back().data(), slopes.back().data(), share);
        for (std::size_t use = net_.uses(); use-- > 0;) {
            auto call = call_of(use, count, values);
            call.slopes = slopes[use + 1].data();
            call.backward_weight();
            call.out = slopes[use].data();
            call.backward_input();
        }
        return loss;
    }

    double norm() const {
        double sum = 0;
        for (const auto& layer : gradients) {
            for (const auto* part : {&layer.w, &layer.b}) {
                for (const Number g : *part) sum += static_cast<double>(g) * static_cast<double>(g);
            }
        }
        return std::sqrt(sum);
    }

    /// `decayed_bias`: whether b is decayed too.
    void adamw(const adamw_numbers& o, double factor = 1, bool decayed_bias = false) {
        ++applied;
        const double c1 = 1 - std::pow(o.beta1, static_cast<double>(applied));
        const double c2 = 1 - std::pow(o.beta2, static_cast<double>(applied));
        each([&](Number& w, Number g, Number& m, Number& v, bool bias) {
            const double decay = bias && !decayed_bias ? 0 : o.decay;
            const Number slope = static_cast<Number>(static_cast<double>(g) * factor);
            m = static_cast<Number>(o.beta1 * static_cast<double>(m) + (1 - o.beta1) * static_cast<double>(slope));
            v = static_cast<Number>(o.beta2 * static_cast<double>(v) +
                                    (1 - o.beta2) * static_cast<double>(slope) * static_cast<double>(slope));
            const double moved = static_cast<double>(m) / c1 / (std::sqrt(static_cast<double>(v) / c2) + o.epsilon);
            w = static_cast<Number>(static_cast<double>(w) * (1 - o.rate * decay) - o.rate * moved);
        });
    }
    void sgd(const sgd_numbers& o, double factor = 1) {
        ++applied;
        each([&](Number& w, Number g, Number& m, Number&, bool) {
            double slope = static_cast<double>(g) * factor + o.decay * static_cast<double>(w);
            if (o.momentum != 0) {
                const double moved =
                    applied == 1 ? slope : o.momentum * static_cast<double>(m) + (1 - o.dampening) * slope;
                m = static_cast<Number>(moved);
                slope = o.nesterov ? slope + o.momentum * moved : moved;
            }
            w = static_cast<Number>(static_cast<double>(w) - o.rate * slope);
        });
    }

private:
    std::vector<layer_values<Number>> zeros() const {
        auto out = weights;
        for (auto& layer : out) {
            for (auto* part : {&layer.w, &layer.b, &layer.s}) part->assign(part->size(), Number{0});
        }
        return out;
    }
    void fill(std::size_t unit, std::size_t parameter, std::vector<Number>& into) const {
        for (std::size_t i = 0; i < into.size(); ++i) into[i] = static_cast<Number>(initial(net_, unit, parameter, i));
    }
    layer_call<Number, Number, Number> call_of(std::size_t use, std::size_t count,
                                               const std::vector<std::vector<Number>>& values) {
        layer_call<Number, Number, Number> call;
        auto& layer = weights[net_.unit_of(use)];
        auto& slope = gradients[net_.unit_of(use)];
        call.transposed = net_.transposed(use);
        call.w = layer.w.data();
        call.dw = slope.w.data();
        if (!call.transposed) {
            call.b = layer.b.data();
            call.db = slope.b.data();
            call.s = layer.s.empty() ? nullptr : layer.s.data();
        }
        call.x = values[use].data();
        call.y = values[use + 1].data();
        call.rows = static_cast<std::uint16_t>(net_.widths[net_.unit_of(use) + 1]);
        call.columns = static_cast<std::uint16_t>(net_.widths[net_.unit_of(use)]);
        call.samples = static_cast<std::uint16_t>(count);
        call.squashed = use + 1 < net_.uses();
        call.whole = net_.whole;
        return call;
    }
    template <class Visit>
    void each(Visit&& visit) {
        for (std::size_t u = 0; u < weights.size(); ++u) {
            for (const bool bias : {false, true}) {
                auto& w = bias ? weights[u].b : weights[u].w;
                auto& g = bias ? gradients[u].b : gradients[u].w;
                auto& m = bias ? first[u].b : first[u].w;
                auto& v = bias ? second[u].b : second[u].w;
                for (std::size_t i = 0; i < w.size(); ++i) visit(w[i], g[i], m[i], v[i], bias);
            }
        }
    }

    net net_;
};

}  // namespace oracle
