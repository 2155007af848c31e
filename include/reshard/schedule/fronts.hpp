// The best choices for units that share buffers, for every amount of memory at once: a walk over units that keeps the
// choices no other beats in both memory and cost.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "../policy/facts.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// What gathers cost a rank in a step, the first number counting most. Whole numbers, so that all ranks choose alike.
struct gather_cost {
    std::size_t shard_bytes = 0;  // sent over the groups that parameters are sharded over
    std::size_t group_bytes = 0;  // sent within secondary groups
    std::size_t calls = 0;

    auto operator<=>(const gather_cost&) const = default;
    gather_cost& operator+=(const gather_cost& more) {
        shard_bytes += more.shard_bytes;
        group_bytes += more.group_bytes;
        calls += more.calls;
        return *this;
    }
};

/// One choice for a unit: bytes that it owns beside the rotating buffers, and its cost.
struct unit_option {
    unit_choice choice;
    std::size_t bytes = 0;
    gather_cost cost;
};

/// A unit with its options, those that own more later; the last one owns a buffer and uses no rotating one.
struct unit_options_of {
    std::uint32_t unit = 0;
    std::size_t bytes = 0;  // of a buffer
    std::vector<unit_option> options;
};

/// Choices for all units walked over, as their sums; `trail` leads back to them.
struct choice_sum {
    std::size_t bytes = 0;
    gather_cost cost;
    std::uint32_t trail = static_cast<std::uint32_t>(-1);
    std::uint32_t option = 0;  // the choice made last
};

/// Ascending in bytes, descending in cost.
using choice_front = std::vector<choice_sum>;

inline choice_sum sum_of(choice_sum state, const unit_option& more, std::uint32_t number) {
    state.bytes += more.bytes;
    state.cost += more.cost;
    state.option = number;
    return state;
}

/// Adds to `front` the states of `more` with one more choice in each, as far as no other beats them; equals replace
/// those in `front` if `prefer`. `room` is only memory to work in.
inline void add_states(choice_front& front, const choice_front& more, const unit_option& choice, std::uint32_t number,
                       bool prefer, choice_front& room) {
    room.clear();
    std::size_t i = 0;
    const auto keep = [&](const choice_sum& state) {
        if (room.empty() || state.cost < room.back().cost) room.push_back(state);
    };
    for (const choice_sum& state : more) {
        const choice_sum next = sum_of(state, choice, number);
        while (i < front.size() &&
               (front[i].bytes != next.bytes ? front[i].bytes < next.bytes
                                             : front[i].cost < next.cost || (front[i].cost == next.cost && !prefer))) {
            keep(front[i++]);
        }
        keep(next);
    }
    while (i < front.size()) keep(front[i++]);
    std::swap(front, room);
}

/// Leaves about `most` states, spread evenly over memory, with the two ends. Whether any was left out.
inline bool thin(choice_front& states, std::size_t most) {
    if (states.size() <= most) return false;
    const std::size_t least = states.front().bytes, width = (states.back().bytes - least) / most + 1;
    std::size_t kept = 1;
    for (std::size_t i = 1; i < states.size(); ++i) {
        const bool last = i + 1 == states.size();
        if (last || (states[i].bytes - least) / width != (states[kept - 1].bytes - least) / width)
            states[kept++] = states[i];
    }
    const bool less = kept < states.size();
    states.resize(kept);
    return less;
}

/// Walks over classes of units, each class taking turns in one rotating buffer. No front has more than about
/// `most` states, so that time and memory are bounded for any sizes; exact() tells whether all were kept. What is left
/// out does not depend on a cap, so that more memory never makes the choice worse.
class front_walk {
public:
    explicit front_walk(std::size_t most) : most_(most), states_(1) {}

    /// `units`, in ascending order of their buffers, may each be kept or share a buffer as large as the largest that
    /// is not kept: choosing that one's size leaves the larger ones kept and the others free to choose.
    void add(std::span<const unit_options_of> units) {
        unit_option kept;
        for (const unit_options_of& unit : units) {
            kept.bytes += unit.bytes;
            kept.cost += unit.options.back().cost;
        }
        choice_front best, room;
        add_states(best, states_, kept, 0, false, room);
        for (std::size_t i = 0; i < units.size(); ++i) {
            choose(units[i]);
            kept.bytes -= units[i].bytes;
            const gather_cost& cost = units[i].options.back().cost;
            kept.cost = {kept.cost.shard_bytes - cost.shard_bytes, kept.cost.group_bytes - cost.group_bytes,
                         kept.cost.calls - cost.calls};
            if (i + 1 < units.size() && units[i + 1].bytes == units[i].bytes) continue;
            unit_option with_buffer = kept;
            with_buffer.bytes += units[i].bytes;
            add_states(best, states_, with_buffer, 0, false, room);
            exact_ = !thin(best, most_) && exact_;
        }
        states_ = std::move(best);
    }

    const choice_front& states() const { return states_; }
    bool exact() const { return exact_; }

    /// Writes the choice for each unit that has one in `state`; the others are kept.
    void tell(const choice_sum& state, std::vector<unit_choice>& choices) const {
        for (std::uint32_t at = state.trail; at != choice_sum{}.trail; at = trail_[at].before) {
            choices[trail_[at].unit] = options_[trail_[at].option];
        }
    }

private:
    struct step {
        std::uint32_t before, unit, option;
    };

    void choose(const unit_options_of& unit) {
        const auto first = static_cast<std::uint32_t>(options_.size());
        for (const unit_option& option : unit.options) options_.push_back(option.choice);
        found_.clear();
        for (std::uint32_t k = 0; k < unit.options.size(); ++k)
            add_states(found_, states_, unit.options[k], first + k, true, room_);
        exact_ = !thin(found_, most_) && exact_;
        for (choice_sum& state : found_) {
            trail_.push_back({state.trail, unit.unit, state.option});
            state.trail = static_cast<std::uint32_t>(trail_.size() - 1);
        }
        std::swap(states_, found_);
    }

    std::size_t most_;
    choice_front states_, found_, room_;
    std::vector<step> trail_;
    std::vector<unit_choice> options_;
    bool exact_ = true;
};

/// The cheapest pair of states that fits into `room`; of equals the one that owns less, then the one with more in
/// `right`. Precondition: the first two fit.
inline std::pair<choice_sum, choice_sum> cheapest(const choice_front& left, const choice_front& right,
                                                  std::size_t room) {
    std::pair<choice_sum, choice_sum> best{left.front(), right.front()};
    choice_sum best_sum = left.front();
    best_sum.bytes += right.front().bytes;
    best_sum.cost += right.front().cost;
    std::size_t j = right.size();
    for (const choice_sum& one : left) {
        if (one.bytes + right.front().bytes > room) break;
        while (right[j - 1].bytes > room - one.bytes) --j;
        choice_sum sum = one;
        sum.bytes += right[j - 1].bytes;
        sum.cost += right[j - 1].cost;
        if (sum.cost < best_sum.cost || (sum.cost == best_sum.cost && sum.bytes < best_sum.bytes)) {
            best_sum = sum;
            best = {one, right[j - 1]};
        }
    }
    return best;
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
