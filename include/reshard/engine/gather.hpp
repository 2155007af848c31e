// Parameters on their way to the kernels: gathers, prefetch, what is kept, refresh of resting copies.
#pragma once

#include <cstddef>
#include <span>

#include "control.hpp"
#include "walk.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// This rank's slice of a segment of the masters, cast to where it lies in a whole buffer (or from `base` on).
template <class State>
void cast_own(State& state, const unit_record& unit, std::size_t k, std::byte* base, std::size_t first,
              typename State::stream_ref stream) {
    using master_type = typename State::master_type;
    const segment& part = unit.layout->segments()[k];
    const auto* masters = reinterpret_cast<const master_type*>(state.masters.data());
    with_element(part.type, [&](auto* element) {
        state.device.cast(masters + unit.owned[k], reinterpret_cast<decltype(element)>(base) + first,
                          part.elements / unit.part.parts, stream);
    });
}

/// A whole buffer from masters: every rank casts its own slice into place, then all-gathers in place. Slices of the
/// whole that lie inside a block's slice are gathered over the outer group first. Nothing is copied in or out.
template <class State>
void fill_from_masters(State& state, unit_record& unit, std::byte* buffer, const char* what) {
    const auto stream = state.gather_stream();
    const unit_plan& plan = state.plan.units[unit.index];
    state.device.wait(stream, state.weights_written);
    for (std::size_t k = 0; k < unit.owned.size(); ++k) {
        const segment& part = unit.layout->segments()[k];
        if (part.elements == 0) continue;
        std::byte* base = buffer + part.byte_offset;
        const std::size_t bytes = part.elements * size_of(part.type);
        cast_own(state, unit, k, base, unit.part.number * (part.elements / unit.part.parts), stream);
        if (unit.part.parts == 1) continue;
        if (State::may_have_blocks && splits(plan)) {
            const std::size_t block = bytes / state.plan.inner(), mine = state.rank() % state.plan.inner();
            gather_in_place(state, unit, rank_set::outer, base + mine * block, block, stream, "refresh between blocks");
        }
        gather_in_place(state, unit, rests_inner(plan) ? rank_set::inner : rank_set::whole, base, bytes, stream, what);
    }
}

/// The block's slice in the compute type, once per weight version, on the stream between blocks. Gathers that sent from
/// it are through: what wrote the weights waited for the gather stream (gathers idle), and this waits for that.
template <class State>
void refresh_slice(State& state, unit_record& unit) {
    const auto stream = state.outer_stream();
    auto& buffer = state.gather_buffers[unit.slice_buffer];
    state.device.wait(stream, state.weights_written);
    for (std::size_t k = 0; k < unit.owned.size(); ++k) {
        const segment& part = unit.layout->segments()[k];
        if (part.elements == 0) continue;
        std::byte* base = buffer.data + unit.slices.offsets[k];
        cast_own(state, unit, k, base, state.rank() / state.plan.inner() * part.slice, stream);
        gather_in_place(state, unit, rank_set::outer, base, part.elements / state.plan.inner() * size_of(part.type),
                        stream, "refresh");
    }
    state.device.record(buffer.filled, stream);
    unit.slice_here = true;
    unit.slice_version = state.version;
}

/// A whole buffer from slices that rest in the compute type: of the block, or of the secondary group.
template <class State>
void fill_from_slices(State& state, unit_record& unit, rank_set set, const std::byte* slices,
                      const sliced_bytes& places, std::byte* buffer, const char* what) {
    for (std::size_t k = 0; k < unit.owned.size(); ++k) {
        const segment& part = unit.layout->segments()[k];
        if (part.elements == 0) continue;
        gather_from(state, unit, set, slices + places.offsets[k], buffer + part.byte_offset,
                    part.elements * size_of(part.type), state.gather_stream(), what);
    }
}

