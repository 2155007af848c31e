// A GPT-2 of bytes as units: embedding (tied to the head), blocks, last norm. Each unit has a list of parameters, a
// struct of pointers to them, and functions over those pointers; where the numbers lie is the trainer's matter.
#pragma once

#include "layers.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

inline constexpr integer vocabulary = 256;  // bytes

struct model_shape {
    integer layers = 1, width = 1, heads = 1, context = 1;
};

/// What a trainer must know of a parameter: numbers start normal with `deviation` around `mean`.
struct parameter_facts {
    std::string name;
    std::vector<std::size_t> shape;
    double deviation = 0;
    double mean = 0;
    bool decays = false;  // weight decay is for matrices

    std::size_t count() const {
        std::size_t product = 1;
        for (const std::size_t extent : shape) {
            product *= extent;
        }
        return product;
    }
};

inline parameter_facts matrix_parameter(std::string name, integer rows, integer columns, double deviation) {
    return {std::move(name), {static_cast<std::size_t>(rows), static_cast<std::size_t>(columns)}, deviation, 0, true};
}

inline parameter_facts line_parameter(std::string name, integer count, double mean = 0) {
    return {std::move(name), {static_cast<std::size_t>(count)}, 0, mean, false};
}

/// GPT-2's 0.02 belongs to a width of 768; narrower ones start larger, so that products keep their size.
inline double initial_deviation(const model_shape& shape) {
    return 0.02 * std::sqrt(768.0 / static_cast<double>(shape.width));
}

inline std::vector<parameter_facts> embedding_parameters(const model_shape& shape) {
    return {matrix_parameter("wte", vocabulary, shape.width, initial_deviation(shape)),
            matrix_parameter("wpe", shape.context, shape.width, initial_deviation(shape))};
}

inline std::vector<parameter_facts> block_parameters(const model_shape& shape) {
    const integer width = shape.width;
    const double inside = initial_deviation(shape);
    const double onto_stream = inside / std::sqrt(2.0 * static_cast<double>(shape.layers));
    return {line_parameter("ln1w", width, 1),
            line_parameter("ln1b", width),
            matrix_parameter("qkvw", 3 * width, width, inside),
            line_parameter("qkvb", 3 * width),
            matrix_parameter("projw", width, width, onto_stream),
            line_parameter("projb", width),
            line_parameter("ln2w", width, 1),
            line_parameter("ln2b", width),
            matrix_parameter("fcw", 4 * width, width, inside),
            line_parameter("fcb", 4 * width),
            matrix_parameter("fcprojw", width, 4 * width, onto_stream),
            line_parameter("fcprojb", width)};
}

inline std::vector<parameter_facts> norm_parameters(const model_shape& shape) {
    return {line_parameter("weight", shape.width, 1), line_parameter("bias", shape.width)};
}

/// Pointers to the parameters of a unit, in the order of its list; of weights (const Real) or of gradients (Real).
template <class Real>
struct embedding_pointers {
    static constexpr std::size_t size = 2;
    Real *wte, *wpe;
};
template <class Real>
struct block_pointers {
    static constexpr std::size_t size = 12;
    Real *ln1w, *ln1b, *qkvw, *qkvb, *projw, *projb, *ln2w, *ln2b, *fcw, *fcb, *fcprojw, *fcprojb;
};
template <class Real>
struct norm_pointers {
    static constexpr std::size_t size = 2;
    Real *weight, *bias;
};

/// Fills such a struct: `pointer_of(i)` is where parameter i of the list lies.
template <class Pointers, class PointerOf>
Pointers point(PointerOf pointer_of) {
    return [&]<std::size_t... Number>(std::index_sequence<Number...>) {
        return Pointers{pointer_of(Number)...};
    }(std::make_index_sequence<Pointers::size>{});
}

