// One rank of a team of threads: its worker, its control channel, its life from start to join.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "group.hpp"

namespace reshard {
inline namespace v0 {
namespace threads {

/// All groups of a team. They are kept to its end: peers may look at one that was closed.
class group_list {
public:
    explicit group_list(team& whole)
        : contributions(whole.size()), team_(whole), whole_(add(everybody())), for_control_(whole, whole_.members()) {}
    group& add(const std::vector<std::size_t>& members) {
        yielding_lock::hold held(lock_);
        return groups_.emplace(team_, members);
    }
    group& whole() { return whole_; }
    /// Where ranks meet in spite of faults. No call that a fault interrupts meets here, so all have come equally often.
    meeting_place& for_control() { return for_control_; }
    /// Forgets meetings that a fault cut short: some ranks had come to them and some not. Only while no rank can be in
    /// one.
    void start_over() {
        yielding_lock::hold held(lock_);
        for (group& each : groups_) each.on_host().start_over();
    }

    /// For control channels: each rank writes its own entry before all meet, and reads the others' after.
    std::vector<std::vector<std::byte>> contributions;

private:
    std::vector<std::size_t> everybody() const {
        std::vector<std::size_t> ranks(team_.size());
        for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = r;
        return ranks;
    }

    team& team_;
    yielding_lock lock_;
    owning_list<group> groups_;
    group& whole_;
    meeting_place for_control_;
};

}  // namespace threads

/// The control channel of a team of threads. A raised fault is seen by every rank's progress at once.
class threads_control {
public:
    threads_control(threads::team& team, threads::group_list& groups, std::size_t rank, host_worker& worker)
        : team_(team), groups_(groups), rank_(rank), worker_(worker) {}
    threads_control(const threads_control&) = delete;
    threads_control& operator=(const threads_control&) = delete;

    void raise(const std::string& why) {
        team_.raise(rank_, why);
        look();
    }
    const fault_report* raised() const { return team_.raised(); }

    std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> mine) {
        groups_.contributions[rank_].assign(mine.begin(), mine.end());
        meet("exchange on the control channel");
        std::vector<std::vector<std::byte>> all = groups_.contributions;
        meet("exchange on the control channel");
        return all;
    }

    void clear() {
        meet("clear on the control channel");
        if (rank_ == 0) {
            groups_.start_over();
            team_.clear();
        }
        meet("clear on the control channel");
        yielding_lock::hold held(lock_);
        worker_.resume();
    }

    /// Passes a raised fault on to the own worker.
    void look() {
        yielding_lock::hold held(lock_);  // or a report read before clear() would interrupt behind it
        const fault_report* report = team_.raised();
        if (report == nullptr || worker_.interrupted()) return;
        worker_.interrupt(std::make_exception_ptr(peer_error(report->rank, report->text)));
    }

private:
    void meet(const char* what) { groups_.for_control().meet(rank_, what, worker_, true); }

    threads::team& team_;
    threads::group_list& groups_;
    std::size_t rank_;
    host_worker& worker_;
    yielding_lock lock_;
};

namespace threads {

class rank_state final : private worker_backend {
public:
    rank_state(team& whole, group_list& all_groups, std::size_t own_rank)
        : rank(own_rank),
          groups(all_groups),
          team_(whole),
          control(whole, all_groups, own_rank, worker),
          worker(options(), whole.hub(own_rank)) {}

    const std::size_t rank;
    group_list& groups;

private:
    worker_options options() {
        const thread_options& given = team_.options();
        return {given.mode, given.deadline_seconds, rank, given.delays, this};
    }
    bool poll() override {
        control.look();
        return false;
    }
    void failed(const std::string& why) override { team_.raise(rank, why); }

    team& team_;

public:
    threads_control control;
    host_worker worker;  // last: its thread looks at all the others
};

struct place_in_group {
    threads::group* group;
    std::size_t rank;
};

/// The group of those with the same colour, in the order of (key, rank); null for no_colour.
inline place_in_group split(group& from, std::size_t rank, rank_state& self, std::size_t colour, std::size_t key) {
    self.worker.check();
    from.colours[rank] = colour;
    from.keys[rank] = key;
    from.on_host().meet(rank, "split", self.worker, false);
    std::vector<std::size_t> order;  // ranks of `from`, sorted by key; equal keys stay in rank order
    for (std::size_t r = 0; r < from.size(); ++r) {
        if (colour == no_colour || from.colours[r] != colour) continue;
        auto at = order.end();
        while (at != order.begin() && from.keys[*(at - 1)] > from.keys[r]) --at;
        order.insert(at, r);
    }
    if (!order.empty() && order.front() == rank) {
        std::vector<std::size_t> members;
        for (std::size_t r : order) members.push_back(from.members()[r]);
        from.split_off[rank] = &self.groups.add(members);
    }
    from.on_host().meet(rank, "split", self.worker, false);
    if (order.empty()) return {nullptr, 0};
    std::size_t place = 0;
    while (order[place] != rank) ++place;
    return {from.split_off[order.front()], place};
}

/// The life of one rank's thread.
template <class Function>
void run_rank(team& team, group_list& groups, std::size_t rank, const Function& function) {
    {
        rank_state self(team, groups, rank);
        try {
            function(self);
            self.worker.settle();
            self.worker.check();
        } catch (...) {
            team.failed(rank, std::current_exception());
        }
    }
    team.end(rank);
}

template <class Function>
void run_ranks(team& team, group_list& groups, const Function& function) {
    std::vector<host_thread> threads;
    threads.reserve(team.size());
    try {
        while (threads.size() < team.size()) {
            threads.emplace_back([&, rank = threads.size()] { run_rank(team, groups, rank, function); });
        }
    } catch (...) {  // no more threads: those that run must not wait for those that cannot
        team.failed(threads.size(), std::current_exception());
        for (std::size_t rank = threads.size(); rank < team.size(); ++rank) team.end(rank);
    }
    for (host_thread& thread : threads) thread.join();
    if (team.root_cause()) std::rethrow_exception(team.root_cause());
}

}  // namespace threads
}  // namespace v0
}  // namespace reshard
