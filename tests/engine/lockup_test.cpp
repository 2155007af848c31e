// Several communicators and few workers: nothing may lock up. One progress thread a rank serves all its streams and
// groups; and an exhaustive search over what a model of a device, with room for one kernel, may do with the engine's
// log of collectives.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "comm/conformance/check.hpp"
#include "support/grouped.hpp"

namespace {

using namespace toy;

// ------------------------------------------------------------------------------------------ groups on one worker

/// Four ranks as two by two: everybody, the own row, the own column.
struct three_groups {
    explicit three_groups(threads_communicator world)
        : everybody(world),
          row_owner(world.split(world.rank() / 2, world.rank())),
          column_owner(world.split(world.rank() % 2, world.rank())),
          row(row_owner.view()),
          column(column_owner.view()) {}

    threads_communicator everybody;
    threads_communicator::owner row_owner, column_owner;
    threads_communicator row, column;
};

/// Sums of `round` + rank over a group, on `stream`, into `values`; the first element tells.
void sum(const threads_communicator& group, std::vector<float>& values, reshard::host_device::stream_ref stream) {
    group.all_reduce_in_place(std::span(values), stream, {"sum", "values"});
}

void interleaved_groups(reshard::worker_mode mode, std::size_t rounds, const reshard::delay_source* delays) {
    run_threads(
        4,
        [rounds](threads_communicator world) {
            three_groups groups(world);
            auto device = world.device();
            std::vector<float> all(64), in_row(64), in_column(64), again(64);
            auto first = device.make_stream("first"), second = device.make_stream("second");
            const std::size_t rank = world.rank();
            for (std::size_t round = 0; round < rounds; ++round) {
                const float mine = static_cast<float>(rank + round % 5), base = static_cast<float>(round % 5);
                for (auto* values : {&all, &in_row, &in_column, &again}) values->assign(64, mine);
                // Each group on both streams in turn, so that no stream is one group's own.
                const bool swapped = round % 2 == 1;
                const auto& one = swapped ? second : first;
                const auto& other = swapped ? first : second;
                sum(groups.everybody, all, one);
                sum(groups.row, in_row, other);
                sum(groups.column, in_column, one);
                sum(groups.everybody, again, other);
                conformance::finish(world, first);
                conformance::finish(world, second);
                const float row = static_cast<float>(rank / 2 * 4 + 1), column = static_cast<float>(rank % 2 * 2 + 2);
                conformance::demand(all[63] == 6 + 4 * base && again[63] == all[63], "round ", round, ": everybody");
                conformance::demand(in_row[63] == row + 2 * base, "round ", round, ": the row has ", in_row[63]);
                conformance::demand(in_column[63] == column + 2 * base, "round ", round, ": the column");
            }
        },
        {.deadline_seconds = 60, .delays = delays, .mode = mode});
}

// ------------------------------------------------------------------------------------------------- modelled device

/// A collective as a device sees it: what it is, on which communicator and stream, and which of this device's own must
/// have ended before (by number in issue order; itself: none). Groups have communicators of different numbers.
struct kernel {
    std::string what;
    std::size_t communicator = 0, stream = 0, after = 0;
    std::vector<std::size_t> members = {};  // devices of the communicator
};
using device_log = std::vector<kernel>;  // in issue order

/// What limits a device beyond its streams' order.
struct rules {
    std::size_t resident = 1;     // how many kernels it has room for
    bool by_communicator = true;  // those of one communicator start in issue order
    bool by_issue = false;        // all start in issue order
};

/// Tries every order in which devices may start what their streams offer. A kernel stays resident until all devices
/// of its communicator run it; then it ends on all of them.
class lockup_search {
public:
    lockup_search(const std::vector<device_log>& devices, const rules& limits) : devices_(devices), limits_(limits) {}

    /// A state in which nothing can go on and not all has ended, in words; empty if there is none.
    std::string find() {
        std::vector<std::vector<stage>> start;
        for (const device_log& log : devices_) start.emplace_back(log.size(), stage::waiting);
        found_.clear();
        visit(start);
        return found_;
    }
    std::size_t states() const { return seen_.size(); }

private:
    enum class stage : char { waiting = 'w', resident = 'r', ended = 'e' };
    using position = std::vector<std::vector<stage>>;

