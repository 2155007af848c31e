// One rank runs the model while the others serve its gathers; units that some ranks leave out, announced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "guards.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// What a leader tells the others before each gather: the unit's number, or one of these.
inline constexpr std::uint64_t order_end = static_cast<std::uint64_t>(-1), order_failed = order_end - 1;

/// The others' part: gather what the leader gathers, hold it as the policy would.
template <class State>
void serve(State& state) {
    for (;;) {
        const std::uint64_t order = share_order(state, 0);
        if (order == order_end) return;
        if (order == order_failed) {
            throw peer_error(state.leader, "the function that on_rank() ran there threw; the model is as before");
        }
        unit_record& unit = *state.units[order];
        ensure_parameters(state, unit);
        if (unit.for_evaluation && !state.keeps_after_backward(unit)) drop_copy(state, unit);
    }
}

template <class State, class Function>
void run_leading(State& state, Function&& function) {
    try {
        function();
    } catch (...) {
        if (!state.poisoned && !state.alone()) share_order(state, order_failed);
        throw;
    }
    if (!state.alone()) share_order(state, order_end);
}

/// Collective. `function` runs on rank `leader` inside an evaluation.
template <class State, class Function>
void on_rank(State& state, std::size_t leader, Function&& function) {
    if (leader >= state.ranks()) {
        throw argument_error("E-ARGUMENT-10",
                             text("on_rank(): rank ", leader, " of ", state.ranks(), "; ranks are numbered from 0"));
    }
    if (state.evaluating) {
        throw state_error("E-STATE-14", "on_rank() while evaluate() is open; leave it first: on_rank() opens its own");
    }
    evaluation_scope<State> evaluation(state);
    struct leading {
        State& state;
        ~leading() { state.leader = nobody_leads; }
    } guard{state};
    state.leader = leader;
    if (state.rank() == leader) {
        run_leading(state, function);
    } else {
        serve(state);
    }
}

/// "\"expert.0\" is used on ranks 0, 2 and not on 1": the first unit that is not used alike.
template <class State>
std::string uneven_use(const State& state) {
    for (const unit_record* unit : state.units) {
        std::vector<std::size_t> with, without;
        for (std::size_t rank = 0; rank < state.ranks(); ++rank) {
            const std::byte bits = state.use_copies[rank * control_of(state).use_bytes() + unit->index / 8];
            (static_cast<unsigned>(bits) >> unit->index % 8 & 1u ? with : without).push_back(rank);
        }
        if (with.empty() || without.empty()) continue;
        return text("\"", unit->name, "\" is used on ranks ", joined(with), " and not on ", joined(without));
    }
    return {};
}

/// Whether all ranks' rows are equal.
template <class State>
bool used_alike(const State& state) {
    const std::size_t row = control_of(state).use_bytes();
    for (std::size_t at = row; at < state.use_copies.size(); ++at) {
        if (state.use_copies[at] != state.use_copies[at % row]) return false;
    }
    return true;
}

/// Collective, waits: compares which units ranks will enter in the microbatch that begins; a bit per unit.
template <class State, class Units>
void announce_use(State& state, const Units& used) {
    if (state.alone() || state.options.skipped == skipped_units::with_zeros) return;  // they may differ there
    const std::size_t row = control_of(state).use_bytes(), bytes = row * state.ranks(), mine = state.rank() * row;
    std::byte* memory = state.control.data() + control_of(state).use_offset();
    for (std::size_t at = 0; at < row; ++at) state.use_copies[mine + at] = std::byte{0};
    for (auto* unit : used)
        state.use_copies[mine + unit->record().index / 8] |= static_cast<std::byte>(1u << unit->record().index % 8);
    state.device.upload(memory + mine, state.use_copies.data() + mine, row);
    issue_collective(state, whole_gather(bytes), [&](const auto& world) {
        world.all_gather_in_place(std::span(memory, bytes), state.gather_stream(), label{"announce_use", "all ranks"});
    });
    state.device.record(state.agreed, state.gather_stream());
    state.device.synchronize(state.agreed);
    state.device.download(state.use_copies.data(), memory, bytes);
    state.predicted.sum[rank_set::whole].all_gather += exchange(state.plan, row);
    if (used_alike(state)) return;
    throw disagreement_error("E-AGREE-6", text("announce_use() in step ", state.step, ": ", uneven_use(state),
                                               ". Nothing of this microbatch was sent. All ranks enter every unit, "
                                               "unless model_options.skipped is skipped_units::with_zeros"));
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
