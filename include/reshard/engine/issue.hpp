// Collectives as the engine issues them: noted in the log, over the group that the unit's plan names.
#pragma once

#include <cstddef>
#include <span>

#include "state.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Runs a collective and notes it in the log. A call that throws may have been issued (the wait for it failed) or not
/// (a fault was raised before): the communicator knows, and peers must not wait for what never was.
template <class State, class Run>
void issue_collective(State& state, const issue& what, Run&& run) {
    const auto& group = what.unit == nobody ? state.world : state.group(what.set, *state.units[what.unit]);
    if constexpr (requires { group.issued(); }) {
        const std::uint64_t before = group.issued();
        try {
            run(group);
        } catch (...) {
            if (group.issued() != before) state.log.add(what);
            throw;
        }
        state.log.add(what);
    } else {
        state.log.add(what);
        run(group);
    }
}

/// Of control records over the whole group.
inline issue whole_gather(std::size_t bytes) {
    return {nobody, collective::all_gather, dtype::f32, 1, rank_set::whole, bytes, 0};
}

/// One all-gather in place of `bytes` at `all`, over a group of the unit's.
template <class State>
void gather_in_place(State& state, const unit_record& unit, rank_set set, std::byte* all, std::size_t bytes,
                     typename State::stream_ref stream, const char* what) {
    issue_collective(state, {unit.index, collective::all_gather, dtype::f32, 1, set, bytes, 0}, [&](const auto& group) {
        group.all_gather_in_place(std::span<std::byte>(all, bytes), stream, label{what, unit.name.c_str()});
    });
}

/// The same where this rank's slice lies elsewhere.
template <class State>
void gather_from(State& state, const unit_record& unit, rank_set set, const std::byte* slice, std::byte* all,
                 std::size_t bytes, typename State::stream_ref stream, const char* what) {
    issue_collective(state, {unit.index, collective::all_gather, dtype::f32, 1, set, bytes, 0}, [&](const auto& group) {
        group.all_gather(std::span<const std::byte>(slice, bytes / group.size()), std::span<std::byte>(all, bytes),
                         stream, label{what, unit.name.c_str()});
    });
}

/// Calls f with a null pointer of the element type that `type` names.
template <class Visit>
void with_element(dtype type, Visit&& f) {
    switch (type) {
    case dtype::f64:
        f(static_cast<double*>(nullptr));
        break;
    case dtype::f32:
        f(static_cast<float*>(nullptr));
        break;
    case dtype::bf16:
        f(static_cast<bf16*>(nullptr));
        break;
    case dtype::fp16:
        f(static_cast<fp16*>(nullptr));
        break;
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
