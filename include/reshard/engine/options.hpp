// What a trainer may choose when it makes a model, a unit or a step.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "../layout/unit_layout.hpp"
#include "../policy/any_reshard.hpp"
#include "../policy/any_sharding.hpp"
#include "../schedule/order.hpp"
#include "../schedule/slots.hpp"

namespace reshard {
inline namespace v0 {

/// What becomes of units that a rank leaves out of a pass.
enum class skipped_units : std::uint8_t {
    refused,     // entering a later unit throws and names the one left out
    with_zeros,  // the rank takes part in their gathers and reductions with zero gradients
};

struct model_options {
    layout_options layout = {};              // alignments, in elements
    slot_options slots = {};                 // prefetch depth, open scopes, recompute segment
    bool average_over_ranks = true;          // false: gradients are sums over ranks
    bool average_over_microbatches = false;  // true: divided by the announced number of microbatches too
    /// Where parameters rest whole after a sharded update, begin_step() waits for their refresh, so that pointers
    /// kept across steps are safe. True: only forward and backward scopes wait, unit by unit, and the refresh
    /// overlaps the first layers; then every read must be inside a scope.
    bool overlap_refresh = false;
    skipped_units skipped = skipped_units::refused;
};

/// Nothing, or a value that takes the place of the model's own.
template <class Value>
struct unit_override {
    unit_override() = default;
    template <class Given>
        requires(std::convertible_to<Given, Value> && !std::same_as<std::remove_cvref_t<Given>, unit_override>)
    unit_override(Given&& given) : is_set(true), value(std::forward<Given>(given)) {}

    bool is_set = false;
    Value value{};
};

struct unit_options {
    /// How often a microbatch's forward visits the unit: 2 for an embedding tied to the output head.
    std::size_t uses = 1;
    /// In place of the policy's, for this unit alone. The policy's slot must be a value (any_sharding, any_reshard),
    /// and a reshard policy must reduce as often as the model's.
    unit_override<any_sharding> strategy = {};
    unit_override<any_reshard> reshard = {};
};

struct step_options {
    /// How many forward and backward passes this step has before its update, the same on all ranks.
    std::size_t microbatches = 1;
    /// A pipeline's order of passes; empty for the plain loop.
    std::span<const pass> schedule = {};
};

/// How a step ends. Every number must be the same on all ranks.
struct commit_options {
    double gradient_scale = 1;  // a late factor, such as one over the tokens of the step
    double clip_norm = 0;       // scale the whole gradient down to this norm; 0: do not clip
    std::uint64_t count = 0;    // Adam's step count to use; 0: one more than the last
    std::uint64_t numbers = 0;  // a hash of whatever else the update uses; ranks that differ throw, all alike
};

/// A microbatch number for scopes: needed only where several are in flight and the trainer wants it checked.
inline constexpr std::size_t any_microbatch = static_cast<std::size_t>(-1);

}  // namespace v0
}  // namespace reshard
