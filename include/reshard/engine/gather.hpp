// Parameters on their way to the kernels: gathers, prefetch, what is kept, refresh of resting copies.
#pragma once

#include <cstddef>
#include <span>

#include "walk.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Fills the unit's buffer on the gather stream: every rank casts its own slice of the masters into place, then one
/// all-gather in place per segment. Nothing is copied in or out.
template <class State>
void fill_copy(State& state, unit_record& unit, const char* what) {
    using master_type = typename State::master_type;
    auto& buffer = state.gather_buffers[unit.gather_buffer];
    const auto stream = state.gather_stream();
    const bool sliced = state.plan.divided_by(state.policy.strategy.optimizer_state(unit.place)) > 1;
    buffer.wait_for_users(state.device, stream);
    state.device.wait(stream, state.weights_written);
    const auto* masters = reinterpret_cast<const master_type*>(state.masters.data());
    for (std::size_t k = 0; k < unit.owned.size(); ++k) {
        const segment& part = unit.layout->segments()[k];
        if (part.elements == 0) continue;
        std::byte* base = buffer.data + part.byte_offset;
        const std::size_t count = sliced ? part.slice : part.elements, first = sliced ? state.rank() * part.slice : 0;
        with_element(part.type, [&](auto* element) {
            state.device.cast(masters + unit.owned[k], reinterpret_cast<decltype(element)>(base) + first, count,
                              stream);
        });
        if (!sliced) continue;
        const std::size_t bytes = part.elements * size_of(part.type);
        issue_collective(state, {unit.index, collective::all_gather, part.type, 1, 0, bytes, 0}, [&] {
            state.world.all_gather_in_place(std::span<std::byte>(base, bytes), stream, label{what, unit.name.c_str()});
        });
    }
    state.device.record(buffer.filled, stream);
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
    fill_copy(state, unit, "gather");
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
    if (unit.source == view_source::resting) {
        fill_copy(state, unit, "refresh");
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
    if (state.gather_buffers.empty()) return;
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

/// Refreshes every resting copy that is not current, in unit order; the compute stream waits if `join`.
template <class State>
void refresh_resting(State& state, bool join) {
    for (unit_record* unit : state.units) {
        if (unit->source != view_source::resting) continue;
        if (!state.valid(*unit)) fill_copy(state, *unit, "refresh");
        if (join) await_parameters(state, *unit, state.compute);
    }
}

/// The compute stream waits until no gather reads the masters any more.
template <class State>
void join_gathers(State& state) {
    state.device.record(state.gathers_idle, state.gather_stream());
    state.device.wait(state.compute, state.gathers_idle);
}

/// New weights: every copy is void. Gathered ones give their buffers up, resting ones are refreshed later.
template <class State>
void raise_version(State& state) {
    ++state.version;
    for (unit_record* unit : state.units) {
        if (unit->here && unit->source == view_source::gathered) drop_unused(state, *unit);
    }
    state.device.record(state.weights_written, state.compute);
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
