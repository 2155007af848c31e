// What the ranks of one process share: the fault flag, the bells, and places to meet on the host.
#pragma once

#include <string>
#include <vector>

#include "../../core/owning_list.hpp"
#include "../../device/host_worker.hpp"
#include "../concept.hpp"

namespace reshard {
inline namespace v0 {

struct thread_options {
    double deadline_seconds = 600;
    const delay_source* delays = nullptr;  // for tests
    worker_mode mode = worker_mode::threaded;
    /// Ranks in a row that count as one node in nodes(): threads can pretend machines. 0: all are on one.
    std::size_t ranks_per_node = 0;
};

namespace threads {

/// "ranks 1, 2, 3" or "rank 1".
inline std::string rank_list(const std::vector<std::size_t>& ranks) {
    return text(ranks.size() == 1 ? "rank " : "ranks ", joined(ranks));
}

/// State of the whole team. It outlives the ranks, so the bells in it may be rung at any time.
class team {
public:
    explicit team(std::size_t ranks, const thread_options& options)
        : options_(options), ended_(ranks), root_is_peer_error_(false) {
        for (std::size_t r = 0; r < ranks; ++r) hubs_.emplace_back();
    }

    std::size_t size() const { return ended_.size(); }
    const thread_options& options() const { return options_; }
    const shared<rank_hub>& hub(std::size_t rank) const { return hubs_[rank]; }

    void ring_all() const {
        for (const shared<rank_hub>& hub : hubs_) hub->door().ring();
    }

    /// Keeps the first fault until it is cleared.
    void raise(std::size_t rank, const std::string& why) {
        {
            yielding_lock::hold held(lock_);
            if (raised_.load() != nullptr) return;
            raised_.store(&reports_.emplace(fault_report{rank, why}));
        }
        ring_all();
    }
    const fault_report* raised() const { return raised_.load(std::memory_order_acquire); }
    void clear() { raised_.store(nullptr); }

    /// A rank's function has failed: others hear of it, and the first failure that no peer caused is kept.
    void failed(std::size_t rank, const std::exception_ptr& why) {
        std::string words = "an exception that is not a std::exception";
        bool is_peer_error = false;
        try {
            std::rethrow_exception(why);
        } catch (const peer_error& known) {
            is_peer_error = true;
            words = known.what();
        } catch (const std::exception& known) {
            words = known.what();
        } catch (...) {
        }
        {
            yielding_lock::hold held(lock_);
            if (!root_ || (root_is_peer_error_ && !is_peer_error)) {
                root_ = why;
                root_is_peer_error_ = is_peer_error;
            }
        }
        raise(rank, words);
    }
    const std::exception_ptr& root_cause() const { return root_; }

    /// The rank issues nothing any more.
    void end(std::size_t rank) {
        ended_[rank].store(true);
        ring_all();
    }
    /// Whether a rank left its function without a fault: whoever waits for it waits in vain.
    bool gone(std::size_t rank) const { return ended_[rank].load() && raised() == nullptr; }
    bool ended(std::size_t rank) const { return ended_[rank].load(); }

private:
    thread_options options_;
    std::vector<shared<rank_hub>> hubs_;
    std::vector<std::atomic<bool>> ended_;
    yielding_lock lock_;
    owning_list<fault_report> reports_;  // a cleared one may still be looked at
    std::atomic<const fault_report*> raised_{nullptr};
    std::exception_ptr root_;
    bool root_is_peer_error_;
};

/// A place where some ranks of a team meet on the host, again and again.
class meeting_place {
public:
    /// `members` are ranks of the team and outlive this.
    meeting_place(team& whole, const std::vector<std::size_t>& members)
        : team_(whole), members_(members), came_(members.size()) {}

    /// Returns when every member has come as often as this one. Throws timeout_error at the deadline, or at once if a
    /// missing rank has ended; peer_error if a fault is raised, unless `despite_faults`.
    void meet(std::size_t member, const char* what, host_worker& worker, bool despite_faults) {
        if (broken_.load())
            throw timeout_error("E-TIME-2", text(what, ": an earlier meeting of these ranks was not complete"));
        const std::uint64_t turn = came_[member].load() + 1;
        came_[member].store(turn);
        bell_.ring();
        for (std::size_t rank : members_) team_.hub(rank)->door().ring();

        const std::uint64_t limit = now_us() + worker.deadline_us();
        bool late = false, fault = false;
        worker.await(bell_, [&] {
            if (missing(turn).empty()) return true;
            late = now_us() >= limit || has_gone(turn);
            fault = !despite_faults && team_.raised() != nullptr;
            return late || fault;
        });
        const std::vector<std::size_t> absent = missing(turn);
        if (absent.empty()) return;
        if (fault) worker.check();
        if (const fault_report* report = fault ? team_.raised() : nullptr) throw peer_error(report->rank, report->text);
        broken_.store(true);  // this rank has come for some and not for others
        throw timeout_error("E-TIME-2", late_text(what, absent));
    }

    /// As new; only while no member is in meet().
    void start_over() {
        for (std::atomic<std::uint64_t>& came : came_) came.store(0);
        broken_.store(false);
    }

private:
    std::vector<std::size_t> missing(std::uint64_t turn) const {
        std::vector<std::size_t> absent;
        for (std::size_t m = 0; m < came_.size(); ++m) {
            if (came_[m].load() < turn) absent.push_back(members_[m]);
        }
        return absent;
    }
    bool has_gone(std::uint64_t turn) const {
        for (std::size_t rank : missing(turn)) {
            if (team_.ended(rank)) return true;
        }
        return false;
    }
    std::string late_text(const char* what, const std::vector<std::size_t>& absent) const {
        std::vector<std::size_t> ended;
        for (std::size_t rank : absent) {
            if (team_.ended(rank)) ended.push_back(rank);
        }
        return text(what, " of a group of ", members_.size(), " waits for ", rank_list(absent),
                    ended.empty() ? text("; no sign after ", seconds_text(team_.options().deadline_seconds))
                                  : text("; ", rank_list(ended), " has ended"),
                    ". All ranks of the group must make this call.");
    }

    team& team_;
    const std::vector<std::size_t>& members_;
    std::vector<std::atomic<std::uint64_t>> came_;
    std::atomic<bool> broken_{false};
    bell bell_;
};

}  // namespace threads
}  // namespace v0
}  // namespace reshard
