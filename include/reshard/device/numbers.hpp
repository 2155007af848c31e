// Single numbers: an order of arithmetic that no -Ofast changes, conversions that round once.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "../core/types.hpp"

namespace reshard {
inline namespace v0 {
namespace kernels {

/// The compiler may neither know `object` nor move arithmetic on it across this point: fixes the order of sums and
/// keeps divisions divisions under -Ofast.
template <class Object>
inline void fence(Object& object) {
    __asm__ volatile("" : "+m"(object));
}

/// The float nearest to `value`, except that an inexact one gets an odd last bit: rounding it further to bf16 or
/// fp16 gives what rounding `value` at once would.
inline float rounded_to_odd(double value) {
    float closest = static_cast<float>(value);
    if (static_cast<double>(closest) == value || !is_finite(value)) return closest;
    auto bits = std::bit_cast<std::uint32_t>(closest);
    const bool too_large = value < 0 ? static_cast<double>(closest) < value : static_cast<double>(closest) > value;
    if (too_large || !is_finite(closest)) --bits;
    return std::bit_cast<float>(bits | 1u);
}

/// The To nearest to `value`.
template <class To, class From>
inline To rounded(From value) {
    if constexpr (std::is_same_v<To, From>) {
        return value;
    } else if constexpr (std::is_same_v<From, double> && !std::is_same_v<To, float>) {
        return To(rounded_to_odd(value));
    } else if constexpr (std::is_arithmetic_v<From>) {
        return static_cast<To>(value);
    } else {
        return rounded<To>(static_cast<float>(value));
    }
}

}  // namespace kernels
}  // namespace v0
}  // namespace reshard
