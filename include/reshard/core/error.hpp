// Everything the library throws. Each error has a stable id that docs/errors.md explains.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include "text.hpp"

namespace reshard {
inline namespace v0 {

/// Base of all errors. `what()` reads "reshard [E-ORDER-1] text"; `id()` is the part in brackets.
class error : public std::runtime_error {
public:
    error(const char* id, const std::string& text_of_it)
        : std::runtime_error(text("reshard [", id, "] ", text_of_it)), id_(id) {}

    /// Points at a string literal; see docs/errors.md.
    const char* id() const noexcept { return id_; }

private:
    const char* id_;
};

/// A size, name, option or handle that cannot be right; thrown before anything is allocated or sent.
class argument_error : public error {
public:
    using error::error;
};

/// Group sizes that do not fit each other or the world.
class topology_error : public argument_error {
public:
    using argument_error::argument_error;
};

/// A call that is right at another time: the text says what state was found and what was expected.
class state_error : public error {
public:
    using error::error;
};

/// Units entered in another order than announced; the text prints the order seen, ready to paste.
class order_error : public state_error {
public:
    using state_error::state_error;
};

/// Ranks that were started or called differently; the text names the ranks and both values.
class disagreement_error : public error {
public:
    using error::error;
};

/// A backend's own failure (an MPI or NCCL code, a collective that does not match its peers').
class communication_error : public error {
public:
    using error::error;
};

/// A deadline passed; the text names who waits for what, who is behind and who does not answer.
class timeout_error : public communication_error {
public:
    using communication_error::communication_error;
};

/// Another rank failed first; thrown from the next call or wait on this one.
class peer_error : public communication_error {
public:
    peer_error(std::size_t rank, const std::string& their_text)
        : communication_error("E-PEER-1", text("rank ", rank, " failed: ", their_text)), rank_(rank) {}

    std::size_t rank() const noexcept { return rank_; }

private:
    std::size_t rank_;
};

}  // namespace v0
}  // namespace reshard