/// This rank's slice of the secondary group, copied behind the gather on its stream: later gathers send from it on the
/// same stream, so nothing waits.
template <class State>
void keep_secondary(State& state, unit_record& unit, const std::byte* buffer) {
    const std::size_t mine = state.rank() % unit.group;
    for (std::size_t k = 0; k < unit.owned.size(); ++k) {
        const segment& part = unit.layout->segments()[k];
        const std::size_t count = part.elements / unit.group;
        with_element(part.type, [&](auto* element) {
            using type = std::remove_pointer_t<decltype(element)>;
            state.device.cast(reinterpret_cast<const type*>(buffer + part.byte_offset) + mine * count,
                              reinterpret_cast<type*>(unit.secondary + unit.secondary_slices.offsets[k]), count,
                              state.gather_stream());
        });
    }
    if (!unit.secondary_here) state.grow_live(unit.secondary_slices.total);
    unit.secondary_here = true;
    unit.secondary_version = state.version;
}

template <class State>
void drop_secondary(State& state, unit_record& unit) {
    if (!unit.secondary_here) return;
    unit.secondary_here = false;
    state.live_bytes -= unit.secondary_slices.total;
}

/// From the slices that rest in the block, refreshed if they are old.
template <class State>
void fill_from_block(State& state, unit_record& unit, std::byte* buffer) {
    if (!state.slice_valid(unit)) refresh_slice(state, unit);
    const auto& slice = state.gather_buffers[unit.slice_buffer];
    state.device.wait(state.gather_stream(), slice.filled);
    fill_from_slices(state, unit, rank_set::inner, slice.data, unit.slices, buffer, "gather");
}

/// From the smallest group that has the unit's present weights.
template <class State>
void fill_gathered(State& state, unit_record& unit, std::byte* buffer) {
    if (state.has_secondary(unit) && state.secondary_valid(unit)) {
        return fill_from_slices(state, unit, rank_set::secondary, unit.secondary, unit.secondary_slices, buffer,
                                "secondary gather");
    }
    if (state.rests_in_slice(unit)) {
        fill_from_block(state, unit, buffer);
    } else {
        fill_from_masters(state, unit, buffer, "gather");
    }
    const bool leaves_as_found = state.evaluating && !state.keeps_secondary(unit);
    if (state.has_secondary(unit) && !leaves_as_found) keep_secondary(state, unit, buffer);
}

/// Fills the unit's gather or resting buffer on the gather stream.
template <class State>
void fill_copy(State& state, unit_record& unit) {
    auto& buffer = state.gather_buffers[unit.gather_buffer];
    buffer.wait_for_users(state.device, state.gather_stream());
    if (unit.source == view_source::resting) {
        fill_from_masters(state, unit, buffer.data, "refresh");
    } else {
        fill_gathered(state, unit, buffer.data);
    }
    state.device.record(buffer.filled, state.gather_stream());
    buffer.holder = unit.index;
    unit.here = true;
    unit.entered = false;
    unit.for_evaluation = state.evaluating;
    unit.copy_version = state.version;
}

/// Gives the buffer up; its memory may be gathered into again once the readers' events are through.
template <class State>
void drop_copy(State& state, unit_record& unit) {
    if (!unit.here || unit.source != view_source::gathered) return;
    unit.here = false;
    unit.recomputing = false;
    state.live_bytes -= unit.layout->bytes();
    state.gather_buffers[unit.gather_buffer].holder = nobody;
}

/// A copy that leaves before the use it was meant for: gathered again later, beyond the prediction.
template <class State>
void drop_unused(State& state, unit_record& unit) {
    if (unit.here && state.at == stage::in_step && !unit.for_evaluation) ++state.missed_prefetches;
    drop_copy(state, unit);
}

template <class State>
bool buffer_is_free(const State& state, const unit_record& unit) {
    const std::uint32_t holder = state.gather_buffers[unit.gather_buffer].holder;
    return holder == nobody || holder == unit.index;
}

template <class State>
void gather(State& state, unit_record& unit) {
    if (unit.here) drop_unused(state, unit);  // of an older version
    fill_copy(state, unit);
    state.grow_live(unit.layout->bytes());
}

