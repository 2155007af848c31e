// How many collectives a plan needs and the bytes a rank sends in them, group by group.
#pragma once

#include <cstddef>

#include "memory.hpp"

namespace reshard {
inline namespace v0 {

/// Collectives of one kind, and the bytes this rank sends in them if they go round a ring.
struct operation_count {
    std::size_t calls = 0;
    std::size_t bytes = 0;

    operation_count& operator+=(const operation_count& more) {
        calls += more.calls;
        bytes += more.bytes;
        return *this;
    }
    operation_count& operator-=(const operation_count& less) {
        calls -= less.calls;
        bytes -= less.bytes;
        return *this;
    }
    bool operator==(const operation_count&) const = default;
};

struct collective_counts {
    operation_count all_gather, reduce_scatter, all_reduce;

    operation_count total() const {
        operation_count sum = all_gather;
        sum += reduce_scatter;
        sum += all_reduce;
        return sum;
    }
    collective_counts& operator+=(const collective_counts& more) {
        all_gather += more.all_gather;
        reduce_scatter += more.reduce_scatter;
        all_reduce += more.all_reduce;
        return *this;
    }
    collective_counts& operator-=(const collective_counts& less) {
        all_gather -= less.all_gather;
        reduce_scatter -= less.reduce_scatter;
        all_reduce -= less.all_reduce;
        return *this;
    }
    bool operator==(const collective_counts&) const = default;
};

/// Counts by group.
struct group_counts {
    collective_counts sets[rank_sets];

    collective_counts& operator[](rank_set which) { return sets[static_cast<std::size_t>(which)]; }
    const collective_counts& operator[](rank_set which) const { return sets[static_cast<std::size_t>(which)]; }
    /// Over all groups.
    collective_counts sum() const {
        collective_counts all;
        for (const collective_counts& one : sets) all += one;
        return all;
    }
    group_counts& operator+=(const group_counts& more) {
        for (std::size_t k = 0; k < rank_sets; ++k) sets[k] += more.sets[k];
        return *this;
    }
    group_counts& operator-=(const group_counts& less) {
        for (std::size_t k = 0; k < rank_sets; ++k) sets[k] -= less.sets[k];
        return *this;
    }
    bool operator==(const group_counts&) const = default;
};

/// How often a unit as a whole is gathered over its shard group, refreshed, reduced, gathered from secondary shards
/// within their group, and reduced once more over the outer group. Each is one collective per segment that is not
/// empty (a reduction: per trainable one) in each group it goes through.
struct unit_counts {
    std::size_t gathers = 0;
    std::size_t refreshes = 0;
    std::size_t reductions = 0;
    std::size_t secondary_gathers = 0;
    std::size_t outer_reductions = 0;

    bool operator==(const unit_counts&) const = default;
};

namespace detail {

/// A ring all-gather, and a ring reduce-scatter, of `bytes` in all passes on all blocks but one.
inline operation_count ring(std::size_t bytes, std::size_t ranks) { return {1, bytes / ranks * (ranks - 1)}; }

inline std::size_t size_of_set(const model_plan& plan, const unit_plan& unit, rank_set which) {
    return which == rank_set::whole   ? plan.ranks
           : which == rank_set::inner ? plan.inner()
           : which == rank_set::outer ? plan.outer
                                      : unit.group;
}

/// One all-gather per segment of `1 / parts` of each, over one group.
inline void add_gathers(group_counts& sum, const model_plan& plan, const unit_plan& unit, rank_set which,
                        std::size_t parts, std::size_t times) {
    for (const segment_plan& part : unit.segments) {
        if (part.elements == 0) continue;
        const operation_count one = ring(part.elements / parts * size_of(part.type), size_of_set(plan, unit, which));
        sum[which].all_gather += {times * one.calls, times * one.bytes};
    }
}

/// Gathers over the unit's shard group.
inline void add_unit_gathers(group_counts& sum, const model_plan& plan, const unit_plan& unit, std::size_t times) {
    add_gathers(sum, plan, unit, shard_set(unit), 1, times);
}
inline void add_secondary_gathers(group_counts& sum, const model_plan& plan, const unit_plan& unit, std::size_t times) {
    add_gathers(sum, plan, unit, rank_set::secondary, 1, times);
}

/// Whether a copy rests in the compute type and comes from other ranks' masters.
inline bool refreshes_by_gather(const model_plan& plan, const unit_plan& unit) {
    if (rests_sliced(unit)) return all_elements(unit) != 0;
    return source_of(plan, unit) == view_source::resting && plan.divided_by(unit.optimizer) > 1;
}

/// Refreshes of resting copies: over the outer group into slices of the block, then or at once over the whole.
inline void add_refreshes(group_counts& sum, const model_plan& plan, const unit_plan& unit, std::size_t times) {
    if (!refreshes_by_gather(plan, unit)) return;
    if (splits(unit)) add_gathers(sum, plan, unit, rank_set::outer, plan.inner(), times);
    if (rests_sliced(unit)) return;
    add_gathers(sum, plan, unit, rests_inner(unit) ? rank_set::inner : rank_set::whole, 1, times);
}

/// Reductions as they come with a microbatch. An all-reduce is a reduce-scatter and an all-gather.
inline void add_reductions(group_counts& sum, const model_plan& plan, const unit_plan& unit, std::size_t times) {
    const reduction how = reduction_of(plan, unit);
    for (const segment_plan& part : unit.segments) {
        if (!part.trainable || part.elements == 0) continue;
        const std::size_t bytes = part.elements * size_of(plan.gradient);
        const operation_count whole = ring(bytes, plan.ranks), inner = ring(bytes, plan.inner());
        if (how == reduction::all_reduce) {
            sum[rank_set::whole].all_reduce += {times, times * 2 * whole.bytes};
        } else if (how == reduction::scatter) {
            sum[rank_set::whole].reduce_scatter += {times, times * whole.bytes};
        } else {
            sum[rank_set::inner].reduce_scatter += {times, times * inner.bytes};
        }
    }
}

/// What goes over the outer group, in the accumulate type.
inline void add_outer_reductions(group_counts& sum, const model_plan& plan, const unit_plan& unit, std::size_t times) {
    const reduction how = reduction_of(plan, unit);
    for (const segment_plan& part : unit.segments) {
        if (!part.trainable || part.elements == 0) continue;
        const operation_count outer = ring(part.elements / plan.inner() * size_of(plan.accumulate), plan.outer);
        if (how == reduction::inner_all) sum[rank_set::outer].all_reduce += {times, times * 2 * outer.bytes};
        if (how == reduction::inner_scatter || how == reduction::inner_and_outer)
            sum[rank_set::outer].reduce_scatter += {times, times * outer.bytes};
    }
}

/// Whether a reduction goes on over the outer group: at once, or behind the last microbatch.
inline bool reduces_outer(const model_plan& plan, const unit_plan& unit, bool last) {
    const reduction how = reduction_of(plan, unit);
    return how == reduction::inner_and_outer ||
           (last && (how == reduction::inner_all || how == reduction::inner_scatter));
}

/// `bytes` from every rank to every rank.
inline operation_count exchange(const model_plan& plan, std::size_t bytes) {
    return plan.ranks == 1 ? operation_count{} : ring(bytes * plan.ranks, plan.ranks);
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