    static std::string key(const position& at) {
        std::string out;
        for (const auto& one : at) out.append(reinterpret_cast<const char*>(one.data()), one.size());
        return out;
    }

    bool may_start(const position& at, std::size_t device, std::size_t k) const {
        const device_log& log = devices_[device];
        const auto& mine = at[device];
        if (mine[k] != stage::waiting) return false;
        std::size_t resident = 0;
        for (std::size_t other = 0; other < log.size(); ++other) {
            resident += mine[other] == stage::resident;
            if (mine[other] == stage::ended || other >= k) continue;
            if (log[other].stream == log[k].stream) return false;
            if (limits_.by_communicator && log[other].communicator == log[k].communicator) return false;
            if (limits_.by_issue && mine[other] == stage::waiting) return false;
        }
        return resident < limits_.resident && (log[k].after == k || mine[log[k].after] == stage::ended);
    }

    /// The resident kernel of a communicator; past the end if there is none.
    std::size_t resident_on(const position& at, std::size_t device, std::size_t communicator) const {
        std::size_t k = 0;
        while (k < at[device].size() &&
               !(at[device][k] == stage::resident && devices_[device][k].communicator == communicator)) {
            ++k;
        }
        return k;
    }
    /// Ends what runs on all devices of its communicator, as long as anything does.
    void finish(position& at) const {
        for (bool moved = true; moved;) {
            moved = false;
            for (std::size_t d = 0; d < devices_.size(); ++d) {
                for (std::size_t k = 0; k < devices_[d].size(); ++k) {
                    if (at[d][k] == stage::resident) moved = end(at, devices_[d][k]) || moved;
                }
            }
        }
    }
    bool end(position& at, const kernel& one) const {
        std::vector<std::size_t> running;
        for (const std::size_t d : one.members) {
            const std::size_t k = resident_on(at, d, one.communicator);
            if (k == devices_[d].size() || devices_[d][k].what != one.what) return false;
            running.push_back(k);
        }
        for (std::size_t m = 0; m < running.size(); ++m) at[one.members[m]][running[m]] = stage::ended;
        return true;
    }

    void visit(position at) {
        finish(at);
        if (!found_.empty() || !seen_.insert(key(at)).second) return;
        bool moved = false, ended = true;
        for (std::size_t d = 0; d < devices_.size(); ++d) {
            for (std::size_t k = 0; k < at[d].size(); ++k) {
                ended = ended && at[d][k] == stage::ended;
                if (!may_start(at, d, k)) continue;
                moved = true;
                position next = at;
                next[d][k] = stage::resident;
                visit(next);
            }
        }
        if (!moved && !ended && found_.empty()) found_ = describe(at);
    }

    std::string describe(const position& at) const {
        std::string out = "locked up:";
        for (std::size_t d = 0; d < devices_.size(); ++d) {
            out += " rank " + std::to_string(d) + " runs";
            for (std::size_t k = 0; k < at[d].size(); ++k) {
                if (at[d][k] == stage::resident) out += " " + devices_[d][k].what;
            }
        }
        return out;
    }

