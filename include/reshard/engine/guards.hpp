// Guards over the whole model: evaluation, and writes to the weights.
#pragma once

#include <exception>
#include <string>

#include "enter.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

template <class State>
std::string what_is_open(const State& state) {
    for (const unit_record* unit : state.units) {
        if (unit->open_scopes > 0) return text("a scope of \"", unit->name, "\"");
    }
    return state.evaluating ? "evaluate()" : "write_weights()";
}

}  // namespace detail

/// Forwards without backwards, on all ranks together: validation, sampling. Not counted as open, so training goes on
/// as if it had not been, also in the middle of a step. Units are visited in the forward order, as often as wanted;
/// an incomplete pass starts again at the first unit. A policy that keeps until the weights change keeps what
/// evaluation gathered.
template <class State>
class [[nodiscard]] evaluation_scope {
public:
    explicit evaluation_scope(State& state) : state_(state) {
        detail::require_usable(state);
        if (state.evaluating || state.writing || state.open_scopes > 0) {
            throw state_error("E-STATE-14",
                              text("evaluate() while ", detail::what_is_open(state), " is open; leave it first"));
        }
        if (state.at == detail::stage::declaring) detail::build(state);
        detail::require_whole_weights(state);
        detail::issue_outer(state);  // here on all ranks, also on those that only serve a leader's gathers
        detail::refresh_resting(state, !state.options.overlap_refresh);
        state.evaluating = true;
        state.evaluation_use = 0;
    }
    /// Collective: gathers every unit and keeps all to the end of the evaluation, so that many forwards (sampling) cost
    /// one gather of each. E-STATE-20 where units share a buffer: it takes no memory beyond the plan's.
    void gather_all() {
        for (detail::unit_record* unit : state_.units) require_own_buffer(*unit);
        state_.all_gathered = true;
        for (detail::unit_record* unit : state_.units) detail::ensure_parameters(state_, *unit);
    }
    evaluation_scope(const evaluation_scope&) = delete;
    evaluation_scope& operator=(const evaluation_scope&) = delete;
    ~evaluation_scope() {
        for (detail::unit_record* unit : state_.units) {
            if (unit->for_evaluation && !state_.keeps_after_backward(*unit)) detail::drop_copy(state_, *unit);
        }
        state_.evaluating = state_.all_gathered = false;
    }

private:
    void require_own_buffer(const detail::unit_record& unit) const {
        if (unit.source != view_source::gathered) return;
        for (const detail::unit_record* other : state_.units) {
            if (other == &unit || other->source != view_source::gathered) continue;
            if (other->gather_buffer != unit.gather_buffer) continue;
            throw state_error("E-STATE-20", text("gather_all(): \"", unit.name, "\" and \"", other->name,
                                                 "\" share a gather buffer under ", state_.policy.describe(),
                                                 "; a policy that keeps every unit until the step gives each its own"));
        }
    }

    State& state_;
};

/// Time to change the owned masters, on all ranks together. Closing raises the weight version: every copy made before
/// is void. No unit scope may be open. Writes are on the compute stream (on the host: by the calling thread).
template <class State>
class [[nodiscard]] write_scope {
public:
    explicit write_scope(State& state) : state_(state), exceptions_(std::uncaught_exceptions()) {
        detail::require_usable(state);
        if (state.open_scopes > 0 || state.evaluating || state.writing) {
            throw state_error("E-STATE-15", text("write_weights() while ", detail::what_is_open(state),
                                                 " is open; a write changes what it shows, leave it first"));
        }
        if (state.at == detail::stage::declaring) detail::build(state);
        detail::join_gathers(state);
        state.writing = true;
    }
    write_scope(const write_scope&) = delete;
    write_scope& operator=(const write_scope&) = delete;
    ~write_scope() {
        if (!state_.writing) return;
        try {
            const bool broken = std::uncaught_exceptions() > exceptions_;
            close();
            if (!broken) return;
            state_.torn = true;
            detail::poison(state_, "write_weights() was left by an exception");
        } catch (...) {
            state_.kept_error = std::current_exception();
        }
    }

    void close() {
        if (!state_.writing) return;
        state_.writing = false;
        state_.torn = false;
        detail::raise_version(state_);
    }

private:
    State& state_;
    int exceptions_;
};

}  // namespace v0
}  // namespace reshard
