// Reshard policies: what becomes of gathered parameters after forward and after backward, and how often to reduce.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "../layout/extent.hpp"
#include "facts.hpp"

namespace reshard {
inline namespace v0 {

namespace detail {
template <class Model>
concept tells_after_forward = requires(const Model& model, unit_place unit) {
    { model.after_forward(unit) } -> std::convertible_to<afterwards>;
};
template <class Model>
concept tells_after_backward = requires(const Model& model, unit_place unit) {
    { model.after_backward(unit) } -> std::convertible_to<afterwards>;
};
template <class Model>
concept tells_reduce_once = requires(const Model& model) {
    { model.reduce_once() } -> std::convertible_to<bool>;
};

template <class Model>
concept tells_group = requires(const Model& model, unit_place unit) {
    { model.group(unit) } -> std::convertible_to<std::size_t>;
};

/// E-POLICY-3: more units kept than there are.
inline void require_kept_units(std::size_t kept, std::size_t units) {
    if (kept > units)
        throw argument_error("E-POLICY-3",
                             text("keep_last<", kept, "> keeps the last ", kept, " units, the model has ", units,
                                  "; use at most ", units, " or reshard_never, which keeps every unit"));
}
/// E-POLICY-9; `name` is that of the whole.
inline void require_not_chosen(bool chosen, const std::string& name) {
    if (chosen)
        throw argument_error("E-POLICY-9", text(name, ": accumulate_unsharded around a policy that decides itself how "
                                                      "often to reduce; leave accumulate_unsharded away"));
}
inline std::string reshard_to_group_text(std::size_t ranks, bool until_step) {
    return text("reshard_to_group<", extent_text(ranks), until_step ? ", until_step>" : ">");
}
}  // namespace detail

/// Facts, without effect on units whose parameters rest whole:
/// * after_forward(unit): free the gathered parameters, keep them for the backward, or keep a slice of a smaller group,
///   within which backward gathers them again;
/// * after_backward(unit): free them, or keep them, or a slice of a smaller group, until the weights change;
/// * reduce_once(): gradients are summed in a full local buffer and reduced after the last microbatch of a step
///   alone, instead of after each.
/// One whose facts may be afterwards::group has `group(unit)` too: the ranks of the smaller group.
/// Optional: `check(units)` throws if the policy does not fit a model of so many units; `describe()`, for reports.
template <class Model>
concept ReshardPolicy =
    detail::tells_after_forward<Model> && detail::tells_after_backward<Model> && detail::tells_reduce_once<Model>;

/// The ranks of the smaller group of a unit; 1, which is none, where the policy has no such function.
template <class Reshard>
constexpr std::size_t secondary_ranks(const Reshard& reshard, unit_place unit) {
    if constexpr (detail::tells_group<Reshard>)
        return reshard.group(unit);
    else
        return 1;
}

/// Whether a unit may be left in slices of a smaller group; false only where the compiler knows better.
template <class Reshard>
inline constexpr bool may_use_groups =
    detail::tells_group<Reshard> &&
    (may_be<decltype(std::declval<const Reshard&>().after_forward(unit_place{})), afterwards::group> ||
     may_be<decltype(std::declval<const Reshard&>().after_backward(unit_place{})), afterwards::group>);

/// Frees after each use: least memory; two gathers of a unit per microbatch.
struct reshard_always {
    static constexpr auto after_forward(unit_place) { return fact<afterwards::free>; }
    static constexpr auto after_backward(unit_place) { return fact<afterwards::free>; }
    static constexpr auto reduce_once() { return fact<false>; }
    static std::string describe() { return "reshard_always"; }
};

/// Keeps from forward to backward: one gather of a unit per microbatch in a plain loop.
struct reshard_never {
    static constexpr auto after_forward(unit_place) { return fact<afterwards::keep>; }
    static constexpr auto after_backward(unit_place) { return fact<afterwards::free>; }
    static constexpr auto reduce_once() { return fact<false>; }
    static std::string describe() { return "reshard_never"; }
};

/// Keeps until the weights change: one gather of a unit per step, however many microbatches.
struct keep_until_step {
    static constexpr auto after_forward(unit_place) { return fact<afterwards::keep>; }
    static constexpr auto after_backward(unit_place) { return fact<afterwards::keep>; }
    static constexpr auto reduce_once() { return fact<false>; }
    static std::string describe() { return "keep_until_step"; }
};

/// reshard_to_group<k, until_step>: until the weights change.
struct until_step {};
/// reshard_to_group<k>: from forward to backward.
struct until_backward {};

/// After forward each rank keeps a slice of its group of Ranks ranks, within which backward gathers: one gather over
/// the whole shard group and one within the small group per microbatch. With until_step the slices stay until the
/// weights change: one gather over the whole shard group per step, all others within the small group. Memory: the
/// unit's parameters / Ranks. Ranks divides the shard group of the parameters; 1 keeps them whole.
template <std::size_t Ranks, class Until = until_backward>
    requires(std::is_same_v<Until, until_backward> || std::is_same_v<Until, until_step>)
struct reshard_to_group {
    static constexpr auto after_forward(unit_place) { return fact<afterwards::group>; }
    static constexpr auto after_backward(unit_place) {
        return fact < std::is_same_v<Until, until_step> ? afterwards::group : afterwards::free > ;
    }
    static constexpr auto reduce_once() { return fact<false>; }
    static constexpr auto group(unit_place) { return fact<std::size_t{Ranks}>; }
    static std::string describe() { return detail::reshard_to_group_text(Ranks, std::is_same_v<Until, until_step>); }
};

/// Keeps the last Units units from forward to backward, which comes at once, and frees all others after each use.
/// A model of fewer units refuses it when built (E-POLICY-3).
template <std::size_t Units>
struct keep_last {
    static constexpr afterwards after_forward(unit_place unit) {
        return unit.index + Units >= unit.count ? afterwards::keep : afterwards::free;
    }
    static constexpr auto after_backward(unit_place) { return fact<afterwards::free>; }
    static constexpr auto reduce_once() { return fact<false>; }
    static void check(std::size_t units) { detail::require_kept_units(Units, units); }
    static std::string describe() { return text("keep_last<", Units, ">"); }
};

/// Reshard, and gradients are reduced once per step: fewer bytes sent where a step has several microbatches, for a
/// full gradient buffer per unit.
template <class Reshard>
struct accumulate_unsharded {
    [[no_unique_address]] Reshard reshard{};

    constexpr auto after_forward(unit_place unit) const
        requires detail::tells_after_forward<Reshard>
    {
        return reshard.after_forward(unit);
    }
    constexpr auto after_backward(unit_place unit) const
        requires detail::tells_after_backward<Reshard>
    {
        return reshard.after_backward(unit);
    }
    static constexpr auto reduce_once() { return fact<true>; }
    constexpr auto group(unit_place unit) const
        requires detail::tells_group<Reshard>
    {
        return reshard.group(unit);
    }
    void check(std::size_t units) const {
        if constexpr (requires { reshard.chosen_at_build(); })
            detail::require_not_chosen(reshard.chosen_at_build(), describe());
        if constexpr (requires { reshard.check(units); }) reshard.check(units);
    }
    std::string describe() const {
        if constexpr (requires { reshard.describe(); }) return text("accumulate_unsharded<", reshard.describe(), ">");
        return "accumulate_unsharded<own policy>";
    }
};

namespace detail {
template <class Type>
struct is_accumulating : std::false_type {};
template <class Reshard>
struct is_accumulating<accumulate_unsharded<Reshard>> : std::true_type {};
}  // namespace detail

}  // namespace v0
}  // namespace reshard