/// What forward keeps for backward, made once for `sequences` sequences; fewer may be used.
/// `split`: the weight parts of a backward come later than all its input parts, so every block keeps its gradients.
template <class Real>
struct activations {
    using buffer = std::vector<Real>;
    struct block {
        buffer ln1, ln1_mean, ln1_inverse, qkv, attention, attended, middle;
        buffer ln2, ln2_mean, ln2_inverse, wide, gelu, out;
    };
    struct block_gradients {  // what the input part of a block's backward leaves for its weight part
        buffer ln1, qkv, middle, ln2, wide, out;
    };

    activations(const model_shape& chosen, integer sequences, bool split = false) : shape(chosen) {
        const auto most = static_cast<std::size_t>(sequences * chosen.context);
        const auto width = static_cast<std::size_t>(chosen.width);
        const auto context = static_cast<std::size_t>(chosen.context);
        for (buffer* one : {&embedded, &normal, &branch, &dnormal, &dstream, &dbranch}) {
            one->resize(most * width);
        }
        for (buffer* one : {&mean, &inverse}) {
            one->resize(most);
        }
        wide_scratch.resize(most * width * 4);
        logits.resize(most * static_cast<std::size_t>(vocabulary));
        square_scratch.resize(context * context);
        blocks.resize(static_cast<std::size_t>(chosen.layers));
        for (block& b : blocks) {
            for (buffer* one : {&b.ln1, &b.attended, &b.middle, &b.ln2, &b.out}) {
                one->resize(most * width);
            }
            for (buffer* one : {&b.ln1_mean, &b.ln1_inverse, &b.ln2_mean, &b.ln2_inverse}) {
                one->resize(most);
            }
            b.qkv.resize(most * width * 3);
            b.attention.resize(most * context * static_cast<std::size_t>(chosen.heads));
            b.wide.resize(most * width * 4);
            b.gelu.resize(most * width * 4);
        }
        gradients.resize(split ? blocks.size() : 1);
        for (block_gradients& d : gradients) {
            for (buffer* one : {&d.ln1, &d.middle, &d.ln2, &d.out}) {
                one->resize(most * width);
            }
            d.qkv.resize(most * width * 3);
            d.wide.resize(most * width * 4);
        }
    }

    /// The residual stream that enters block l.
    const Real* stream(std::size_t l) const { return l == 0 ? embedded.data() : blocks[l - 1].out.data(); }
    block_gradients& gradients_of(std::size_t l) { return gradients[l % gradients.size()]; }

    model_shape shape;
    integer rows = 0;  // sequences x context of the forward at hand
    buffer embedded, normal, mean, inverse, logits;
    std::vector<block> blocks;
    std::vector<block_gradients> gradients;
    buffer dnormal, branch, dstream, dbranch, wide_scratch, square_scratch;  // between layers
};

// Forward, unit by unit. -----------------------------------------------------------------------------------------

/// `inputs`: whole sequences of `context` bytes.
template <class Real>
void table_forward(activations<Real>& a, std::span<const std::uint8_t> inputs, const Real* wte) {
    a.rows = static_cast<integer>(inputs.size());
    lookup_forward(a.embedded.data(), inputs.data(), wte, a.rows, a.shape.width);
}

template <class Real>
void places_forward(activations<Real>& a, const Real* wpe) {
    positions_forward(a.embedded.data(), wpe, a.rows, a.shape.context, a.shape.width);
}

template <class Real>
void embedding_forward(activations<Real>& a, std::span<const std::uint8_t> inputs,
                       const embedding_pointers<const Real>& w) {
    table_forward(a, inputs, w.wte);
    places_forward(a, w.wpe);
}

