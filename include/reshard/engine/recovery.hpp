// The way back after a fault, and what ranks share outside the commit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "replicas.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// The votes as this rank has them; waits for the compute stream.
template <class State>
const std::byte* download_votes(State& state) {
    synchronize_compute(state);
    state.device.download(state.vote_copies.data(), state.control.data() + control_of(state).vote_offset(),
                          state.vote_copies.size());
    return state.vote_copies.data();
}

/// Norm before a late factor: the votes' sums in rank order, as the commit makes them.
template <class State>
double norm_of_votes(State& state) {
    const std::byte* votes = download_votes(state);
    const std::size_t stride = control_of(state).vote_bytes();
    double sum = 0;
    bool finite = true;
    for (std::size_t rank = 0; rank < state.ranks(); ++rank) {
        vote_record vote;
        std::memcpy(&vote, votes + rank * stride, sizeof(vote));
        sum += vote.square_norm;
        finite = finite && vote.non_finite == 0;
    }
    if (!finite) return __builtin_inf();
    const double norm = __builtin_sqrt(sum), microbatches = static_cast<double>(state.microbatches);
    return state.options.average_over_microbatches ? norm / microbatches : norm;
}

template <class State>
double sum_of_metric(State& state, std::size_t index) {
    const std::byte* votes = download_votes(state);
    const std::size_t stride = control_of(state).vote_bytes();
    double sum = 0;
    for (std::size_t rank = 0; rank < state.ranks(); ++rank) {
        double value = 0;
        std::memcpy(&value, votes + rank * stride + sizeof(vote_record) + 8 * index, sizeof(value));
        sum += value;
    }
    return sum;
}

/// Nothing of a step is left: no scope, forward, copy, sum; the weights are those of the last commit.
template <class State>
void drop_step(State& state) {
    for (unit_record* unit : state.units) {
        if (unit->source == view_source::gathered) unit->here = false;
        unit->open_scopes = unit->open_forwards = unit->open_inputs = 0;
        unit->accumulating = unit->reduced = unit->recomputing = unit->for_evaluation = false;
        unit->secondary_here = unit->slice_here = false;
    }
    for (auto& buffer : state.gather_buffers) buffer.holder = nobody;
    for (auto& buffer : state.gradient_buffers) buffer.holder = nobody;
    state.metric_values.assign(state.metric_values.size(), 0.0);
    state.outer_due = nullptr;
    state.live_bytes = 0;
    state.open_scopes = 0;
    state.all_gathered = false;
    state.leader = nobody_leads;
    state.evaluating = state.writing = state.agreement_pending = state.votes_current = false;
    state.committing = state.decided = false;
    state.pending_update = {};
    state.kept_error = nullptr;
    state.poisoned = false;
    state.poison_text.clear();
    if (state.at != stage::declaring) state.at = stage::between_steps;
    ++state.version;
}

/// What ranks tell one another before and after the drain.
struct recovery_record {
    std::uint64_t issued = 0, committed = 0, applied = 0, version = 0, torn = 0, policy = 0;
};

template <class State, class Channel>
std::vector<recovery_record> exchange_records(Channel& control, const recovery_record& mine) {
    std::vector<recovery_record> all;
    for (const std::vector<std::byte>& bytes :
         control.exchange(std::span(reinterpret_cast<const std::byte*>(&mine), sizeof(mine)))) {
        if (bytes.size() != sizeof(mine)) {
            throw disagreement_error("E-RESET-2", "reset(): ranks are at different places of it; end the job");
        }
        all.emplace_back();
        std::memcpy(&all.back(), bytes.data(), sizeof(mine));
    }
    return all;
}

[[noreturn]] inline void throw_orders_differ(std::uint64_t number, std::size_t rank, const issue& theirs,
                                             std::size_t other, const issue& ours) {
    throw disagreement_error("E-RESET-2",
                             text("collective number ", number, " is ", name_of(theirs.what), " of unit ", theirs.unit,
                                  " on rank ", rank, " and ", name_of(ours.what), " of unit ", ours.unit, " on rank ",
                                  other, ": their orders differ and no reset can mend that; end the job"));
}

/// The collectives from `first` on that any rank issued; throws if two ranks issued different ones under one number.
template <class Channel>
std::vector<issue> agree_on_issues(Channel& control, const issue_log& log, std::uint64_t first) {
    std::vector<issue> mine;
    for (std::uint64_t number = first; number < log.count(); ++number) mine.push_back(log.at(number));
    const auto all = control.exchange(std::as_bytes(std::span(mine)));
    std::vector<issue> agreed;
    std::vector<std::size_t> from;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        for (std::size_t k = 0; k < all[rank].size() / sizeof(issue); ++k) {
            issue theirs;
            std::memcpy(&theirs, all[rank].data() + k * sizeof(issue), sizeof(issue));
            if (k == agreed.size()) {
                agreed.push_back(theirs);
                from.push_back(rank);
            } else if (!(agreed[k] == theirs)) {
                throw_orders_differ(first + k, rank, theirs, from[k], agreed[k]);
            }
        }
    }
    return agreed;
}

inline std::size_t bytes_of(const issue& what) { return what.count * (what.raw ? 1 : size_of(what.type)); }

