// What MPI ranks tell each other outside the collectives: that one has failed, and how far each is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

#include "../../device/host_worker.hpp"
#include "../concept.hpp"
#include "group.hpp"
#include "library.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// How far a rank is in one group.
struct mpi_progress {
    std::int32_t tag = -1;  // of the group; -1: no entry
    std::uint32_t under_way = 0;
    std::uint64_t issued = 0, finished = 0;
    char last[104] = {};  // the operation under way, or the last one
};

/// A message of the control channel. A question lists the groups it is about; an answer tells of those the rank is in.
struct mpi_notice {
    static constexpr std::size_t most_groups = 8;
    enum class kind : std::uint32_t { raise, ask, answer };
    kind what = kind::raise;
    std::uint32_t from = 0, question = 0;
    mpi_progress groups[most_groups] = {};
    char words[480] = {};  // why a fault was raised; what else the rank is doing
};
static_assert(sizeof(mpi_notice) == 1520 && std::is_trivially_copyable_v<mpi_notice>);

}  // namespace detail

/// The control channel of a session: a communicator of its own, served by the thread that makes MPI calls.
/// A fault raised on one rank reaches every rank of the session, also those outside the group it happened in, and
/// stays: the job ends with the first error.
class mpi_control {
public:
    mpi_control() = default;
    mpi_control(const mpi_control&) = delete;
    mpi_control& operator=(const mpi_control&) = delete;

    /// From any thread. The first text is kept; a later one says nothing.
    void raise(const std::string& why) {
        if (keep(rank_, why)) {
            to_send_.store(true, std::memory_order_release);
            if (send_at_once_) poll();
        }
        tell();
    }
    const fault_report* raised() const { return state_.load(std::memory_order_acquire) == set ? &report_ : nullptr; }

    // The rest is for the session, on the thread that makes MPI calls.

    /// `groups` is the head of the session's list, `worker` its worker, null until that is made. `send_at_once` where
    /// raise() is called on the MPI thread.
    void open(MPI_Comm comm, std::size_t rank, std::size_t size, const std::atomic<detail::mpi_group*>& groups,
              const std::atomic<host_worker*>& worker, bool send_at_once) {
        comm_ = comm;
        rank_ = rank;
        groups_ = &groups;
        worker_ = &worker;
        send_at_once_ = send_at_once;
        answers_.resize(size);
        replies_.resize(size);
        reply_requests_.assign(size, MPI_REQUEST_NULL);
        raise_requests_.assign(size, MPI_REQUEST_NULL);
        ask_requests_.assign(size, MPI_REQUEST_NULL);
        listen();
    }

    /// Takes what has come and sends what is due; true if anything did.
    bool poll() {
        bool moved = false;
        if (to_send_.load(std::memory_order_relaxed) && to_send_.exchange(false, std::memory_order_acquire)) {
            fill(raise_, detail::mpi_notice::kind::raise);
            detail::write_text(raise_.words, report_.text);
            for (std::size_t to = 0; to < answers_.size(); ++to)
                if (to != rank_) send(raise_, to, raise_requests_[to]);
            moved = true;
        }
        int came = 0;
        check(MPI_Test(&listening_, &came, MPI_STATUS_IGNORE), "MPI_Test");
        if (came != 0) {
            const detail::mpi_notice notice = heard_;
            listen();
            take(notice);
            moved = true;
        }
        return moved;
    }

    /// Passes a fault on to the own worker, once and from any thread: calls and waits throw from now on, also where
    /// nobody polls until the next one.
    bool tell() {
        const fault_report* const fault = raised();
        host_worker* const worker = fault == nullptr ? nullptr : worker_->load(std::memory_order_acquire);
        if (worker == nullptr || told_.exchange(true)) return false;
        worker->interrupt(std::make_exception_ptr(peer_error(fault->rank, fault->text)));
        return true;
    }

