// The build: from declared units to plan, slots and memory; nothing is allocated afterwards.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "../schedule/memory.hpp"
#include "commit.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

inline std::uint64_t hash_text(const std::string& words) {
    std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 64 bits
    for (const char letter : words) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
    return hash;
}

template <class State>
std::string units_text(const State& state) {
    std::string out;
    for (const unit_record* unit : state.units) {
        out.append(text(unit->name, " x", unit->uses, ":"));
        for (const parameter_place& place : unit->layout->parameters()) {
            out.append(text(" ", place.name, "[", joined(place.shape), "]", place.group, place.segment,
                            static_cast<int>(place.write)));
        }
        for (const segment& part : unit->layout->segments()) {
            out.append(text(" ", name_of(part.type), part.trainable, part.elements));
        }
        out.append("\n");
    }
    return out + joined(state.forward_order);
}

template <class State>
std::string options_text(const State& state) {
    const model_options& o = state.options;
    return text(o.slots.prefetch_depth, " ", o.slots.max_open, " ", o.slots.recompute_segment, " ",
                o.average_over_ranks, " ", o.average_over_microbatches, " ", o.overlap_refresh, " states ",
                joined(state.states), " metrics ", joined(state.metrics));
}

/// Every rank must have been started alike: compares hashes of policy, units and options, and names the ranks.
template <class State>
void check_fingerprints(State& state) {
    if (state.alone()) return;
    std::uint64_t mine[8] = {hash_text(state.policy.describe()), hash_text(units_text(state)),
                             hash_text(options_text(state))};
    state.scratch = state.device.allocate(state.ranks() * sizeof(mine));
    std::byte* table = state.scratch.data();
    state.device.upload(table + state.rank() * sizeof(mine), reinterpret_cast<std::byte*>(mine), sizeof(mine));
    const std::size_t bytes = state.ranks() * sizeof(mine);
    const auto stream = state.gather_stream();
    issue_collective(state, {nobody, collective::all_gather, dtype::f32, 1, 0, bytes, 0}, [&] {
        state.world.all_gather_in_place(std::span(table, bytes), stream, label{"build", "all ranks"});
    });
    state.device.record(state.agreed, stream);
    state.device.synchronize(state.agreed);
    std::vector<std::uint64_t> all(state.ranks() * 8);
    state.device.download(reinterpret_cast<std::byte*>(all.data()), table, bytes);
    state.scratch = {};
    constexpr const char* names[] = {"policy", "units (names, shapes, groups, order)", "options, states or metrics"};
    for (std::size_t field = 0; field < 3; ++field) {
        std::vector<std::uint64_t> values;
        bool differ = false;
        for (std::size_t rank = 0; rank < state.ranks(); ++rank) {
            values.push_back(all[rank * 8 + field]);
            differ = differ || values[rank] != values[0];
        }
        if (differ) {
            state.poisoned = true;  // every rank throws this: its end is no news that could overtake it
            throw disagreement_error("E-AGREE-3", text("the ranks were started with different ", names[field],
                                                       "; fingerprints are ", spread(values)));
        }
    }
}

/// Policy facts of every unit, as values; refuses what does not fit the model.
template <class State>
void make_plan(State& state) {
    using state_t = State;
    model_plan& plan = state.plan;
    plan.ranks = state.ranks();
    plan.reduce_once = state.policy.reshard.reduce_once();
    plan.gradient = dtype_of<typename state_t::gradient_type>;
    plan.accumulate = dtype_of<typename state_t::accumulate_type>;
    plan.master = dtype_of<typename state_t::master_type>;
    plan.moment = dtype_of<typename state_t::moment_type>;
    plan.moments = state.states.size();
    plan.metrics = state.metrics.size();
    plan.slots = state.options.slots;
    for (unit_record* unit : state.units) {
        unit->place = {unit->index, state.units.size()};
        unit_plan one{unit->name,
                      unit->uses,
                      state.policy.strategy.parameters(unit->place),
                      state.policy.strategy.gradients(unit->place),
                      state.policy.strategy.optimizer_state(unit->place),
                      state.policy.reshard.after_forward(unit->place),
                      state.policy.reshard.after_backward(unit->place),
                      {}};
        for (const segment& part : unit->layout->segments())
            one.segments.push_back({part.type, part.trainable, part.elements});
        plan.units.push_back(std::move(one));
        unit->source = source_of(plan, plan.units.back());
    }
}

