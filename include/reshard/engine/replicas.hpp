// Masters that several ranks hold: the same on all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "enter.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

template <class State>
void synchronize_compute(State& state) {
    state.device.record(state.joined, state.compute);
    state.device.synchronize(state.joined);
}

/// The ranks that should hold the same masters of a unit are those at this rank's place in every block, or all.
template <class State>
rank_set replicas_of(const unit_record& unit) {
    return unit.part.parts == 1 ? rank_set::whole : rank_set::outer;
}
template <class State>
bool holds_replicas(const State& state, const unit_record& unit) {
    return unit.part.parts < state.ranks();
}

/// Broadcasts the masters that are held more than once, unit by unit, segment by segment, from the block of `root`.
template <class State>
void broadcast_masters(State& state, std::size_t root) {
    using master_type = typename State::master_type;
    auto* masters = reinterpret_cast<master_type*>(state.masters.data());
    for (const unit_record* unit : state.units) {
        if (!holds_replicas(state, *unit)) continue;
        const rank_set set = replicas_of<State>(*unit);
        const std::size_t from = set == rank_set::whole ? root : root / state.plan.inner();
        for (std::size_t k = 0; k < unit->owned.size(); ++k) {
            const std::size_t count = unit->layout->segments()[k].elements / unit->part.parts;
            if (count == 0) continue;
            issue_collective(state, {unit->index, collective::broadcast, dtype_of<master_type>, 0, set, count, from},
                             [&](const auto& group) {
                                 group.broadcast(std::span(masters + unit->owned[k], count), from, state.compute,
                                                 label{"broadcast", unit->name.c_str()});
                             });
        }
    }
}

/// Of the masters that a unit's replicas should agree on.
template <class State>
std::uint64_t hash_masters(State& state, const unit_record& unit) {
    using master_type = typename State::master_type;
    std::string values;
    for (std::size_t k = 0; k < unit.owned.size(); ++k) {
        std::string part(unit.layout->segments()[k].elements / unit.part.parts * sizeof(master_type), '\0');
        state.device.download(reinterpret_cast<std::byte*>(part.data()),
                              state.masters.data() + unit.owned[k] * sizeof(master_type), part.size());
        values.append(part);
    }
    return hash_text(values);
}

/// Throws if ranks that should hold the same masters of a unit sent different hashes; `column` has one a rank.
template <class State>
void compare_column(const State& state, const unit_record& unit, const std::vector<std::uint64_t>& column) {
    for (std::size_t rank = 0; rank < column.size(); ++rank) {
        const std::size_t first = unit.part.parts == 1 ? 0 : rank % state.plan.inner();
        if (column[rank] == column[first]) continue;
        throw disagreement_error("E-AGREE-4", text("unit \"", unit.name,
                                                   "\" has different weights on ranks that "
                                                   "should hold the same; hashes are ",
                                                   spread(column), ". synchronize_weights() makes them equal"));
    }
}

/// All ranks compare a hash of every unit's masters, where several should hold the same.
template <class State>
void compare_replicas(State& state) {
    if (state.alone()) return;
    synchronize_compute(state);
    const std::size_t row = state.units.size() * sizeof(std::uint64_t), bytes = state.ranks() * row;
    std::vector<std::uint64_t> hashes(state.ranks() * state.units.size(), 0);
    for (const unit_record* unit : state.units) {
        if (holds_replicas(state, *unit))
            hashes[state.rank() * state.units.size() + unit->index] = hash_masters(state, *unit);
    }
    state.scratch = state.device.allocate(bytes);
    std::byte* table = state.scratch.data();
    state.device.upload(table + state.rank() * row,
                        reinterpret_cast<const std::byte*>(hashes.data()) + state.rank() * row, row);
    issue_collective(state, whole_gather(bytes), [&](const auto& world) {
        world.all_gather_in_place(std::span(table, bytes), state.compute, label{"check_replicas", "all ranks"});
    });
    synchronize_compute(state);
    state.device.download(reinterpret_cast<std::byte*>(hashes.data()), table, bytes);
    state.scratch = {};
    for (const unit_record* unit : state.units) {
        std::vector<std::uint64_t> column;
        for (std::size_t rank = 0; rank < state.ranks(); ++rank)
            column.push_back(hashes[rank * state.units.size() + unit->index]);
        compare_column(state, *unit, column);
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