    /// Asks all ranks how far they are; called again, takes what has come. True when all have answered.
    bool ask() {
        if (!asking_) {
            asking_ = true;
            if (sent(ask_requests_)) send_question();
        }
        poll();
        for (std::size_t rank = 0; rank < answers_.size(); ++rank)
            if (rank != rank_ && !answered(rank)) return false;
        return true;
    }
    /// "waits for rank 1; rank 1 has issued ..." for operation `number` of `group`, as asked last.
    std::string awaited(const detail::mpi_group& group, std::uint64_t number) const {
        std::string states;
        std::vector<std::size_t> absent, gone;  // not come yet; come, and not in it any more
        for (const int of : group.peers.members) {
            const auto rank = static_cast<std::size_t>(of);
            if (rank == rank_) continue;
            const detail::mpi_progress* entry = find(rank, group.peers.tag);
            if (entry == nullptr || entry->issued < number)
                absent.push_back(rank);
            else if (entry->finished + 1 == number && entry->under_way == 0)
                gone.push_back(rank);
            states += text("; rank ", rank, " ", state_of(rank, entry, number));
        }
        if (absent.empty()) absent = gone;  // their own deadlines passed a moment earlier
        const char* who = absent.empty() ? "messages: all ranks are in it" : absent.size() == 1 ? "rank " : "ranks ";
        return text("waits for ", who, joined(absent), states);
    }

    /// Sends what is due, waits up to a second for own messages to leave, then stops listening.
    void close() noexcept {
        if (comm_ == MPI_COMM_NULL) return;
        try {
            poll();
        } catch (const error&) {  // MPI does not work any more: nothing can be said
        }
        for (const double until = MPI_Wtime() + 1; MPI_Wtime() < until && !all_sent();) {
        }
        if (listening_ != MPI_REQUEST_NULL) {
            MPI_Cancel(&listening_);
            MPI_Wait(&listening_, MPI_STATUS_IGNORE);
        }
        comm_ = MPI_COMM_NULL;
    }

private:
    static constexpr int unset = 0, being_set = 1, set = 2;

