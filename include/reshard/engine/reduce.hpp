// Gradients from the kernels to the owned slices: acquisition, zeroing, reduction, accumulation.
#pragma once

#include <cstddef>
#include <span>

#include "state.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Before the first write of an accumulation: the buffer is free again, and zero wherever a write adds. Gaps and
/// padding are always zeroed, since units share buffers.
template <class State>
void acquire_gradients(State& state, unit_record& unit) {
    if (unit.gradient_buffer == no_buffer) return;
    if (!unit.accumulating) {
        auto& buffer = state.gradient_buffers[unit.gradient_buffer];
        if (buffer.holder != nobody && buffer.holder != unit.index) {
            throw state_error("E-STATE-3", text("\"", unit.name, "\" needs the gradient buffer in which \"",
                                                state.units[buffer.holder]->name,
                                                "\" is not reduced yet; two units may be in backward at once"));
        }
        state.device.wait(state.compute, buffer.filled);
        auto* base = reinterpret_cast<typename State::gradient_type*>(unit.gradients);
        for (const arena_range& range : unit.zeroed) {
            state.device.zero(std::as_writable_bytes(std::span(base + range.begin, range.count)), state.compute);
        }
        buffer.holder = unit.index;
        unit.accumulating = true;
        if (!unit.overwritten.empty()) unit.written.assign(unit.written.size(), false);
        if (unit.rotating_gradients) state.grow_live(unit.layout->gradient_elements() * sizeof(*base));
    } else {  // a further stream wrote in an earlier microbatch; the compute stream adds now
        auto& buffer = state.gradient_buffers[unit.gradient_buffer];
        for (std::uint32_t k = 1; buffer.used >> k != 0; ++k) {
            if (buffer.used >> k & 1u) state.device.wait(state.compute, buffer.users[k]);
        }
    }
    if (!unit.overwritten.empty()) unit.written_before = unit.written;
}

/// Parameters that overwrite, but were never asked for, hold another unit's numbers.
template <class State>
void zero_unwritten(State& state, unit_record& unit) {
    auto* base = reinterpret_cast<typename State::gradient_type*>(unit.gradients);
    for (const std::uint32_t index : unit.overwritten) {
        if (unit.written[index]) continue;
        const std::size_t first = unit.layout->gradient_offset_of(index),
                          count = unit.layout->parameters()[index].count;
        state.device.zero(std::as_writable_bytes(std::span(base + first, count)), state.compute);
    }
}

/// Sums one segment over ranks in place.
template <class State>
void reduce_segment(State& state, unit_record& unit, std::span<typename State::gradient_type> values, bool sliced) {
    const auto stream = state.reduce_stream();
    const dtype type = dtype_of<typename State::gradient_type>;
    const collective what = sliced ? collective::reduce_scatter : collective::all_reduce;
    issue_collective(state, {unit.index, what, type, 0, 0, values.size(), 0}, [&] {
        const label name{"reduce", unit.name.c_str()};
        if (sliced) {
            state.world.reduce_scatter_in_place(values, stream, name);
        } else {
            state.world.all_reduce_in_place(values, stream, name);
        }
    });
}

/// On the reduction stream, behind everything that wrote the gradients: one collective per segment, then this rank's
/// block is divided and added to its owned slice (the first time in a step: written).
template <class State>
void reduce_unit(State& state, unit_record& unit) {
    using gradient_type = typename State::gradient_type;
    using accumulate_type = typename State::accumulate_type;
    const auto stream = state.reduce_stream();
    auto& buffer = state.gradient_buffers[unit.gradient_buffer];
    buffer.wait_for_users(state.device, stream);
    const bool sliced = state.plan.divided_by(state.policy.strategy.optimizer_state(unit.place)) > 1;
    const std::size_t divisor = state.options.average_over_ranks ? state.ranks() : 1;
    auto* base = reinterpret_cast<gradient_type*>(unit.gradients);
    auto* sums = reinterpret_cast<accumulate_type*>(state.gradients.data());
    for (std::size_t k = 0; k < unit.owned.size(); ++k) {
        const segment& part = unit.layout->segments()[k];
        if (!part.trainable || part.elements == 0) continue;
        gradient_type* values = base + part.gradient_offset;
        if (!state.alone()) reduce_segment(state, unit, {values, part.elements}, sliced);
        if (unit.direct && divisor == 1) continue;
        const std::size_t first = sliced ? state.rank() * part.slice : 0, count = sliced ? part.slice : part.elements;
        state.device.accumulate(values + first, sums + unit.owned[k], count,
                                unit.reduced ? write_mode::add : write_mode::overwrite, divisor, stream);
    }
    state.device.record(buffer.filled, stream);
    buffer.holder = nobody;
    unit.accumulating = false;
    unit.reduced = true;
    if (unit.rotating_gradients) state.live_bytes -= unit.layout->gradient_elements() * sizeof(gradient_type);
}

/// A scope that wrote gradients was left: reduce if the policy reduces each microbatch and this one is complete, or
/// if nothing of the step is to come. A rank alone that writes straight into its arena has nothing to do.
template <class State>
void count_backward(State& state, unit_record& unit) {
    ++unit.backward_uses;
    if (unit.gradient_buffer == no_buffer || unit.backward_uses % unit.uses != 0) return;
    const bool last = unit.backward_uses == unit.uses * state.microbatches;
    if (!last && (unit.direct || state.reduces_once(unit))) return;
    reduce_unit(state, unit);
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