template <class Real>
void block_forward(activations<Real>& a, std::size_t l, const block_pointers<const Real>& w) {
    const auto [layers, width, heads, context] = a.shape;
    auto& b = a.blocks[l];
    Real* branch = a.branch.data();
    layernorm_forward(b.ln1.data(), b.ln1_mean.data(), b.ln1_inverse.data(), a.stream(l), w.ln1w, w.ln1b, a.rows,
                      width);
    matmul_forward(b.qkv.data(), b.ln1.data(), w.qkvw, w.qkvb, a.rows, width, 3 * width);
    attention_forward(b.attended.data(), b.attention.data(), b.qkv.data(), a.rows / context, context, width, heads);
    matmul_forward(branch, b.attended.data(), w.projw, w.projb, a.rows, width, width);
    residual_forward(b.middle.data(), a.stream(l), branch, a.rows * width);
    layernorm_forward(b.ln2.data(), b.ln2_mean.data(), b.ln2_inverse.data(), b.middle.data(), w.ln2w, w.ln2b, a.rows,
                      width);
    matmul_forward(b.wide.data(), b.ln2.data(), w.fcw, w.fcb, a.rows, width, 4 * width);
    gelu_forward(b.gelu.data(), b.wide.data(), a.rows * 4 * width);
    matmul_forward(branch, b.gelu.data(), w.fcprojw, w.fcprojb, a.rows, 4 * width, width);
    residual_forward(b.out.data(), b.middle.data(), branch, a.rows * width);
}

template <class Real>
void norm_forward(activations<Real>& a, const norm_pointers<const Real>& w) {
    layernorm_forward(a.normal.data(), a.mean.data(), a.inverse.data(), a.stream(a.blocks.size()), w.weight, w.bias,
                      a.rows, a.shape.width);
}

/// The head is the embedding's table: logits of the next byte for every position.
template <class Real>
void head_forward(activations<Real>& a, const embedding_pointers<const Real>& w) {
    matmul_forward<Real>(a.logits.data(), a.normal.data(), w.wte, nullptr, a.rows, a.shape.width, vocabulary);
}

/// The sum of losses over the positions of the forward at hand. Takes the logits: once for each forward.
template <class Real>
double loss_sum(activations<Real>& a, std::span<const std::uint8_t> targets) {
    return cross_entropy_forward(a.logits.data(), targets.data(), a.rows, vocabulary);
}

// Backward, in the opposite order, after loss_sum: gradients of `factor` times that sum are added. Each in two parts:
// gradients of the activations, from the weights; gradients of the weights, from what the first part left. -----------

template <class Real>
void head_backward_input(activations<Real>& a, std::span<const std::uint8_t> targets, double factor,
                         const embedding_pointers<const Real>& w) {
    cross_entropy_backward(a.logits.data(), targets.data(), static_cast<Real>(factor), a.rows, vocabulary);
    matmul_backward_input(a.dnormal.data(), a.logits.data(), w.wte, a.rows, a.shape.width, vocabulary);
}

template <class Real>
void head_backward_weight(activations<Real>& a, const embedding_pointers<Real>& g) {
    matmul_backward_weight<Real>(g.wte, nullptr, a.logits.data(), a.normal.data(), a.rows, a.shape.width, vocabulary);
}

template <class Real>
void head_backward(activations<Real>& a, std::span<const std::uint8_t> targets, double factor,
                   const embedding_pointers<const Real>& w, const embedding_pointers<Real>& g) {
    head_backward_input(a, targets, factor, w);
    head_backward_weight(a, g);
}

template <class Real>
void norm_backward_input(activations<Real>& a, const norm_pointers<const Real>& w) {
    line(a.dstream.data(), a.rows * a.shape.width).setZero();
    layernorm_backward_input(a.dstream.data(), a.dnormal.data(), a.stream(a.blocks.size()), a.mean.data(),
                             a.inverse.data(), w.weight, a.rows, a.shape.width);
}

template <class Real>
void norm_backward_weight(activations<Real>& a, const norm_pointers<Real>& g) {
    layernorm_backward_weight(g.weight, g.bias, a.dnormal.data(), a.stream(a.blocks.size()), a.mean.data(),
                              a.inverse.data(), a.rows, a.shape.width);
}

