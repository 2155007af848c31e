// A policy: strategy, reshard policy, topology and precision together.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "facts.hpp"
#include "planned.hpp"
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
                             text("a state rests over the inner group, but a flat topology has none; write mesh<outer, "
                                  "inner> or by_node; unit ",
                                  unit.index, " of ", unit.count, " has ", placements_text(strategy, unit)));
}

/// Whether a unit rests in slices of a smaller group at some time.
template <class Reshard>
constexpr bool uses_group(const Reshard& reshard, unit_place unit) {
    const afterwards after_forward = reshard.after_forward(unit), after_backward = reshard.after_backward(unit);
    return after_forward == afterwards::group || after_backward == afterwards::group;
}

/// E-TOPOLOGY-1 for the smaller group of one unit.
template <class Strategy, class Reshard>
void require_group(const Strategy& strategy, const Reshard& reshard, group_shape shape, unit_place unit) {
    const placement parameters = strategy.parameters(unit);
    if (parameters == placement::replicated || !uses_group(reshard, unit)) return;
    const std::size_t world = shape.outer * shape.inner;
    if (parameters == placement::whole) shape = {1, world};
    const group_sizes sizes{
        .world = world, .outer = shape.outer, .inner = shape.inner, .secondary = reshard.group(unit)};
    // no size is unknown any more, not even one that equals `dynamic`
    const misfit reason =
        sizes.secondary == dynamic ? misfit::secondary_group_does_not_divide_the_shard_group : first_misfit(sizes);
    if (reason != misfit::none) throw topology_error("E-TOPOLOGY-1", misfit_text(reason, sizes));
}

/// E-POLICY-6 for facts that are only known at run time.
template <class Reshard>
void require_group_fact(const Reshard& reshard, unit_place unit) {
    if constexpr (!tells_group<Reshard>) {
        if (uses_group(reshard, unit))
            throw argument_error("E-POLICY-6", text("the reshard policy leaves unit ", unit.index, " of ", unit.count,
                                                    " to a smaller group, but has no function group(unit) that tells "
                                                    "how many ranks; add one"));
    }
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

    /// Whether the group sizes follow the machines, so that resolve() takes the machine of each rank.
    constexpr auto by_nodes() const { return detail::asks_for_nodes(topology); }
    /// The group sizes for a world of so many ranks; throws topology_error.
    group_shape resolve(std::size_t world) const
        requires detail::resolves_count<topology_type>
    {
        return topology.resolve(world);
    }
    /// The same where by_nodes(): for each rank a number that the ranks of one machine share.
    group_shape resolve(std::span<const std::size_t> node_of_rank) const
        requires detail::resolves_nodes<topology_type>
    {
        return topology.resolve(node_of_rank);
    }

    /// Throws argument_error or topology_error if the policy does not fit itself or a model of so many units.
    void check(std::size_t units) const {
        for (std::size_t index = 0; index < units; ++index) {
            detail::require_placements(strategy, topology.levels(), {index, units});
            detail::require_group_fact(reshard, {index, units});
        }
        if constexpr (requires { reshard.check(units); }) reshard.check(units);
    }

    /// Throws topology_error (E-TOPOLOGY-1) where the smaller group of a unit does not divide the group over which its
    /// parameters rest. Without effect on parameters that rest whole on every rank.
    void check_groups(group_shape shape, std::size_t units) const {
        if constexpr (may_use_groups<reshard_type>) {
            for (std::size_t index = 0; index < units; ++index)
                detail::require_group(strategy, reshard, shape, {index, units});
        }
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
