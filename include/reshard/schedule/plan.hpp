// What is known of a model before anything runs: sizes, placements and what the policies do with each unit.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "../core/types.hpp"
#include "../policy/facts.hpp"
#include "slots.hpp"

namespace reshard {
inline namespace v0 {

/// Parameters of one element type that are gathered and reduced by one collective.
struct segment_plan {
    dtype type = dtype::f32;  // of the gathered parameters
    bool trainable = true;
    std::size_t elements = 0;  // padded: a multiple of ranks * slice alignment
};

struct unit_plan {
    std::string name;
    std::size_t uses = 1;
    placement parameters = placement::whole, gradients = placement::whole, optimizer = placement::whole;
    afterwards after_forward = afterwards::free, after_backward = afterwards::free;
    std::vector<segment_plan> segments;
};

struct model_plan {
    std::size_t ranks = 1;
    bool reduce_once = false;
    dtype gradient = dtype::f32, accumulate = dtype::f32, master = dtype::f32, moment = dtype::f32;
    std::size_t moments = 2;  // per element: 2 for AdamW, 1 for SGD with momentum, 0 without
    std::size_t metrics = 0;  // scalars that ride along with the commit
    slot_options slots;
    std::vector<unit_plan> units;

    std::size_t divided_by(placement where) const { return where == placement::replicated ? 1 : ranks; }
};

/// Where the kernels read a unit's parameters.
enum class view_source : std::uint8_t {
    masters,   // the master arena itself: one type, nothing to gather
    resting,   // a whole copy in the compute type, refreshed once per weight version
    gathered,  // a buffer filled by an all-gather
};

inline view_source source_of(const model_plan& plan, const unit_plan& unit) {
    std::size_t elements = 0;
    for (const segment_plan& segment : unit.segments) elements += segment.elements;
    if (elements == 0) return view_source::masters;  // nothing to gather
    if (plan.divided_by(unit.parameters) > 1) return view_source::gathered;
    // Several segments do not lie behind one another in the master arena, where frozen ones come last.
    const bool as_in_arena =
        unit.segments.empty() || (unit.segments.size() == 1 && unit.segments.front().type == plan.master);
    return plan.divided_by(unit.optimizer) == 1 && as_in_arena ? view_source::masters : view_source::resting;
}

/// Whether gradients stay whole until the last microbatch's reduction: they rest replicated, or the policy says once.
inline bool whole_gradients(const model_plan& plan, const unit_plan& unit) {
    return unit.gradients == placement::replicated || plan.reduce_once;
}

/// Whether a unit's gradients are summed over ranks at all.
inline bool reduces(const model_plan& plan) { return plan.ranks > 1; }

}  // namespace v0
}  // namespace reshard
