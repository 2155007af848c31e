// What happens when a scope is entered and left, phase by phase.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "build.hpp"
#include "report.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

enum class scope_kind : std::uint8_t { forward, evaluation, recompute, backward, backward_input, backward_weight };

constexpr const char* name_of(scope_kind kind) {
    constexpr const char* names[] = {"forward",  "evaluation",     "recompute",
                                     "backward", "backward_input", "backward_weight"};
    return names[static_cast<std::size_t>(kind)];
}

constexpr bool reads(scope_kind kind) { return kind != scope_kind::backward_weight; }
constexpr bool writes(scope_kind kind) { return kind == scope_kind::backward || kind == scope_kind::backward_weight; }
constexpr bool is_backward(scope_kind kind) { return kind >= scope_kind::backward; }
constexpr phase phase_of(scope_kind kind) {
    return kind == scope_kind::backward          ? phase::backward
           : kind == scope_kind::backward_input  ? phase::backward_input
           : kind == scope_kind::backward_weight ? phase::backward_weight
                                                 : phase::forward;
}

/// Announces a step: plans its list, lets the side streams start behind the compute stream, compares ranks.
template <class State>
void begin_step(State& state, const step_options& options) {
    require_usable(state);
    if (state.at == stage::in_step) {
        throw state_error("E-STATE-7", text("begin_step() inside step ", state.step,
                                            "; end it first by step() of the "
                                            "optimizer or discard_step()"));
    }
    if (state.evaluating || state.writing) {
        throw state_error("E-STATE-5", "begin_step() while an evaluate() or write_weights() scope is open");
    }
    if (options.microbatches == 0) {
        throw argument_error("E-ARGUMENT-1", "begin_step({.microbatches = 0}); a step has at least one microbatch (a "
                                             "rank without data calls idle_microbatch())");
    }
    if (state.at == stage::declaring) build(state);
    require_whole_weights(state);
    if (state.agreement_pending) check_agreement(state);  // bounds how far a host runs ahead: one step
    if (options.schedule.empty()) {
        state.order.plan(options.microbatches);
    } else if (!state.order.is_planned_as(options.schedule, options.microbatches)) {
        state.order.plan(options.schedule, options.microbatches);
        check_schedule(state.order);
        check_slots(state.order, state.needs, state.slots);
    }
    state.microbatches = options.microbatches;
    state.cursor = state.order.first();
    ++state.step;
    state.at = stage::in_step;
    for (unit_record* unit : state.units) {
        unit->backward_uses = 0;
        unit->reduced = false;
    }
    state.device.record(state.step_begun, state.compute);
    state.device.wait(state.gather_stream(), state.step_begun);
    state.device.wait(state.reduce_stream(), state.step_begun);
    if (!state.outer_streams.empty()) state.device.wait(state.outer_stream(), state.step_begun);
    agree_on_step(state);
    predict_begun_step(state);
    refresh_resting(state, !state.options.overlap_refresh);
}

template <class State>
[[noreturn]] void throw_too_many_open(const State& state, const unit_record& unit) {
    std::string open;
    for (const unit_record* other : state.units) {
        if (other->open_scopes > 0) open.append(text(open.empty() ? "\"" : ", \"", other->name, "\""));
    }
    throw state_error("E-STATE-8", text("a scope of \"", unit.name, "\" would be number ", state.open_scopes + 1,
                                        " open at once, model_options.slots.max_open is ", state.options.slots.max_open,
                                        "; open: ", open, ". Leave one first, or raise max_open"));
}

template <class State>
void require_recompute(State& state, const unit_record& unit) {
    if (unit.source != view_source::gathered) return;
    if (unit.open_forwards == 0) {
        throw state_error("E-STATE-9", text("recompute() of \"", unit.name, "\" without an open forward (step ",
                                            state.step, "); it belongs between a forward and its backward"));
    }
    std::size_t held = unit.recomputing ? 0 : 1;
    for (const unit_record* other : state.units) held += other->recomputing ? 1 : 0;
    if (held > state.options.slots.recompute_segment) {
        throw state_error("E-STATE-10",
                          text("recompute() of \"", unit.name, "\" is unit number ", held,
                               " of its segment, model_options.slots.recompute_segment is ",
                               state.options.slots.recompute_segment, "; raise it to the units of a segment"));
    }
}

template <class State>
void take_with_zeros(State& state, const order_entry& entry);

/// Takes the entries between the present place and (what, unit) with zeros, if that comes in this pass or the next.
template <class State>
void catch_up(State& state, phase what, const unit_record& unit) {
    std::size_t between = 0;
    order_cursor at = state.cursor;
    for (; !state.order.at_end(at) && at.pass <= state.cursor.pass + 1; at = state.order.next(at), ++between) {
        const order_entry entry = state.order.at(at);
        if (entry.what != what || entry.unit != unit.index) continue;
        for (; between > 0; --between) take_with_zeros(state, state.order.at(state.cursor));
        return;
    }
}

