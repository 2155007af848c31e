// Finds accesses in a log of streams that nothing orders, by vector clocks; waits of a kind can be left out.
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "logging_device.hpp"

namespace test_support {

/// What sort of wait: on which stream the event was recorded, behind which operation (the last one on that stream;
/// empty if none), which stream waits, and before which operation (its next one).
struct edge_kind {
    std::string recorded_on, behind, waits, before;

    bool operator<(const edge_kind& other) const { return key() < other.key(); }
    bool operator==(const edge_kind& other) const { return key() == other.key(); }
    std::string words() const { return recorded_on + " (" + behind + ") -> " + waits + " (" + before + ")"; }

private:
    std::tuple<const std::string&, const std::string&, const std::string&, const std::string&> key() const {
        return {recorded_on, behind, waits, before};
    }
};

class happens_before {
public:
    /// Two operations that touch the same bytes, one of them writing: entries of the log.
    using pair = std::pair<std::size_t, std::size_t>;
    using filter = std::function<bool(const edge_kind&)>;

    /// `log` outlives this.
    explicit happens_before(const access_log& log) : log_(log) {
        find_kinds();
        find_conflicts();
    }

    /// Of all waits in the log.
    std::set<edge_kind> kinds() const {
        std::set<edge_kind> found;
        for (std::size_t at = 0; at < log_.entries.size(); ++at) {
            if (log_.entries[at].what == access_log::kind::wait) found.insert(kinds_[at]);
        }
        return found;
    }

    /// Conflicting operations of which neither is behind the other, if waits for which `removed` is true are not made.
    std::vector<pair> races(const filter& removed = [](const edge_kind&) { return false; }) const {
        const std::vector<clock> at = clocks(removed);
        std::vector<pair> found;
        for (const pair& each : conflicts_) {
            const std::size_t stream = log_.entries[each.first].stream;
            if (at[each.second][stream] < at[each.first][stream]) found.push_back(each);
        }
        return found;
    }
    std::vector<pair> races_without(const edge_kind& kind) const {
        return races([&kind](const edge_kind& each) { return each == kind; });
    }

    /// "gathers: gather | caller: touch", each sort of race once.
    std::set<std::string> words(const std::vector<pair>& races) const {
        std::set<std::string> found;
        for (const pair& each : races) found.insert(name(each.first) + " | " + name(each.second));
        return found;
    }

private:
    using clock = std::vector<std::size_t>;  // per stream: how many of its operations are behind one

    std::string name(std::size_t at) const {
        return log_.streams[log_.entries[at].stream] + ": " + log_.entries[at].name;
    }

    void find_kinds() {
        kinds_.resize(log_.entries.size());
        std::vector<std::string> last(log_.streams.size());
        std::vector<std::vector<std::size_t>> waiting(log_.streams.size());
        for (std::size_t at = 0; at < log_.entries.size(); ++at) {
            const access_log::entry& entry = log_.entries[at];
            const std::string& stream = log_.streams[entry.stream];
            if (entry.what == access_log::kind::operation) {
                for (const std::size_t wait : waiting[entry.stream]) kinds_[wait].before = entry.name;
                waiting[entry.stream].clear();
                last[entry.stream] = entry.name;
            } else if (entry.what == access_log::kind::record) {
                kinds_[at] = {stream, last[entry.stream], "", ""};
            } else {
                kinds_[at] = kinds_[entry.recorded];
                kinds_[at].waits = stream;
                waiting[entry.stream].push_back(at);
            }
        }
    }

    static bool meet(const std::vector<byte_range>& left, const std::vector<byte_range>& right) {
        for (const byte_range& one : left) {
            for (const byte_range& other : right) {
                if (one.meets(other)) return true;
            }
        }
        return false;
    }

    void find_conflicts() {
        std::vector<std::size_t> operations;
        for (std::size_t at = 0; at < log_.entries.size(); ++at) {
            const access_log::entry& now = log_.entries[at];
            if (now.what != access_log::kind::operation) continue;
            for (const std::size_t before : operations) {
                const access_log::entry& then = log_.entries[before];
                if (then.stream == now.stream) continue;
                if (meet(then.writes, now.writes) || meet(then.writes, now.reads) || meet(then.reads, now.writes)) {
                    conflicts_.push_back({before, at});
                }
            }
            operations.push_back(at);
        }
    }

    static void join(clock& into, const clock& from) {
        for (std::size_t stream = 0; stream < into.size(); ++stream) {
            if (into[stream] < from[stream]) into[stream] = from[stream];
        }
    }

    /// Per entry. An operation counts itself; a record has what was behind its stream.
    std::vector<clock> clocks(const filter& removed) const {
        std::vector<clock> streams(log_.streams.size(), clock(log_.streams.size(), 0));
        std::vector<clock> found(log_.entries.size());
        for (std::size_t at = 0; at < log_.entries.size(); ++at) {
            const access_log::entry& entry = log_.entries[at];
            clock& stream = streams[entry.stream];
            if (entry.what == access_log::kind::wait) {
                if (!removed(kinds_[at])) join(stream, found[entry.recorded]);
                continue;
            }
            join(stream, streams[access_log::host]);  // what the host has seen is behind all that it issues
            if (entry.what == access_log::kind::operation) ++stream[entry.stream];
            found[at] = stream;
        }
        return found;
    }

    const access_log& log_;
    std::vector<edge_kind> kinds_;  // per entry; of waits and records
    std::vector<pair> conflicts_;
};

}  // namespace test_support