/// Makes room for a gather that cannot wait. A kept or prefetched copy may go, a unit in use may not.
template <class State>
void evict_holder(State& state, const unit_record& unit) {
    const std::uint32_t holder = state.gather_buffers[unit.gather_buffer].holder;
    if (holder == nobody || holder == unit.index) return;
    unit_record& other = *state.units[holder];
    if (other.open_scopes > 0 || other.recomputing) {
        throw state_error("E-STATE-2",
                          text("\"", unit.name, "\" needs the gather buffer in which \"", other.name, "\" is ",
                               other.recomputing ? "kept for recomputation" : "open", "; raise ",
                               other.recomputing ? "recompute_segment" : "max_open", " in model_options.slots"));
    }
    drop_unused(state, other);
}

/// Enqueues whatever is still missing for the unit's parameters to be current.
template <class State>
void ensure_parameters(State& state, unit_record& unit) {
    if (unit.source == view_source::masters || state.valid(unit)) return;
    if (state.leader == state.rank() && !state.alone()) share_order(state, unit.index);  // the others gather too
    if (unit.source == view_source::resting) {
        fill_copy(state, unit);
    } else {
        evict_holder(state, unit);
        gather(state, unit);
    }
}

/// The compute stream goes on when the parameters are there.
template <class State>
void await_parameters(State& state, unit_record& unit, typename State::stream_ref stream) {
    if (unit.source != view_source::masters) state.device.wait(stream, state.gather_buffers[unit.gather_buffer].filled);
}

template <class State>
bool prefetch_unit(State& state, unit_record& unit) {
    if (state.valid(unit)) return true;
    if (!buffer_is_free(state, unit)) return false;
    gather(state, unit);
    return true;
}

/// Gathers for the next entries of the list, as many as the depth says, in order, while their buffers are free.
/// Never crosses the end of the step: the weights change there.
template <class State>
void prefetch(State& state) {
    if (!state.gathers_units || state.leader != nobody_leads) return;
    std::size_t ahead = 0, looked_at = 0;
    const std::size_t depth = state.options.slots.prefetch_depth;
    if (state.evaluating) {
        const auto uses = state.order.forward_order();
        for (std::size_t use = state.evaluation_use; use < uses.size() && ahead < depth; ++use) {
            unit_record& next = *state.units[uses[use]];
            if (next.source != view_source::gathered) continue;
            if (!prefetch_unit(state, next)) return;
            ++ahead;
        }
        return;
    }
    for (order_cursor at = state.cursor; ahead < depth && looked_at <= state.units.size() && !state.order.at_end(at);
         at = state.order.next(at), ++looked_at) {
        const order_entry entry = state.order.at(at);
        unit_record& next = *state.units[entry.unit];
        if (next.source != view_source::gathered || entry.what == phase::backward_weight) continue;
        if (!prefetch_unit(state, next)) return;
        ++ahead;
    }
}

/// Refreshes every resting copy that is not current, in unit order; the compute stream waits for whole ones if `join`.
template <class State>
void refresh_resting(State& state, bool join) {
    for (unit_record* unit : state.units) {
        if (state.rests_in_slice(*unit) && !state.slice_valid(*unit)) refresh_slice(state, *unit);
        if (unit->source != view_source::resting) continue;
        if (!state.valid(*unit)) fill_copy(state, *unit);
        if (join) await_parameters(state, *unit, state.compute);
    }
}

/// The compute stream waits until no gather or refresh reads the masters any more.
template <class State>
void join_gathers(State& state) {
    state.device.record(state.gathers_idle, state.gather_stream());
    state.device.wait(state.compute, state.gathers_idle);
    if (state.outer_streams.empty()) return;
    state.device.record(state.outer_idle, state.outer_stream());
    state.device.wait(state.compute, state.outer_idle);
}

/// New weights: every copy is void. Gathered ones give their buffers up, resting ones are refreshed later.
template <class State>
void raise_version(State& state) {
    ++state.version;
    for (unit_record* unit : state.units) {
        if (unit->here && unit->source == view_source::gathered) drop_unused(state, *unit);
        drop_secondary(state, *unit);
    }
    state.device.record(state.weights_written, state.compute);
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
