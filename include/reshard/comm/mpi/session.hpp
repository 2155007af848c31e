// An MPI session: takes MPI over or starts it, decides with the other ranks who makes MPI calls, and hands out the
// communicator of all ranks.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "communicator.hpp"
#include "library.hpp"
#include "mode.hpp"
#include "world.hpp"

namespace reshard {
inline namespace v0 {

/// Every rank makes one, collectively, and it outlives all that uses its communicators. Not copyable, not movable.
///
/// A session that started MPI ends it in its destructor, or, while an exception unwinds through it, ends the job with
/// MPI_Abort (catch inside the session's scope to print what happened). One that adopted MPI does neither: it works on
/// duplicates of the communicator with an error handler of their own, and leaves MPI as it found it.
class mpi_session {
public:
    /// Adopts MPI_COMM_WORLD if the application has called MPI_Init, else starts MPI with MPI_THREAD_MULTIPLE.
    static mpi_session adopt_or_init(int& argc, char**& argv, const mpi_options& options = {}) {
        int running = 0;
        detail::mpi_check(MPI_Initialized(&running), "MPI_Initialized", 0);
        if (running != 0) return adopt(MPI_COMM_WORLD, options);
        int level = MPI_THREAD_SINGLE;
        detail::mpi_check(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread", 0);
        return mpi_session(MPI_COMM_WORLD, true, options, level);
    }
    /// Works beside an application that runs MPI itself; `comm` stays the application's. Below MPI_THREAD_SERIALIZED
    /// only the thread that called MPI_Init may use the session.
    static mpi_session adopt(MPI_Comm comm, const mpi_options& options = {}) {
        int running = 0, ended = 0, level = MPI_THREAD_SINGLE, on_main_thread = 0;
        detail::mpi_check(MPI_Initialized(&running), "MPI_Initialized", 0);
        if (running != 0) detail::mpi_check(MPI_Finalized(&ended), "MPI_Finalized", 0);
        if (running == 0 || ended != 0)
            throw state_error("E-MPI-5", text("mpi_session::adopt: MPI is ", running == 0 ? "not initialized" : "ended",
                                              ". Call MPI_Init_thread before, or use adopt_or_init"));
        detail::mpi_check(MPI_Query_thread(&level), "MPI_Query_thread", 0);
        detail::mpi_check(MPI_Is_thread_main(&on_main_thread), "MPI_Is_thread_main", 0);
        if (level < MPI_THREAD_SERIALIZED && on_main_thread == 0)
            throw state_error("E-MPI-5", text("mpi_session::adopt: MPI has ", detail::mpi_level_name(level),
                                              ", and this is not the thread that called MPI_Init"));
        return mpi_session(comm, false, options, level);
    }
    mpi_session(const mpi_session&) = delete;
    mpi_session& operator=(const mpi_session&) = delete;

    mpi_communicator world() { return mpi_communicator(world_, world_.everyone()); }
    std::size_t rank() const { return world_.comms.rank(); }
    std::size_t size() const { return world_.comms.size(); }
    bool is_root() const { return rank() == 0; }
    worker_mode mode() const { return world_.agreement.mode; }
    /// Which thread makes MPI calls, and why.
    std::string describe() const { return text("mpi: ", size(), " ranks; ", world_.agreement.why); }

    /// Takes operations one round further where mpi_options::pumped was declared by all; elsewhere it does nothing.
    /// True if something moved. Throws what a wait would.
    bool progress() { return world_.worker.progress(); }

    /// The application's own messages, for those who declared to make no MPI calls meanwhile. Blocks like MPI_Send,
    /// with the session's deadline; `tag` is free and does not meet the application's other tags.
    template <class Type>
        requires std::is_trivially_copyable_v<Type>
    void send(std::span<const Type> values, std::size_t to, int tag = 0) {
        const auto bytes = std::as_bytes(values);
        carry({&world_, const_cast<std::byte*>(bytes.data()), checked(bytes.size()), checked_rank(to), tag, false});
    }
    /// Blocks like MPI_Recv; `values` must be as long as what was sent.
    template <class Type>
        requires std::is_trivially_copyable_v<Type>
    void receive(std::span<Type> values, std::size_t from, int tag = 0) {
        const auto bytes = std::as_writable_bytes(values);
        carry({&world_, bytes.data(), checked(bytes.size()), checked_rank(from), tag, true});
    }

private:
    /// One message under way.
    struct message {
        detail::mpi_world* world;
        std::byte* data;
        int bytes, peer, tag;
        bool receives;
        bool left = false;
        MPI_Request request = MPI_REQUEST_NULL;

        visit operator()() {
            if (left) return visit::done;
            const std::size_t rank = world->comms.rank();
            const bool first = request == MPI_REQUEST_NULL;
            if (first) begin(rank);
            int completed = 0, came = bytes;
            MPI_Status status;
            detail::mpi_check(MPI_Test(&request, &completed, &status), receives ? "receive" : "send", rank);
            if (completed == 0) return first ? visit::moved : visit::stuck;
            if (receives) detail::mpi_check(MPI_Get_count(&status, MPI_BYTE, &came), "MPI_Get_count", rank);
            if (came != bytes)
                throw communication_error("E-MPI-6",
                                          text("receive on rank ", rank, " expects ", bytes, " bytes with tag ", tag,
                                               ", but rank ", peer, " sent ", came));
            return visit::done;
        }
        std::string late() const {
            return text("rank ", world->comms.rank(), " waits in ", receives ? "receive from" : "send to", " rank ",
                        peer, " (", bytes, " bytes, tag ", tag, "). Does that rank ", receives ? "send" : "receive",
                        " with this tag?");
        }
        bool abandon() {
            if (request != MPI_REQUEST_NULL) {
                if (!left && receives) MPI_Cancel(&request);
                left = true;
                int settled = 0;
                if (MPI_Test(&request, &settled, MPI_STATUS_IGNORE) == MPI_SUCCESS && settled == 0) {
                    if (receives) return false;
                    MPI_Request_free(&request);
                }
            }
            return left = true;
        }

    private:
        void begin(std::size_t rank) {
            const MPI_Comm comm = world->comms.messages();
            if (receives)
                detail::mpi_check(MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, comm, &request), "receive", rank);
            else
                detail::mpi_check(MPI_Isend(data, bytes, MPI_BYTE, peer, tag, comm, &request), "send", rank);
        }
    };

    mpi_session(MPI_Comm comm, bool ends_mpi, const mpi_options& options, int level)
        : world_(comm, ends_mpi, options, level) {}

    void carry(const message& made) {
        world_.worker.issue(nullptr, [&] { return made; });
    }
    static int checked(std::size_t bytes) {
        if (bytes > std::size_t{0x7fffffff})
            throw argument_error("E-MPI-3", text("a message of ", bytes, " bytes is too long: at most 2147483647"));
        return static_cast<int>(bytes);
    }
    int checked_rank(std::size_t rank) const {
        if (rank >= size())
            throw argument_error("E-MPI-3", text("a message for rank ", rank, ", but the session has ", size(),
                                                 " ranks, numbered from 0"));
        return static_cast<int>(rank);
    }

    detail::mpi_world world_;
};

}  // namespace v0
}  // namespace reshard
