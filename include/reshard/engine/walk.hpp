// The order of a step: where the trainer stands in it, what it may enter next, what comes after.
#pragma once

#include <cstddef>
#include <string>

#include "state.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Forward scopes of units whose parameters rest whole do nothing and may be left out.
template <class State>
bool optional_entry(const State& state, const order_entry& entry) {
    return entry.what == phase::forward && state.units[entry.unit]->source != view_source::gathered;
}

template <class State>
std::string describe_entry(const State& state, const order_entry& entry) {
    return text(name_of(entry.what), " of \"", state.units[entry.unit]->name, "\" in microbatch ", entry.microbatch);
}

/// The units entered in the present pass, ready for braces: "embedding", "h.0".
template <class State>
std::string entered_so_far(const State& state) {
    std::string seen;
    if (!state.order.at_end(state.cursor)) {
        order_cursor at{state.cursor.pass, 0};
        for (; at.use < state.cursor.use; ++at.use) {
            seen.append(text(seen.empty() ? "\"" : ", \"", state.units[state.order.at(at).unit]->name, "\""));
        }
    }
    return seen;
}

template <class State>
[[noreturn]] void throw_wrong_order(const State& state, phase what, const unit_record& unit) {
    const std::string asked = text(name_of(what), " of \"", unit.name, "\"");
    if (state.order.at_end(state.cursor)) {
        throw order_error("E-ORDER-4", text(asked, " in step ", state.step, ", but all ", state.microbatches,
                                            " announced microbatches are through; call step() or discard_step() "
                                            "first, or announce more by begin_step({.microbatches = n})"));
    }
    order_cursor at = state.cursor;
    while (!state.order.at_end(at) && optional_entry(state, state.order.at(at))) at = state.order.next(at);
    const order_entry due = state.order.at(state.order.at_end(at) ? state.cursor : at);
    const std::string expected = describe_entry(state, due);
    if (what == phase::forward && unit.uses == 1 && unit.open_forwards > 0) {
        throw order_error("E-ORDER-5", text("rank ", state.rank(), ": unit \"", unit.name,
                                            "\": second forward in one "
                                            "microbatch, but it was added with uses = 1. A tied weight needs "
                                            "add_unit(..., {.uses = 2}); a forward without a backward belongs in "
                                            "evaluate(). Expected ",
                                            expected, " (step ", state.step, ")"));
    }
    const std::string seen = entered_so_far(state);
    std::string words =
        text("rank ", state.rank(), ": ", asked, ", but the order list has ", expected, " (step ", state.step,
             "). This pass so far: {", seen, "}. Was the scope of \"", state.units[due.unit]->name, "\" left out?");
    if (what == phase::forward && due.what == phase::forward) {
        words.append(text(" If {", seen, seen.empty() ? "\"" : ", \"", unit.name,
                          "\"} is the order meant, give the "
                          "forward order of units to set_order()"));
    }
    for (order_cursor later = at; !state.order.at_end(later) && later.pass == at.pass;
         later = state.order.next(later)) {
        const order_entry entry = state.order.at(later);
        if (entry.what != what || entry.unit != unit.index) continue;
        words.append(text(words.back() == '?' ? " " : ". ", "If ranks may leave units out (experts), set "
                                                            "model_options.skipped to skipped_units::with_zeros"));
        break;
    }
    throw order_error("E-ORDER-1", words);
}

/// Moves the cursor behind the entry (what, unit), which must be next but for optional entries.
template <class State>
void advance(State& state, phase what, const unit_record& unit, std::size_t microbatch) {
    for (order_cursor at = state.cursor; !state.order.at_end(at); at = state.order.next(at)) {
        const order_entry entry = state.order.at(at);
        if (entry.what == what && entry.unit == unit.index) {
            if (microbatch != any_microbatch && microbatch != entry.microbatch) {
                throw order_error("E-ORDER-6", text("rank ", state.rank(), ": ", name_of(what), " of \"", unit.name,
                                                    "\" for microbatch ", microbatch,
                                                    ", but the order list has "
                                                    "microbatch ",
                                                    entry.microbatch));
            }
            state.cursor = state.order.next(at);
            return;
        }
        if (!optional_entry(state, entry)) break;
    }
    throw_wrong_order(state, what, unit);
}

/// Moves behind trailing optional entries; true if nothing of the step is left.
template <class State>
bool step_is_through(State& state) {
    while (!state.order.at_end(state.cursor) && optional_entry(state, state.order.at(state.cursor))) {
        state.cursor = state.order.next(state.cursor);
    }
    return state.order.at_end(state.cursor);
}

/// Evaluation visits the forward order too, from the place behind the last use or from the start again.
template <class State>
void advance_evaluation(State& state, const unit_record& unit) {
    const auto uses = state.order.forward_order();
    // The last unit entered may have been a start again, if it stands at the start too (a tied embedding).
    const bool restarted = state.evaluation_use > 0 && uses[state.evaluation_use - 1] == uses[0];
    const std::size_t starts[] = {state.evaluation_use, 0, restarted ? std::size_t{1} : uses.size()};
    for (const std::size_t start : starts) {
        for (std::size_t use = start; use < uses.size(); ++use) {
            if (uses[use] == unit.index) {
                state.evaluation_use = use + 1;
                return;
            }
            if (state.units[uses[use]]->source == view_source::gathered) break;
        }
    }
    const std::size_t use = state.evaluation_use < uses.size() ? state.evaluation_use : 0;
    throw order_error("E-ORDER-7", text("rank ", state.rank(), ": evaluation entered \"", unit.name, "\", but the ",
                                        "forward order has \"", state.units[uses[use]]->name, "\" next (or \"",
                                        state.units[uses[0]]->name, "\", to start again)"));
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
