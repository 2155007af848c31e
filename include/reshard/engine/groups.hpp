// The communicators of a model: the whole, and the smaller groups that its policy needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "../comm/concept.hpp"
#include "../core/error.hpp"
#include "../core/text.hpp"
#include "../policy/policy.hpp"
#include "../schedule/plan.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Whether a strategy may rest something over the inner group; false only where the compiler knows better.
template <class Strategy>
inline constexpr bool may_rest_inner =
    may_be<decltype(std::declval<const Strategy&>().parameters(unit_place{})), placement::inner> ||
    may_be<decltype(std::declval<const Strategy&>().gradients(unit_place{})), placement::inner> ||
    may_be<decltype(std::declval<const Strategy&>().optimizer_state(unit_place{})), placement::inner>;

/// Whether any unit of a model may need more than the whole group.
template <class Policy>
inline constexpr bool may_split =
    may_rest_inner<typename Policy::strategy_type> || may_use_groups<typename Policy::reshard_type>;

template <class Policy, class World>
group_shape shape_by_policy(const Policy& policy, const World& world) {
    if constexpr (may_be<decltype(policy.by_nodes()), true>) {
        if (policy.by_nodes()) {
            if constexpr (requires { world.nodes(); }) {
                const std::vector<std::size_t> nodes = world.nodes();
                return policy.resolve(std::span<const std::size_t>(nodes));
            } else {
                throw topology_error("E-TOPOLOGY-5", text("by_node: this communicator cannot tell which ranks share a "
                                                          "machine (it has no nodes()): ",
                                                          world.describe(), "; write mesh<outer, inner>"));
            }
        }
    }
    if constexpr (requires { policy.resolve(world.size()); }) return policy.resolve(world.size());
    return {};  // not reached: such topologies are by nodes
}

/// How the ranks are grouped; throws topology_error if the policy's groups do not fit the world or its machines, also
/// where a topology of the user's says what does not.
template <class Policy, class World>
group_shape resolve_shape(const Policy& policy, const World& world) {
    const group_shape shape = shape_by_policy(policy, world);
    require_fit({.world = world.size(), .outer = shape.outer, .inner = shape.inner});
    return shape;
}

/// Views of the groups, one per set of ranks however many units use it; number 0 is the whole. A group that nothing
/// needs is not made.
template <class World>
class rank_groups {
public:
    explicit rank_groups(World whole) : made_{{rank_set::whole, whole}} {}

    const World& operator[](std::uint32_t number) const { return made_[number].view; }

    /// The number of the group; a new one is split off, collectively and in the same order on all ranks.
    std::uint32_t make(rank_set which, std::size_t ranks, std::size_t colour) {
        for (std::uint32_t number = 0; number < made_.size(); ++number) {
            if (made_[number].which == which && made_[number].view.size() == ranks) return number;
        }
        const World whole = made_.front().view;
        if constexpr (Splittable<World>) {
            owners_.push_back(whole.split(colour, whole.rank()));
            made_.push_back({which, named_view(owners_.back(), which)});
        } else {
            throw topology_error("E-TOPOLOGY-5",
                                 text("the policy needs an ", name_of(which), " group of ", ranks,
                                      " ranks, and this communicator cannot make smaller groups (it has no split()): ",
                                      whole.describe()));
        }
        return static_cast<std::uint32_t>(made_.size() - 1);
    }
    void prepare(std::size_t bytes) const {
        for (const made& one : made_) one.view.prepare(bytes);
    }

private:
    struct made {
        rank_set which;
        World view;
    };
    /// A counting communicator counts under the group's name.
    template <class Owner>
    static World named_view(const Owner& owner, rank_set which) {
        if constexpr (requires { owner.view(name_of(which)); }) {
            return owner.view(name_of(which));
        } else {
            return owner.view();
        }
    }

    std::vector<typename World::owner> owners_;
    std::vector<made> made_;
};

}  // namespace detail
}  // namespace v0
}  // namespace reshard
