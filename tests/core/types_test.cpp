// bf16 and fp16 against Eigen's: all values widened, and all places where narrowing rounds.
#include <doctest/doctest.h>
#include <eigen3/Eigen/Core>
#include <reshard/core/types.hpp>

#include <bit>
#include <cstdint>
#include <limits>

using namespace reshard;

namespace {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
bool is_nan(float value) { return (bits_of(value) & 0x7fffffffu) > 0x7f800000u; }

// The same bits, or both not a number.
bool same(float left, float right) { return bits_of(left) == bits_of(right) || (is_nan(left) && is_nan(right)); }

Eigen::bfloat16 oracle(bf16, float value) { return Eigen::bfloat16(value); }
Eigen::half oracle(fp16, float value) { return Eigen::half(value); }
float oracle_widened(bf16 value) {
    return Eigen::bfloat16_impl::bfloat16_to_float(Eigen::bfloat16_impl::raw_uint16_to_bfloat16(value.bits));
}
float oracle_widened(fp16 value) {
    return Eigen::half_impl::half_to_float(Eigen::half_impl::raw_uint16_to_half(value.bits));
}

template <class Small>
bool narrows_like_the_oracle(std::uint32_t raw) {
    const float value = std::bit_cast<float>(raw);
    const Small ours{value};
    if (is_nan(value)) return is_nan(static_cast<float>(ours));
    return ours.bits == std::bit_cast<std::uint16_t>(oracle(Small{}, value));
}

}  // namespace

TEST_CASE_TEMPLATE("every 16-bit value widens like Eigen's and comes back", Small, bf16, fp16) {
    int wrong = 0, changed = 0;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        Small value;
        value.bits = static_cast<std::uint16_t>(bits);
        const float wide = static_cast<float>(value);
        wrong += !same(wide, oracle_widened(value));
        const Small again{wide};
        changed += is_nan(wide) ? !is_nan(static_cast<float>(again)) : again.bits != value.bits;
    }
    CHECK(wrong == 0);
    CHECK(changed == 0);
}

TEST_CASE_TEMPLATE("narrowing rounds like Eigen's around every value and halfway to the next", Small, bf16, fp16) {
    int wrong = 0;
    for (std::uint32_t bits = 0; bits < 0xffff; ++bits) {
        Small low, high;
        low.bits = static_cast<std::uint16_t>(bits);
        high.bits = static_cast<std::uint16_t>(bits + 1);
        const std::uint32_t first = bits_of(static_cast<float>(low)), last = bits_of(static_cast<float>(high));
        const std::uint32_t middle = first / 2 + last / 2 + (first & last & 1u);
        for (const std::uint32_t centre : {first, middle, last}) {
            for (const std::uint32_t raw : {centre - 1u, centre, centre + 1u})
                wrong += !narrows_like_the_oracle<Small>(raw);
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("narrowing rounds like Eigen's over all exponents", Small, bf16, fp16) {
    int wrong = 0;
    for (std::uint64_t raw = 0; raw < 0x100000000u; raw += 2039) {  // a prime: all low bits are met
        wrong += !narrows_like_the_oracle<Small>(static_cast<std::uint32_t>(raw));
    }
    CHECK(wrong == 0);
}

TEST_CASE("rounding written out") {
    CHECK(bf16{1.0f}.bits == 0x3f80);
    CHECK(bf16{1.00390625f}.bits == 0x3f80);  // halfway: to even
    CHECK(bf16{1.01171875f}.bits == 0x3f82);  // halfway: to even, upwards
    CHECK(bf16{std::numeric_limits<float>::max()}.bits == 0x7f80);
    CHECK(fp16{65504.0f}.bits == 0x7bff);
    CHECK(fp16{65519.996f}.bits == 0x7bff);
    CHECK(fp16{65520.0f}.bits == 0x7c00);
    CHECK(fp16{-65520.0f}.bits == 0xfc00);
    CHECK(fp16{0x1p-24f}.bits == 0x0001);
    CHECK(fp16{0x1p-25f}.bits == 0x0000);  // halfway to the smallest: to even
    CHECK(fp16{0x1.8p-25f}.bits == 0x0001);
    CHECK(fp16{-0.0f}.bits == 0x8000);
}

TEST_CASE("finite by the bits") {
    for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()})
        CHECK(is_finite(value));
    for (const std::uint32_t raw : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u})
        CHECK_FALSE(is_finite(std::bit_cast<float>(raw)));
    CHECK(is_finite(std::numeric_limits<double>::max()));
    for (const std::uint64_t raw : {0x7ff0000000000000u, 0xfff0000000000000u, 0x7ff8000000000000u, 0x7ff0000000000001u})
        CHECK_FALSE(is_finite(std::bit_cast<double>(raw)));
}

TEST_CASE("names and sizes") {
    CHECK(size_of(dtype_of<double>) == sizeof(double));
    CHECK(size_of(dtype_of<float>) == sizeof(float));
    CHECK(size_of(dtype_of<bf16>) == sizeof(bf16));
    CHECK(size_of(dtype_of<fp16>) == sizeof(fp16));
    CHECK(std::string(name_of(dtype::f64)) + name_of(dtype::f32) + name_of(dtype::bf16) + name_of(dtype::fp16) ==
          "doublefloatbf16fp16");
    CHECK(std::is_same_v<arithmetic<double>, double>);
    CHECK(std::is_same_v<arithmetic<float>, float>);
    CHECK(std::is_same_v<arithmetic<bf16>, float>);
    CHECK(std::is_same_v<arithmetic<fp16>, float>);
    CHECK_FALSE(Element<int>);
}
