// Reshard policies that are decided when the model is built: reshard_within and pipeline_default.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "../layout/extent.hpp"
#include "facts.hpp"

namespace reshard {
inline namespace v0 {

/// A ReshardPolicy whose facts are chosen when the model is built. Until accept() they are those that need the least.
/// * chosen_at_build(): whether they are to be chosen at all;
/// * cap(): bytes that a rank may own, `dynamic` for no cap;
/// * microbatches(): how many a step has in the plan;
/// * chooses_units(): whether the facts of units are chosen, or reduce_once() alone;
/// * accept(units, reduce_once, why): the choice, one for each unit where units are chosen, and its reason;
/// * why(): that reason, empty before.
template <class Model>
concept ChosenReshard = requires(const Model& model, Model& open, std::vector<unit_choice> units, std::string reason) {
    { model.chosen_at_build() } -> std::convertible_to<bool>;
    { model.cap() } -> std::convertible_to<std::size_t>;
    { model.microbatches() } -> std::convertible_to<std::size_t>;
    { model.chooses_units() } -> std::convertible_to<bool>;
    { model.why() } -> std::convertible_to<const std::string&>;
    open.accept(std::move(units), true, std::move(reason));
};

namespace detail {

/// "512 MiB", or in bytes where that is not a whole number of a unit.
inline std::string cap_text(std::size_t bytes) {
    if (bytes != 0 && bytes % (std::size_t{1} << 30) == 0) return text(bytes >> 30, " GiB");
    if (bytes != 0 && bytes % (std::size_t{1} << 20) == 0) return text(bytes >> 20, " MiB");
    if (bytes != 0 && bytes % (std::size_t{1} << 10) == 0) return text(bytes >> 10, " KiB");
    return text(bytes, " bytes");
}

inline std::string pipeline_default_text(std::size_t bytes) {
    return bytes == dynamic ? "pipeline_default" : text("pipeline_default(", cap_text(bytes), ")");
}
inline std::string reshard_within_text(std::size_t bytes, std::size_t microbatches) {
    return text("reshard_within(", bytes == dynamic ? "dynamic" : cap_text(bytes), ", ", microbatches,
                microbatches == 1 ? " microbatch)" : " microbatches)");
}

/// What a plan chose, or nothing yet.
struct plan_choice {
    std::vector<unit_choice> units;
    bool reduce_once = false;
    std::string why;
    bool operator==(const plan_choice&) const = default;

    unit_choice of(unit_place unit) const { return unit.index < units.size() ? units[unit.index] : unit_choice{}; }
};

/// E-POLICY-10.
inline std::size_t require_microbatches(std::size_t microbatches) {
    if (microbatches == 0)
        throw argument_error("E-POLICY-10", "reshard_within is planned for 0 microbatches a step; give the usual "
                                            "number of your steps, at least 1");
    return microbatches;
}

}  // namespace detail

/// Chosen for each unit when the model is built, so that a rank owns at most `bytes` bytes in all and sends the least
/// in a step of `microbatches` microbatches. A cap below what the model needs at least is refused.
class reshard_within {
public:
    /// E-POLICY-10 for 0 microbatches.
    explicit reshard_within(std::size_t bytes, std::size_t microbatches = 1)
        : cap_(bytes), microbatches_(detail::require_microbatches(microbatches)) {}

    afterwards after_forward(unit_place unit) const { return choice_.of(unit).after_forward; }
    afterwards after_backward(unit_place unit) const { return choice_.of(unit).after_backward; }
    std::size_t group(unit_place unit) const { return choice_.of(unit).group; }
    bool reduce_once() const { return choice_.reduce_once; }

    static constexpr auto chosen_at_build() { return fact<true>; }
    std::size_t cap() const { return cap_; }
    std::size_t microbatches() const { return microbatches_; }
    static constexpr auto chooses_units() { return fact<true>; }
    void accept(std::vector<unit_choice> units, bool once, std::string reason) {
        choice_ = {std::move(units), once, std::move(reason)};
    }
    const std::string& why() const { return choice_.why; }
    bool operator==(const reshard_within&) const = default;
    std::string describe() const { return detail::reshard_within_text(cap_, microbatches_); }

private:
    std::size_t cap_, microbatches_;
    detail::plan_choice choice_;
};

/// For pipelines: keep_until_step, reduced once a step where the buffers for full gradients fit under `bytes` bytes
/// that a rank owns in all, else for each microbatch. Without a number there is no cap. One gather of a unit a step
/// under any schedule.
class pipeline_default {
public:
    pipeline_default() = default;
    explicit pipeline_default(std::size_t bytes) : cap_(bytes) {}

    static constexpr auto after_forward(unit_place) { return fact<afterwards::keep>; }
    static constexpr auto after_backward(unit_place) { return fact<afterwards::keep>; }
    bool reduce_once() const { return choice_.reduce_once; }

    static constexpr auto chosen_at_build() { return fact<true>; }
    std::size_t cap() const { return cap_; }
    static constexpr std::size_t microbatches() { return 1; }
    static constexpr auto chooses_units() { return fact<false>; }
    void accept(std::vector<unit_choice> units, bool once, std::string reason) {
        choice_ = {std::move(units), once, std::move(reason)};
    }
    const std::string& why() const { return choice_.why; }
    bool operator==(const pipeline_default&) const = default;
    std::string describe() const { return detail::pipeline_default_text(cap_); }

private:
    std::size_t cap_ = dynamic;
    detail::plan_choice choice_;
};

}  // namespace v0
}  // namespace reshard
