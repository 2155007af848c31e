// What the compiler refuses in a policy: the first thing wrong, as a type that carries the sentence and the numbers.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "facts.hpp"
#include "planned.hpp"
#include "precision.hpp"
#include "refused.hpp"
#include "reshard.hpp"
#include "strategy.hpp"
#include "topology.hpp"

namespace reshard {
inline namespace v0 {

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
inline constexpr bool surely_chosen = false;
template <ChosenReshard Reshard>
inline constexpr bool surely_chosen<Reshard> =
    std::is_same_v<decltype(std::declval<const Reshard&>().chosen_at_build()), constant<true>>;

template <class Reshard>
struct judge_reshard : std::type_identity<accepted> {};
template <>
struct judge_reshard<keep_last<0>> : std::type_identity<refused::keep_last_of_no_units<refused::given<keep_last<0>>>> {
};
template <class Reshard>
struct judge_reshard<accumulate_unsharded<Reshard>> : judge_reshard<Reshard> {};
template <class Reshard>
    requires(surely_chosen<Reshard>)
struct judge_reshard<accumulate_unsharded<Reshard>>
    : std::type_identity<
          refused::accumulate_unsharded_around_a_planned_policy<refused::given<accumulate_unsharded<Reshard>>>> {};
template <class Reshard>
struct judge_reshard<accumulate_unsharded<accumulate_unsharded<Reshard>>>
    : std::type_identity<
          refused::accumulate_unsharded_twice<refused::given<accumulate_unsharded<accumulate_unsharded<Reshard>>>>> {};

/// What the compiler knows of the sizes of groups.
template <class Topology>
constexpr group_sizes known_sizes() {
    if constexpr (requires { std::bool_constant<(Topology::sizes(), true)>{}; })
        return Topology::sizes();
    else
        return {};
}
template <class Topology>
constexpr bool surely_without_ranks() {
    return first_misfit(known_sizes<Topology>()) == misfit::group_of_no_ranks;
}
template <class Topology>
inline constexpr bool is_unknown_mesh = std::is_same_v<Topology, mesh<dynamic, dynamic>>;

/// Known, and a unit is left to a smaller group.
template <class Reshard>
constexpr bool surely_uses_group() {
    using after_forward = decltype(std::declval<const Reshard&>().after_forward(unit_place{}));
    using after_backward = decltype(std::declval<const Reshard&>().after_backward(unit_place{}));
    return (is_known<after_forward> && may_be<after_forward, afterwards::group>) ||
           (is_known<after_backward> && may_be<after_backward, afterwards::group>);
}

/// The ranks of the smaller group where the compiler knows them, else `dynamic`.
template <class Reshard>
constexpr std::size_t known_group() {
    if constexpr (tells_group<Reshard>) {
        using group = decltype(std::declval<const Reshard&>().group(unit_place{}));
        if constexpr (is_known<group> && surely_uses_group<Reshard>()) return static_cast<std::size_t>(group::value);
    }
    return dynamic;
}

/// The ranks over which the parameters rest where the compiler knows them, else `dynamic`.
template <class Strategy, class Topology>
constexpr std::size_t known_shard_group() {
    using parameters = decltype(std::declval<const Strategy&>().parameters(unit_place{}));
    constexpr group_sizes sizes = known_sizes<Topology>();
    if constexpr (!is_known<parameters> || may_be<parameters, placement::replicated>)
        return dynamic;
    else if constexpr (may_be<parameters, placement::inner> || sizes.inner == dynamic)
        return sizes.inner;
    else
        return sizes.outer < dynamic / sizes.inner ? sizes.outer * sizes.inner : dynamic;
}

/// The divisors of a size as the arguments of use_one_of.
template <std::size_t Size>
constexpr std::size_t divisor(std::size_t number) {
    std::size_t out = 1;
    for (; Size % out != 0 || number-- != 0; ++out) continue;
    return out;
}
template <std::size_t Size>
constexpr std::size_t divisor_count() {
    std::size_t out = 0;
    for (std::size_t candidate = 1; candidate <= Size; ++candidate) out += Size % candidate == 0;
    return out;
}
template <std::size_t Size, std::size_t... Number>
refused::use_one_of<divisor<Size>(Number)...> divisors_of(std::index_sequence<Number...>);
template <std::size_t Size>
using divisors = decltype(divisors_of<Size>(std::make_index_sequence<divisor_count<Size>()>{}));

template <class Strategy, class Reshard, class Topology>
constexpr auto judge_groups() {
    constexpr std::size_t group = known_group<Reshard>(), shard = known_shard_group<Strategy, Topology>();
    constexpr misfit found = first_misfit({.inner = shard, .secondary = group});
    if constexpr (found == misfit::group_of_no_ranks)
        return std::type_identity<refused::group_of_no_ranks<refused::given<Reshard>>>{};
    else if constexpr (found == misfit::secondary_group_does_not_divide_the_shard_group)
        return std::type_identity<refused::secondary_group_does_not_divide_the_shard_group<
            refused::secondary_group_of<group>, refused::shard_group_of<shard>, divisors<shard>,
            refused::given<Strategy>, refused::given<Topology>>>{};
    else
        return std::type_identity<accepted>{};
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

/// Whether models of the right kinds go together.
template <class Strategy, class Reshard, class Topology>
constexpr auto judge_together() {
    if constexpr (surely_uses_group<Reshard>() && !tells_group<Reshard>) {
        return std::type_identity<
            refused::a_model_lacks_facts<refused::given<Reshard>, refused::missing<refused::group>>>{};
    } else if constexpr (surely_without_ranks<Topology>()) {
        return std::type_identity<refused::group_of_no_ranks<refused::given<Topology>>>{};
    } else if constexpr (is_unknown_mesh<Topology>) {
        return std::type_identity<refused::mesh_of_unknown_sizes<refused::given<Topology>>>{};
    } else if constexpr (!std::is_same_v<typename judge_reshard<Reshard>::type, accepted>) {
        return judge_reshard<Reshard>{};
    } else {
        using placements = typename decltype(judge_placements<Strategy, Topology>())::type;
        if constexpr (!std::is_same_v<placements, accepted>)
            return std::type_identity<placements>{};
        else
            return judge_groups<Strategy, Reshard, Topology>();
    }
}

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
    } else {
        return judge_together<Strategy, Reshard, Topology>();
    }
}

}  // namespace detail

/// `accepted`, or the refusal; policy derives from it, so a wrong policy is one error where it is first used.
template <class Strategy, class Reshard, class Topology, class Precision>
using verdict_on = typename decltype(detail::judge<Strategy, Reshard, Topology, Precision>())::type;

}  // namespace v0
}  // namespace reshard
