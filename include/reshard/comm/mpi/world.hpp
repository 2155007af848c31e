// What an MPI session holds: duplicated communicators, the worker that serves them, the groups.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "../../core/owning_list.hpp"
#include "../../device/host.hpp"
#include "control.hpp"
#include "library.hpp"
#include "mode.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// Duplicates of the user's communicator that return errors; freed with it, and MPI ended where `ends_mpi`.
class mpi_duplicates {
public:
    mpi_duplicates(MPI_Comm from, bool ends_mpi) : ends_mpi_(ends_mpi) {
        int rank = 0, size = 0;
        mpi_check(MPI_Comm_rank(from, &rank), "MPI_Comm_rank", 0);
        mpi_check(MPI_Comm_size(from, &size), "MPI_Comm_size", static_cast<std::size_t>(rank));
        rank_ = static_cast<std::size_t>(rank);
        size_ = static_cast<std::size_t>(size);
        for (MPI_Comm& copy : copies_) {
            mpi_check(MPI_Comm_dup(from, &copy), "MPI_Comm_dup", rank_);
            mpi_check(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", rank_);
        }
        int* limit = nullptr;
        int known = 0;
        mpi_check(MPI_Comm_get_attr(copies_[0], MPI_TAG_UB, &limit, &known), "MPI_Comm_get_attr", rank_);
        if (known != 0) last_tag_ = *limit;
    }
    mpi_duplicates(const mpi_duplicates&) = delete;
    mpi_duplicates& operator=(const mpi_duplicates&) = delete;
    ~mpi_duplicates() {
        if (left_by_exception()) return;  // freeing is collective: not while the others may be anywhere
        for (MPI_Comm& copy : copies_) MPI_Comm_free(&copy);
        if (ends_mpi_) MPI_Finalize();
    }

    std::size_t rank() const { return rank_; }
    std::size_t size() const { return size_; }
    int last_tag() const { return last_tag_; }
    MPI_Comm collectives() const { return copies_[0]; }
    MPI_Comm control() const { return copies_[1]; }
    MPI_Comm messages() const { return copies_[2]; }
    bool ends_mpi() const { return ends_mpi_; }
    bool left_by_exception() const { return std::uncaught_exceptions() > exceptions_; }

private:
    bool ends_mpi_;
    int exceptions_ = std::uncaught_exceptions();
    std::size_t rank_ = 0, size_ = 1;
    int last_tag_ = 32767;
    MPI_Comm copies_[3] = {MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL};
};

/// Numbers machines by their names: entry r holds rank r's, ended by a zero.
inline std::vector<std::size_t> mpi_nodes_of(const std::vector<char>& names, std::size_t size) {
    const std::size_t room = names.size() / size;
    std::vector<std::size_t> first(size);  // the first rank with the same name marks the node
    for (std::size_t rank = 0; rank < size; ++rank)
        while (std::string_view(&names[first[rank] * room]) != std::string_view(&names[rank * room])) ++first[rank];
    return numbered_nodes(std::move(first));
}

/// Exchanges the machines' names; collective over `comm`.
inline std::vector<std::size_t> mpi_nodes(MPI_Comm comm, std::size_t rank, std::size_t size) {
    constexpr int room = MPI_MAX_PROCESSOR_NAME;
    char mine[room] = {};
    int length = 0;
    mpi_check(MPI_Get_processor_name(mine, &length), "MPI_Get_processor_name", rank);
    mine[room - 1] = 0;
    std::vector<char> names(size * static_cast<std::size_t>(room));
    mpi_check(MPI_Allgather(mine, room, MPI_CHAR, names.data(), room, MPI_CHAR, comm), "MPI_Allgather", rank);
    return mpi_nodes_of(names, size);
}

/// The worker's view of MPI, and the list of groups. Members end in reverse order: the worker stops before the control
/// channel closes, and that before communicators are freed.
class mpi_world final : private worker_backend {
public:
    mpi_world(MPI_Comm from, bool ends_mpi, const mpi_options& options, int level)
        : comms(from, ends_mpi),
          options_(options),
          nodes_(mpi_nodes(comms.collectives(), comms.rank(), comms.size())),
          agreement(agree(comms.collectives(), comms.rank(), comms.size(), options, level)),
          worker(start(options)) {
        std::vector<int> all(comms.size());
        for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = static_cast<int>(rank);
        add_group(all, comms.rank(), 0);
        worker_.store(&worker, std::memory_order_release);
    }
    ~mpi_world() {
        if (!comms.left_by_exception()) return;
        if (comms.ends_mpi()) MPI_Abort(MPI_COMM_WORLD, 1);
        control.raise("its MPI session was left by an exception");
    }
    mpi_world(const mpi_world&) = delete;
    mpi_world& operator=(const mpi_world&) = delete;

    /// The first group is that of all ranks.
    mpi_group& add_group(const std::vector<int>& members, std::size_t rank, int tag) {
        mpi_group& group = groups_.emplace(options_.message_bytes, options_.sums);
        group.peers.comm = comms.collectives();
        group.peers.tag = tag;
        group.peers.members = members;
        group.peers.rank = rank;
        group.control = &control;
        group.whole = members.size() == comms.size();
        group.other = first_.load(std::memory_order_relaxed);
        first_.store(&group, std::memory_order_release);
        return group;
    }
    mpi_group& everyone() { return groups_[0]; }
    std::size_t node_of(int rank) const { return nodes_[static_cast<std::size_t>(rank)]; }

    mpi_duplicates comms;

private:
    struct closing {  // ends the control channel after the worker
        mpi_control& channel;
        ~closing() { channel.close(); }
    };

    worker_options start(const mpi_options& options) {
        control.open(comms.control(), comms.rank(), comms.size(), first_, worker_,
                     agreement.mode != worker_mode::threaded);
        worker_options made;
        made.mode = agreement.mode;
        made.deadline_seconds = options.deadline;
        made.rank = comms.rank();
        made.delays = options.delays;
        made.backend = this;
        return made;
    }
    bool poll() override {
        const bool moved = control.poll();
        return control.tell() || moved;
    }
    bool needs_polling() const override { return true; }
    bool ask() override { return control.ask(); }
    void failed(const std::string& why) override { control.raise(why); }

    mpi_options options_;
    std::vector<std::size_t> nodes_;  // of all ranks
    std::atomic<mpi_group*> first_{nullptr};
    owning_list<mpi_group> groups_{};
    std::atomic<host_worker*> worker_{nullptr};

public:
    mpi_agreement agreement;
    mpi_control control{};
    int next_tag = 1;  // of the next group, at least; used by the rank's own thread

private:
    closing closing_{control};

public:
    host_worker worker;
};

}  // namespace detail
}  // namespace v0
}  // namespace reshard
