// Element types on the host: double, float, bf16 and fp16, their names and sizes.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace reshard {
inline namespace v0 {

/// bfloat16: the upper half of a float. Rounds to nearest even; NaN stays NaN.
struct bf16 {
    std::uint16_t bits = 0;

    bf16() = default;
    explicit bf16(float value) {
        const auto raw = std::bit_cast<std::uint32_t>(value);
        const bool nan = (raw & 0x7fffffffu) > 0x7f800000u;
        bits = nan ? static_cast<std::uint16_t>((raw >> 16) | 0x40u)
                   : static_cast<std::uint16_t>((raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16);
    }
    explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE 754 half precision. Rounds to nearest even; beyond 65504 it becomes infinite.
struct fp16 {
    std::uint16_t bits = 0;

    fp16() = default;
    explicit fp16(float value) : bits(narrowed(std::bit_cast<std::uint32_t>(value))) {}
    explicit operator float() const { return widened(bits); }

private:
    static std::uint16_t narrowed(std::uint32_t raw) {
        const std::uint32_t sign = (raw >> 16) & 0x8000u, magnitude = raw & 0x7fffffffu;
        if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
        if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds beyond 65504
        if (magnitude >= 0x38800000u) {                                                   // a normal half
            const std::uint32_t rebased = magnitude - 0x38000000u;
            return static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
        }
        const std::uint32_t exponent = magnitude >> 23;
        if (exponent < 102) return static_cast<std::uint16_t>(sign);  // below half of the smallest subnormal
        const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u, shift = 126u - exponent;
        const std::uint32_t kept = significand >> shift, rest = significand & ((1u << shift) - 1u);
        const std::uint32_t half = 1u << (shift - 1u);
        return static_cast<std::uint16_t>(sign | (kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u)));
    }
    static float widened(std::uint16_t half) {
        const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
        if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
        if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
        const float tiny = static_cast<float>(magnitude) * 0x1p-24f;
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(tiny));
    }
};

/// Types that weights and gradients may have.
template <class Type>
concept Element =
    std::same_as<Type, double> || std::same_as<Type, float> || std::same_as<Type, bf16> || std::same_as<Type, fp16>;

enum class dtype : std::uint8_t { f64, f32, bf16, fp16 };

template <Element Type>
inline constexpr dtype dtype_of = std::is_same_v<Type, double>  ? dtype::f64
                                  : std::is_same_v<Type, float> ? dtype::f32
                                  : std::is_same_v<Type, bf16>  ? dtype::bf16
                                                                : dtype::fp16;

constexpr std::size_t size_of(dtype type) { return type == dtype::f64 ? 8 : type == dtype::f32 ? 4 : 2; }

constexpr const char* name_of(dtype type) {
    return type == dtype::f64 ? "double" : type == dtype::f32 ? "float" : type == dtype::bf16 ? "bf16" : "fp16";
}

/// The type that sums and arithmetic on Type use: double for double, float for all others.
template <Element Type>
using arithmetic = std::conditional_t<std::is_same_v<Type, double>, double, float>;

/// Neither infinite nor NaN, by the exponent's bits: holds under -Ofast too, where std::isfinite does not.
constexpr bool is_finite(float value) { return (std::bit_cast<std::uint32_t>(value) & 0x7f800000u) != 0x7f800000u; }
constexpr bool is_finite(double value) {
    return (std::bit_cast<std::uint64_t>(value) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
}

}  // namespace v0
}  // namespace reshard
