// The element kernels on the host: plain loops whose results no -Ofast changes where ranks must agree on them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "concept.hpp"
#include "numbers.hpp"
#include "votes.hpp"

namespace reshard {
inline namespace v0 {
namespace kernels {

/// Sums and arithmetic on many values go in blocks of this many lanes.
inline constexpr std::size_t lanes = 8;
struct lane_values {
    double value[lanes] = {};
};
inline constexpr std::size_t square_block_size = 256;

template <Element Gradient, Element Acc, bool add>
void accumulate_scaled(const Gradient* in, Acc* out, std::size_t count, double factor) {
    using number = arithmetic<Acc>;
    const number scale = static_cast<number>(factor);
    for (std::size_t i = 0; i < count; ++i) {
        const number term = rounded<number>(in[i]) * scale;
        out[i] = rounded<Acc>(add ? rounded<number>(out[i]) + term : term);
    }
}

/// Divides in double, which is exact for float too: -Ofast would approximate a division of floats.
template <Element Gradient, Element Acc, bool add>
void accumulate_divided(const Gradient* in, Acc* out, std::size_t count, double divisor) {
    using number = arithmetic<Acc>;
    lane_values divisors;
    for (double& each : divisors.value) each = divisor;
    for (std::size_t begin = 0; begin < count; begin += lanes) {
        fence(divisors);
        const std::size_t length = count - begin < lanes ? count - begin : lanes;
        for (std::size_t k = 0; k < length; ++k) {
            const std::size_t i = begin + k;
            const auto term = static_cast<number>(rounded<double>(rounded<number>(in[i])) / divisors.value[k]);
            out[i] = rounded<Acc>(add ? rounded<number>(out[i]) + term : term);
        }
    }
}

template <Element Gradient, Element Acc, bool add>
void accumulate(const Gradient* in, Acc* out, std::size_t count, std::size_t divisor) {
    const auto exact = static_cast<double>(divisor);
    if (std::has_single_bit(divisor)) {  // the reciprocal is exact, so this is the division
        accumulate_scaled<Gradient, Acc, add>(in, out, count, 1.0 / exact);
    } else {
        accumulate_divided<Gradient, Acc, add>(in, out, count, exact);
    }
}

/// Squares of the finite values; others give 0 and are counted. Masks and a fixed count, so that every compiler
/// vectorizes it.
template <class Number>
std::uint32_t square_block(const Number* values, double* squares) {
    using bits = std::conditional_t<sizeof(Number) == 4, std::uint32_t, std::uint64_t>;
    constexpr bits exponent = static_cast<bits>(sizeof(Number) == 4 ? 0x7f800000u : 0x7ff0000000000000u);
    bits bad = 0;
    for (std::size_t k = 0; k < square_block_size; ++k) {
        const bits pattern = std::bit_cast<bits>(values[k]), finite = (pattern & exponent) != exponent;
        bad += 1 - finite;
        const auto used = static_cast<double>(std::bit_cast<Number>(pattern & (0 - finite)));
        squares[k] = used * used;
    }
    return static_cast<std::uint32_t>(bad);
}

/// The sum of squares of the finite values; others are counted. Order: eight lanes, then the lanes one after another.
template <Element Acc>
double square_sum(const Acc* values, std::size_t count, std::uint32_t& non_finite) {
    using number = arithmetic<Acc>;
    struct {
        double value[square_block_size];
    } squares;
    lane_values sums;
    for (std::size_t begin = 0; begin < count; begin += square_block_size) {
        const std::size_t length = count - begin < square_block_size ? count - begin : square_block_size;
        if (std::is_same_v<Acc, number> && length == square_block_size) {
            non_finite += square_block(reinterpret_cast<const number*>(values + begin), squares.value);
        } else {  // zeros behind the end change no sum
            number block[square_block_size] = {};
            for (std::size_t k = 0; k < length; ++k) block[k] = rounded<number>(values[begin + k]);
            non_finite += square_block(block, squares.value);
        }
        fence(squares);
        for (std::size_t row = 0; row < square_block_size; row += lanes) {
            for (std::size_t k = 0; k < lanes; ++k) sums.value[k] += squares.value[row + k];
            fence(sums);
        }
    }
    double total = 0;
    for (const double& sum : sums.value) {
        total += sum;
        fence(total);
    }
    return total;
}

inline double root(double value) { return __builtin_sqrt(value); }
inline float root(float value) { return __builtin_sqrtf(value); }

template <Element Master, Element Acc, Element Moment>
void adamw(const adamw_range& range, const commit_outcome& outcome, Master* master, const Acc* gradient, Moment* first,
           Moment* second) {
    using number = arithmetic<Acc>;
    const auto steps = static_cast<double>(outcome.applied);
    const double correction1 = 1 - __builtin_pow(range.beta1, steps);
    const double correction2 = 1 - __builtin_pow(range.beta2, steps);
    const auto beta1 = static_cast<number>(range.beta1), rest1 = static_cast<number>(1 - range.beta1);
    const auto beta2 = static_cast<number>(range.beta2), rest2 = static_cast<number>(1 - range.beta2);
    const auto kept = static_cast<number>(1 - range.learning_rate * range.weight_decay);
    const auto rate = static_cast<number>(range.learning_rate / correction1);
    const auto root_scale = static_cast<number>(1 / __builtin_sqrt(correction2));
    const auto epsilon = static_cast<number>(range.epsilon), factor = static_cast<number>(outcome.factor);
    for (std::size_t i = range.begin; i < range.begin + range.count; ++i) {
        const number slope = rounded<number>(gradient[i]) * factor;
        const number m = beta1 * rounded<number>(first[i]) + rest1 * slope;
        const number v = beta2 * rounded<number>(second[i]) + rest2 * slope * slope;
        first[i] = rounded<Moment>(m);
        second[i] = rounded<Moment>(v);
        master[i] = rounded<Master>(rounded<number>(master[i]) * kept - rate * m / (root(v) * root_scale + epsilon));
    }
}

template <Element Master, Element Acc, Element Moment>
void sgd(const sgd_range& range, const commit_outcome& outcome, Master* master, const Acc* gradient, Moment* momentum) {
    using number = arithmetic<Acc>;
    const auto rate = static_cast<number>(range.learning_rate), decay = static_cast<number>(range.weight_decay);
    const auto factor = static_cast<number>(outcome.factor), keep = static_cast<number>(range.momentum);
    const auto damped = static_cast<number>(1 - range.dampening);
    const bool with_momentum = momentum != nullptr && range.momentum != 0, first = outcome.applied == 1;
    for (std::size_t i = range.begin; i < range.begin + range.count; ++i) {
        const number weight = rounded<number>(master[i]);
        number slope = rounded<number>(gradient[i]) * factor + decay * weight;
        if (with_momentum) {
            const number moved = first ? slope : keep * rounded<number>(momentum[i]) + damped * slope;
            momentum[i] = rounded<Moment>(moved);
            slope = range.nesterov ? slope + keep * moved : moved;
        }
        master[i] = rounded<Master>(weight - rate * slope);
    }
}

}  // namespace kernels

/// Gives a host device its kernels. `Derived::launch(stream, work)` runs `work()` in stream order, at once or later:
/// everything pointed to must live until then.
template <class Derived>
class host_kernels {
public:
    void zero(std::span<std::byte> bytes, const auto& stream) const {
        if (bytes.empty()) return;
        launch(stream, [bytes] { __builtin_memset(bytes.data(), 0, bytes.size()); });
    }

    /// out[i] = in[i] rounded to nearest. in and out are equal or apart.
    template <Element From, Element To>
    void cast(const From* in, To* out, std::size_t count, const auto& stream) const {
        if (count == 0) return;
        launch(stream, [=] {
            if constexpr (std::is_same_v<From, To>) {
                if (in != out) __builtin_memcpy(out, in, count * sizeof(To));
            } else {
                for (std::size_t i = 0; i < count; ++i) out[i] = kernels::rounded<To>(in[i]);
            }
        });
    }

    /// out = [out +] in / divisor, a true division in Acc's arithmetic type. in may be out when overwriting.
    template <Element Gradient, Element Acc>
    void accumulate(const Gradient* in, Acc* out, std::size_t count, write_mode mode, std::size_t divisor,
                    const auto& stream) const {
        if (count == 0) return;
        launch(stream, [=] {
            if (mode == write_mode::add) {
                kernels::accumulate<Gradient, Acc, true>(in, out, count, divisor);
            } else {
                kernels::accumulate<Gradient, Acc, false>(in, out, count, divisor);
            }
        });
    }

    /// record->square_norm and ->non_finite of the ranges in their order; infinities and NaN are counted, not summed.
    template <Element Acc>
    void square_norm(const Acc* base, const arena_range* ranges, std::size_t n_ranges, vote_record* record,
                     const auto& stream) const {
        launch(stream, [=] {
            double sum = 0;
            std::uint32_t non_finite = 0;
            for (std::size_t r = 0; r < n_ranges; ++r) {
                sum += kernels::square_sum(base + ranges[r].begin, ranges[r].count, non_finite);
                kernels::fence(sum);
            }
            record->square_norm = sum;
            record->non_finite = non_finite;
        });
    }

    /// Makes the record valid: says (vote_apply, vote_discard or vote_fault), step and a hash of the step's numbers.
    void seal(vote_record* record, std::uint32_t says, std::uint64_t step, std::uint64_t numbers,
              const auto& stream) const {
        launch(stream, [=] {
            record->says = says;
            record->step = step;
            record->numbers = numbers;
        });
    }

    /// Judges the votes of all ranks; record r lies at records + r * stride. discarded: all say so. fault: a record
    /// of another step, cleared, saying fault, or unlike the others. overflow: anything non-finite. Else applied, and
    /// norm = root of the sum in rank order * gradient_scale, factor = gradient_scale * min(1, clip_norm / norm).
    void decide(const std::byte* records, std::size_t stride, std::size_t ranks, std::uint64_t step, commit_terms terms,
                commit_outcome* outcome, const auto& stream) const {
        launch(stream, [=] { kernels::decide(records, stride, ranks, step, terms, *outcome); });
    }

    /// AdamW with decoupled weight decay, if the outcome is applied; its count of steps corrects the bias.
    template <Element Master, Element Acc, Element Moment>
    void adamw(const adamw_range* ranges, std::size_t n_ranges, const commit_outcome* outcome, Master* master,
               const Acc* gradient, Moment* first, Moment* second, const auto& stream) const {
        launch(stream, [=] {
            if (outcome->result != verdict::applied) return;
            for (std::size_t r = 0; r < n_ranges; ++r) {
                kernels::adamw(ranges[r], *outcome, master, gradient, first, second);
            }
        });
    }

    /// SGD with optional momentum (may be null), dampening, Nesterov and weight decay added to the gradient, if the
    /// outcome is applied. The first applied step sets the momentum to the gradient, undamped.
    template <Element Master, Element Acc, Element Moment>
    void sgd(const sgd_range* ranges, std::size_t n_ranges, const commit_outcome* outcome, Master* master,
             const Acc* gradient, Moment* momentum, const auto& stream) const {
        launch(stream, [=] {
            if (outcome->result != verdict::applied) return;
            for (std::size_t r = 0; r < n_ranges; ++r) {
                kernels::sgd(ranges[r], *outcome, master, gradient, momentum);
            }
        });
    }

    /// Writes the packet's bytes in stream order.
    void put(std::byte* to, const packet& few, const auto& stream) const {
        launch(stream, [to, few] { __builtin_memcpy(to, few.bytes, few.size); });
    }

    /// Host and device memory are one: copies at once, waits for nothing.
    void upload(std::byte* to, const std::byte* from, std::size_t bytes) const {
        if (bytes != 0) __builtin_memcpy(to, from, bytes);
    }
    void download(std::byte* to, const std::byte* from, std::size_t bytes) const {
        if (bytes != 0) __builtin_memcpy(to, from, bytes);
    }

    /// Waits until nothing on the stream runs or waits to run; throws nothing. Here for devices whose work ends inside
    /// the call.
    void settle(auto /*stream*/) const {}

    /// Whether an operation on the stream is through when its call returns: on the caller's own thread.
    bool blocks(const auto& stream) const { return stream == static_cast<const Derived&>(*this).caller(); }

private:
    template <class Work>
    void launch(const auto& stream, Work&& work) const {
        static_cast<const Derived&>(*this).launch(stream, static_cast<Work&&>(work));
    }
};

}  // namespace v0
}  // namespace reshard
