// What is known of a model before anything runs: sizes, placements and what the policies do with each unit.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "../core/types.hpp"
#include "../layout/slices.hpp"
#include "../policy/reshard.hpp"
#include "../policy/strategy.hpp"
#include "slots.hpp"

namespace reshard {
inline namespace v0 {

/// Parameters of one element type that are gathered and reduced by one collective.
struct segment_plan {
    dtype type = dtype::f32;  // of the gathered parameters
    bool trainable = true;
    std::size_t elements = 0;  // padded: a multiple of ranks * slice alignment
};

/// The groups of ranks that collectives run over: all; a block of contiguous ranks; the ranks at the same place in
/// every block; a part of the shard group that keeps secondary shards.
enum class rank_set : std::uint8_t { whole, inner, outer, secondary };
inline constexpr std::size_t rank_sets = 4;

constexpr const char* name_of(rank_set which) {
    constexpr const char* names[] = {"whole", "inner", "outer", "secondary"};
    return names[static_cast<std::size_t>(which)];
}

struct unit_plan {
    std::string name;
    std::size_t uses = 1;
    placement parameters = placement::whole, gradients = placement::whole, optimizer = placement::whole;
    afterwards after_forward = afterwards::free, after_backward = afterwards::free;
    std::vector<segment_plan> segments;
    std::size_t group = 1;      // ranks of the secondary group; 1: none
    std::size_t gap_bytes = 0;  // between segments of several types, where alignments are tiny
};

struct model_plan {
    std::size_t ranks = 1;
    std::size_t outer = 1;  // blocks of ranks / outer contiguous ranks
    bool reduce_once = false;
    dtype gradient = dtype::f32, accumulate = dtype::f32, master = dtype::f32, moment = dtype::f32;
    std::size_t moments = 2;  // per element: 2 for AdamW, 1 for SGD with momentum, 0 without
    std::size_t metrics = 0;  // scalars that ride along with the commit
    slot_options slots;
    std::vector<unit_plan> units;

    std::size_t inner() const { return ranks / outer; }
    std::size_t divided_by(placement where) const {
        return where == placement::replicated ? 1 : where == placement::inner ? inner() : ranks;
    }
};

/// Facts as they come out on these ranks: a block of all ranks is the whole, a block of one replicates; a secondary
/// group of one rank keeps the unit, one of the whole shard group keeps no more than the shard, and parameters that
/// rest replicated have none.
inline unit_plan settled(const model_plan& plan, unit_plan unit) {
    for (placement* where : {&unit.parameters, &unit.gradients, &unit.optimizer}) {
        if (*where != placement::inner) continue;
        if (plan.inner() == 1) *where = placement::replicated;
        if (plan.outer == 1) *where = placement::whole;
    }
    const std::size_t shards = plan.divided_by(unit.parameters);
    bool grouped = false;
    for (afterwards* what : {&unit.after_forward, &unit.after_backward}) {
        if (*what != afterwards::group) continue;
        if (unit.group == 1) *what = afterwards::keep;
        if (unit.group == shards || shards == 1) *what = afterwards::free;
        grouped = grouped || *what == afterwards::group;
    }
    if (!grouped) unit.group = 1;
    return unit;
}

/// The unit with what a strategy and a reshard policy say of it, as that comes out on these ranks.
template <ShardingStrategy Strategy, ReshardPolicy Reshard>
unit_plan with_facts(const model_plan& plan, unit_plan unit, const Strategy& strategy, const Reshard& reshard,
                     unit_place place) {
    unit.parameters = strategy.parameters(place);
    unit.gradients = strategy.gradients(place);
    unit.optimizer = strategy.optimizer_state(place);
    unit.after_forward = reshard.after_forward(place);
    unit.after_backward = reshard.after_backward(place);
    unit.group = secondary_ranks(reshard, place);
    return settled(plan, std::move(unit));
}

inline bool rests_inner(const unit_plan& unit) {
    return unit.parameters == placement::inner || unit.gradients == placement::inner ||
           unit.optimizer == placement::inner;
}

/// Whether some state rests over the inner group and another over the whole, so that transfers between them go in two
/// stages and slices of the whole lie inside the block's own slice.
inline bool splits(const unit_plan& unit) { return rests_inner(unit) && unit.optimizer == placement::whole; }

/// A part of a unit that one rank owns: slice `number` of `parts`.
struct owned_part {
    std::size_t parts = 1, number = 0;
};

/// Of masters, moments and owned gradients.
inline owned_part part_of(const model_plan& plan, const unit_plan& unit, std::size_t rank) {
    if (unit.optimizer == placement::replicated) return {};
    if (unit.optimizer == placement::inner) return {plan.inner(), rank % plan.inner()};
    return {plan.ranks, slice_number(rank, plan.inner(), plan.outer, splits(unit))};
}

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

/// Whether a slice of the block rests in the compute type, refreshed over the outer group once per weight version.
inline bool rests_sliced(const unit_plan& unit) {
    return unit.parameters == placement::inner && unit.optimizer == placement::whole;
}

/// The group that a unit is gathered over.
inline rank_set shard_set(const unit_plan& unit) {
    return unit.parameters == placement::inner ? rank_set::inner : rank_set::whole;
}

/// Whether gradients stay whole until the last microbatch's reduction: they rest replicated, or the policy says once.
inline bool whole_gradients(const model_plan& plan, const unit_plan& unit) {
    return unit.gradients == placement::replicated || plan.reduce_once;
}

/// Whether a unit's gradients are summed over ranks at all.
inline bool reduces(const model_plan& plan) { return plan.ranks > 1; }

/// How a unit's gradients come to the slices that the update reads.
enum class reduction : std::uint8_t {
    all_reduce,       // over the whole group
    scatter,          // reduce-scatter over the whole group
    inner_all,        // over the block; once a step the sums are all-reduced over the outer group
    inner_scatter,    // over the block; once a step the sums are reduce-scattered over the outer group
    inner_and_outer,  // over the block and at once over the outer group
};

inline reduction reduction_of(const model_plan& plan, const unit_plan& unit) {
    if (unit.optimizer == placement::replicated) return reduction::all_reduce;
    if (!rests_inner(unit)) return reduction::scatter;
    if (unit.optimizer == placement::inner) return reduction::inner_all;
    const bool partial_sums = unit.gradients == placement::inner && !plan.reduce_once;
    return partial_sums ? reduction::inner_scatter : reduction::inner_and_outer;
}

}  // namespace v0
}  // namespace reshard
