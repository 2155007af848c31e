// Meshes and machines: shapes against an oracle that lays the blocks out, and what does not fit.
#include <doctest/doctest.h>
#include <reshard/policy/runtime.hpp>

#include <string>
#include <vector>

using namespace reshard;
using doctest::Contains;

namespace {

// What the ranks of each block are, dealt out one by one: {} where blocks of `inner` ranks do not come out even.
std::vector<std::vector<std::size_t>> dealt(std::size_t world, std::size_t inner) {
    std::vector<std::vector<std::size_t>> blocks;
    for (std::size_t rank = 0; rank < world; ++rank) {
        if (blocks.empty() || blocks.back().size() == inner) blocks.emplace_back();
        blocks.back().push_back(rank);
    }
    if (!blocks.empty() && blocks.back().size() != inner) blocks.clear();
    return blocks;
}

// The shape, or {0, 0} where it was refused with this identifier.
template <class Resolve>
group_shape shape_or_refusal(const Resolve& resolve, const char* id) {
    try {
        return resolve();
    } catch (const topology_error& thrown) {
        CHECK(std::string(thrown.id()) == id);
        return {0, 0};
    }
}

template <class Static>
void both_worlds(const char* option, const char* name) {
    CAPTURE(option);
    const any_topology parsed = any_topology::parse(option);
    CHECK(parsed == any_topology(Static{}));
    CHECK(parsed.describe() == name);
    CHECK(Static::describe() == name);
    CHECK(parsed.levels() == Static::levels());
    for (std::size_t world = 0; world <= 24; ++world) {
        const auto known = [world] { return Static::resolve(world); };
        const auto value = [&parsed, world] { return parsed.resolve(world); };
        CHECK(shape_or_refusal(known, "E-TOPOLOGY-1") == shape_or_refusal(value, "E-TOPOLOGY-1"));
    }
}

}  // namespace

TEST_CASE("a mesh is the same as a type and as a value") {
    both_worlds<flat<dynamic>>("flat", "flat<dynamic>");
    both_worlds<flat<4>>("flat:4", "flat<4>");
    both_worlds<mesh<2, 4>>("mesh:2x4", "mesh<2, 4>");
    both_worlds<mesh<1, 4>>("mesh:1x4", "mesh<1, 4>");
    both_worlds<mesh<dynamic, 4>>("mesh:*x4", "mesh<dynamic, 4>");
    both_worlds<mesh<3, dynamic>>("mesh:3x*", "mesh<3, dynamic>");
    CHECK(mesh<2, 4>::resolve(8) == group_shape{2, 4});
    CHECK(mesh<dynamic, 4>::resolve(12) == group_shape{3, 4});
    CHECK(mesh<3, dynamic>::resolve(12) == group_shape{3, 4});
    CHECK_THROWS_WITH_AS((mesh<2, 4>::resolve(9)),
                         "reshard [E-TOPOLOGY-1] outer 2 x inner 4 does not equal the world of 9 ranks; leave one of "
                         "the two dynamic or start 2 x 4 ranks",
                         topology_error);
    CHECK_THROWS_WITH_AS((mesh<dynamic, 4>::resolve(6)),
                         "reshard [E-TOPOLOGY-1] shard group of 4 does not divide the world of 6 ranks; use 1, 2, 3 or "
                         "6",
                         topology_error);
    CHECK_THROWS_WITH_AS((mesh<dynamic, dynamic>::resolve(8)), Contains("one of the two must be known"),
                         topology_error);
}

TEST_CASE("all worlds and inner groups from 1 to 64 against blocks dealt out one by one") {
    for (std::size_t world = 1; world <= 64; ++world) {
        for (std::size_t inner = 1; inner <= 64; ++inner) {
            CAPTURE(world);
            CAPTURE(inner);
            const auto blocks = dealt(world, inner);
            const group_shape right = blocks.empty() ? group_shape{0, 0} : group_shape{blocks.size(), inner};
            const any_topology by_inner = any_topology::parse(text("mesh:*x", inner));
            CHECK(shape_or_refusal([&] { return by_inner.resolve(world); }, "E-TOPOLOGY-1") == right);
            // `inner` machines instead: as many outer groups
            const any_topology by_outer = any_topology::parse(text("mesh:", inner, "x*"));
            const group_shape turned{right.inner, right.outer};
            CHECK(shape_or_refusal([&] { return by_outer.resolve(world); }, "E-TOPOLOGY-1") == turned);
        }
    }
}

