// What the compiler refuses in a policy: the first thing wrong, as a type that carries the sentence and the numbers.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "facts.hpp"
#include "precision.hpp"
#include "reshard.hpp"
#include "strategy.hpp"
#include "topology.hpp"

namespace reshard {
inline namespace v0 {

namespace refused {

// The facts of a refusal, for the reader of the error.
template <class Type>
struct given;
template <class... Names>
struct missing;
struct parameters;
struct gradients;
struct optimizer_state;
struct after_forward;
struct after_backward;
struct reduce_once;
struct levels;
struct resolve;
struct sharding_strategy;
struct reshard_policy;
struct group_topology;
struct element_types;
struct nothing_known;
template <class Kind>
struct which_is;
template <class Parameters, class Gradients, class OptimizerState>
struct rest_where;
struct replicated;
struct inner;
struct whole;

template <class... Facts>
struct slot_1_takes_a_sharding_strategy {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-1]: slot 1 of policy<Strategy, Reshard, Topology, Precision> takes a sharding "
                  "strategy (full_shard, no_shard, ...); slots cannot be swapped or left out");
};
template <class... Facts>
struct slot_2_takes_a_reshard_policy {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-1]: slot 2 of policy<Strategy, Reshard, Topology, Precision> takes a reshard "
                  "policy (reshard_always, keep_last<n>, ...); slots cannot be swapped or left out");
};
template <class... Facts>
struct slot_3_takes_a_group_topology {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-1]: slot 3 of policy<Strategy, Reshard, Topology, Precision> takes a group "
                  "topology (flat<dynamic>, flat<n>); slots cannot be swapped or left out");
};
template <class... Facts>
struct slot_4_takes_element_types {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-1]: slot 4 of policy<Strategy, Reshard, Topology, Precision> takes the element "
                  "types: precision<float>, precision<bf16, gradient<float>>, ...");
};
template <class... Facts>
struct a_model_lacks_facts {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-6]: a policy of your own lacks the functions named as missing, or they return "
                  "another type");
};
template <class... Facts>
struct states_out_of_order {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-2]: gradients must be sharded at least as much as parameters, and the optimizer "
                  "state at least as much as gradients");
};
template <class... Facts>
struct inner_group_needs_two_levels {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-TOPOLOGY-2]: a state rests over the inner group, but a flat topology has none");
};
template <class... Facts>
struct keep_last_of_no_units {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-4]: keep_last<0> keeps nothing; write reshard_always or a number of units");
};
template <class... Facts>
struct accumulate_unsharded_twice {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-5]: accumulate_unsharded<> inside accumulate_unsharded<>; write it once");
};
template <class... Facts>
struct group_of_no_ranks {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-TOPOLOGY-1]: a group has no ranks; every size is at least 1");
};

}  // namespace refused

