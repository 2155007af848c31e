// Policies as a whole: their texts, and what is refused when a model is built.
#include <doctest/doctest.h>
#include <reshard/policy/runtime.hpp>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace reshard;
using doctest::Contains;

namespace {

// The first unit's parameters rest whole, all others in slices.
struct first_unit_whole {
    static placement parameters(unit_place unit) { return unit.index == 0 ? placement::replicated : placement::whole; }
    static constexpr auto gradients(unit_place) { return fact<placement::whole>; }
    static constexpr auto optimizer_state(unit_place) { return fact<placement::whole>; }
};

// Wrong for its last unit alone, which only values can be.
struct last_unit_wrong : full_shard {
    static placement optimizer_state(unit_place unit) {
        return unit.index + 1 == unit.count ? placement::replicated : placement::whole;
    }
};

}  // namespace

TEST_CASE("a policy known at compile time takes no space") {
    struct holder {
        [[no_unique_address]] policy<full_shard, accumulate_unsharded<keep_last<2>>, flat<4>, precision<double>> held;
        int number;
    };
    CHECK(sizeof(holder) == sizeof(int));
    CHECK(std::is_same_v<policy<>::strategy_type, full_shard>);
    CHECK(std::is_same_v<policy<>::reshard_type, reshard_always>);
    CHECK(std::is_same_v<policy<>::topology_type, flat<dynamic>>);
    CHECK(std::is_same_v<policy<>::precision_type, precision<float>>);
    CHECK(is_policy<policy<>>);
    CHECK_FALSE(is_policy<full_shard>);
}

TEST_CASE("the name of a policy, as a user writes it") {
    CHECK(policy<full_shard, keep_last<1>>{}.describe() == "full_shard + keep_last<1> over flat<dynamic>, float");
    CHECK(policy<no_shard, accumulate_unsharded<reshard_never>, flat<4>, precision<double>>{}.describe() ==
          "no_shard + accumulate_unsharded<reshard_never> over flat<4>, double");
    const runtime_policy<precision<bf16>> chosen{any_sharding::parse("shard_gradients"),
                                                 any_reshard::parse("keep_last:2"), any_topology::parse("flat:3")};
    CHECK(chosen.describe() == "shard_gradients + keep_last<2> over flat<3>, bf16");
    CHECK(runtime_policy<>{}.describe() == policy<>{}.describe());
    CHECK(policy<first_unit_whole>{}.describe() == "own strategy + reshard_always over flat<dynamic>, float");
    CHECK(any_sharding(placement::inner, placement::inner, placement::replicated).describe() ==
          "sharding<inner, inner, replicated>");
}

TEST_CASE("slots known at compile time and slots of values mix") {
    policy<full_shard, any_reshard, flat<2>> mixed;
    mixed.reshard = keep_last<2>{};
    CHECK(mixed.describe() == "full_shard + keep_last<2> over flat<2>, float");
    CHECK(mixed.resolve(2) == group_shape{1, 2});
    CHECK_THROWS_AS(mixed.resolve(3), topology_error);
}

TEST_CASE("a number of ranks that the topology is not made for names both") {
    const char* said = "reshard [E-TOPOLOGY-1] the topology is made for 4 ranks, the communicator has 3; start 4 "
                       "ranks, or write flat<3> or flat<dynamic>";
    CHECK_THROWS_WITH_AS((policy<full_shard, reshard_always, flat<4>>{}.resolve(3)), said, topology_error);
    CHECK_THROWS_WITH_AS((runtime_policy<>{{}, {}, any_topology::parse("flat:4")}.resolve(3)), said, topology_error);
    for (std::size_t world = 1; world <= 9; ++world) {
        CHECK(policy<>{}.resolve(world) == group_shape{1, world});
        CHECK(runtime_policy<>{}.resolve(world) == group_shape{1, world});
    }
    CHECK(policy<full_shard, reshard_always, flat<4>>{}.resolve(4) == group_shape{1, 4});
    CHECK_THROWS_WITH_AS(policy<>{}.resolve(0), Contains("a group has no ranks"), topology_error);
}

TEST_CASE("more units kept than there are") {
    const char* said = "reshard [E-POLICY-3] keep_last<3> keeps the last 3 units, the model has 2; use at most 2 or "
                       "reshard_never, which keeps every unit";
    CHECK_THROWS_WITH_AS((policy<full_shard, keep_last<3>>{}.check(2)), said, argument_error);
    CHECK_THROWS_WITH_AS((policy<full_shard, accumulate_unsharded<keep_last<3>>>{}.check(2)), said, argument_error);
    CHECK_THROWS_WITH_AS((runtime_policy<>{{}, any_reshard::parse("keep_last:3")}.check(2)), said, argument_error);
    CHECK_NOTHROW((policy<full_shard, keep_last<3>>{}.check(3)));
    CHECK_NOTHROW((policy<full_shard, accumulate_unsharded<reshard_never>>{}.check(1)));
    CHECK_NOTHROW((runtime_policy<>{{}, any_reshard::parse("keep_last:3")}.check(3)));
    CHECK_NOTHROW((runtime_policy<>{{}, any_reshard::parse("reshard_never")}.check(1)));
}

