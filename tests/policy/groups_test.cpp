// Smaller groups: which of them divide the ranks over which parameters rest, against an oracle that deals them out.
#include <doctest/doctest.h>
#include <reshard/policy/runtime.hpp>

#include <string>
#include <vector>

using namespace reshard;
using doctest::Contains;

namespace {

// Whether groups of `part` ranks, filled one rank after the other, are all full in the end.
bool all_full(std::size_t part, std::size_t ranks) {
    std::size_t in_last = part;
    for (std::size_t rank = 0; rank < ranks; ++rank) in_last = in_last == part ? 1 : in_last + 1;
    return in_last == part;
}

// What check_groups() says, without its identifier; empty where it says nothing.
template <class Policy>
std::string said(const Policy& policy, group_shape shape, std::size_t units) {
    try {
        policy.check_groups(shape, units);
    } catch (const topology_error& thrown) {
        CHECK(std::string(thrown.id()) == "E-TOPOLOGY-1");
        return std::string(thrown.what()).substr(std::string("reshard [E-TOPOLOGY-1] ").size());
    }
    return {};
}

// The beginning of the text for parameters over `ranks` ranks of the shape; empty where `part` fits.
std::string expected(std::size_t part, std::size_t blocks, std::size_t ranks) {
    if (all_full(part, ranks)) return {};
    return text("secondary group of ", part, " does not divide the shard group of ", ranks, " (world ", blocks * ranks,
                " = ", blocks, " x ", ranks, "); use ", divisors_text(ranks));
}

// Groups of 2 for the first unit, 3 for the second, none for the third.
struct mixed_groups : reshard_always {
    static afterwards after_forward(unit_place unit) { return unit.index < 2 ? afterwards::group : afterwards::free; }
    static std::size_t group(unit_place unit) { return unit.index + 2; }
};

// Every second unit's parameters rest over the inner group, the others' over the whole.
struct mixed_placements : full_shard {
    static placement parameters(unit_place unit) { return unit.index % 2 == 0 ? placement::inner : placement::whole; }
};

struct without_group : reshard_always {
    static afterwards after_backward(unit_place unit) { return unit.index == 1 ? afterwards::group : afterwards::free; }
};

struct group_of_nothing : reshard_to_group<2> {
    static std::size_t group(unit_place) { return 0; }
};

struct group_without_end : reshard_to_group<2> {
    static std::size_t group(unit_place) { return dynamic; }
};

}  // namespace

TEST_CASE("flat: all ranks and groups from 1 to 64") {
    for (std::size_t part = 1; part <= 64; ++part) {
        const runtime_policy<> chosen{full_shard{}, any_reshard::parse(text("reshard_to_group:", part)),
                                      any_topology::parse("flat")};
        const runtime_policy<> lasting{full_shard{}, any_reshard::parse(text("reshard_to_group:", part, ",until_step")),
                                       any_topology::parse("flat")};
        for (std::size_t world = 1; world <= 64; ++world) {
            CHECK(said(chosen, chosen.resolve(world), 3) == expected(part, 1, world));
            CHECK(said(lasting, lasting.resolve(world), 3) == expected(part, 1, world));
        }
    }
}

TEST_CASE("meshes: all inner groups and groups from 1 to 64, parameters over the inner group and over the whole") {
    for (std::size_t part = 1; part <= 64; ++part) {
        const any_reshard grouped = any_reshard::parse(text("reshard_to_group:", part));
        const runtime_policy<> over_inner{hybrid_full_shard{}, grouped, any_topology::parse("mesh:3x*")};
        const runtime_policy<> over_whole{full_shard{}, grouped, any_topology::parse("mesh:3x*")};
        const runtime_policy<> whole_on_each{shard_gradients{}, grouped, any_topology::parse("mesh:3x*")};
        for (std::size_t inner = 1; inner <= 64; ++inner) {
            const group_shape shape = over_inner.resolve(3 * inner);
            CHECK(said(over_inner, shape, 2) == expected(part, 3, inner));
            CHECK(said(over_whole, shape, 2) == expected(part, 1, 3 * inner));
            CHECK(said(whole_on_each, shape, 2).empty());
        }
    }
}