/// Refuses what is out of turn before anything changes, and moves the place in the order.
template <class State>
void admit(State& state, unit_record& unit, scope_kind kind, std::size_t microbatch) {
    require_usable(state);
    if (state.writing) {
        throw state_error("E-STATE-5", text(name_of(kind), " of \"", unit.name, "\" while write_weights() is open"));
    }
    if (state.evaluating && kind != scope_kind::evaluation) {
        throw state_error("E-STATE-11", text(name_of(kind), " of \"", unit.name,
                                             "\" inside evaluate(); evaluation only "
                                             "has forwards, end it first"));
    }
    if (state.open_scopes >= state.options.slots.max_open) throw_too_many_open(state, unit);
    if (kind == scope_kind::evaluation) return advance_evaluation(state, unit);
    if (state.at != stage::in_step) {
        if (state.at == stage::declaring) build(state);  // tells where the parameters rest
        if ((is_backward(kind) && unit.source == view_source::gathered) || kind == scope_kind::recompute) {
            throw order_error("E-ORDER-9", text(name_of(kind), " of \"", unit.name,
                                                "\" without an open forward (after ", state.committed,
                                                " steps). A step begins with begin_step() or its first "
                                                "forward(); forwards inside evaluate() do not count: did training run "
                                                "inside it?"));
        }
        begin_step(state, {});
    }
    if (kind == scope_kind::recompute) return require_recompute(state, unit);
    if (state.options.skipped == skipped_units::with_zeros) catch_up(state, phase_of(kind), unit);
    advance(state, phase_of(kind), unit, microbatch);
}

/// A rank that waits in an evaluation which others have not begun.
[[noreturn]] inline void throw_late_evaluation(const timeout_error& late) {
    const std::string words = late.what();
    throw timeout_error(late.id(), text(words.substr(words.find("] ") + 2),
                                        " If one rank alone was to run the model here, let all ranks call "
                                        "on_rank(rank, function)"));
}

/// Enqueues what the scope needs, then what comes next, then lets the compute stream wait for the former.
template <class State>
void enter(State& state, unit_record& unit, scope_kind kind, std::size_t microbatch) {
    admit(state, unit, kind, microbatch);
    ++unit.open_scopes;  // from here on no gather takes its buffer
    ++state.open_scopes;
    try {
        if (reads(kind)) ensure_parameters(state, unit);
        prefetch(state);
        issue_outer(state);  // behind the gather after next
        if (reads(kind)) await_parameters(state, unit, state.compute);
        if (writes(kind)) acquire_gradients(state, unit);
    } catch (const timeout_error& late) {
        --unit.open_scopes;
        --state.open_scopes;
        poison(state, text("\"", unit.name, "\" could not be entered for ", name_of(kind), " in step ", state.step));
        if (kind == scope_kind::evaluation && state.leader == nobody_leads) throw_late_evaluation(late);
        throw;
    } catch (...) {  // the list has moved on and collectives may be under way: only reset() mends that
        --unit.open_scopes;
        --state.open_scopes;
        poison(state, text("\"", unit.name, "\" could not be entered for ", name_of(kind), " in step ", state.step));
        throw;
    }
    unit.entered = true;
    if (writes(kind)) state.votes_current = false;
    if (kind != scope_kind::evaluation) unit.for_evaluation = false;
}

/// The streams in `streams` (bit 0: compute) have read the parameters for the last time in this scope.
template <class State>
void leave_parameters(State& state, unit_record& unit, scope_kind kind, std::uint32_t streams) {
    if (!reads(kind)) return;
    if (unit.source == view_source::masters) {
        for (std::uint32_t k = 1; streams >> k != 0; ++k) {
            if (!(streams >> k & 1u)) continue;
            state.device.record(state.joined, state.user_stream(k));  // the update must come behind this reader
            state.device.wait(state.compute, state.joined);
        }
        return;
    }
    auto& buffer = state.gather_buffers[unit.gather_buffer];
    for (std::uint32_t k = 0; streams >> k != 0; ++k) {
        if (streams >> k & 1u) state.device.record(buffer.users[k], state.user_stream(k));
    }
    buffer.used |= streams;
    if (unit.source == view_source::resting) return;
    bool keep = true;  // recompute keeps until the backward
    if (kind == scope_kind::forward) {
        ++unit.open_forwards;
        keep = state.keeps_after_forward(unit);
    } else if (kind == scope_kind::evaluation) {
        keep = !unit.for_evaluation || state.all_gathered || state.keeps_after_backward(unit);
    } else if (kind == scope_kind::recompute) {
        unit.recomputing = true;
    } else {
        --unit.open_forwards;
        unit.recomputing = false;
        keep = state.keeps_after_backward(unit) || (unit.open_forwards > 0 && state.keeps_after_forward(unit));
        if (state.has_secondary(unit) && unit.open_forwards == 0 && !state.keeps_secondary(unit))
            drop_secondary(state, unit);
    }
    if (!keep) drop_copy(state, unit);
}

/// The streams in `streams` have written the gradients for the last time in this scope.
template <class State>
void leave_gradients(State& state, unit_record& unit, scope_kind kind, std::uint32_t streams) {
    if (!writes(kind)) return;
    state.votes_current = false;
    if (unit.gradient_buffer != no_buffer) {
        if (!unit.overwritten.empty() && (unit.backward_uses + 1) % unit.uses == 0) zero_unwritten(state, unit);
        auto& buffer = state.gradient_buffers[unit.gradient_buffer];
        for (std::uint32_t k = 0; streams >> k != 0; ++k) {
            if (streams >> k & 1u) state.device.record(buffer.users[k], state.user_stream(k));
        }
        buffer.used |= streams;
    }
    count_backward(state, unit);
}

/// Takes one entry of the list with zeros: the same gathers and reductions as everybody, no work.
template <class State>
void take_with_zeros(State& state, const order_entry& entry) {
    unit_record& unit = *state.units[entry.unit];
    constexpr scope_kind kinds[] = {scope_kind::forward, scope_kind::backward, scope_kind::backward_input,
                                    scope_kind::backward_weight};
    const scope_kind kind = kinds[static_cast<std::size_t>(entry.what)];
    enter(state, unit, kind, entry.microbatch);
    --unit.open_scopes;
    --state.open_scopes;
    leave_parameters(state, unit, kind, 1);
    leave_gradients(state, unit, kind, 1);
    prefetch(state);
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