TEST_CASE("placements that do not go together, found at run time") {
    CHECK_NOTHROW(policy<first_unit_whole>{}.check(3));
    // the same first clause as the compiler's refusal, which tests/compile_fail expects
    CHECK_THROWS_WITH_AS(policy<last_unit_wrong>{}.check(3),
                         "reshard [E-POLICY-2] gradients must be sharded at least as much as parameters, and the "
                         "optimizer state at least as much as gradients; unit 2 of 3 has parameters whole, gradients "
                         "whole, optimizer state replicated",
                         argument_error);
    const placement all[] = {placement::replicated, placement::inner, placement::whole};
    for (const placement parameters : all) {
        for (const placement gradients : all) {
            for (const placement state : all) {
                const runtime_policy<> chosen{any_sharding(parameters, gradients, state)};
                std::string said;
                try {
                    chosen.check(1);
                } catch (const error& thrown) {
                    said = thrown.id();
                }
                const auto degree = [](placement where) {
                    return where == placement::replicated ? 1 : where == placement::inner ? 2 : 4;
                };
                const bool ordered = degree(parameters) <= degree(gradients) && degree(gradients) <= degree(state);
                const bool inner = (degree(parameters) | degree(gradients) | degree(state)) & 2;
                CHECK(said == (!ordered ? "E-POLICY-2" : inner ? "E-TOPOLOGY-2" : ""));
            }
        }
    }
    CHECK_THROWS_WITH_AS(
        (runtime_policy<>{any_sharding(placement::inner, placement::inner, placement::inner)}.check(1)),
        Contains("a state rests over the inner group, but a flat topology has none"), topology_error);
}

TEST_CASE("gradients that rest whole are reduced once a step whatever the reshard policy") {
    const unit_place unit{};
    CHECK(policy<no_shard>{}.reduces_once(unit));
    CHECK(policy<shard_optimizer>{}.reduces_once(unit));
    CHECK_FALSE(policy<shard_gradients>{}.reduces_once(unit));
    CHECK_FALSE(policy<full_shard>{}.reduces_once(unit));
    CHECK(policy<full_shard, accumulate_unsharded<reshard_always>>{}.reduces_once(unit));
    CHECK(runtime_policy<>{any_sharding::parse("shard_optimizer")}.reduces_once(unit));
    CHECK_FALSE(runtime_policy<>{}.reduces_once(unit));
    CHECK(runtime_policy<>{{}, any_reshard{}.accumulated()}.reduces_once(unit));
}

