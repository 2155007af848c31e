// What optimizers share: optional numbers, parameter groups and the ranges they have on this rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../core/error.hpp"
#include "../engine/owned.hpp"

namespace reshard {
inline namespace v0 {

/// A number that may be left out.
class setting {
public:
    constexpr setting() = default;
    constexpr setting(double value) : value_(value), given_(true) {}  // implicit: {.learning_rate = 1e-3}

    constexpr bool given() const { return given_; }
    constexpr double or_else(double otherwise) const { return given_ ? value_ : otherwise; }

private:
    double value_ = 0;
    bool given_ = false;
};

namespace detail {

inline void require_number(const char* optimizer, const char* name, double value, double least, double below) {
    if (is_finite(value) && value >= least && value < below) return;
    throw argument_error("E-OPTIM-1", text(optimizer, ": ", name, " is ", value, "; it must be at least ", least,
                                           below < 1e300 ? text(" and below ", below) : std::string(" and finite")));
}

/// A run of the owned arena whose elements share a parameter group.
struct group_range {
    std::size_t begin = 0, count = 0, group = 0;  // group 0: the default one
};

/// Names of groups to numbers, and the trainable ranges of this rank, neighbours of one group merged. Throws if a
/// parameter is in a group that the optimizer does not know, or a group has no parameter.
template <class State>
std::vector<group_range> group_ranges(State& state, const std::vector<std::string>& names, const char* optimizer) {
    const auto number_of = [&](std::string_view group, std::string_view unit, std::string_view parameter) {
        if (group.empty()) return std::size_t{0};
        for (std::size_t k = 0; k < names.size(); ++k) {
            if (names[k] == group) return k + 1;
        }
        throw argument_error("E-OPTIM-2",
                             text(optimizer, ": parameter \"", parameter, "\" of \"", unit, "\" is in group \"", group,
                                  "\"; groups of the optimizer: ", names.empty() ? "none" : joined(names)));
    };
    std::vector<bool> used(names.size() + 1, false);
    for (const unit_record* unit : state.units) {
        for (const parameter_place& place : unit->layout->parameters()) {
            used[number_of(place.group, unit->name, place.name)] = true;
        }
    }
    for (std::size_t k = 0; k < names.size(); ++k) {
        if (!used[k + 1]) {
            throw argument_error("E-OPTIM-3", text(optimizer, ": no parameter is in group \"", names[k],
                                                   "\"; parameters name "
                                                   "theirs in parameter_options.group"));
        }
    }
    std::vector<group_range> ranges;
    for (const auto& slice : list_owned(state)) {
        if (slice.gradient == nullptr) continue;
        const std::size_t group = number_of(slice.group, slice.parameter.unit, slice.parameter.name);
        if (!ranges.empty() && ranges.back().group == group &&
            ranges.back().begin + ranges.back().count == slice.arena_offset) {
            ranges.back().count += slice.count;
        } else {
            ranges.push_back({slice.arena_offset, slice.count, group});
        }
    }
    return ranges;
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
