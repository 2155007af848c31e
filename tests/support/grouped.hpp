// Policies with groups smaller than the whole, for tests that run under all of them, and counts of what they issue.
#pragma once

#include "by_hand.hpp"

namespace toy {

using policy_type = runtime_policy<precision<float>>;

/// A policy by its three names, and on how many ranks it runs.
struct grouped {
    const char *strategy, *reshard, *topology;
    std::size_t ranks;

    template <class Precision = precision<float>>
    runtime_policy<Precision> policy(bool once = false) const {
        auto out = parse_policy<Precision>(strategy, reshard, once);
        out.topology = reshard::any_topology::parse(topology);
        return out;
    }
    std::string words(bool once = false) const { return named(strategy, reshard, once, ranks, 0) + " as " + topology; }
};

/// One of each sort, on four ranks.
inline constexpr grouped groupings[] = {
    {"hybrid_shard", "reshard_always", "mesh:2x2", 4},
    {"hybrid_shard", "keep_last:1", "mesh:2x2", 4},
    {"hybrid_shard", "reshard_to_group:2", "mesh:1x4", 4},
    {"hybrid_full_shard", "reshard_always", "mesh:2x2", 4},
    {"hybrid_full_shard", "keep_until_step", "mesh:2x2", 4},
    {"hybrid_full_shard", "reshard_to_group:2,until_step", "mesh:1x4", 4},
    {"sharding:inner,whole,whole", "reshard_never", "mesh:2x2", 4},
    {"sharding:replicated,inner,whole", "reshard_always", "mesh:2x2", 4},
    {"sharding:replicated,inner,inner", "reshard_always", "mesh:2x2", 4},
    {"full_shard", "reshard_to_group:2", "flat", 4},
    {"full_shard", "reshard_to_group:2,until_step", "flat", 4},
};

template <class Body>
void over_every_grouping(Body body) {
    for (const grouped& one : groupings) {
        for (const bool once : {false, true}) {
            CAPTURE(one.words(once));
            body(one, once);
        }
    }
}

/// How many collectives of a kind over a set of ranks this rank's model has issued since `first`, of units (or of one).
template <class Model>
std::size_t issued(Model& model, std::uint64_t first, reshard::detail::collective what, reshard::rank_set set,
                   std::size_t unit = reshard::detail::nobody) {
    std::size_t found = 0;
    const auto& log = model.internals().log;
    for (std::uint64_t k = first; k < log.count(); ++k) {
        const auto& each = log.at(k);
        if (each.unit == reshard::detail::nobody || each.what != what || each.set != set) continue;
        if (unit == reshard::detail::nobody || each.unit == unit) ++found;
    }
    return found;
}

}  // namespace toy
