// Who makes MPI calls, and when: all ranks agree on it at start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../../core/error.hpp"
#include "../../device/rank_hub.hpp"
#include "group.hpp"
#include "library.hpp"

namespace reshard {
inline namespace v0 {

/// Options of an MPI session. Ranks with other numbers than rank 0 are refused; where declarations differ, the mode is
/// one that suits all.
struct mpi_options {
    /// Longest wait for other ranks, in seconds.
    double deadline = 600;
    /// Longest message: buffers are cut into messages of at most this size, 1 to 2^30 bytes (at least one element).
    std::size_t message_bytes = std::size_t{1} << 20;
    /// Declares that the application itself makes no MPI calls while the session lives, except through it: enough for
    /// a progress thread under MPI_THREAD_SERIALIZED.
    bool no_mpi_calls_meanwhile = false;
    /// Declares that the application makes no blocking MPI calls between library calls: operations then go on in
    /// progress() and in waits, on the calling thread, at any thread level.
    bool pumped = false;
    mpi_sums sums = mpi_sums::ring;
    /// For tests; each rank may have its own.
    const delay_source* delays = nullptr;
};

namespace detail {

/// What one rank brings to the agreement.
struct mpi_standing {
    double deadline = 0;
    std::uint64_t message_bytes = 0;
    std::int32_t level = 0, quiet = 0, pumped = 0, sums = 0;

    bool can_thread() const { return level == MPI_THREAD_MULTIPLE || (level == MPI_THREAD_SERIALIZED && quiet != 0); }
    bool valid() const { return message_bytes >= 1 && message_bytes <= (std::size_t{1} << 30) && deadline > 0; }
    bool same_options(const mpi_standing& other) const {
        return !(deadline < other.deadline) && !(other.deadline < deadline) && message_bytes == other.message_bytes &&
               sums == other.sums;
    }
    std::string options() const {
        return text("deadline ", deadline, " s, message_bytes ", message_bytes, ", sums ",
                    sums == static_cast<int>(mpi_sums::ring) ? "ring" : "rank_order");
    }
};

/// threaded: a progress thread makes all MPI calls. at_issue: an operation completes inside the call that issues it.
/// pumped: operations go on inside waits and progress().
struct mpi_agreement {
    worker_mode mode = worker_mode::at_issue;
    std::string why{};
};

/// The mode that all ranks can have: pumped if all declare it, threaded if all can, else at issue.
inline mpi_agreement choose_mode(const std::vector<mpi_standing>& ranks) {
    std::size_t pumped = 0, not_pumped = ranks.size(), low = ranks.size();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        if (!ranks[rank].valid())
            throw argument_error("E-MPI-3", text("mpi_options of rank ", rank, ": ", ranks[rank].options(),
                                                 "; message_bytes must be 1 to ", std::size_t{1} << 30,
                                                 " and deadline more than 0"));
        if (!ranks[rank].same_options(ranks[0]))
            throw disagreement_error("E-MPI-2", text("rank 0 has ", ranks[0].options(), " but rank ", rank, " has ",
                                                     ranks[rank].options(), ". Give all ranks the same mpi_options."));
        if (ranks[rank].pumped != 0)
            ++pumped;
        else if (not_pumped == ranks.size())
            not_pumped = rank;
        if (!ranks[rank].can_thread() && low == ranks.size()) low = rank;
    }
    if (pumped == ranks.size())
        return {worker_mode::pumped, "operations go on in waits and in progress(), as declared by mpi_options::pumped"};
    const std::string mixed = pumped == 0 ? "" : text("; pumped was declared, but not by rank ", not_pumped);
    if (low == ranks.size()) {
        std::size_t serialized = 0;
        for (const mpi_standing& rank : ranks) serialized += rank.level == MPI_THREAD_MULTIPLE ? 0 : 1;
        return {worker_mode::threaded,
                text("one progress thread a rank makes all MPI calls (",
                     serialized == 0 ? "MPI_THREAD_MULTIPLE" : "MPI_THREAD_SERIALIZED, no other MPI calls declared",
                     ")", mixed)};
    }
    return {worker_mode::at_issue,
            text("every operation completes inside the call that issues it, nothing overlaps, because rank ", low,
                 " has ", mpi_level_name(ranks[low].level),
                 ranks[low].level == MPI_THREAD_SERIALIZED ? " without mpi_options::no_mpi_calls_meanwhile" : "",
                 ". Use MPI_Init_thread(MPI_THREAD_MULTIPLE), or declare mpi_options::pumped and call progress()",
                 mixed)};
}

/// Exchanges what the ranks bring; collective over `comm`.
inline mpi_agreement agree(MPI_Comm comm, std::size_t rank, std::size_t size, const mpi_options& options, int level) {
    const mpi_standing mine{options.deadline,
                            options.message_bytes,
                            level,
                            options.no_mpi_calls_meanwhile ? 1 : 0,
                            options.pumped ? 1 : 0,
                            static_cast<std::int32_t>(options.sums)};
    std::vector<mpi_standing> all(size);
    mpi_check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, comm), "MPI_Allgather",
              rank);
    return choose_mode(all);
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
