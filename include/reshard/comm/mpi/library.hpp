// The only place that includes <mpi.h>, without its C++ bindings; MPI's return codes become exceptions here.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <cstddef>
#include <string_view>

#include "../../core/error.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Throws `communication_error` naming the call, the calling rank, the code and MPI's own words.
inline void mpi_check(int code, const char* call, std::size_t rank) {
    if (code == MPI_SUCCESS) return;
    char words[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) length = 0;
    throw communication_error("E-MPI-1", text(call, " failed on rank ", rank, " with code ", code, ": ",
                                              std::string_view(words, static_cast<std::size_t>(length)),
                                              ". The job cannot go on with this communicator: end it."));
}

/// The name of an MPI thread level.
inline const char* mpi_level_name(int level) {
    return level == MPI_THREAD_MULTIPLE     ? "MPI_THREAD_MULTIPLE"
           : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
           : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
                                            : "MPI_THREAD_SINGLE";
}

/// First in, first out, with at most `mpi_window` requests under way; only the oldest is looked at, so completion is
/// seen in order.
inline constexpr std::size_t mpi_window = 4;

class mpi_requests {
public:
    bool empty() const { return begun_ == ended_; }
    bool full() const { return begun_ - ended_ == mpi_window; }

    /// Where the next request goes; call only when not full.
    MPI_Request* next() { return &requests_[begun_++ % mpi_window]; }

    /// Takes the oldest away if it has completed.
    bool take(MPI_Status* status, std::size_t rank) {
        if (empty()) return false;
        int completed = 0;
        mpi_check(MPI_Test(&requests_[ended_ % mpi_window], &completed, status), "MPI_Test", rank);
        if (completed == 0) return false;
        ++ended_;
        return true;
    }

    // The way out after an error: cancel receives, ask until all is settled, forget what is not.
    void cancel() noexcept {
        for (MPI_Request& request : requests_)
            if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
    }
    bool settled() noexcept {
        int all = 0;
        return MPI_Testall(static_cast<int>(mpi_window), requests_, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS ||
               all != 0;
    }
    void forget() noexcept {
        for (MPI_Request& request : requests_)
            if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
        begun_ = ended_ = 0;
    }

private:
    MPI_Request requests_[mpi_window] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    std::size_t begun_ = 0, ended_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace reshard
