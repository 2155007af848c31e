// The build: from a plan to slots and memory; nothing is allocated afterwards.
#pragma once

#include <cstddef>
#include <span>

#include "planning.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Where this rank's slices begin in the arenas: units in order, trainable segments before all frozen ones.
template <class State>
void place_slices(State& state) {
    std::size_t at = 0;
    for (const bool trainable : {true, false}) {
        for (unit_record* unit : state.units) {
            const std::size_t parts = unit->part.parts;
            unit->owned.resize(unit->layout->segments().size());
            for (std::size_t k = 0; k < unit->owned.size(); ++k) {
                const segment& part = unit->layout->segments()[k];
                if (part.trainable != trainable) continue;
                unit->owned[k] = at;
                // A norm is taken over 1/N of every unit whatever the strategy; which 1/N a rank has, blocks decide.
                if (trainable && part.slice > 0) {
                    const std::size_t share = parts == 1               ? state.rank()
                                              : parts == state.ranks() ? 0
                                                                       : state.rank() / state.plan.inner();
                    state.norm_ranges.push_back({at + share * part.slice, part.slice});
                }
                at += part.elements / parts;
            }
        }
        if (trainable) state.trainable = at;
    }
    state.owned = at;
}

/// Where sums over the block begin, and behind them the scratch of sums between blocks.
template <class State>
std::size_t place_partial_sums(State& state) {
    std::size_t at = 0;
    for (unit_record* unit : state.units) {
        unit->partial.assign(unit->owned.size(), 0);
        if (unit->how != reduction::inner_scatter) continue;
        for (std::size_t k = 0; k < unit->owned.size(); ++k) {
            const segment& part = unit->layout->segments()[k];
            unit->partial[k] = at;
            if (part.trainable) at += part.elements / state.plan.inner();
        }
    }
    state.outer_scratch = at;
    return at * sizeof(typename State::accumulate_type) + outer_scratch_bytes(state.plan);
}

template <class State>
void allocate(State& state, arena<typename State::device_type>& into, std::size_t bytes) {
    into.memory = {};
    into.bytes = bytes;
    if (bytes != 0) into.memory = state.device.allocate(bytes);
}

/// What the gradient buffer must be zeroed in before writes that add: all but parameters that overwrite.
inline void plan_zeroing(unit_record& unit) {
    unit.zeroed.clear();
    unit.overwritten.clear();
    std::size_t at = 0;
    const auto keep_until = [&](std::size_t end) {
        if (end > at) unit.zeroed.push_back({at, end - at});
    };
    for (std::uint32_t index = 0; index < unit.layout->parameters().size(); ++index) {
        const parameter_place& place = unit.layout->parameters()[index];
        const std::size_t first = unit.layout->gradient_offset_of(index);
        if (first == no_gradient || place.write != gradient_write::overwrites) continue;
        keep_until(first);
        at = first + place.count;
        unit.overwritten.push_back(index);
    }
    keep_until(unit.layout->gradient_elements());
    unit.written.assign(unit.layout->parameters().size(), false);
    unit.written_before = unit.written;
}

/// A region of its own in an arena, as a buffer.
template <class State>
std::uint32_t add_buffer(State& state, std::vector<typename State::buffer>& buffers, std::byte* data,
                         std::size_t bytes) {
    buffers.emplace_back();
    buffers.back().data = data;
    buffers.back().bytes = bytes;
    buffers.back().make_events(state.device);
    return static_cast<std::uint32_t>(buffers.size() - 1);
}

template <class State>
void carve(State& state, const arena<typename State::device_type>& memory, const std::vector<std::size_t>& sizes,
           std::vector<typename State::buffer>& buffers) {
    std::size_t at = 0;
    for (const std::size_t bytes : sizes) {
        add_buffer(state, buffers, memory.data() + at, bytes);
        at += bytes;
    }
}

inline std::size_t sum(const std::vector<std::size_t>& sizes) {
    std::size_t total = 0;
    for (const std::size_t one : sizes) total += one;
    return total;
}

/// Whole copies in the compute type, and slices of the block, in one arena.
template <class State>
void build_resting_copies(State& state) {
    std::size_t bytes = 0;
    for (const unit_record* unit : state.units) {
        const unit_plan& plan = state.plan.units[unit->index];
        if (unit->source == view_source::resting) bytes += unit->layout->bytes();
        if (rests_sliced(plan)) bytes += slices_of(plan, state.plan.inner()).total;
    }
    allocate(state, state.resting, bytes);
    std::byte* at = state.resting.data();
    for (unit_record* unit : state.units) {
        const unit_plan& plan = state.plan.units[unit->index];
        if (unit->source == view_source::resting) {
            unit->gather_buffer = add_buffer(state, state.gather_buffers, at, unit->layout->bytes());
            at += unit->layout->bytes();
        }
        if (!rests_sliced(plan)) continue;
        unit->slices = slices_of(plan, state.plan.inner());
        unit->slice_buffer = add_buffer(state, state.gather_buffers, at, unit->slices.total);
        at += unit->slices.total;
    }
}

template <class State>
void build_secondaries(State& state) {
    std::size_t bytes = 0;
    for (const unit_plan& unit : state.plan.units) bytes += secondary_bytes(unit);
    allocate(state, state.secondaries, bytes);
    std::byte* at = state.secondaries.data();
    for (unit_record* unit : state.units) {
        if (unit->group == 1) continue;
        unit->secondary_slices = slices_of(state.plan.units[unit->index], unit->group);
        unit->secondary = at;
        at += unit->secondary_slices.total;
    }
}