/// Takes part with zeros in a collective that others issued; a vote of zeros is a "no".
template <class State>
void issue_with_zeros(State& state, const issue& what, std::byte* scratch) {
    const auto stream = state.gather_stream();
    const label name{"reset", what.unit == nobody ? "all ranks" : state.units[what.unit]->name.c_str()};
    state.device.zero(std::span(scratch, bytes_of(what)), stream);  // the one before left its results
    issue_collective(state, what, [&](const auto& group) {
        const std::span bytes(scratch, bytes_of(what));
        if (what.what == collective::all_gather) return group.all_gather_in_place(bytes, stream, name);
        if (what.raw != 0) return group.broadcast(bytes, what.root, stream, name);
        with_element(what.type, [&](auto* element) {
            const std::span values(reinterpret_cast<decltype(element)>(scratch), what.count);
            if (what.what == collective::reduce_scatter) group.reduce_scatter_in_place(values, stream, name);
            if (what.what == collective::all_reduce) group.all_reduce_in_place(values, stream, name);
            if (what.what == collective::broadcast) group.broadcast(values, what.root, stream, name);
        });
    });
}

/// Who is behind issues what others have issued, so that everything started ends; then all queues run dry.
template <class State, class Channel>
void drain(State& state, Channel& control) {
    std::uint64_t behind = state.log.count(), ahead = behind;
    for (const recovery_record& one : exchange_records<State>(control, {state.log.count(), 0, 0, 0, 0, 0})) {
        if (one.issued < behind) behind = one.issued;
        if (one.issued > ahead) ahead = one.issued;
    }
    if (ahead - behind > issue_log::capacity) {
        throw disagreement_error("E-RESET-3", text("ranks are ", ahead - behind, " collectives apart, more than ",
                                                   issue_log::capacity, " are not remembered; end the job"));
    }
    const std::vector<issue> issues = agree_on_issues(control, state.log, behind);
    std::size_t bytes = 0;
    for (const issue& one : issues) {
        if (bytes_of(one) > bytes) bytes = bytes_of(one);
    }
    const auto interrupted = std::move(state.scratch);  // peers may read it until the queues are dry
    state.scratch = state.device.allocate(bytes);
    control.clear();  // while a fault is raised, calls throw
    while (state.log.count() < behind + issues.size()) {
        issue_with_zeros(state, issues[state.log.count() - behind], state.scratch.data());
    }
    state.device.record(state.gathers_idle, state.gather_stream());
    state.device.record(state.reductions_idle, state.reduce_stream());
    state.device.synchronize(state.gathers_idle);
    state.device.synchronize(state.reductions_idle);
    if (!state.outer_streams.empty()) {
        state.device.record(state.outer_idle, state.outer_stream());
        state.device.synchronize(state.outer_idle);
    }
    synchronize_compute(state);
    state.scratch = {};
}

/// A commit whose votes are under way ends as they say: what came after them was interrupted.
template <class State>
commit_outcome end_commit(State& state) {
    if (state.committing) decide_and_update(state);
    synchronize_compute(state);
    commit_outcome outcome;
    state.device.download(reinterpret_cast<std::byte*>(&outcome), state.control.data(), sizeof(outcome));
    return outcome;
}

template <class State, class Channel>
void reset_with_peers(State& state, Channel& control) {
    drain(state, control);
    const commit_outcome outcome = end_commit(state);
    state.committed = outcome.committed;
    const recovery_record mine{
        0, outcome.committed, outcome.applied, state.version, state.torn ? 1u : 0u, hash_text(state.policy.describe())};
    std::vector<std::uint64_t> committed, applied, policies;
    bool differ = false, parted = false;
    for (const recovery_record& one : exchange_records<State>(control, mine)) {
        if (one.version > state.version) state.version = one.version;
        state.torn = state.torn || one.torn != 0;
        committed.push_back(one.committed);
        applied.push_back(one.applied);
        policies.push_back(one.policy);
        parted = parted || one.policy != mine.policy;
        differ = differ || one.committed != mine.committed || one.applied != mine.applied;
    }
    if (differ) {
        poison(state, "ranks committed different steps");
        throw disagreement_error("E-RESET-4", text("ranks committed different steps: ", spread(committed),
                                                   "; updates applied: ", spread(applied),
                                                   ". Their weights differ, load the last checkpoint"));
    }
    if (parted) {
        poison(state, "ranks hold different policies");
        throw disagreement_error("E-RESET-6", text("a fault came between ranks in change_reshard(): fingerprints of "
                                                   "their policies are ",
                                                   spread(policies), ". End the job, or load the last checkpoint"));
    }
    state.step = state.committed;
    drop_step(state);
}

template <class State>
void reset(State& state) {
    if (state.at == stage::declaring) {
        throw state_error("E-RESET-5",
                          "reset() of a model that was never built: there is no step to go back to; end the job");
    }
    if (state.open_scopes > 0) {
        throw state_error("E-STATE-5",
                          text("reset() while ", state.open_scopes, " scopes of units are open; leave them first"));
    }
    if (state.alone()) {
        state.committed = end_commit(state).committed;
        state.step = state.committed;
        drop_step(state);
        return;
    }
    auto&& control = state.world.control();
    if constexpr (RecoverableChannel<std::remove_reference_t<decltype(control)>>) {
        if (!state.poisoned) poison(state, "reset() was called");  // wakes peers that wait for this rank
        reset_with_peers(state, control);
    } else {
        throw state_error("E-RESET-1",
                          text("reset(): the ranks of this communicator cannot agree again after a fault; "
                               "the job ends with the first error, start it anew from the last checkpoint. "
                               "It is ",
                               state.world.describe()));
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
