// The checks every communicator makes before it issues an operation.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>

#include "../core/error.hpp"
#include "../core/types.hpp"
#include "concept.hpp"

namespace reshard {
inline namespace v0 {

/// What can be gathered and broadcast; sums need an Element.
template <class Type>
concept Transferable = Element<Type> || std::same_as<Type, std::byte>;

enum class operation : unsigned char { all_gather, reduce_scatter, all_reduce, broadcast, barrier };
inline constexpr std::size_t operations = 5;

constexpr const char* name_of(operation kind) {
    constexpr const char* names[operations] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier"};
    return names[static_cast<std::size_t>(kind)];
}

template <Transferable Type>
constexpr const char* element_name() {
    if constexpr (std::is_same_v<Type, std::byte>) {
        return "byte";
    } else {
        return name_of(dtype_of<Type>);
    }
}

/// "gather of block.0", or "gather" where no unit is named.
inline std::string words(const label& name) {
    return *name.unit == '\0' ? std::string(name.what) : text(name.what, " of ", name.unit);
}

namespace checks {

/// `whole` must be `block * ranks`.
inline void blocks(operation kind, const label& name, std::size_t block, std::size_t whole, std::size_t ranks) {
    if (whole == block * ranks) return;
    const bool gather = kind == operation::all_gather;
    throw argument_error("E-COMM-2", text(words(name), ": ", name_of(kind), " over ", ranks, " ranks has ", block,
                                          " elements in its ", gather ? "in" : "out", " and ", whole, " in its ",
                                          gather ? "out" : "in", ", expected ", block * ranks,
                                          " (one block a rank). Was a span made with the size of another group?"));
}

/// In place: the span must be cut into `ranks` equal blocks.
inline void in_place(operation kind, const label& name, std::size_t whole, std::size_t ranks) {
    if (whole % ranks == 0) return;
    throw argument_error("E-COMM-2", text(words(name), ": ", name_of(kind), " in place over ", ranks, " ranks has ",
                                          whole, " elements, which is not a whole block a rank. Pad the buffer to ",
                                          (whole / ranks + 1) * ranks, "."));
}

inline void equal(operation kind, const label& name, std::size_t in, std::size_t out) {
    if (in == out) return;
    throw argument_error("E-COMM-2", text(words(name), ": ", name_of(kind), " has ", in, " elements in its in and ",
                                          out, " in its out; they must be equal."));
}

inline void root(const label& name, std::size_t rank, std::size_t ranks) {
    if (rank < ranks) return;
    throw argument_error("E-COMM-2", text(words(name), ": broadcast from rank ", rank, ", but the group has ", ranks,
                                          " ranks, numbered from 0."));
}

}  // namespace checks

}  // namespace v0
}  // namespace reshard
