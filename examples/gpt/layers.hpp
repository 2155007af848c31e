// The layers of a small GPT, forward and backward, over plain pointers: one thread, rows in memory order.
// Gradients of parameters are added to; gradients of activations are written, where the text does not say "added".
#pragma once

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpt {

using integer = std::ptrdiff_t;

template <class Real>
using plain_matrix = Eigen::Matrix<std::remove_const_t<Real>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Real>
using plain_line = Eigen::Array<std::remove_const_t<Real>, 1, Eigen::Dynamic>;

/// A matrix product's view of rows x columns numbers; `stride` is the distance from one row to the next.
template <class Real>
auto matrix(Real* data, integer rows, integer columns, integer stride) {
    using viewed = std::conditional_t<std::is_const_v<Real>, const plain_matrix<Real>, plain_matrix<Real>>;
    return Eigen::Map<viewed, 0, Eigen::OuterStride<>>(data, rows, columns, Eigen::OuterStride<>(stride));
}

template <class Real>
auto matrix(Real* data, integer rows, integer columns) {
    return matrix(data, rows, columns, columns);
}

/// `count` numbers as an array: element-wise arithmetic.
template <class Real>
auto line(Real* data, integer count) {
    using viewed = std::conditional_t<std::is_const_v<Real>, const plain_line<Real>, plain_line<Real>>;
    return Eigen::Map<viewed>(data, count);
}

/// out[i] = table[token[i]]
template <class Real>
void lookup_forward(Real* out, const std::uint8_t* tokens, const Real* table, integer rows, integer width) {
    for (integer i = 0; i < rows; ++i) {
        line(out + i * width, width) = line(table + tokens[i] * width, width);
    }
}

template <class Real>
void lookup_backward(Real* dtable, const Real* dout, const std::uint8_t* tokens, integer rows, integer width) {
    for (integer i = 0; i < rows; ++i) {
        line(dtable + tokens[i] * width, width) += line(dout + i * width, width);
    }
}

/// out[i] += positions[i % context]; its gradient passes through.
template <class Real>
void positions_forward(Real* out, const Real* positions, integer rows, integer context, integer width) {
    for (integer i = 0; i < rows; ++i) {
        line(out + i * width, width) += line(positions + (i % context) * width, width);
    }
}

template <class Real>
void positions_backward(Real* dpositions, const Real* dout, integer rows, integer context, integer width) {
    for (integer i = 0; i < rows; ++i) {
        line(dpositions + (i % context) * width, width) += line(dout + i * width, width);
    }
}

/// Rows are brought to mean 0 and variance 1, then scaled and shifted; mean and 1/deviation are kept for backward.
template <class Real>
void layernorm_forward(Real* out, Real* means, Real* inverse_deviations, const Real* in, const Real* weight,
                       const Real* bias, integer rows, integer width) {
    for (integer i = 0; i < rows; ++i) {
        const auto x = line(in + i * width, width);
        const Real mean = x.mean();
        const Real inverse = Real(1) / std::sqrt((x - mean).square().mean() + Real(1e-5));
        line(out + i * width, width) = (x - mean) * inverse * line(weight, width) + line(bias, width);
        means[i] = mean;
        inverse_deviations[i] = inverse;
    }
}

/// `din` is added to: a layernorm stands on a branch of the residual stream.
template <class Real>
void layernorm_backward_input(Real* din, const Real* dout, const Real* in, const Real* means,
                              const Real* inverse_deviations, const Real* weight, integer rows, integer width) {
    for (integer i = 0; i < rows; ++i) {
        const auto normal = (line(in + i * width, width) - means[i]) * inverse_deviations[i];
        const auto dnormal = line(dout + i * width, width) * line(weight, width);
        const Real mean = dnormal.mean();
        const Real slope = (dnormal * normal).mean();
        line(din + i * width, width) += (dnormal - mean - normal * slope) * inverse_deviations[i];
    }
}

template <class Real>
void layernorm_backward_weight(Real* dweight, Real* dbias, const Real* dout, const Real* in, const Real* means,
                               const Real* inverse_deviations, integer rows, integer width) {
    for (integer i = 0; i < rows; ++i) {
        const auto change = line(dout + i * width, width);
        line(dweight, width) += change * ((line(in + i * width, width) - means[i]) * inverse_deviations[i]);
        line(dbias, width) += change;
    }
}

/// out[rows x outputs] = in[rows x inputs] * transpose(weight[outputs x inputs]) + bias; no bias: nullptr
template <class Real>
void matmul_forward(Real* out, const Real* in, const Real* weight, const Real* bias, integer rows, integer inputs,
                    integer outputs) {
    auto result = matrix(out, rows, outputs);
    result.noalias() = matrix(in, rows, inputs) * matrix(weight, outputs, inputs).transpose();
    if (bias != nullptr) {
        result.rowwise() += line(bias, outputs).matrix();
    }
}

template <class Real>
void matmul_backward_input(Real* din, const Real* dout, const Real* weight, integer rows, integer inputs,
                           integer outputs) {
    matrix(din, rows, inputs).noalias() = matrix(dout, rows, outputs) * matrix(weight, outputs, inputs);
}

/// No bias: nullptr.
template <class Real>
void matmul_backward_weight(Real* dweight, Real* dbias, const Real* dout, const Real* in, integer rows, integer inputs,
                            integer outputs) {
    const auto change = matrix(dout, rows, outputs);
    matrix(dweight, outputs, inputs).noalias() += change.transpose() * matrix(in, rows, inputs);
    if (dbias != nullptr) {
        line(dbias, outputs) += change.colwise().sum().array();
    }
}

/// Causal self-attention. `qkv` rows hold query, key and value, each `width` numbers, head after head.
/// `attention` keeps the softmax rows (sequences x heads x context x context) for backward.
template <class Real>
void attention_forward(Real* out, Real* attention, const Real* qkv, integer sequences, integer context, integer width,
                       integer heads) {
    const integer size = width / heads;
    const Real scale = Real(1) / std::sqrt(static_cast<Real>(size));
    for (integer sequence = 0; sequence < sequences; ++sequence) {
        for (integer head = 0; head < heads; ++head) {
            const Real* first = qkv + sequence * context * 3 * width + head * size;
            const auto query = matrix(first, context, size, 3 * width);
            const auto key = matrix(first + width, context, size, 3 * width);
            const auto value = matrix(first + 2 * width, context, size, 3 * width);
            auto weights = matrix(attention + (sequence * heads + head) * context * context, context, context);
            weights.noalias() = query * key.transpose();
            for (integer t = 0; t < context; ++t) {
                auto seen = weights.row(t).head(t + 1).array();  // a position sees itself and the past
                seen = ((seen - seen.maxCoeff()) * scale).exp();
                seen /= seen.sum();
                weights.row(t).tail(context - t - 1).setZero();
            }
            matrix(out + sequence * context * width + head * size, context, size, width).noalias() = weights * value;
        }
    }
}

/// `scratch`: context x context numbers.
template <class Real>
void attention_backward(Real* dqkv, Real* scratch, const Real* dout, const Real* qkv, const Real* attention,
                        integer sequences, integer context, integer width, integer heads) {
    const integer size = width / heads;
    const Real scale = Real(1) / std::sqrt(static_cast<Real>(size));
    for (integer sequence = 0; sequence < sequences; ++sequence) {
        for (integer head = 0; head < heads; ++head) {
            const integer start = sequence * context * 3 * width + head * size;
            const auto query = matrix(qkv + start, context, size, 3 * width);
            const auto key = matrix(qkv + start + width, context, size, 3 * width);
            const auto value = matrix(qkv + start + 2 * width, context, size, 3 * width);
            const auto weights = matrix(attention + (sequence * heads + head) * context * context, context, context);
            const auto change = matrix(dout + sequence * context * width + head * size, context, size, width);
            auto dscores = matrix(scratch, context, context);
            dscores.noalias() = change * value.transpose();
            for (integer t = 0; t < context; ++t) {  // softmax; the future has weight 0 and so gets no gradient
                auto row = dscores.row(t).array();
                const auto weight = weights.row(t).array();
                const Real mean = (row * weight).sum();
                row = (row - mean) * weight * scale;
            }
            matrix(dqkv + start, context, size, 3 * width).noalias() = dscores * key;
            matrix(dqkv + start + width, context, size, 3 * width).noalias() = dscores.transpose() * query;
            matrix(dqkv + start + 2 * width, context, size, 3 * width).noalias() = weights.transpose() * change;
        }
    }
}

/// The tanh form of GPT-2: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
template <class Real>
void gelu_forward(Real* out, const Real* in, integer count) {
    const Real scale = static_cast<Real>(0.79788456080286535588);
    const auto x = line(in, count);
    line(out, count) = Real(0.5) * x * (Real(1) + (scale * (x + Real(0.044715) * x.cube())).tanh());
}

/// `din` may be `dout`; `scratch`: count numbers.
template <class Real>
void gelu_backward(Real* din, Real* scratch, const Real* dout, const Real* in, integer count) {
    const Real scale = static_cast<Real>(0.79788456080286535588);
    const auto x = line(in, count);
    auto bend = line(scratch, count);
    bend = (scale * (x + Real(0.044715) * x.cube())).tanh();
    line(din, count) =
        line(dout, count) * (Real(0.5) * (Real(1) + bend) + Real(0.5) * x * (Real(1) - bend.square()) * scale *
                                                                (Real(1) + Real(3 * 0.044715) * x.square()));
}

/// out = left + right
template <class Real>
void residual_forward(Real* out, const Real* left, const Real* right, integer count) {
    line(out, count) = line(left, count) + line(right, count);
}

/// The sum over rows of -log(probability of the target byte). `logits` become the probabilities.
template <class Real>
double cross_entropy_forward(Real* logits, const std::uint8_t* targets, integer rows, integer vocabulary) {
    double sum = 0;
    for (integer i = 0; i < rows; ++i) {
        auto row = line(logits + i * vocabulary, vocabulary);
        const Real largest = row.maxCoeff();
        const Real target = row[targets[i]] - largest;
        row = (row - largest).exp();
        const Real total = row.sum();
        row /= total;
        sum += static_cast<double>(std::log(total) - target);
    }
    return sum;
}

/// The gradient of `factor` times that sum; `probabilities` become the gradient of the logits.
template <class Real>
void cross_entropy_backward(Real* probabilities, const std::uint8_t* targets, Real factor, integer rows,
                            integer vocabulary) {
    for (integer i = 0; i < rows; ++i) {
        auto row = line(probabilities + i * vocabulary, vocabulary);
        row[targets[i]] -= Real(1);
        row *= factor;
    }
}

}  // namespace gpt
