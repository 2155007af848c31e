// What a communicator is. docs/communicator.md has the contract in prose; tests/comm holds every backend to it.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "../core/types.hpp"

namespace reshard {
inline namespace v0 {

/// Names a collective in error texts and traces: {"gather", "h.0"}. Both strings outlive the operation.
struct label {
    const char* what = "collective";
    const char* unit = "";
};

/// A fault that some rank raised outside the collectives.
struct fault_report {
    std::size_t rank = 0;
    std::string text;
};

/// The way to signal outside the collectives: a flag in a team of threads, a duplicated communicator under MPI.
/// `raise(text)` makes every rank's next call or host wait throw `peer_error`; the first text raised is kept.
/// `raised()` is a cheap look (no message), null while no rank has failed.
template <class Control>
concept ControlChannel = requires(Control& control, const Control& seen, const std::string& words) {
    control.raise(words);
    { seen.raised() } -> std::same_as<const fault_report*>;
};

/// A control channel over which ranks can agree again after a fault. `exchange` is collective, works while a fault
/// is raised and has the deadline of all waits; it returns every rank's bytes in rank order.
/// `clear()` is collective and ends the fault.
template <class Control>
concept RecoverableChannel = ControlChannel<Control> && requires(Control& control, std::span<const std::byte> mine) {
    { control.exchange(mine) } -> std::same_as<std::vector<std::vector<std::byte>>>;
    control.clear();
};

/// A view of a group of ranks: cheap to copy, owns nothing. `Type::owner` is the move-only type that does; it comes
/// from a session or from split() and has the collective close().
///
/// * Counts are elements, carried by the spans, equal on all ranks. all_gather: out.size() == in.size() * size().
///   reduce_scatter: in.size() == out.size() * size(). In place: the own block lies at rank() * n of the one span;
///   after reduce_scatter_in_place the other blocks are undefined. Sum is the only reduction.
/// * Stream order: an operation starts after all that is already on `stream`; all put on `stream` later starts after
///   it. Complete means: the own output is written and the own input may be overwritten.
/// * Operations of one communicator run one at a time in issue order, whatever streams they are on, and are matched
///   by issue number, the same on all ranks.
/// * Nothing is returned and nothing waits on the host, except where `stream` is the caller's own thread.
/// * prepare(bytes) reserves scratch for operations whose full buffer has up to that many bytes; nothing is
///   allocated by operations after that.
/// * A group of one issues nothing; out of place it copies.
template <class Type>
concept Communicator = std::copyable<Type> && requires(const Type c, typename Type::device_type::stream_ref stream,
                                                       label name, std::span<const float> in, std::span<float> out,
                                                       std::span<std::byte> bytes, std::size_t number) {
    typename Type::device_type;
    typename Type::owner;
    { c.rank() } -> std::same_as<std::size_t>;
    { c.size() } -> std::same_as<std::size_t>;
    { c.device() } -> std::convertible_to<typename Type::device_type>;
    { c.control() } -> ControlChannel;
    { c.describe() } -> std::convertible_to<std::string>;
    c.prepare(number);
    c.all_gather(in, out, stream, name);
    c.all_gather_in_place(out, stream, name);
    c.all_gather_in_place(bytes, stream, name);
    c.reduce_scatter(in, out, stream, name);
    c.reduce_scatter_in_place(out, stream, name);
    c.all_reduce(in, out, stream, name);
    c.all_reduce_in_place(out, stream, name);
    c.broadcast(out, number, stream, name);
    c.barrier(stream, name);
};

/// Can make smaller groups: ranks with equal colour, ordered by (key, rank). Collective; a rank that passes
/// `no_colour` takes part and gets an empty owner (`owner.empty()`).
template <class Type>
concept Splittable = Communicator<Type> && requires(const Type c, std::size_t number) {
    { c.split(number, number) } -> std::same_as<typename Type::owner>;
};
inline constexpr std::size_t no_colour = static_cast<std::size_t>(-1);

/// Can exchange equal blocks: in and out hold size() blocks each, block q of `in` goes to rank q.
template <class Type>
concept AllToAll = Communicator<Type> &&
                   requires(const Type c, typename Type::device_type::stream_ref stream, label name,
                            std::span<const float> in, std::span<float> out) { c.all_to_all(in, out, stream, name); };

/// Knows which ranks share a machine: nodes() gives the node number of every rank of the group, numbered from 0 in
/// order of first appearance, the same on all ranks. Nothing is sent for it.
template <class Type>
concept KnowsNodes = Communicator<Type> && requires(const Type c) {
    { c.nodes() } -> std::same_as<std::vector<std::size_t>>;
};

/// Replaces marks of nodes by numbers from 0 in order of first appearance: {7, 7, 2, 7} gives {0, 0, 1, 0}.
inline std::vector<std::size_t> numbered_nodes(std::vector<std::size_t> marks) {
    std::vector<std::size_t> seen;
    for (std::size_t& mark : marks) {
        std::size_t number = 0;
        while (number < seen.size() && seen[number] != mark) ++number;
        if (number == seen.size()) seen.push_back(mark);
        mark = number;
    }
    return marks;
}

/// Counts the bytes that it really hands to the network.
template <class Type>
concept CountsTraffic = Communicator<Type> && requires(const Type c) {
    { c.sent_bytes() } -> std::same_as<std::size_t>;
};

}  // namespace v0
}  // namespace reshard
