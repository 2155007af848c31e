// How a step begins and ends: what ranks agree on, the vote, the update behind it, new weights.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "gather.hpp"
#include "reduce.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// "4 on ranks 0, 1 and 5 on rank 2": who has which value.
inline std::string spread(std::span<const std::uint64_t> values) {
    std::string out;
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
        bool seen = false;
        for (std::size_t before = 0; before < rank; ++before) seen = seen || values[before] == values[rank];
        if (seen) continue;
        std::vector<std::size_t> who;
        for (std::size_t other = rank; other < values.size(); ++other) {
            if (values[other] == values[rank]) who.push_back(other);
        }
        out.append(
            text(out.empty() ? "" : " and ", values[rank], who.size() == 1 ? " on rank " : " on ranks ", joined(who)));
    }
    return out;
}

/// Waits for the ranks' records and throws the first difference, on all ranks alike.
template <class State>
void check_agreement(State& state) {
    state.agreement_pending = false;
    state.device.synchronize(state.agreed);
    std::vector<agreement_record>& all = state.agreements;
    state.device.download(reinterpret_cast<std::byte*>(all.data()),
                          state.control.data() + control_of(state).agreement_offset(),
                          all.size() * sizeof(agreement_record));
    const auto compare = [&](const char* what, std::uint64_t agreement_record::* field, const char* cure) {
        bool differ = false;
        for (const agreement_record& one : all) differ = differ || one.*field != all.front().*field;
        if (!differ) return;
        std::vector<std::uint64_t> values;
        for (const agreement_record& one : all) values.push_back(one.*field);
        const std::string words = text("begin_step: ranks differ in ", what, ": ", spread(values), ". ", cure);
        if (!state.device.blocks(state.compute)) poison(state, words);  // the step is under way already
        state.at = stage::between_steps;
        --state.step;
        throw disagreement_error("E-AGREE-1", words);
    };
    const char* const same_steps = "All ranks of a data-parallel group take the same steps; a rank that has less data "
                                   "calls idle_microbatch()";
    compare("the number of the step", &agreement_record::step, same_steps);
    compare("the number of microbatches", &agreement_record::microbatches, same_steps);
    compare("the schedule (its hash)", &agreement_record::schedule, "Give all ranks the same schedule");
    compare("committed steps", &agreement_record::committed, same_steps);
    compare("the weight version", &agreement_record::version,
            "write_weights(), initialize() and synchronize_weights() are called by all ranks");
}

template <class State>
std::uint64_t hash_schedule(const State& state) {
    std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    const auto mix = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3u; };
    if (!state.order.scheduled()) return 0;
    for (std::size_t p = 0; p < state.order.passes(); ++p) {
        const pass one = state.order.pass_at(p);
        mix(static_cast<std::uint64_t>(one.what));
        mix(one.microbatch);
        mix(one.first);
        mix(one.count);
    }
    return hash;
}

/// Sends this rank's record and, where the trainer's stream is its own thread, compares at once; elsewhere the
/// comparison comes with the next call that finds the records there, and no host waits.
template <class State>
void agree_on_step(State& state) {
    if (state.alone()) return;
    const auto stream = state.gather_stream();
    std::byte* records = state.control.data() + control_of(state).agreement_offset();
    const agreement_record mine{state.step,      state.microbatches,   state.version,
                                state.committed, hash_schedule(state), {}};
    put(state, records + state.rank() * sizeof(mine), mine, stream);
    const std::size_t bytes = state.ranks() * sizeof(mine);
    issue_collective(state, whole_gather(bytes), [&](const auto& world) {
        world.all_gather_in_place(std::span(records, bytes), stream, label{"begin_step", "all ranks"});
    });
    state.device.record(state.agreed, stream);
    state.agreement_pending = true;
    if (state.device.blocks(state.compute)) check_agreement(state);
}

/// The compute stream is behind every reduction and every gather.
template <class State>
void join_step(State& state) {
    issue_outer(state);
    state.device.record(state.reductions_idle, state.reduce_stream());
    state.device.wait(state.compute, state.reductions_idle);
    join_gathers(state);
}

/// This rank's record: norm of its 1/N of the gradients, what it says, the trainer's scalars; then everybody's.
template <class State>
void gather_votes(State& state, std::uint32_t says, std::uint64_t numbers, const char* what) {
    using accumulate_type = typename State::accumulate_type;
    const control_layout layout = control_of(state);
    std::byte* votes = state.control.data() + layout.vote_offset();
    std::byte* mine = votes + state.rank() * layout.vote_bytes();
    auto* record = reinterpret_cast<vote_record*>(mine);
    state.device.square_norm(reinterpret_cast<const accumulate_type*>(state.gradients.data()), state.norm_ranges.data(),
                             state.norm_ranges.size(), record, state.compute);
    state.device.seal(record, says, state.step, numbers, state.compute);
    for (std::size_t k = 0; k < state.metric_values.size(); ++k) {
        put(state, mine + sizeof(vote_record) + 8 * k, state.metric_values[k], state.compute);
    }
    if (state.alone()) return;
    const std::size_t bytes = state.ranks() * layout.vote_bytes();
    state.device.record(state.normed, state.compute);
    state.device.wait(state.reduce_stream(), state.normed);
    issue_collective(state, whole_gather(bytes), [&](const auto& world) {
        world.all_gather_in_place(std::span(votes, bytes), state.reduce_stream(), label{what, "all ranks"});
    });
    state.device.record(state.voted, state.reduce_stream());
    state.device.wait(state.compute, state.voted);
}

