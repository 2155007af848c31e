// The ranks of one group: who they are in MPI, and how a buffer is cut into blocks and messages for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "library.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Addresses of a group's ranks. All groups of a session share one duplicated communicator; a group has a tag of its
/// own, and MPI keeps messages between two ranks with one tag in order.
struct mpi_peers {
    MPI_Comm comm = MPI_COMM_NULL;
    int tag = 0;
    std::vector<int> members;  // ranks in `comm`, in the group's order
    std::size_t rank = 0;      // within the group
    std::atomic<std::uint64_t> sent{0}, sent_headers{0};

    std::size_t size() const { return members.size(); }
    std::size_t after(std::size_t distance) const { return (rank + distance) % size(); }
    std::size_t before(std::size_t distance) const { return (rank + size() - distance) % size(); }
    std::size_t world_rank() const { return static_cast<std::size_t>(members[rank]); }

    void send(std::size_t to, const std::byte* from, std::size_t bytes, MPI_Request* request) {
        mpi_check(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, members[to], tag, comm, request), "MPI_Isend",
                  world_rank());
        sent.fetch_add(bytes, std::memory_order_relaxed);
    }
    void receive(std::size_t from, std::byte* into, std::size_t bytes, MPI_Request* request) {
        mpi_check(MPI_Irecv(into, static_cast<int>(bytes), MPI_BYTE, members[from], tag, comm, request), "MPI_Irecv",
                  world_rank());
    }
};

/// A buffer of `elements`, cut into equal blocks (the last ones may be shorter or empty) and each block into messages.
struct mpi_cut {
    std::size_t elements = 0, block = 0, message = 1, width = 1;

    mpi_cut() = default;
    mpi_cut(std::size_t all, std::size_t blocks, std::size_t elements_of_a_message, std::size_t bytes_of_an_element)
        : elements(all),
          block(all / blocks + (all % blocks != 0 ? 1 : 0)),
          message(elements_of_a_message),
          width(bytes_of_an_element) {}

    /// Messages of a block.
    std::size_t messages() const { return block / message + (block % message != 0 ? 1 : 0); }
    /// Elements in message `k` of block `b`.
    std::size_t count(std::size_t b, std::size_t k) const {
        const std::size_t begin = b * block + k * message;
        if (begin >= elements) return 0;
        std::size_t most = block - k * message;
        if (most > message) most = message;
        return elements - begin < most ? elements - begin : most;
    }
    std::size_t bytes(std::size_t b, std::size_t k) const { return count(b, k) * width; }
    /// Where message `k` of block `b` begins, in bytes.
    std::size_t offset(std::size_t b, std::size_t k) const { return (b * block + k * message) * width; }
};

}  // namespace detail
}  // namespace v0
}  // namespace reshard
