// What a model tells of itself: description before the run, predicted and measured figures during it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../schedule/memory.hpp"
#include "../schedule/replay.hpp"
#include "commit.hpp"

namespace reshard {
inline namespace v0 {

/// Figures of one rank. Predicted collectives are those of building and of the steps begun so far, from the plan
/// alone; a counting communicator measures the same plus what evaluation gathers and `missed_prefetches` cost.
struct model_report {
    group_counts predicted_setup, predicted_steps;
    std::uint64_t steps = 0;              // begun
    std::uint64_t missed_prefetches = 0;  // copies that left before the use they were meant for
    owned_bytes predicted_owned;
    std::size_t measured_owned = 0;  // bytes allocated in arenas and buffers
    std::size_t planned_live = 0;    // peak of gathered copies and gradient buffers in use, from the plan
    std::size_t measured_live = 0;
};

namespace detail {

/// Adds what the step that begins will send. The replay runs again only if the list changed.
template <class State>
void predict_begun_step(State& state) {
    auto& predicted = state.predicted;
    const std::uint64_t schedule = hash_schedule(state);
    if (predicted.microbatches != state.microbatches || predicted.schedule != schedule) {
        predicted.step = replay_step(state.order, state.plan, state.needs, state.slots);
        predicted.microbatches = state.microbatches;
        predicted.schedule = schedule;
        if (predicted.step.peak.total() > predicted.live) predicted.live = predicted.step.peak.total();
    }
    predicted.sum += predicted.step.groups;
    for (const unit_record* unit : state.units) {
        const unit_plan& planned = state.plan.units[unit->index];
        group_counts fewer, more;
        if (unit->source == view_source::gathered && state.valid(*unit)) {  // by an evaluation
            add_unit_gathers(fewer, state.plan, planned, 1);
        } else if (state.has_secondary(*unit) && state.secondary_valid(*unit)) {  // likewise
            add_unit_gathers(fewer, state.plan, planned, 1);
            add_secondary_gathers(more, state.plan, planned, 1);
        }
        const bool rests = state.rests_in_slice(*unit) ? state.slice_valid(*unit) : state.valid(*unit);
        if (unit->source != view_source::masters && !rests) add_refreshes(more, state.plan, planned, 1);
        predicted.sum += more;
        predicted.sum -= fewer;
    }
}

/// One refresh of every copy that rests whole beside a sharded optimizer state.
template <class State>
void predict_refreshes(const State& state, group_counts& sum) {
    for (const unit_plan& unit : state.plan.units) add_refreshes(sum, state.plan, unit, 1);
}

template <class State>
std::size_t measured_bytes(const State& state) {
    std::size_t bytes = state.masters.bytes + state.gradients.bytes + state.partial_sums.bytes +
                        state.whole_gradients.bytes + state.resting.bytes + state.secondaries.bytes +
                        state.gather_memory.bytes + state.gradient_memory.bytes + state.control.bytes;
    for (const auto& moment : state.moments) bytes += moment.bytes;
    return bytes;
}

template <class State>
model_report make_report(const State& state) {
    model_report report;
    report.predicted_setup = state.predicted.setup;
    report.predicted_setup += predict_setup(state.plan);
    report.predicted_steps = state.predicted.sum;
    report.steps = state.step;
    report.missed_prefetches = state.missed_prefetches;
    report.predicted_owned = predict_memory(state.plan, state.slots, control_of(state).bytes());
    report.measured_owned = measured_bytes(state);
    report.planned_live = state.predicted.live;
    report.measured_live = state.peak_live_bytes;
    return report;
}

/// How ranks are grouped and what goes over which group, where there is more than one; why a plan was chosen.
template <class State>
std::string groups_text(const State& state, const step_prediction& step) {
    std::string out;
    const bool two_levels = state.policy.topology.levels() > 1;
    if (!state.alone() && (two_levels || !(step.groups.sum() == step.groups[rank_set::whole]))) {
        out = text("groups     ", state.shape.outer, state.shape.outer == 1 ? " block of " : " blocks of ",
                   state.shape.inner, " ranks; sent a rank:");
        for (const rank_set which : {rank_set::whole, rank_set::inner, rank_set::outer, rank_set::secondary}) {
            const operation_count all = step.groups[which].total();
            if (all.calls != 0) out.append(text(" ", name_of(which), " ", bytes_text(all.bytes), ","));
        }
        out.back() = '\n';
    }
    for (const unit_record* unit : state.units) {
        const std::string of_its_own = own_text<State>(*unit);
        if (!of_its_own.empty()) out.append(text("own policy \"", unit->name, "\": ", of_its_own, "\n"));
    }
    if constexpr (ChosenReshard<typename State::reshard_type>) {
        if (!state.policy.reshard.why().empty()) out.append(text("chosen     ", state.policy.reshard.why(), "\n"));
    }
    return out;
}

template <class State>
std::string describe(const State& state) {
    std::size_t elements = 0, largest = 0;
    for (const unit_record* unit : state.units) {
        elements += unit->layout->elements();
        if (unit->layout->elements() > state.units[largest]->layout->elements()) largest = unit->index;
    }
    std::string out = text("policy     ", state.policy.describe(), "\nranks      ", state.ranks(), " (",
                           state.world.describe(), ")\nmodel      ", elements, " parameters in ", state.units.size(),
                           " units, largest \"", state.units[largest]->name, "\" with ",
                           state.units[largest]->layout->elements(), "\nbuffers    ", state.slots.gather_bytes.size(),
                           " for gathered units, ", state.slots.gradient_bytes.size(), " for gradients on their way\n");
    const owned_bytes owned = predict_memory(state.plan, state.slots, control_of(state).bytes());
    out.append(text("memory     ", bytes_text(owned.total()), " a rank:"));
    for (const owned_row& row : rows(owned)) {
        if (row.bytes != 0) out.append(text(" ", row.kind, " ", bytes_text(row.bytes), ","));
    }
    out.back() = '\n';
    order_list one = state.order;
    one.plan(1);
    const step_prediction step = replay_step(one, state.plan, state.needs, state.slots);
    const collective_counts sends = step.groups.sum();
    out.append(text("traffic    ", bytes_text(sends.total().bytes),
                    " sent a rank and step of one microbatch: ", sends.all_gather.calls, " all-gathers, ",
                    sends.reduce_scatter.calls, " reduce-scatters, ", sends.all_reduce.calls, " all-reduces\n"));
    return out + groups_text(state, step);
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