    const std::vector<device_log>& devices_;
    rules limits_;
    std::set<std::string> seen_;
    std::string found_;
};

/// The ranks of this rank's group, and a number that no other group has.
template <class State>
void place_in_group(const State& state, const reshard::detail::issue& what, kernel& one) {
    const std::size_t inner = state.plan.inner();
    const auto colour_of = [&](std::size_t rank) -> std::size_t {
        switch (what.set) {
        case reshard::rank_set::whole:
            return 0;
        case reshard::rank_set::inner:
            return rank / inner;
        case reshard::rank_set::outer:
            return rank % inner;
        case reshard::rank_set::secondary:
            return rank / state.units[what.unit]->group;
        }
        return 0;
    };
    one.communicator = 100 * static_cast<std::size_t>(what.set) + colour_of(state.rank());
    for (std::size_t rank = 0; rank < state.ranks(); ++rank) {
        if (colour_of(rank) == colour_of(state.rank())) one.members.push_back(rank);
    }
}

/// The collectives of one step as the engine issued them. Gathers and the agreement are on one stream, reductions and
/// the commit on another, what goes between blocks on a third (gathers of whole buffers from masters aside). A
/// reduction waits for the last gather of its unit, which its gradients came from, one between blocks for the one in
/// the block, and a refresh for the commit. `reductions_apart`: what if reductions had a communicator of their own.
template <class State>
device_log collectives_of(const State& state, std::uint64_t first, bool reductions_apart) {
    using reshard::rank_set;
    using reshard::detail::collective;
    device_log out;
    std::vector<std::size_t> last(state.units.size(), reshard::detail::nobody);
    std::size_t commit = reshard::detail::nobody;
    for (std::uint64_t number = first; number < state.log.count(); ++number) {
        const auto& issue = state.log.at(number);
        const std::size_t k = out.size();
        const bool of_all = issue.unit == reshard::detail::nobody;
        const bool gathers = issue.what == collective::all_gather && (!of_all || k == 0);
        const bool between =
            !of_all && issue.set == rank_set::outer && (!gathers || state.rests_in_slice(*state.units[issue.unit]));
        kernel one{std::to_string(k) + ":" + name_of(issue.what) + " of " +
                       (of_all ? "all" : state.units[issue.unit]->name),
                   0,
                   between   ? std::size_t{2}
                   : gathers ? std::size_t{0}
                             : std::size_t{1},
                   k};
        place_in_group(state, issue, one);
        if (reductions_apart && !gathers) one.communicator += 50;
        if (of_all && !gathers) commit = k;
        if (!of_all && !(gathers && commit > k)) {
            const std::size_t before = gathers ? commit : last[issue.unit];
            if (before < k) one.after = before;
        }
        if (!of_all) last[issue.unit] = k;
        out.push_back(one);
    }
    return out;
}

/// Swaps the first two neighbours, behind the first kernel, that are on different streams and do not wait for one
/// another; returns the number of the first.
std::size_t swap_two(device_log& log) {
    std::size_t k = 1;
    while (log[k].stream == log[k + 1].stream || log[k + 1].after == k) ++k;
    std::swap(log[k], log[k + 1]);
    for (kernel& one : log) {
        if (one.after == k || one.after == k + 1) one.after = 2 * k + 1 - one.after;
    }
    return k;
}

std::vector<device_log> logs_of_a_step(const runtime_policy<>& policy, std::size_t ranks, std::size_t microbatches,
                                       bool reductions_apart = false, std::size_t layers = 3) {
    std::vector<device_log> out(ranks);
    oracle::net net;
    net.widths.assign({4, 3, 4, 2});
    net.widths.resize(layers + 1);
    net.batch = 24;
    run_threads(ranks, [&](threads_communicator world) {
        trainer<runtime_policy<>, threads_communicator> one(net, world, policy);
        one.train(microbatches);
        const std::uint64_t first = one.model.internals().log.count();
        one.train(microbatches);
        out[world.rank()] = collectives_of(one.model.internals(), first, reductions_apart);
    });
    return out;
}

/// How many communicators a device has.
std::size_t communicators_of(const device_log& log) {
    std::set<std::size_t> found;
    for (const kernel& one : log) found.insert(one.communicator);
    return found.size();
}

}  // namespace

TEST_CASE("one progress thread a rank serves three groups on two streams, hundreds of rounds with delays") {
    const reshard::random_delays delays(3, 120);
    interleaved_groups(reshard::worker_mode::threaded, 300, &delays);
    interleaved_groups(reshard::worker_mode::threaded, 300, nullptr);
}

TEST_CASE("no thread but the caller's serves three groups on two streams") {
    const reshard::random_delays delays(4, 120);
    interleaved_groups(reshard::worker_mode::pumped, 150, &delays);
    interleaved_groups(reshard::worker_mode::at_issue, 100, nullptr);
}