/// Where this rank's slices begin in the arenas: units in order, trainable segments before all frozen ones.
template <class State>
void place_slices(State& state) {
    std::size_t at = 0;
    for (const bool trainable : {true, false}) {
        for (unit_record* unit : state.units) {
            const std::size_t parts = state.plan.divided_by(state.plan.units[unit->index].optimizer);
            unit->owned.resize(unit->layout->segments().size());
            for (std::size_t k = 0; k < unit->owned.size(); ++k) {
                const segment& part = unit->layout->segments()[k];
                if (part.trainable != trainable) continue;
                unit->owned[k] = at;
                // A norm is taken over 1/N of every unit whatever the strategy, so its bits do not depend on it.
                if (trainable && part.slice > 0) {
                    state.norm_ranges.push_back({at + (parts == 1 ? state.rank() * part.slice : 0), part.slice});
                }
                at += part.elements / parts;
            }
        }
        if (trainable) state.trainable = at;
    }
    state.owned = at;
}

template <class State>
void allocate(State& state, arena<typename State::device_type>& into, std::size_t bytes) {
    into.bytes = bytes;
    if (bytes != 0) into.memory = state.device.allocate(bytes);
}

/// What the gradient buffer must be zeroed in before writes that add: all but parameters that overwrite.
inline void plan_zeroing(unit_record& unit) {
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

/// Slots, resting copies: what scopes show of the parameters.
template <class State>
void build_parameter_buffers(State& state, const slot_map& map) {
    std::size_t resting = 0;
    for (const unit_record* unit : state.units) {
        if (unit->source == view_source::resting) resting += unit->layout->bytes();
    }
    allocate(state, state.resting, resting);
    allocate(state, state.gather_memory, sum(map.gather_bytes));
    state.gather_buffers.reserve(map.gather_bytes.size() + state.units.size());
    carve(state, state.gather_memory, map.gather_bytes, state.gather_buffers);
    std::size_t at = 0;
    for (unit_record* unit : state.units) {
        unit->gather_buffer = map.gather_of[unit->index];
        if (unit->source == view_source::masters) {
            unit->parameters = state.masters.data();
            if (!unit->owned.empty()) unit->parameters += unit->owned.front() * sizeof(typename State::master_type);
            continue;
        }
        if (unit->source == view_source::resting) {
            unit->gather_buffer =
                add_buffer(state, state.gather_buffers, state.resting.data() + at, unit->layout->bytes());
            at += unit->layout->bytes();
        }
        unit->parameters = unit->gather_buffer == no_buffer ? nullptr : state.gather_buffers[unit->gather_buffer].data;
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
    for (unit_record* unit : state.units) {
        unit->direct = direct_gradients(state.plan, state.plan.units[unit->index]);
        std::size_t& bytes = state.needs[unit->index].gather_bytes;
        if (bytes != 0) bytes = unit->layout->bytes();  // tiny alignments leave gaps between types
    }
    state.slots = map_slots(state.order, state.needs, state.options.slots);
    order_list two_microbatches = state.order;
    two_microbatches.plan(2);
    check_slots(two_microbatches, state.needs, state.slots);
}

/// Checks, plans and allocates. Collective: all ranks compare what they were started with first.
template <class State>
void build(State& state) {
    if (state.units.empty()) throw state_error("E-STATE-6", "the model has no units; call add_unit() first");
    state.policy.check(state.units.size());
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
    check_fingerprints(state);
    make_plan(state);
    state.order = order_list(state.forward_order);
    plan_slots(state);
    place_slices(state);
    allocate(state, state.masters, state.owned * sizeof(typename State::master_type));
    allocate(state, state.gradients, state.trainable * sizeof(typename State::accumulate_type));
    state.moments.resize(state.states.size());
    for (auto& moment : state.moments) allocate(state, moment, state.trainable * sizeof(typename State::moment_type));
    build_parameter_buffers(state, state.slots);
    build_gradient_buffers(state, state.slots);
    state.metric_values.assign(state.metrics.size(), 0.0);
    state.agreements.resize(state.ranks());
    state.vote_copies.resize(state.ranks() * control_of(state).vote_bytes());
    allocate(state, state.control, control_of(state).bytes());
    std::size_t largest = 0;
    for (const unit_record* unit : state.units) {
        const std::size_t gradient = unit->layout->gradient_elements() * sizeof(typename State::gradient_type);
        if (unit->layout->bytes() > largest) largest = unit->layout->bytes();
        if (gradient > largest) largest = gradient;
    }
    if (!state.alone()) state.world.prepare(largest);
    state.at = stage::between_steps;
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