template <class Real>
void norm_backward(activations<Real>& a, const norm_pointers<const Real>& w, const norm_pointers<Real>& g) {
    norm_backward_input(a, w);
    norm_backward_weight(a, g);
}

template <class Real>
void block_backward_input(activations<Real>& a, std::size_t l, const block_pointers<const Real>& w) {
    const auto [layers, width, heads, context] = a.shape;
    auto& b = a.blocks[l];
    auto& d = a.gradients_of(l);
    Real *dstream = a.dstream.data(), *dbranch = a.dbranch.data();
    line(d.out.data(), a.rows * width) = line(dstream, a.rows * width);
    matmul_backward_input(d.wide.data(), dstream, w.fcprojw, a.rows, 4 * width, width);
    gelu_backward(d.wide.data(), a.wide_scratch.data(), d.wide.data(), b.wide.data(), a.rows * 4 * width);
    matmul_backward_input(d.ln2.data(), d.wide.data(), w.fcw, a.rows, width, 4 * width);
    layernorm_backward_input(dstream, d.ln2.data(), b.middle.data(), b.ln2_mean.data(), b.ln2_inverse.data(), w.ln2w,
                             a.rows, width);
    line(d.middle.data(), a.rows * width) = line(dstream, a.rows * width);
    matmul_backward_input(dbranch, dstream, w.projw, a.rows, width, width);
    attention_backward(d.qkv.data(), a.square_scratch.data(), dbranch, b.qkv.data(), b.attention.data(),
                       a.rows / context, context, width, heads);
    matmul_backward_input(d.ln1.data(), d.qkv.data(), w.qkvw, a.rows, width, 3 * width);
    layernorm_backward_input(dstream, d.ln1.data(), a.stream(l), b.ln1_mean.data(), b.ln1_inverse.data(), w.ln1w,
                             a.rows, width);
}

template <class Real>
void block_backward_weight(activations<Real>& a, std::size_t l, const block_pointers<Real>& g) {
    const integer width = a.shape.width;
    const auto& b = a.blocks[l];
    const auto& d = a.gradients_of(l);
    matmul_backward_weight(g.fcprojw, g.fcprojb, d.out.data(), b.gelu.data(), a.rows, 4 * width, width);
    matmul_backward_weight(g.fcw, g.fcb, d.wide.data(), b.ln2.data(), a.rows, width, 4 * width);
    layernorm_backward_weight(g.ln2w, g.ln2b, d.ln2.data(), b.middle.data(), b.ln2_mean.data(), b.ln2_inverse.data(),
                              a.rows, width);
    matmul_backward_weight(g.projw, g.projb, d.middle.data(), b.attended.data(), a.rows, width, width);
    matmul_backward_weight(g.qkvw, g.qkvb, d.qkv.data(), b.ln1.data(), a.rows, width, 3 * width);
    layernorm_backward_weight(g.ln1w, g.ln1b, d.ln1.data(), a.stream(l), b.ln1_mean.data(), b.ln1_inverse.data(),
                              a.rows, width);
}

template <class Real>
void block_backward(activations<Real>& a, std::size_t l, const block_pointers<const Real>& w,
                    const block_pointers<Real>& g) {
    block_backward_input(a, l, w);
    block_backward_weight(a, l, g);
}

/// The embedding has no input part: bytes have no gradient.
template <class Real>
void places_backward(activations<Real>& a, Real* wpe) {
    positions_backward(wpe, a.dstream.data(), a.rows, a.shape.context, a.shape.width);
}

template <class Real>
void table_backward(activations<Real>& a, std::span<const std::uint8_t> inputs, Real* wte) {
    lookup_backward(wte, a.dstream.data(), inputs.data(), a.rows, a.shape.width);
}

template <class Real>
void embedding_backward(activations<Real>& a, std::span<const std::uint8_t> inputs, const embedding_pointers<Real>& g) {
    places_backward(a, g.wpe);
    table_backward(a, inputs, g.wte);
}

}  // namespace gpt
