// Reshard policies: what becomes of gathered parameters after forward and after backward, and how often to reduce.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>

#include "../core/error.hpp"
#include "../core/text.hpp"
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

/// E-POLICY-3: more units kept than there are.
inline void require_kept_units(std::size_t kept, std::size_t units) {
    if (kept > units)
        throw argument_error("E-POLICY-3",
                             text("keep_last<", kept, "> keeps the last ", kept, " units, the model has ", units,
                                  "; use at most ", units, " or reshard_never, which keeps every unit"));
}
}  // namespace detail

/// Facts, without effect on units whose parameters rest whole:
/// * after_forward(unit): free the gathered parameters, or keep them for the backward;
/// * after_backward(unit): free them, or keep them until the weights change;
/// * reduce_once(): gradients are summed in a full local buffer and reduced after the last microbatch of a step
///   alone, instead of after each.
/// Optional: `check(units)` throws if the policy does not fit a model of so many units; `describe()`, for reports.
template <class Model>
concept ReshardPolicy =
    detail::tells_after_forward<Model> && detail::tells_after_backward<Model> && detail::tells_reduce_once<Model>;

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
    void check(std::size_t units) const {
        if constexpr (requires { reshard.check(units); }) reshard.check(units);
    }
    std::string describe() const {
        if constexpr (requires { reshard.describe(); }) return text("accumulate_unsharded<", reshard.describe(), ">");
        return "accumulate_unsharded<own policy>";
    }
};

}  // namespace v0
}  // namespace reshard
