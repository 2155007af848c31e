// Control memory: what ranks agree on, vote, and are told by a leader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "issue.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Control memory: the outcome and a leader's order, then what ranks agree on, then the votes with the trainer's
/// scalars behind each, then which units each rank uses, a bit a unit.
struct control_layout {
    static constexpr std::size_t outcome_bytes = 256, order_offset = 248;
    std::size_t ranks, metrics, units;

    std::size_t vote_bytes() const { return sizeof(vote_record) + 8 * metrics; }
    std::size_t agreement_offset() const { return outcome_bytes; }
    std::size_t vote_offset() const { return agreement_offset() + ranks * sizeof(agreement_record); }
    std::size_t use_bytes() const { return (units + 7) / 8; }
    std::size_t use_offset() const { return vote_offset() + ranks * vote_bytes(); }
    std::size_t bytes() const { return use_offset() + ranks * use_bytes(); }
};
static_assert(sizeof(commit_outcome) <= control_layout::order_offset);

template <class State>
control_layout control_of(const State& state) {
    return {state.ranks(), state.metrics.size(), state.units.size()};
}

template <class State, class Value>
void put(State& state, std::byte* to, const Value& value, typename State::stream_ref stream) {
    static_assert(sizeof(Value) <= sizeof(packet::bytes));
    packet data;
    std::memcpy(data.bytes, &value, sizeof(Value));
    data.size = sizeof(Value);
    state.device.put(to, data, stream);
}

/// Broadcasts the leader's order on the gather stream; the others wait for it.
template <class State>
std::uint64_t share_order(State& state, std::uint64_t order) {
    std::byte* place = state.control.data() + control_layout::order_offset;
    const bool leads = state.leader == state.rank();
    if (leads) put(state, place, order, state.gather_stream());
    const issue what{nobody, collective::broadcast, dtype::f32, 1, rank_set::whole, sizeof(order), state.leader};
    issue_collective(state, what, [&](const auto& world) {
        world.broadcast(std::span(place, sizeof(order)), state.leader, state.gather_stream(),
                        label{"on_rank", "all ranks"});
    });
    if (leads) return order;
    state.device.record(state.agreed, state.gather_stream());
    state.device.synchronize(state.agreed);
    state.device.download(reinterpret_cast<std::byte*>(&order), place, sizeof(order));
    return order;
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