TEST_CASE("a device with room for one kernel never locks up in the engine's collectives, in any order it may choose") {
    for (const char* strategy : strategies) {
        for (const char* reshard : reshards) {
            for (const std::size_t ranks : {std::size_t{2}, std::size_t{3}}) {
                CAPTURE(named(strategy, reshard, false, ranks, 2));
                const auto devices = logs_of_a_step(parse_policy(strategy, reshard), ranks, 2);
                REQUIRE(devices[0].size() > 3);
                for (const std::size_t resident : {std::size_t{1}, std::size_t{2}}) {
                    lockup_search search(devices, {.resident = resident});
                    CHECK(search.find() == "");
                    CHECK(search.states() > devices[0].size());
                }
            }
        }
    }
}

TEST_CASE("the search finds lockups: another order on one rank, and a second communicator without an order") {
    auto devices = logs_of_a_step(parse_policy("full_shard", "reshard_always"), 3, 1);
    const std::size_t swapped = swap_two(devices[1]);
    const std::string words = lockup_search(devices, {}).find();
    CAPTURE(words);
    CHECK(words.find("rank 1 runs " + devices[1][swapped].what) != std::string::npos);

    const auto apart = logs_of_a_step(parse_policy("full_shard", "reshard_always"), 3, 1, true);
    CHECK(lockup_search(apart, {}).find() != "");
    CHECK(lockup_search(apart, {.resident = 2}).find() == "");
    CHECK(lockup_search(apart, {.by_issue = true}).find() == "");
    CHECK(lockup_search(logs_of_a_step(parse_policy("full_shard", "reshard_always"), 3, 1), {.by_communicator = false})
              .find() != "");
}

TEST_CASE("two and three groups: in one launch order a device with room for one kernel never locks up") {
    struct several {
        grouped one;
        std::size_t communicators;
    };
    const std::vector<several> all = {
        {{"hybrid_shard", "reshard_always", "mesh:2x2", 4}, 3},
        {{"hybrid_shard", "keep_last:1", "mesh:2x2", 4}, 3},
        {{"hybrid_full_shard", "reshard_always", "mesh:2x2", 4}, 3},
        {{"sharding:inner,whole,whole", "reshard_always", "mesh:2x2", 4}, 3},
        {{"sharding:replicated,inner,whole", "reshard_always", "mesh:2x2", 4}, 3},
        {{"full_shard", "reshard_to_group:2", "flat", 4}, 2},
        {{"full_shard", "reshard_to_group:2,until_step", "flat", 4}, 2},
        {{"hybrid_shard", "reshard_to_group:2", "mesh:2x4", 8}, 4},
        {{"hybrid_full_shard", "reshard_to_group:2,until_step", "mesh:2x4", 8}, 4},
    };
    for (const several& each : all) {
        for (const bool once : {false, true}) {
            CAPTURE(each.one.words(once));
            const auto devices =
                logs_of_a_step(each.one.policy(once), each.one.ranks, 1, false, each.one.ranks == 8 ? 1 : 2);
            CHECK(communicators_of(devices[0]) == each.communicators);
            for (std::size_t d = 1; d < devices.size(); ++d) {
                REQUIRE(devices[d].size() == devices[0].size());
                for (std::size_t k = 0; k < devices[0].size(); ++k) CHECK(devices[d][k].what == devices[0][k].what);
            }
            lockup_search search(devices, {.resident = 1, .by_issue = true});
            CHECK(search.find() == "");
            CHECK(search.states() > devices[0].size());
        }
    }
}

TEST_CASE("two groups without a launch order lock up where there is room for one kernel") {
    for (const grouped& one : {grouped{"hybrid_shard", "reshard_always", "mesh:2x2", 4},
                               grouped{"hybrid_full_shard", "reshard_always", "mesh:2x2", 4},
                               grouped{"full_shard", "reshard_to_group:2", "flat", 4}}) {
        CAPTURE(one.words());
        const auto devices = logs_of_a_step(one.policy(), one.ranks, 1, false, 2);
        CHECK(lockup_search(devices, {}).find() != "");
        CHECK(lockup_search(devices, {.by_issue = true}).find() == "");
    }
}