TEST_CASE("options that are no policy") {
    CHECK_THROWS_WITH_AS(any_sharding::parse("fullshard"),
                         "reshard [E-POLICY-7] unknown sharding strategy \"fullshard\"; known: no_shard, "
                         "shard_optimizer, shard_gradients, full_shard, hybrid_shard, hybrid_full_shard, "
                         "sharding:<parameters>,<gradients>,<optimizer state>",
                         argument_error);
    CHECK_THROWS_WITH_AS(any_reshard::parse("always"),
                         "reshard [E-POLICY-7] unknown reshard policy \"always\"; known: reshard_always, "
                         "reshard_never, keep_until_step, keep_last:<n>, reshard_to_group:<k>, "
                         "reshard_to_group:<k>,until_step, accumulate_unsharded:<one of these>, pipeline_default, "
                         "pipeline_default:<bytes>, reshard_within:<bytes>, reshard_within:<bytes>,<microbatches>",
                         argument_error);
    CHECK_THROWS_WITH_AS(any_topology::parse("mush:2x2"),
                         "reshard [E-POLICY-7] unknown group topology \"mush:2x2\"; known: flat, flat:<n>, "
                         "mesh:<outer>x<inner>, by_node",
                         argument_error);
    for (const char* number : {"keep_last", "keep_last:", "keep_last:0", "keep_last:-1", "keep_last:1x", "keep_last: 1",
                               "keep_last:1.5", "keep_last:99999999999999999999", "keep_last:18446744073709551616"}) {
        CAPTURE(number);
        CHECK_THROWS_WITH_AS(any_reshard::parse(number), Contains("needs a whole number above 0"), argument_error);
    }
    for (const char* number : {"flat:", "flat:0", "flat:two"})
        CHECK_THROWS_WITH_AS(any_topology::parse(number), Contains("as in flat:4"), argument_error);
    for (const char* option : {"mesh", "mesh:", "mesh:4", "mesh:2x", "mesh:x4", "mesh:0x4", "mesh:2x0", "mesh:2x4x2",
                               "mesh:2*4", "mesh:-1x4", "mesh:2,4", "mesh:18446744073709551615x4"})
        CHECK_THROWS_WITH_AS(any_topology::parse(option), Contains("as in mesh:2x4 or mesh:*x4"), argument_error);
    CHECK_THROWS_WITH_AS(any_topology::parse("mesh:*x*"),
                         "reshard [E-TOPOLOGY-4] mesh<dynamic, dynamic>: one of the two must be known; use by_node to "
                         "take it from the machines",
                         topology_error);
    for (const char* option : {"by_node:", "by_node:2", "Mesh:2x4", "flat "})
        CHECK_THROWS_WITH_AS(any_topology::parse(option), Contains("unknown group topology"), argument_error);
    for (const char* option : {"sharding", "sharding:", "sharding:inner", "sharding:inner,inner",
                               "sharding:inner,inner,", "sharding:inner,inner,whole,whole", "sharding:a,inner,whole",
                               "sharding:inner, inner,whole", "sharding:inner;inner;whole"})
        CHECK_THROWS_WITH_AS(any_sharding::parse(option), Contains("needs three of replicated, inner and whole"),
                             argument_error);
    for (const char* option : {"reshard_to_group", "reshard_to_group:", "reshard_to_group:0", "reshard_to_group:x",
                               "reshard_to_group:,until_step", "reshard_to_group:18446744073709551615"})
        CHECK_THROWS_WITH_AS(any_reshard::parse(option), Contains("as in reshard_to_group:2"), argument_error);
    for (const char* option : {"reshard_to_group:2,", "reshard_to_group:2,3", "reshard_to_group:2,until_step,"})
        CHECK_THROWS_WITH_AS(any_reshard::parse(option), Contains("write reshard_to_group:2,until_step"),
                             argument_error);
    for (const char* option :
         {"reshard_within", "reshard_within:", "reshard_within:0", "reshard_within:0MiB", "reshard_within:MiB",
          "reshard_within:-1", "reshard_within:1MB", "reshard_within:1.5GiB", "reshard_within:1 GiB",
          "reshard_within:17179869184GiB", "reshard_within:18446744073709551615", "reshard_within:,4"})
        CHECK_THROWS_WITH_AS(any_reshard::parse(option), Contains("needs a number of bytes above 0"), argument_error);
    for (const char* option : {"reshard_within:1MiB,", "reshard_within:1MiB,0", "reshard_within:1MiB,4,4"})
        CHECK_THROWS_WITH_AS(any_reshard::parse(option), Contains("needs a whole number above 0"), argument_error);
    for (const char* option : {"pipeline_default:", "pipeline_default:0", "pipeline_default:1MiB,4"})
        CHECK_THROWS_WITH_AS(any_reshard::parse(option), Contains("as in pipeline_default:2GiB"), argument_error);
    for (const char* name :
         {"", "reshard_never:2", " reshard_never", "accumulate_unsharded", "accumulate_unsharded:keep"})
        CHECK_THROWS_WITH_AS(any_reshard::parse(name), Contains("unknown reshard policy"), argument_error);
    CHECK_THROWS_WITH_AS(any_reshard::parse("accumulate_unsharded:accumulate_unsharded:keep_last:1"),
                         Contains("write it once"), argument_error);
    CHECK_THROWS_AS(any_sharding::parse(""), argument_error);
}

TEST_CASE("every listed name is one that parses") {
    // each <...> of a name, and what may stand there
    const std::pair<const char*, const char*> fill[] = {{"<n>", "7"},
                                                        {"<k>", "4"},
                                                        {"<bytes>", "1GiB"},
                                                        {"<microbatches>", "8"},
                                                        {"<outer>", "2"},
                                                        {"<inner>", "*"},
                                                        {"<parameters>", "inner"},
                                                        {"<gradients>", "inner"},
                                                        {"<optimizer state>", "inner"},
                                                        {"<one of these>", "keep_last:7"}};
    const auto filled = [&fill](std::string name) {
        for (const auto& [hole, value] : fill) {
            const std::size_t at = name.find(hole);
            if (at != std::string::npos) name.replace(at, std::string(hole).size(), value);
        }
        return name;
    };
    for (const char* name : any_sharding::names()) {
        const any_sharding parsed = any_sharding::parse(filled(name));
        if (filled(name) == name) CHECK(parsed.describe() == name);
    }
    for (const char* name : any_reshard::names()) CHECK_NOTHROW(any_reshard::parse(filled(name)));
    for (const char* name : any_topology::names()) CHECK_NOTHROW(any_topology::parse(filled(name)));
    CHECK(any_topology::parse("flat") == any_topology{});
    CHECK(any_topology::parse("flat:7").describe() == "flat<7>");
}