/// The update, if the votes allow it. A fault may keep either half from being enqueued: then this throws, and reset()
/// goes on where it stopped. Each is enqueued once.
template <class State>
void decide_and_update(State& state) {
    if (!state.decided) {
        const control_layout layout = control_of(state);
        state.device.decide(state.control.data() + layout.vote_offset(), layout.vote_bytes(), state.ranks(), state.step,
                            state.pending_terms, state.outcome(), state.compute);
        state.decided = true;
    }
    if (state.pending_update.run) state.pending_update.run(state.pending_update.self);
    state.pending_update = {};
    state.committing = state.decided = false;
}

/// The step is over: sums, tags and copies are gone; unless it was discarded, the weights count as new (also if the
/// update was skipped: a host that runs ahead of its device cannot know).
template <class State>
void conclude_step(State& state, bool discarded) {
    ++state.committed;
    state.at = stage::between_steps;
    for (unit_record* unit : state.units) {
        unit->open_forwards = unit->open_inputs = 0;
        unit->accumulating = false;
        if (unit->gradient_buffer != no_buffer) state.gradient_buffers[unit->gradient_buffer].holder = nobody;
    }
    state.metric_values.assign(state.metric_values.size(), 0.0);
    state.votes_current = true;
    if (discarded) {
        group_counts refreshes;  // predicted when the step began
        for (const unit_plan& unit : state.plan.units) add_refreshes(refreshes, state.plan, unit, 1);
        state.predicted.sum -= refreshes;
        return;
    }
    raise_version(state);
    refresh_resting(state, false);
}

template <class State>
void require_step_through(State& state, const char* call) {
    require_usable(state);
    if (state.at != stage::in_step) {
        throw state_error("E-STATE-4",
                          text(call, " without a step: no forward or backward since the last one (", state.committed,
                               " steps so far). A step ends once, and a model has one "
                               "optimizer (use parameter groups); outcome() tells how the last one ended"));
    }
    if (state.open_scopes > 0 || state.evaluating || state.writing) {
        throw state_error("E-STATE-5", text(call, " while a scope is open; leave forward(), backward(), evaluate() and "
                                                  "write_weights() scopes first"));
    }
    if (state.agreement_pending && state.device.done(state.agreed)) check_agreement(state);
}

/// Whether the outcome is known when the call returns, and no rank applied the step: the votes contradict one another.
template <class State>
bool contradicted(const State& state) {
    if (!state.device.blocks(state.compute)) return false;
    commit_outcome outcome;
    state.device.download(reinterpret_cast<std::byte*>(&outcome), state.control.data(), sizeof(outcome));
    return outcome.result == verdict::fault;
}

template <class State>
[[noreturn]] void throw_contradiction(const State& state) {
    const control_layout layout = control_of(state);
    std::vector<std::uint64_t> says, numbers;
    for (std::size_t rank = 0; rank < state.ranks(); ++rank) {
        vote_record vote;
        state.device.download(reinterpret_cast<std::byte*>(&vote),
                              state.control.data() + layout.vote_offset() + rank * layout.vote_bytes(), sizeof(vote));
        says.push_back(vote.says);
        numbers.push_back(vote.numbers);
    }
    const std::string begin = text("step ", state.step, " was not applied on any rank: ");
    for (const std::uint64_t one : says) {
        if (one == says.front()) continue;
        throw disagreement_error(
            "E-AGREE-2", text(begin, "the ranks' votes are ", spread(says), " (", vote_apply, " step(), ", vote_discard,
                              " discard_step(), 0 gradient_norm() or "
                              "metric_sum(), which all ranks must call). Decide from numbers that all "
                              "ranks share"));
    }
    throw disagreement_error("E-AGREE-5",
                             text(begin,
                                  "the ranks gave step() different numbers (learning rate, "
                                  "gradient_scale, clip_norm ...); their fingerprints are ",
                                  spread(numbers), ". Compute them from what all ranks share, such as metric_sum()"));
}

/// Mixes numbers into a hash that ranks compare (FNV-1a over their bits).
inline std::uint64_t mixed(std::uint64_t hash, double number) {
    return (hash ^ std::bit_cast<std::uint64_t>(number)) * 0x100000001b3u;
}

/// Ends the step. `says` is vote_apply with the update to run, or vote_discard without.
template <class State>
void end_step(State& state, std::uint32_t says, std::uint64_t numbers, commit_terms terms, update_call update) {
    join_step(state);
    if (state.options.average_over_microbatches) terms.gradient_scale /= static_cast<double>(state.microbatches);
    state.pending_terms = terms;
    state.pending_update = update;
    state.committing = true;
    gather_votes(state, says, numbers, "commit");
    decide_and_update(state);
    const bool refused = contradicted(state);
    conclude_step(state, says == vote_discard || refused);
    if (!refused) return;
    --state.committed;
    throw_contradiction(state);
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
