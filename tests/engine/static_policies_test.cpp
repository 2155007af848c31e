// Policies known to the compiler train to the bit as their counterparts found at run time.
#include <doctest/doctest.h>

#include "support/toy_trainer.hpp"

namespace {

using namespace toy;
using reshard::fact;
using reshard::placement;
using reshard::unit_place;

/// A strategy of the user's: the first unit rests whole, all others are sharded.
struct first_unit_whole {
    static constexpr placement parameters(unit_place unit) {
        return unit.index == 0 ? placement::replicated : placement::whole;
    }
    static constexpr auto gradients(unit_place) { return fact<placement::whole>; }
    static constexpr auto optimizer_state(unit_place) { return fact<placement::whole>; }
};

template <class Policy>
owned_values train(const Policy& policy, std::size_t ranks = 2) {
    oracle::net net;
    net.tied = true;
    std::vector<owned_values> owned(ranks);
    run_threads(ranks, [&](threads_communicator world) {
        trainer<Policy, threads_communicator> one(net, world, policy);
        for (const std::size_t m : {1u, 3u, 2u}) one.train(m);
        CHECK(one.model.report().missed_prefetches == 0);
        owned[world.rank()] = one.owned();
    });
    const auto found = join(owned);
    CHECK(found.whole);
    return found.all;
}

TEST_CASE("compile-time policies equal run-time policies to the bit") {
    using namespace reshard;
    const owned_values right = train(parse_policy("full_shard", "reshard_always"));
    CHECK(same_values(train(policy<full_shard, reshard_always>{}), right));
    CHECK(same_values(train(policy<full_shard, keep_last<2>>{}), right));
    CHECK(same_values(train(policy<full_shard, keep_until_step, flat<2>>{}), right));
    CHECK(same_values(train(policy<first_unit_whole, reshard_never>{}), right));
    CHECK(same_values(train(policy<shard_gradients, accumulate_unsharded<reshard_always>>{}),
                      train(parse_policy("shard_gradients", "reshard_always", true))));
    CHECK(same_values(train(policy<no_shard, reshard_always>{}), train(parse_policy("no_shard", "reshard_always"))));
}

TEST_CASE("compile-time meshes and smaller groups equal run-time ones to the bit") {
    using namespace reshard;
    const auto by_text = [](const char* strategy, const char* reshard, const char* topology) {
        auto policy = parse_policy(strategy, reshard);
        policy.topology = any_topology::parse(topology);
        return train(policy, 4);
    };
    CHECK(same_values(train(policy<hybrid_full_shard, keep_last<1>, mesh<2, 2>>{}, 4),
                      by_text("hybrid_full_shard", "keep_last:1", "mesh:2x2")));
    CHECK(same_values(train(policy<full_shard, reshard_to_group<2, until_step>, flat<dynamic>>{}, 4),
                      by_text("full_shard", "reshard_to_group:2,until_step", "flat")));
    // a secondary group of all ranks is settled when the model is built
    CHECK(same_values(train(policy<full_shard, reshard_to_group<4>>{}, 4),
                      by_text("full_shard", "reshard_always", "flat")));
}

}  // namespace