    void check(int code, const char* call) const { detail::mpi_check(code, call, rank_); }
    bool keep(std::size_t rank, const std::string& why) {
        int expected = unset;
        if (!state_.compare_exchange_strong(expected, being_set)) return false;
        report_ = {rank, why};
        state_.store(set, std::memory_order_release);
        return true;
    }
    void listen() {
        check(MPI_Irecv(&heard_, sizeof heard_, MPI_BYTE, MPI_ANY_SOURCE, 0, comm_, &listening_), "MPI_Irecv");
    }
    void fill(detail::mpi_notice& notice, detail::mpi_notice::kind what) const {
        notice.what = what;
        notice.from = static_cast<std::uint32_t>(rank_);
    }
    void send(const detail::mpi_notice& notice, std::size_t to, MPI_Request& request) const {
        check(MPI_Isend(&notice, sizeof notice, MPI_BYTE, static_cast<int>(to), 0, comm_, &request), "MPI_Isend");
    }
    bool sent(std::vector<MPI_Request>& requests) const {
        int all = 0;
        check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE),
              "MPI_Testall");
        return all != 0;
    }
    bool all_sent() noexcept {
        int all = 1, each = 0;
        for (auto* requests : {&raise_requests_, &ask_requests_, &reply_requests_}) {
            if (MPI_Testall(static_cast<int>(requests->size()), requests->data(), &each, MPI_STATUSES_IGNORE) !=
                MPI_SUCCESS)
                return true;
            all &= each;
        }
        return all != 0;
    }

    void send_question() {
        fill(ask_, detail::mpi_notice::kind::ask);
        ask_.question = ++question_;
        std::size_t listed = 0;
        for (auto& entry : ask_.groups) entry.tag = -1;
        for (auto* group = first_group(); group != nullptr && listed < detail::mpi_notice::most_groups;
             group = group->other)
            if (group->issued.load() != group->finished.load()) ask_.groups[listed++].tag = group->peers.tag;
        for (std::size_t to = 0; to < answers_.size(); ++to)
            if (to != rank_) send(ask_, to, ask_requests_[to]);
    }
    const detail::mpi_group* first_group() const { return groups_->load(std::memory_order_acquire); }

    void take(const detail::mpi_notice& notice) {
        if (notice.what == detail::mpi_notice::kind::raise) keep(notice.from, notice.words);
        if (notice.what == detail::mpi_notice::kind::answer) answers_[notice.from] = notice;
        if (notice.what == detail::mpi_notice::kind::ask) reply(notice);
    }
    void reply(const detail::mpi_notice& asked) {
        MPI_Request& request = reply_requests_[asked.from];
        int free = 0;
        check(MPI_Test(&request, &free, MPI_STATUS_IGNORE), "MPI_Test");
        if (free == 0) return;  // the rank that asks has not taken the last reply yet
        detail::mpi_notice& notice = replies_[asked.from];
        fill(notice, detail::mpi_notice::kind::answer);
        notice.question = asked.question;
        std::string elsewhere;
        for (std::size_t i = 0; i < detail::mpi_notice::most_groups; ++i) notice.groups[i] = detail::mpi_progress{};
        for (auto* group = first_group(); group != nullptr; group = group->other) {
            bool listed = false;
            for (std::size_t i = 0; i < detail::mpi_notice::most_groups; ++i) {
                if (asked.groups[i].tag != group->peers.tag) continue;
                listed = true;
                notice.groups[i].tag = group->peers.tag;
                notice.groups[i].under_way = group->under_way() ? 1 : 0;
                notice.groups[i].issued = group->issued.load(std::memory_order_acquire);
                notice.groups[i].finished = group->finished.load(std::memory_order_acquire);
                detail::write_text(notice.groups[i].last, group->last());
            }
            if (!listed && elsewhere.empty() && group->under_way())
                elsewhere = text(group->last(), " of the ", group->described());
        }
        detail::write_text(notice.words, elsewhere);
        send(notice, asked.from, request);
    }

    bool answered(std::size_t rank) const { return question_ > 0 && answers_[rank].question == question_; }
    /// What `rank` said of a group; null if nothing.
    const detail::mpi_progress* find(std::size_t rank, std::int32_t tag) const {
        if (!answered(rank)) return nullptr;
        for (const auto& entry : answers_[rank].groups)
            if (entry.tag == tag) return &entry;
        return nullptr;
    }
    std::string state_of(std::size_t rank, const detail::mpi_progress* entry, std::uint64_t number) const {
        if (!answered(rank)) return "does not answer: it has ended or stopped, or computes with nobody to serve it";
        if (entry == nullptr) return "answers, but does not know this group";
        if (entry->under_way != 0 && entry->finished + 1 == number) return "is in it";
        std::string out = text("has issued ", entry->issued, " operations");
        if (*entry->last != 0)
            out += text(", ", entry->under_way != 0 ? "is in number " : "the last is number ",
                        entry->finished + entry->under_way, ", ", entry->last);
        if (*answers_[rank].words != 0) out += text(", and is in ", answers_[rank].words);
        return out;
    }

    MPI_Comm comm_ = MPI_COMM_NULL;
    std::size_t rank_ = 0;
    const std::atomic<detail::mpi_group*>* groups_ = nullptr;
    const std::atomic<host_worker*>* worker_ = nullptr;
    std::atomic<bool> told_{false};
    bool send_at_once_ = false;
    std::atomic<int> state_{unset};
    std::atomic<bool> to_send_{false};
    fault_report report_{};
    detail::mpi_notice heard_{}, raise_{}, ask_{};
    std::vector<detail::mpi_notice> answers_{}, replies_{};
    MPI_Request listening_ = MPI_REQUEST_NULL;
    std::vector<MPI_Request> raise_requests_{}, ask_requests_{}, reply_requests_{};
    std::uint32_t question_ = 0;
    bool asking_ = false;
};
static_assert(ControlChannel<mpi_control>);

inline std::string detail::mpi_group::late(const mpi_operation& operation) const {
    const std::string waiting =
        text(mpi_header(operation).described(), ", number ", operation.number, " of the ", described());
    const std::uint64_t first = finished.load() + 1;
    if (operation.number != first)
        return text(waiting, ", waits for its turn: number ", first, " was issued earlier and ",
                    under_way() ? control->awaited(*this, first)
                                : "has not begun: does its stream wait for something?");
    return text(waiting, ", ", control->awaited(*this, first),
                ". A rank that is behind has skipped a call or does something else for too long. If the wait is "
                "expected, raise the deadline.");
}

}  // namespace v0
}  // namespace reshard