TEST_CASE("machines of equal size in contiguous blocks are the inner groups") {
    for (std::size_t world = 1; world <= 24; ++world) {
        for (std::size_t inner = 1; inner <= world; ++inner) {
            CAPTURE(world);
            CAPTURE(inner);
            // any numbers will do, and the last machine may have fewer ranks
            std::vector<std::size_t> node_of_rank;
            for (std::size_t rank = 0; rank < world; ++rank) node_of_rank.push_back(100 - rank / inner * 7);
            const auto blocks = dealt(world, inner);
            const group_shape right = blocks.empty() ? group_shape{0, 0} : group_shape{blocks.size(), inner};
            CHECK(shape_or_refusal([&] { return by_node::resolve(node_of_rank); }, "E-TOPOLOGY-3") == right);
            const policy<hybrid_shard, reshard_always, any_topology> chosen{{}, {}, by_node{}};
            CHECK(shape_or_refusal([&] { return chosen.resolve(node_of_rank); }, "E-TOPOLOGY-3") == right);
        }
    }
}

TEST_CASE("machines that cannot be inner groups are named") {
    const auto resolved = [](std::vector<std::size_t> nodes) { return by_node::resolve(nodes); };
    CHECK_THROWS_WITH_AS(resolved({0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2}),
                         "reshard [E-TOPOLOGY-3] by_node: the machines have 4, 3, 4 ranks, which must be equally many; "
                         "start as many on each, or write mesh<outer, inner> or a flat topology",
                         topology_error);
    CHECK_THROWS_WITH_AS(
        resolved({5, 5, 9, 5}),
        "reshard [E-TOPOLOGY-3] by_node: rank 3 runs on the machine of rank 0, but rank 2 between them "
        "on another; number the ranks machine by machine (mpirun --map-by slot), or write mesh<outer, "
        "inner> or a flat topology",
        topology_error);
    // every machine has two ranks in one block each but one
    CHECK_THROWS_WITH_AS(resolved({0, 0, 1, 2, 2, 1}), Contains("rank 5 runs on the machine of rank 2"),
                         topology_error);
    CHECK_THROWS_WITH_AS(resolved({7, 8, 7}), Contains("rank 2 runs on the machine of rank 0, but rank 1 between them"),
                         topology_error);
    CHECK_THROWS_WITH_AS(resolved({}), Contains("a group has no ranks"), topology_error);
}

TEST_CASE("a topology says whether it follows the machines") {
    CHECK_FALSE(policy<>{}.by_nodes());
    CHECK_FALSE(policy<hybrid_shard, reshard_always, mesh<2, 4>>{}.by_nodes());
    CHECK(policy<hybrid_shard, reshard_always, by_node>{}.by_nodes());
    CHECK_FALSE(may_be<decltype(policy<hybrid_shard, reshard_always, by_node>{}.by_nodes()), false>);
    CHECK_FALSE(may_be<decltype(policy<>{}.by_nodes()), true>);
    const any_topology parsed = any_topology::parse("by_node");
    CHECK(parsed.by_nodes());
    CHECK(parsed.describe() == "by_node");
    CHECK(parsed.levels() == 2);
    CHECK_FALSE(any_topology::parse("mesh:2x4").by_nodes());
    CHECK_THROWS_WITH_AS(parsed.resolve(8), Contains("by_node needs the machine of each of the 8 ranks"),
                         topology_error);
    // one that does not follow them takes their number
    const std::size_t nodes[] = {0, 1, 0, 1, 0, 1, 0, 1};
    CHECK(any_topology::parse("mesh:2x4").resolve(nodes) == group_shape{2, 4});
    CHECK(any_topology{}.resolve(nodes) == group_shape{1, 8});
}
