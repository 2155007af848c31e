// Gradients from the kernels to the owned slices: acquisition, zeroing, reduction, accumulation.
#pragma once

#include <cstddef>
#include <span>

#include "issue.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

template <class State>
void issue_outer(State& state);

/// Before the first write of an accumulation: the buffer is free again, and zero wherever a write adds. Gaps and
/// padding are always zeroed, since units share buffers.
template <class State>
void acquire_gradients(State& state, unit_record& unit) {
    if (unit.gradient_buffer == no_buffer) return;
    issue_outer(state);  // it may be what frees the buffer
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

/// Sums values over a group in place; after a reduce-scatter this rank's block alone counts.
template <class State, class Number>
void sum_in_place(State& state, const unit_record& unit, collective what, rank_set set, std::span<Number> values,
                  typename State::stream_ref stream) {
    issue_collective(state, {unit.index, what, dtype_of<Number>, 0, set, values.size(), 0}, [&](const auto& group) {
        const label name{set == rank_set::outer ? "reduce between blocks" : "reduce", unit.name.c_str()};
        if (what == collective::reduce_scatter) {
            group.reduce_scatter_in_place(values, stream, name);
        } else {
            group.all_reduce_in_place(values, stream, name);
        }
    });
}

template <class State>
std::size_t divisor_of(const State& state) {
    return state.options.average_over_ranks ? state.ranks() : 1;
}

inline write_mode mode_of(bool adds) { return adds ? write_mode::add : write_mode::overwrite; }

/// One segment over the whole group; then the owned slice is divided and added (the first time in a step: written).
template <class State>
void reduce_whole(State& state, unit_record& unit, std::size_t k, typename State::gradient_type* values) {
    const segment& part = unit.layout->segments()[k];
    const bool all = unit.how == reduction::all_reduce;
    if (!state.alone()) {
        sum_in_place(state, unit, all ? collective::all_reduce : collective::reduce_scatter, rank_set::whole,
                     std::span(values, part.elements), state.reduce_stream());
    }
    const std::size_t divisor = divisor_of(state), count = part.elements / unit.part.parts;
    if (unit.direct && divisor == 1) return;
    auto* sums = reinterpret_cast<typename State::accumulate_type*>(state.gradients.data());
    state.device.accumulate(values + unit.part.number * count, sums + unit.owned[k], count, mode_of(unit.reduced),
                            divisor, state.reduce_stream());
}

/// Where sums over the block begin: in the owned arena, or in one of their own until the outer group has summed them.
template <class State>
typename State::accumulate_type* block_sums(State& state, const unit_record& unit, std::size_t k) {
    const bool owned = unit.how == reduction::inner_all;
    auto* base =
        reinterpret_cast<typename State::accumulate_type*>(owned ? state.gradients.data() : state.partial_sums.data());
    return base + (owned ? unit.owned[k] : unit.partial[k]);
}

/// One segment over the block. Sums that wait for the last microbatch are added up undivided.
template <class State>
void reduce_block(State& state, unit_record& unit, std::size_t k, typename State::gradient_type* values) {
    const segment& part = unit.layout->segments()[k];
    const std::size_t count = part.elements / state.plan.inner();
    sum_in_place(state, unit, collective::reduce_scatter, rank_set::inner, std::span(values, part.elements),
                 state.reduce_stream());
    if (unit.how == reduction::inner_and_outer) return;
    state.device.accumulate(values + state.rank() % state.plan.inner() * count, block_sums(state, unit, k), count,
                            mode_of(unit.reduced), 1, state.reduce_stream());
}

/// On the reduction stream, behind everything that wrote the gradients: one collective per segment, then the sums are
/// added to what is owned. What the outer group sums waits for issue_outer(): behind the gather after next.
template <class State>
void reduce_unit(State& state, unit_record& unit, bool last) {
    using gradient_type = typename State::gradient_type;
    issue_outer(state);  // one is due at a time; another may be where two units are in backward at once
    auto& buffer = state.gradient_buffers[unit.gradient_buffer];
    buffer.wait_for_users(state.device, state.reduce_stream());
    const bool whole = unit.how == reduction::all_reduce || unit.how == reduction::scatter;
    for (std::size_t k = 0; k < unit.owned.size(); ++k) {
        const segment& part = unit.layout->segments()[k];
        if (!part.trainable || part.elements == 0) continue;
        gradient_type* values = reinterpret_cast<gradient_type*>(unit.gradients) + part.gradient_offset;
        if (whole) {
            reduce_whole(state, unit, k, values);
        } else if constexpr (State::may_have_blocks) {
            reduce_block(state, unit, k, values);
        }
    }
    state.device.record(buffer.filled, state.reduce_stream());
    if (!whole && (last || unit.how == reduction::inner_and_outer)) {
        state.device.record(state.block_reduced, state.reduce_stream());
        state.outer_due = &unit;
        state.outer_adds = unit.reduced;
    }
    buffer.holder = nobody;
    unit.accumulating = false;
    unit.reduced = true;
    if (unit.rotating_gradients) state.live_bytes -= unit.layout->gradient_elements() * sizeof(gradient_type);
}

/// What the outer group sums of one segment, in the accumulate type: partial sums, or the block of a gradient buffer,
/// cast where types differ.
template <class State>
typename State::accumulate_type* outer_values(State& state, const unit_record& unit, std::size_t k) {
    using gradient_type = typename State::gradient_type;
    using accumulate_type = typename State::accumulate_type;
    if (unit.how != reduction::inner_and_outer) return block_sums(state, unit, k);
    const segment& part = unit.layout->segments()[k];
    const std::size_t count = part.elements / state.plan.inner();
    auto* block = reinterpret_cast<gradient_type*>(unit.gradients) + part.gradient_offset +
                  state.rank() % state.plan.inner() * count;
    if constexpr (std::is_same_v<gradient_type, accumulate_type>) {
        return block;
    } else {
        auto* scratch = reinterpret_cast<accumulate_type*>(state.partial_sums.data()) + state.outer_scratch;
        state.device.accumulate(block, scratch, count, write_mode::overwrite, 1, state.outer_stream());
        return scratch;
    }
}

/// The sums of the unit that is due, between blocks; the whole mean is divided here, once.
template <class State>
void sum_between_blocks(State& state) {
    unit_record& unit = *state.outer_due;
    state.outer_due = nullptr;
    const auto stream = state.outer_stream();
    state.device.wait(stream, state.block_reduced);
    auto* owned = reinterpret_cast<typename State::accumulate_type*>(state.gradients.data());
    const bool all = unit.how == reduction::inner_all, at_once = unit.how == reduction::inner_and_outer;
    for (std::size_t k = 0; k < unit.owned.size(); ++k) {
        const segment& part = unit.layout->segments()[k];
        if (!part.trainable || part.elements == 0) continue;
        const std::size_t count = part.elements / state.plan.inner(), divisor = divisor_of(state);
        auto* values = outer_values(state, unit, k);
        sum_in_place(state, unit, all ? collective::all_reduce : collective::reduce_scatter, rank_set::outer,
                     std::span(values, count), stream);
        if (all && divisor == 1) continue;
        const std::size_t mine = all ? 0 : state.rank() / state.plan.inner() * part.slice;
        state.device.accumulate(values + mine, owned + unit.owned[k], all ? count : part.slice,
                                mode_of(at_once && state.outer_adds), divisor, stream);
    }
    if (at_once) state.device.record(state.gradient_buffers[unit.gradient_buffer].filled, stream);
}

/// Issues that, if it is due.
template <class State>
void issue_outer(State& state) {
    if constexpr (State::may_have_blocks) {
        if (state.outer_due != nullptr) sum_between_blocks(state);
    }
}

/// A scope that wrote gradients was left: reduce if the policy reduces each microbatch and this one is complete, or
/// if nothing of the step is to come. A rank alone that writes straight into its arena has nothing to do.
template <class State>
void count_backward(State& state, unit_record& unit) {
    ++unit.backward_uses;
    if (unit.gradient_buffer == no_buffer || unit.backward_uses % unit.uses != 0) return;
    const bool last = unit.backward_uses == unit.uses * state.microbatches;
    if (!last && (unit.direct || state.reduces_once(unit))) return;
    reduce_unit(state, unit, last);
    if (state.order.at_end(state.cursor)) issue_outer(state);  // no gather comes that it should be behind
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
