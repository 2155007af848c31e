// Another reshard policy between steps.
#pragma once

#include <utility>

#include "build.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// The host waits until nothing is under way on any stream.
template <class State>
void quiesce(State& state) {
    join_step(state);
    const auto finish = [&](typename State::stream_ref stream) {
        state.device.record(state.joined, stream);
        state.device.synchronize(state.joined);
    };
    finish(state.compute);
    for (const auto stream : state.user_streams) finish(stream);
}

template <class State>
void settle_policy(State& state) {
    plan_units(state);
    choose(state);
    make_groups(state);
}

template <class State>
void drop_copies(State& state) {
    for (unit_record* unit : state.units) {
        unit->here = unit->slice_here = unit->secondary_here = false;
        unit->for_evaluation = false;
    }
    state.live_bytes = 0;
}

/// Collective. Until all ranks have agreed and every group is there nothing changes that an error does not undo.
template <class State, class Reshard>
void change_reshard(State& state, Reshard next) {
    require_usable(state);
    if (state.at == stage::in_step || state.evaluating || state.writing) {
        throw state_error("E-STATE-19",
                          text("change_reshard() inside step ", state.step,
                               ", or while an evaluate() or write_weights() scope is open; call it between steps"));
    }
    std::swap(state.policy.reshard, next);
    if (state.at == stage::declaring) return;
    try {
        quiesce(state);
        check_fingerprints(state);  // first: what one rank alone would refuse is a difference between ranks
        state.predicted.setup += predict_setup(state.plan);
        check_policy(state);
        settle_policy(state);
    } catch (...) {  // as before the call, without communication: the groups of that plan exist
        std::swap(state.policy.reshard, next);
        plan_units(state);
        make_groups(state);
        throw;
    }
    drop_copies(state);
    plan_slots(state);
    make_buffers(state);
    prepare_groups(state);
    state.predicted.microbatches = 0;  // the step is replayed anew,
    state.order.plan(1);               // and a schedule checked against the new buffers
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