namespace detail {

template <class Type>
struct is_precision : std::false_type {};
template <class Compute, class... Slots>
struct is_precision<precision<Compute, Slots...>> : std::true_type {};

/// What a type is that stands in the wrong slot.
template <class Type>
using kind_of = std::conditional_t<
    ShardingStrategy<Type>, refused::sharding_strategy,
    std::conditional_t<ReshardPolicy<Type>, refused::reshard_policy,
                       std::conditional_t<GroupTopology<Type>, refused::group_topology,
                                          std::conditional_t<is_precision<Type>::value, refused::element_types,
                                                             refused::nothing_known>>>>;

template <class Missing, bool Has, class Name>
struct add_missing {
    using type = Missing;
};
template <class... Names, class Name>
struct add_missing<refused::missing<Names...>, false, Name> {
    using type = refused::missing<Names..., Name>;
};
template <class Missing, bool Has, class Name>
using add_missing_t = typename add_missing<Missing, Has, Name>::type;

template <class Fact>
constexpr auto place_of() {
    if constexpr (!may_be<Fact, placement::replicated> && !may_be<Fact, placement::inner>)
        return std::type_identity<refused::whole>{};
    else if constexpr (!may_be<Fact, placement::replicated>)
        return std::type_identity<refused::inner>{};
    else
        return std::type_identity<refused::replicated>{};
}

/// Known, and the first is more sharded than the second.
template <class First, class Second>
constexpr bool out_of_order() {
    if constexpr (is_known<First> && is_known<Second>)
        return First::value > Second::value;
    else
        return false;
}

template <class Fact>
inline constexpr bool surely_inner = is_known<Fact> && may_be<Fact, placement::inner>;

template <class Strategy, class Topology>
constexpr auto judge_placements() {
    using parameters = decltype(std::declval<const Strategy&>().parameters(unit_place{}));
    using gradients = decltype(std::declval<const Strategy&>().gradients(unit_place{}));
    using optimizer_state = decltype(std::declval<const Strategy&>().optimizer_state(unit_place{}));
    using levels = decltype(std::declval<const Topology&>().levels());
    using found = refused::rest_where<typename decltype(place_of<parameters>())::type,
                                      typename decltype(place_of<gradients>())::type,
                                      typename decltype(place_of<optimizer_state>())::type>;
    constexpr bool inner = surely_inner<parameters> || surely_inner<gradients> || surely_inner<optimizer_state>;
    if constexpr (out_of_order<parameters, gradients>() || out_of_order<gradients, optimizer_state>())
        return std::type_identity<refused::states_out_of_order<refused::given<Strategy>, found>>{};
    else if constexpr (inner && is_known<levels> && may_be<levels, std::size_t{1}>)
        return std::type_identity<
            refused::inner_group_needs_two_levels<refused::given<Strategy>, found, refused::given<Topology>>>{};
    else
        return std::type_identity<accepted>{};
}

template <class Reshard>
struct judge_reshard : std::type_identity<accepted> {};
template <>
struct judge_reshard<keep_last<0>> : std::type_identity<refused::keep_last_of_no_units<refused::given<keep_last<0>>>> {
};
template <class Reshard>
struct judge_reshard<accumulate_unsharded<Reshard>> : judge_reshard<Reshard> {};
template <class Reshard>
struct judge_reshard<accumulate_unsharded<accumulate_unsharded<Reshard>>>
    : std::type_identity<
          refused::accumulate_unsharded_twice<refused::given<accumulate_unsharded<accumulate_unsharded<Reshard>>>>> {};

/// What the compiler knows of the sizes of groups.
template <class Topology>
constexpr group_sizes known_sizes() {
    if constexpr (requires(const Topology& topology) { topology.sizes(); }) {
        using sizes = decltype(std::declval<const Topology&>().sizes());
        if constexpr (is_known<sizes>) return sizes::value;
    }
    return {};
}
template <class Topology>
constexpr bool surely_without_ranks() {
    return first_misfit(known_sizes<Topology>()) == misfit::group_of_no_ranks;
}

template <class Strategy>
using strategy_lacks =
    add_missing_t<add_missing_t<add_missing_t<refused::missing<>, tells_parameters<Strategy>, refused::parameters>,
                                tells_gradients<Strategy>, refused::gradients>,
                  tells_optimizer_state<Strategy>, refused::optimizer_state>;
template <class Reshard>
using reshard_lacks =
    add_missing_t<add_missing_t<add_missing_t<refused::missing<>, tells_after_forward<Reshard>, refused::after_forward>,
                                tells_after_backward<Reshard>, refused::after_backward>,
                  tells_reduce_once<Reshard>, refused::reduce_once>;
template <class Topology>
using topology_lacks = add_missing_t<add_missing_t<refused::missing<>, tells_levels<Topology>, refused::levels>,
                                     tells_resolve<Topology>, refused::resolve>;

/// A type in the wrong slot, or a model that was begun and lacks a function.
template <template <class...> class WrongSlot, bool Begun, class Type, class Lacks>
using wrong_or_lacking =
    std::type_identity<std::conditional_t<Begun, refused::a_model_lacks_facts<refused::given<Type>, Lacks>,
                                          WrongSlot<refused::given<Type>, refused::which_is<kind_of<Type>>>>>;

template <class Strategy, class Reshard, class Topology, class Precision>
constexpr auto judge() {
    if constexpr (!ShardingStrategy<Strategy>) {
        constexpr bool begun =
            tells_parameters<Strategy> || tells_gradients<Strategy> || tells_optimizer_state<Strategy>;
        return wrong_or_lacking<refused::slot_1_takes_a_sharding_strategy, begun, Strategy, strategy_lacks<Strategy>>{};
    } else if constexpr (!ReshardPolicy<Reshard>) {
        constexpr bool begun =
            tells_after_forward<Reshard> || tells_after_backward<Reshard> || tells_reduce_once<Reshard>;
        return wrong_or_lacking<refused::slot_2_takes_a_reshard_policy, begun, Reshard, reshard_lacks<Reshard>>{};
    } else if constexpr (!GroupTopology<Topology>) {
        constexpr bool begun = tells_levels<Topology> || tells_resolve<Topology>;
        return wrong_or_lacking<refused::slot_3_takes_a_group_topology, begun, Topology, topology_lacks<Topology>>{};
    } else if constexpr (!is_precision<Precision>::value) {
        return wrong_or_lacking<refused::slot_4_takes_element_types, false, Precision, refused::missing<>>{};
    } else if constexpr (surely_without_ranks<Topology>()) {
        return std::type_identity<refused::group_of_no_ranks<refused::given<Topology>>>{};
    } else if constexpr (!std::is_same_v<typename judge_reshard<Reshard>::type, accepted>) {
        return judge_reshard<Reshard>{};
    } else {
        return judge_placements<Strategy, Topology>();
    }
}

}  // namespace detail

/// `accepted`, or the refusal; policy derives from it, so a wrong policy is one error where it is first used.
template <class Strategy, class Reshard, class Topology, class Precision>
using verdict_on = typename decltype(detail::judge<Strategy, Reshard, Topology, Precision>())::type;

}  // namespace v0
}  // namespace reshard
