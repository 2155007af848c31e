// A group of ranks of one process: where operations with the same number meet, and what is said when they do not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../checks.hpp"
#include "team.hpp"

namespace reshard {
inline namespace v0 {
namespace threads {

/// Adds up `count` elements from `begin` of all parts in rank order and writes them to `out + begin` elements.
using sum_kernel = void (*)(const std::vector<const std::byte*>& parts, std::size_t begin, std::size_t count,
                            std::byte* out);

/// What one rank asks for. `count` is elements: of a block where there are blocks, else of the whole.
struct call {
    operation kind = operation::barrier;
    bool in_place = false;
    std::uint8_t element_bytes = 1;
    const char* element = "byte";
    std::size_t count = 0;
    std::size_t root = 0;
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    label name;

    bool fits(const call& other) const {
        return kind == other.kind && std::string_view(element) == other.element && count == other.count &&
               root == other.root && std::string_view(name.unit) == other.name.unit;
    }
    std::string described() const {
        std::string what = name_of(kind);
        if (kind == operation::broadcast) what += text(" from rank ", root, " of the group");
        if (kind != operation::barrier) what += text(" of ", count, " ", element);
        return text(what, " (", words(name), ")");
    }
};

/// Operation number s of a group uses meeting s % 2: a rank arrives at s + 2 only after all have arrived at s + 1,
/// and so are done with s. Counts grow for ever: use u of a meeting, from 1, is complete at u * ranks.
struct meeting {
    explicit meeting(std::size_t ranks) : calls(ranks), withdrawn(ranks) {}
    std::vector<call> calls;
    std::vector<std::atomic<bool>> withdrawn;  // this rank's memory is not to be touched any more
    std::atomic<std::uint64_t> arrived{0}, summed{0}, finished{0};
};

/// A name that one thread writes and others may read at any time, cut to its first 47 letters. A copy: the unit whose
/// name it is may be gone when a peer's deadline passes.
class published_name {
public:
    void set(const char* name) {
        std::size_t k = 0;
        for (; k + 1 < capacity && name[k] != '\0'; ++k) letters_[k].store(name[k], std::memory_order_relaxed);
        letters_[k].store('\0', std::memory_order_relaxed);
    }
    std::string get() const {
        std::string name;
        for (const std::atomic<char>& letter : letters_) {
            const char now = letter.load(std::memory_order_relaxed);
            if (now == '\0') break;
            name.push_back(now);
        }
        return name;
    }

private:
    static constexpr std::size_t capacity = 48;
    std::atomic<char> letters_[capacity] = {};
};

/// How far a rank is. Written by that rank, read by others for error texts.
struct alignas(64) standing {
    std::atomic<std::uint64_t> issued{0}, done{0};
    published_name last_what, last_unit;
    std::vector<const std::byte*> parts;  // scratch of the rank's own sums
};

class group {
public:
    group(team& whole, std::vector<std::size_t> members)
        : team_(whole),
          members_(std::move(members)),
          meetings_{meeting(size()), meeting(size())},
          standings_(size()),
          colours(size()),
          keys(size()),
          split_off(size()),
          on_host_(whole, members_) {
        for (standing& each : standings_) each.parts.resize(size());
    }

    std::size_t size() const { return members_.size(); }
    const std::vector<std::size_t>& members() const { return members_; }
    team& whole() const { return team_; }
    std::vector<std::size_t> nodes() const {
        const std::size_t together = team_.options().ranks_per_node;
        std::vector<std::size_t> marks(size());
        for (std::size_t r = 0; r < size() && together != 0; ++r) marks[r] = members_[r] / together;
        return numbered_nodes(std::move(marks));
    }
    meeting& at(std::uint64_t number) { return meetings_[number % 2]; }
    standing& of(std::size_t rank) { return standings_[rank]; }
    meeting_place& on_host() { return on_host_; }

    void ring_members() const {
        for (std::size_t rank : members_) team_.hub(rank)->door().ring();
    }

    /// Throws if the calls that met do not belong together; the text is the same on all ranks.
    void compare(std::uint64_t number) {
        const std::vector<call>& calls = at(number).calls;
        for (std::size_t r = 1; r < size(); ++r) {
            if (calls[r].fits(calls[0])) continue;
            throw communication_error(
                "E-COMM-1",
                text("operation number ", number, " of the ", described(), " does not match: rank ", members_[0],
                     " calls ", calls[0].described(), ", rank ", members_[r], " calls ", calls[r].described(),
                     ". All ranks must issue the same operations with equal sizes in the same order; was one called "
                     "on some ranks only?"));
        }
    }

    /// Whether a rank that `number` waits for will never come.
    bool in_vain(std::uint64_t number) {
        for (std::size_t r = 0; r < size(); ++r) {
            if (team_.gone(members_[r]) && standings_[r].issued.load() < number) return true;
        }
        return false;
    }

    /// Who waits for whom, and how far the others are.
    std::string late_text(const call& mine, std::uint64_t number) {
        std::vector<std::size_t> behind;
        std::string states;
        for (std::size_t r = 0; r < size(); ++r) {
            const standing& their = standings_[r];
            const std::uint64_t issued = their.issued.load(), done = their.done.load();
            if (issued >= number && done + 1 >= number) continue;  // has arrived, or is about to
            behind.push_back(members_[r]);
            const std::string last =
                issued == 0
                    ? std::string()
                    : text(", the last is ", words({their.last_what.get().c_str(), their.last_unit.get().c_str()}));
            states += text("; rank ", members_[r], team_.ended(members_[r]) ? " has ended: it" : "", " has issued ",
                           issued, " operations and finished ", done, last);
        }
        if (behind.empty()) {
            return text(mine.described(), ", number ", number, " of the ", described(),
                        ", has met its peers but does not end: a rank's progress stands still");
        }
        return text(mine.described(), ", number ", number, " of the ", described(), ", waits for ", rank_list(behind),
                    states, ". All ranks must make this call: if only some ranks run this code, let all run it.");
    }

    std::string described() const {
        return members_.size() == team_.size() ? text("whole group of ", size())
                                               : text("group of ", size(), " (ranks ", joined(members_), ")");
    }

private:
    team& team_;
    std::vector<std::size_t> members_;
    meeting meetings_[2];
    std::vector<standing> standings_;

public:
    // For split(): each rank writes its own entry before the members meet, and reads the others' after.
    std::vector<std::size_t> colours, keys;
    std::vector<group*> split_off;

private:
    meeting_place on_host_;
};

}  // namespace threads
}  // namespace v0
}  // namespace reshard
