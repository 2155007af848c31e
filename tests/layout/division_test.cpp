// Group sizes against a plain oracle, and the texts of what does not fit.
#include <doctest/doctest.h>
#include <reshard/layout/division.hpp>
#include <reshard/layout/slices.hpp>

#include <set>
#include <string>
#include <vector>

using namespace reshard;

namespace {

// Whether blocks of `part` tile `whole`, found by laying them out.
bool tiles(std::size_t part, std::size_t whole) {
    std::size_t covered = 0;
    while (covered < whole) covered += part;
    return covered == whole;
}

// The same judgement in the compiler, for a square of sizes.
template <std::size_t Most>
struct judged {
    misfit shard[Most + 1][Most + 1] = {}, secondary[Most + 1][Most + 1] = {};
    constexpr judged() {
        for (std::size_t whole = 1; whole <= Most; ++whole) {
            for (std::size_t part = 1; part <= Most; ++part) {
                shard[whole][part] = first_misfit({.world = whole, .inner = part});
                secondary[whole][part] = first_misfit({.inner = whole, .secondary = part});
            }
        }
    }
};

}  // namespace

TEST_CASE("both worlds agree with the oracle on all sizes from 1 to 64") {
    static constexpr judged<64> compiled;
    for (std::size_t whole = 1; whole <= 64; ++whole) {
        for (std::size_t part = 1; part <= 64; ++part) {
            CAPTURE(whole);
            CAPTURE(part);
            const bool fits = tiles(part, whole);
            const misfit shard = fits ? misfit::none : misfit::shard_group_does_not_divide_the_world;
            const misfit secondary = fits ? misfit::none : misfit::secondary_group_does_not_divide_the_shard_group;
            CHECK(first_misfit({.world = whole, .inner = part}) == shard);
            CHECK(compiled.shard[whole][part] == shard);
            CHECK(first_misfit({.inner = whole, .secondary = part}) == secondary);
            CHECK(compiled.secondary[whole][part] == secondary);
            CHECK(first_misfit({.world = 3 * whole, .outer = 3, .secondary = part}) == secondary);
            CHECK((first_misfit({.world = whole, .outer = part}) == misfit::none) == fits);
        }
    }
}

TEST_CASE("the world is outer times inner, and no product overflows") {
    for (std::size_t outer = 1; outer <= 12; ++outer) {
        for (std::size_t inner = 1; inner <= 12; ++inner) {
            for (std::size_t world = 1; world <= 150; ++world) {
                std::size_t product = 0;
                for (std::size_t block = 0; block < outer; ++block) product += inner;
                CHECK((first_misfit({.world = world, .outer = outer, .inner = inner}) == misfit::none) ==
                      (product == world));
            }
        }
    }
    const std::size_t huge = std::size_t{1} << 40;
    CHECK(first_misfit({.world = 1, .outer = huge, .inner = huge}) == misfit::world_is_not_the_product);
}

TEST_CASE("unknown sizes fit, sizes of 0 do not") {
    CHECK(first_misfit({}) == misfit::none);
    CHECK(first_misfit({.world = 7, .secondary = 3}) == misfit::none);
    CHECK(first_misfit({.world = 0}) == misfit::group_of_no_ranks);
    CHECK(first_misfit({.outer = 0}) == misfit::group_of_no_ranks);
    CHECK(first_misfit({.inner = 0}) == misfit::group_of_no_ranks);
    CHECK(first_misfit({.inner = 4, .secondary = 0}) == misfit::group_of_no_ranks);
}

TEST_CASE("texts name the numbers and the ways out") {
    const auto said = [](group_sizes sizes) { return misfit_text(first_misfit(sizes), sizes); };
    CHECK(said({.world = 16, .outer = 2, .inner = 8, .secondary = 3}) ==
          "secondary group of 3 does not divide the shard group of 8 (world 16 = 2 x 8); use 1, 2, 4 or 8");
    CHECK(said({.world = 16, .outer = 2, .secondary = 3}) ==
          "secondary group of 3 does not divide the shard group of 8 (world 16 = 2 x 8); use 1, 2, 4 or 8");
    CHECK(said({.inner = 8, .secondary = 16}) ==
          "secondary group of 16 does not divide the shard group of 8; use 1, 2, 4 or 8");
    CHECK(said({.inner = 1, .secondary = 2}) == "secondary group of 2 does not divide the shard group of 1; use 1");
    CHECK(said({.world = 6, .inner = 4}) == "shard group of 4 does not divide the world of 6 ranks; use 1, 2, 3 or 6");
    CHECK(said({.world = 7, .outer = 2}) == "outer group of 2 does not divide the world of 7 ranks; use 1 or 7");
    CHECK(said({.world = 8, .outer = 2, .inner = 2}) ==
          "outer 2 x inner 2 does not equal the world of 8 ranks; leave one of the two dynamic or start 2 x 2 ranks");
    CHECK(said({.world = 3, .outer = 1, .inner = 4}) ==
          "the topology is made for 4 ranks, the communicator has 3; start 4 ranks, or write flat<3> or flat<dynamic>");
    CHECK(said({.world = 8, .inner = 0}) == "a group has no ranks (world 8, outer dynamic, inner 0, secondary "
                                            "dynamic); every size is at least 1");
}

TEST_CASE("require_fit throws topology_error, or nothing") {
    CHECK_NOTHROW(require_fit({.world = 16, .outer = 2, .inner = 8, .secondary = 4}));
    CHECK_THROWS_AS(require_fit({.world = 16, .outer = 2, .inner = 8, .secondary = 3}), topology_error);
}

TEST_CASE("a rank's slice number where states rest over inner and whole") {
    std::vector<std::size_t> numbers;
    for (std::size_t rank = 0; rank < 6; ++rank) numbers.push_back(slice_number(rank, 2, 3, true));
    CHECK(numbers == std::vector<std::size_t>{0, 3, 1, 4, 2, 5});

    // The rule that makes it so: the whole slice lies inside slice `rank % inner` of the inner group.
    for (std::size_t inner = 1; inner <= 5; ++inner) {
        for (std::size_t outer = 1; outer <= 5; ++outer) {
            std::set<std::size_t> seen;
            for (std::size_t rank = 0; rank < inner * outer; ++rank) {
                const std::size_t number = slice_number(rank, inner, outer, true);
                seen.insert(number);
                CHECK(number / outer == rank % inner);
                CHECK(slice_number(rank, inner, outer, false) == rank);
            }
            CHECK(seen.size() == inner * outer);
            CHECK(*seen.rbegin() == inner * outer - 1);
        }
    }
}
