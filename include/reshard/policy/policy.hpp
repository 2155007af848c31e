// A policy: strategy, reshard policy, topology and precision together.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "facts.hpp"
#include "precision.hpp"
#include "reshard.hpp"
#include "strategy.hpp"
#include "topology.hpp"
#include "verdict.hpp"

namespace reshard {
inline namespace v0 {

namespace detail {

template <class Slot>
std::string described(const Slot& slot, const char* otherwise) {
    if constexpr (requires { slot.describe(); })
        return slot.describe();
    else
        return otherwise;
}

/// E-POLICY-2 and E-TOPOLOGY-2, for facts that are only known at run time.
template <class Strategy>
void require_placements(const Strategy& strategy, std::size_t levels, unit_place unit) {
    const placement parameters = strategy.parameters(unit), gradients = strategy.gradients(unit),
                    optimizer_state = strategy.optimizer_state(unit);
    if (parameters > gradients || gradients > optimizer_state)
        throw argument_error("E-POLICY-2",
                             text("gradients must be sharded at least as much as parameters, and the optimizer state "
                                  "at least as much as gradients; unit ",
                                  unit.index, " of ", unit.count, " has ", placements_text(strategy, unit)));
    const bool inner =
        parameters == placement::inner || gradients == placement::inner || optimizer_state == placement::inner;
    if (inner && levels < 2)
        throw topology_error("E-TOPOLOGY-2",
                             text("a state rests over the inner group, but a flat topology has none; unit ", unit.index,
                                  " of ", unit.count, " has ", placements_text(strategy, unit)));
}

}  // namespace detail

/// Slots known at compile time take no space and leave no decision to run time; slots of values (any_sharding,
/// any_reshard, any_topology) go through the same engine. A wrong combination is refused by the compiler where it
/// knows, when the policy is first used (a bare alias of it is not a use); the rest by check() and resolve().
template <class Strategy = full_shard, class Reshard = reshard_always, class Topology = flat<dynamic>,
          class Precision = precision<float>>
struct policy : verdict_on<Strategy, Reshard, Topology, Precision> {
    // a refused slot falls back, so that nothing after the one error goes wrong too
    using strategy_type = std::conditional_t<ShardingStrategy<Strategy>, Strategy, full_shard>;
    using reshard_type = std::conditional_t<ReshardPolicy<Reshard>, Reshard, reshard_always>;
    using topology_type = std::conditional_t<GroupTopology<Topology>, Topology, flat<dynamic>>;
    using precision_type = std::conditional_t<detail::is_precision<Precision>::value, Precision, precision<float>>;
    static_assert(sizeof(precision_type) > 0);  // so that wrong element types are refused here too

    [[no_unique_address]] strategy_type strategy{};
    [[no_unique_address]] reshard_type reshard{};
    [[no_unique_address]] topology_type topology{};

    constexpr policy() = default;
    constexpr policy(strategy_type strategy_of_it, reshard_type reshard_of_it = {}, topology_type topology_of_it = {})
        : strategy(std::move(strategy_of_it)), reshard(std::move(reshard_of_it)), topology(std::move(topology_of_it)) {}

    /// Whether a unit's gradients are reduced after the last microbatch alone: asked for by the reshard policy, or the
    /// only way because they rest whole on every rank.
    constexpr bool reduces_once(unit_place unit) const {
        const placement gradients = strategy.gradients(unit);
        const bool asked = reshard.reduce_once();
        return asked || gradients == placement::replicated;
    }

    /// The group sizes for a world of so many ranks; throws topology_error.
    group_shape resolve(std::size_t world) const { return topology.resolve(world); }

    /// Throws argument_error or topology_error if the policy does not fit itself or a model of so many units.
    void check(std::size_t units) const {
        for (std::size_t index = 0; index < units; ++index)
            detail::require_placements(strategy, topology.levels(), {index, units});
        if constexpr (requires { reshard.check(units); }) reshard.check(units);
    }

    /// "full_shard + keep_last<1> over flat<dynamic>, float".
    std::string describe() const {
        return text(detail::described(strategy, "own strategy"), " + ", detail::described(reshard, "own policy"),
                    " over ", detail::described(topology, "own topology"), ", ", precision_type::describe());
    }
};

template <class Type>
inline constexpr bool is_policy = false;
template <class Strategy, class Reshard, class Topology, class Precision>
inline constexpr bool is_policy<policy<Strategy, Reshard, Topology, Precision>> = true;

}  // namespace v0
}  // namespace reshard