TEST_CASE("the sentence, with all numbers") {
    const policy<hybrid_shard, reshard_to_group<3>, mesh<2, dynamic>> hybrid;
    CHECK_THROWS_WITH_AS(hybrid.check_groups(hybrid.resolve(16), 1),
                         "reshard [E-TOPOLOGY-1] secondary group of 3 does not divide the shard group of 8 (world 16 = "
                         "2 x 8); use 1, 2, 4 or 8",
                         topology_error);
    const policy<full_shard, accumulate_unsharded<reshard_to_group<3, until_step>>> flat_one;
    CHECK(said(flat_one, flat_one.resolve(8), 1) ==
          "secondary group of 3 does not divide the shard group of 8 (world 8 = 1 x 8); use 1, 2, 4 or 8");
    CHECK(said(flat_one, flat_one.resolve(9), 1).empty());
}

TEST_CASE("each unit has a group, and ranks over which its parameters rest, of its own") {
    const policy<full_shard, mixed_groups> by_group;
    CHECK(said(by_group, {1, 4}, 1).empty());
    CHECK(said(by_group, {1, 4}, 2) == expected(3, 1, 4));
    CHECK(said(by_group, {1, 6}, 3).empty());  // the third would have a group of 4, but is freed
    const policy<mixed_placements, reshard_to_group<4>, mesh<2, dynamic>> by_placement;
    CHECK(said(by_placement, {2, 2}, 1) == expected(4, 2, 2));
    CHECK(said(by_placement, {2, 4}, 2).empty());
    const policy<mixed_placements, reshard_to_group<3>, mesh<3, dynamic>> other;
    CHECK(said(other, {3, 4}, 1) == expected(3, 3, 4));
}

TEST_CASE("groups that only a policy of one's own can ask for") {
    CHECK(said(policy<full_shard, group_of_nothing>{}, {1, 4}, 1) ==
          "a group has no ranks (world 4, outer 1, inner 4, secondary 0); every size is at least 1");
    CHECK_THROWS_WITH_AS((policy<full_shard, group_without_end>{}.check_groups({1, 4}, 1)),
                         Contains("does not divide the shard group of 4"), topology_error);
    CHECK_NOTHROW(policy<full_shard, without_group>{}.check(1));
    CHECK_THROWS_WITH_AS((policy<full_shard, without_group>{}.check(3)),
                         "reshard [E-POLICY-6] the reshard policy leaves unit 1 of 3 to a smaller group, but has no "
                         "function group(unit) that tells how many ranks; add one",
                         argument_error);
}

TEST_CASE("planned policies: what cannot be asked for") {
    CHECK_THROWS_WITH_AS(reshard_within(1 << 20, 0),
                         "reshard [E-POLICY-10] reshard_within is planned for 0 microbatches a step; give the usual "
                         "number of your steps, at least 1",
                         argument_error);
    const char* twice = "reshard [E-POLICY-9] accumulate_unsharded<pipeline_default>: accumulate_unsharded around a "
                        "policy that decides itself how often to reduce; leave accumulate_unsharded away";
    CHECK_THROWS_WITH_AS(any_reshard::parse("accumulate_unsharded:pipeline_default"), twice, argument_error);
    CHECK_THROWS_WITH_AS(any_reshard(pipeline_default{}).accumulated(), twice, argument_error);
    const policy<full_shard, accumulate_unsharded<any_reshard>> found_late{{}, {any_reshard(pipeline_default{})}};
    CHECK_THROWS_WITH_AS(found_late.check(1), twice, argument_error);
    CHECK_THROWS_WITH_AS(any_reshard::parse("accumulate_unsharded:reshard_within:1KiB"),
                         Contains("accumulate_unsharded<reshard_within(1 KiB, 1 microbatch)>"), argument_error);
    // a planned policy stands in a policy like any other
    policy<full_shard, reshard_within> planned{{}, reshard_within(std::size_t{1} << 30)};
    CHECK(planned.describe() == "full_shard + reshard_within(1 GiB, 1 microbatch) over flat<dynamic>, float");
    CHECK(said(planned, {1, 8}, 2).empty());
    planned.reshard.accept({{afterwards::group, afterwards::free, 2}, {afterwards::group, afterwards::free, 3}}, false,
                           "chosen");
    CHECK(said(planned, {1, 8}, 2) == expected(3, 1, 8));
}