/// Slots, resting copies: what scopes show of the parameters.
template <class State>
void build_parameter_buffers(State& state, const slot_map& map) {
    allocate(state, state.gather_memory, sum(map.gather_bytes));
    state.gather_buffers.reserve(map.gather_bytes.size() + 2 * state.units.size());
    carve(state, state.gather_memory, map.gather_bytes, state.gather_buffers);
    for (unit_record* unit : state.units) {
        unit->gather_buffer = map.gather_of[unit->index];
        unit->slice_buffer = no_buffer;
        state.gathers_units = state.gathers_units || unit->source == view_source::gathered;
    }
    build_resting_copies(state);
    build_secondaries(state);
    for (unit_record* unit : state.units) {
        if (unit->source == view_source::masters) {
            unit->parameters = state.masters.data();
            if (!unit->owned.empty()) unit->parameters += unit->owned.front() * sizeof(typename State::master_type);
        } else {
            unit->parameters =
                unit->gather_buffer == no_buffer ? nullptr : state.gather_buffers[unit->gather_buffer].data;
        }
    }
}

/// Gradients are written into a rotating buffer, a whole one, or straight into the owned arena.
template <class State>
void build_gradient_buffers(State& state, const slot_map& map) {
    constexpr std::size_t size = sizeof(typename State::gradient_type);
    std::size_t whole = 0;
    for (const unit_record* unit : state.units) {
        const bool own = !unit->direct && map.gradient_of[unit->index] == no_buffer;
        if (own) whole += unit->layout->gradient_elements() * size;
    }
    allocate(state, state.whole_gradients, whole);
    allocate(state, state.gradient_memory, sum(map.gradient_bytes));
    state.gradient_buffers.reserve(map.gradient_bytes.size() + state.units.size());
    carve(state, state.gradient_memory, map.gradient_bytes, state.gradient_buffers);
    std::size_t at = 0;
    for (unit_record* unit : state.units) {
        const std::size_t bytes = unit->layout->gradient_elements() * size;
        plan_zeroing(*unit);
        if (bytes == 0) continue;
        unit->gradient_buffer = map.gradient_of[unit->index];
        unit->rotating_gradients = unit->gradient_buffer != no_buffer;
        if (unit->direct) {
            std::size_t first = 0;
            while (!unit->layout->segments()[first].trainable) ++first;
            unit->gradient_buffer =
                add_buffer(state, state.gradient_buffers, state.gradients.data() + unit->owned[first] * size, bytes);
        } else if (unit->gradient_buffer == no_buffer) {
            unit->gradient_buffer = add_buffer(state, state.gradient_buffers, state.whole_gradients.data() + at, bytes);
            at += bytes;
        }
        unit->gradients = state.gradient_buffers[unit->gradient_buffer].data;
    }
}

template <class State>
void plan_slots(State& state) {
    state.needs = needs_of(state.plan);
    for (unit_record* unit : state.units) unit->direct = direct_gradients(state.plan, state.plan.units[unit->index]);
    state.slots = map_slots(state.order, state.needs, state.options.slots);
    order_list two_microbatches = state.order;
    two_microbatches.plan(2);
    check_slots(two_microbatches, state.needs, state.slots);
}

/// What the reshard policy decides about memory; built anew where it changes.
template <class State>
void make_buffers(State& state) {
    state.gather_buffers.clear();
    state.gradient_buffers.clear();
    allocate(state, state.partial_sums, place_partial_sums(state));
    build_parameter_buffers(state, state.slots);
    build_gradient_buffers(state, state.slots);
}

/// The policy fits the model, and what units have of their own fits the policy.
template <class State>
void check_policy(State& state) {
    state.policy.check(state.units.size());
    state.policy.check_groups(state.shape, state.units.size());
    for (unit_record* unit : state.units) {
        unit->place = {unit->index, state.units.size()};
        if constexpr (may_own_strategy<State> || may_own_reshard<State>) check_own(state, *unit);
    }
}

/// Scratch of communicators for the largest unit.
template <class State>
void prepare_groups(State& state) {
    std::size_t largest = 0;
    for (const unit_record* unit : state.units) {
        const std::size_t gradient = unit->layout->gradient_elements() * sizeof(typename State::gradient_type);
        if (unit->layout->bytes() > largest) largest = unit->layout->bytes();
        if (gradient > largest) largest = gradient;
    }
    if (!state.alone()) state.groups.prepare(largest);
}

/// Checks, plans and allocates. Collective: all ranks compare what they were started with first.
template <class State>
void build(State& state) {
    if (state.units.empty()) throw state_error("E-STATE-6", "the model has no units; call add_unit() first");
    if (state.forward_order.empty()) {
        for (const unit_record* unit : state.units) {
            if (unit->uses != 1) {
                throw order_error("E-ORDER-8", text("\"", unit->name, "\" has uses = ", unit->uses,
                                                    "; say where they are: set_order({&first, ..., &last}) with every "
                                                    "unit as often as it is used"));
            }
            state.forward_order.push_back(unit->index);
        }
    }
    check_policy(state);
    check_fingerprints(state);
    state.order = order_list(state.forward_order);
    make_plan(state);
    choose(state);
    make_groups(state);
    plan_slots(state);
    place_slices(state);
    allocate(state, state.masters, state.owned * sizeof(typename State::master_type));
    allocate(state, state.gradients, state.trainable * sizeof(typename State::accumulate_type));
    state.moments.resize(state.states.size());
    for (auto& moment : state.moments) allocate(state, moment, state.trainable * sizeof(typename State::moment_type));
    make_buffers(state);
    state.metric_values.assign(state.metrics.size(), 0.0);
    state.agreements.resize(state.ranks());
    state.vote_copies.resize(state.ranks() * control_of(state).vote_bytes());
    state.use_copies.resize(state.ranks() * control_of(state).use_bytes());
    allocate(state, state.control, control_of(state).bytes());
    prepare_groups(state);
    state.at = stage::between_steps;
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
