// The draws against the published answers, and against the distributions they claim.
#include <doctest/doctest.h>
#include <reshard/core/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

using namespace reshard;

TEST_CASE("Philox4x32-10 gives the answers published with Random123") {
    CHECK(philox({{0, 0, 0, 0}}, 0) == random_bits{{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}});
    CHECK(philox({{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}}, 0xffffffffffffffffu) ==
          random_bits{{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}});
    CHECK(philox({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, 0x299f31d0a4093822u) ==
          random_bits{{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}});
}

TEST_CASE("seed, stream and element all count, in all their bits") {
    const std::uint64_t high = std::uint64_t{1} << 40;
    std::set<double> seen;
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, high}) {
        for (const std::uint64_t stream : {std::uint64_t{0}, std::uint64_t{1}, high}) {
            for (const std::uint64_t element : {std::uint64_t{0}, std::uint64_t{1}, high})
                seen.insert(random_draws{seed, stream}.uniform(element));
        }
    }
    CHECK(seen.size() == 27);
    constexpr double at_compile_time = random_draws{7, 3}.uniform(11);
    CHECK(at_compile_time == random_draws{7, 3}.uniform(11));
}

TEST_CASE("values that resumed runs rely on") {
    // worked out from the paper's definition in Python
    const std::uint64_t wide_seed = (std::uint64_t{1} << 40) + 5, wide_element = (std::uint64_t{1} << 33) + 1;
    CHECK(random_draws{1, 2}.uniform(3) == 0.867320973984757);
    CHECK(random_draws{wide_seed, 7}.uniform(wide_element) == 0.7467978301519383);
    CHECK(random_draws{0, 0}.uniform(0) == 0.3990464708489645);
    CHECK(random_draws{1, 2}.normal(3) == doctest::Approx(-1.977265873615718).epsilon(1e-14));
    CHECK(random_draws{wide_seed, 7}.normal(wide_element) == doctest::Approx(1.6248952064975777).epsilon(1e-14));
    CHECK(random_draws{0, 0}.normal(0) == doctest::Approx(-0.09047305844120267).epsilon(1e-14));
}

namespace {

// Kolmogorov's distance between draws and a distribution function, times sqrt(n): above 1.95 once in 1000.
template <class Draw, class Distribution>
double distance(Draw draw, Distribution below) {
    std::vector<double> values(100000);
    for (std::size_t index = 0; index < values.size(); ++index) values[index] = draw(index);
    std::sort(values.begin(), values.end());
    double most = 0;
    const double count = static_cast<double>(values.size());
    for (std::size_t index = 0; index < values.size(); ++index) {
        const double expected = below(values[index]), rank = static_cast<double>(index);
        most = std::max({most, expected - rank / count, (rank + 1) / count - expected});
    }
    return most * std::sqrt(count);
}

}  // namespace

TEST_CASE("uniform is uniform in [0, 1)") {
    for (const std::uint64_t stream : {0u, 1u, 2u, 3u}) {
        const random_draws draws{42, stream};
        CHECK(distance([&](std::uint64_t element) { return draws.uniform(element); },
                       [](double value) { return std::clamp(value, 0.0, 1.0); }) < 1.95);
        for (std::uint64_t element = 0; element < 1000; ++element) {
            CHECK(draws.uniform(element) >= 0.0);
            CHECK(draws.uniform(element) < 1.0);
        }
    }
}

TEST_CASE("normal is normal, and neighbours do not hang together") {
    for (const std::uint64_t stream : {0u, 1u, 2u, 3u}) {
        const random_draws draws{42, stream};
        CHECK(distance([&](std::uint64_t element) { return draws.normal(element); },
                       [](double value) { return 0.5 * std::erfc(-value / std::sqrt(2.0)); }) < 1.95);
        double product = 0;
        for (std::uint64_t element = 0; element < 100000; ++element)
            product += draws.normal(element) * draws.normal(element + 1);
        CHECK(std::abs(product) < 4 * std::sqrt(100000.0));
    }
}

TEST_CASE("an element's value does not depend on how a loop over elements is split") {
    const random_draws draws{5, 9};
    std::vector<double> whole(1000), parts(1000);
    for (std::size_t index = 0; index < 1000; ++index) whole[index] = draws.normal(index);
    for (const std::size_t pieces : {1u, 3u, 7u, 64u}) {
        for (std::size_t piece = pieces; piece-- > 0;) {
            for (std::size_t index = piece * 1000 / pieces; index < (piece + 1) * 1000 / pieces; ++index)
                parts[index] = draws.normal(index);
        }
        CHECK(whole == parts);
    }
}
