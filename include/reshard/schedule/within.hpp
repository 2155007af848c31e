// What reshard_within and pipeline_default decide when a model is built: the plan that sends the least under a cap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../layout/extent.hpp"
#include "../policy/planned.hpp"
#include "counts.hpp"
#include "fronts.hpp"

namespace reshard {
inline namespace v0 {

/// One choice for each unit of the plan, whether gradients are reduced once a step, and the reason in sentences.
struct chosen_plan {
    std::vector<unit_choice> units;
    bool reduce_once = false;
    std::string why;
};

/// `plan` with these choices.
inline model_plan with_choices(model_plan plan, std::span<const unit_choice> units, bool reduce_once) {
    plan.reduce_once = reduce_once;
    for (std::size_t u = 0; u < units.size(); ++u) {
        plan.units[u].after_forward = units[u].after_forward;
        plan.units[u].after_backward = units[u].after_backward;
        plan.units[u].group = units[u].group;
    }
    return plan;
}

namespace detail {

inline constexpr unit_choice freed{}, kept_until_backward{afterwards::keep, afterwards::free},
    kept_until_step{afterwards::keep, afterwards::keep};
constexpr unit_choice grouped_until_step(std::size_t ranks) { return {afterwards::group, afterwards::group, ranks}; }

inline std::size_t total_bytes(const model_plan& plan, const order_list& order, std::size_t control) {
    const std::vector<slot_need> needs = needs_of(plan);
    return predict_memory(plan, map_slots(order, needs, plan.slots), control).total();
}

/// Sizes of secondary groups that a unit may have: those that divide its shard group and, where ranks come in blocks,
/// lie inside one. A group across blocks would send over the same slow links as the shard group, which the costs,
/// taking gathers within a secondary group for the cheaper ones, do not see.
inline std::vector<std::size_t> secondary_sizes(const model_plan& plan, const unit_plan& unit) {
    const std::size_t shards = plan.divided_by(unit.parameters);
    const std::size_t most = plan.outer > 1 ? plan.inner() : shards;
    std::vector<std::size_t> found;
    for (std::size_t ranks = most < shards ? most : shards - 1; ranks > 1; --ranks) {
        if (most % ranks == 0) found.push_back(ranks);
    }
    return found;
}

/// `gathers` of the unit's segments over its shard group and `secondary_gathers` within its secondary group.
inline gather_cost cost_of(const model_plan& plan, const unit_plan& unit, std::size_t gathers,
                           std::size_t secondary_gathers) {
    group_counts shard, within;
    add_unit_gathers(shard, plan, unit, gathers);
    add_secondary_gathers(within, plan, unit, secondary_gathers);
    const operation_count first = shard.sum().total(), second = within.sum().total();
    return {first.bytes, second.bytes, first.calls + second.calls};
}

/// What a unit that takes turns in the rotating buffers may do, in ascending memory. `may_wait`: it is among those
/// that need no memory to stay from forward to backward.
inline unit_options_of options_of(const model_plan& plan, std::uint32_t index, std::size_t microbatches,
                                  bool may_wait) {
    unit_plan unit = plan.units[index];
    const std::size_t bytes = parameter_bytes(unit);
    unit_options_of found{index, bytes, {}};
    found.options.push_back(may_wait ? unit_option{kept_until_backward, 0, cost_of(plan, unit, microbatches, 0)}
                                     : unit_option{freed, 0, cost_of(plan, unit, 2 * microbatches, 0)});
    for (const std::size_t ranks : secondary_sizes(plan, unit)) {
        unit.group = ranks;
        found.options.push_back(
            {grouped_until_step(ranks), secondary_bytes(unit), cost_of(plan, unit, 1, 2 * microbatches - 1)});
    }
    unit.group = 1;
    found.options.push_back({kept_until_step, bytes, cost_of(plan, unit, 1, 0)});
    return found;
}

/// Stable, ascending in bytes.
inline void sort_by_bytes(std::vector<unit_options_of>& units) {
    for (std::size_t i = 1; i < units.size(); ++i) {
        for (std::size_t j = i; j > 0 && units[j].bytes < units[j - 1].bytes; --j) std::swap(units[j], units[j - 1]);
    }
}

/// How many units do the same: "12 units are freed after each use".
inline std::string choices_text(const model_plan& plan) {
    struct kind {
        unit_choice choice;
        std::size_t units;
    };
    std::vector<kind> kinds;
    std::size_t never_gathered = 0;
    for (const unit_plan& unit : plan.units) {
        if (source_of(plan, unit) != view_source::gathered) {
            ++never_gathered;
            continue;
        }
        const unit_choice choice{unit.after_forward, unit.after_backward, unit.group};
        std::size_t k = 0;
        while (k < kinds.size() && kinds[k].choice != choice) ++k;
        if (k == kinds.size()) kinds.push_back({choice, 0});
        ++kinds[k].units;
    }
    const auto units_are = [](std::size_t units) { return text(units, units == 1 ? " unit is " : " units are "); };
    std::vector<std::string> parts;
    for (const kind& one : kinds) {
        const std::string what = one.choice == kept_until_step       ? "kept until the step"
                                 : one.choice == kept_until_backward ? "kept from forward to backward"
                                 : one.choice.group > 1
                                     ? text("in secondary groups of ", one.choice.group, " ranks until the step")
                                     : "freed after each use";
        parts.push_back(units_are(one.units) + what);
    }
    if (never_gathered != 0) parts.push_back(units_are(never_gathered) + "never gathered");
    return joined(parts);
}

/// Bytes that gathers of these choices send, given how often a plain loop makes each.
inline gather_cost step_cost(const model_plan& plan, std::size_t microbatches) {
    gather_cost sum;
    for (const unit_plan& unit : plan.units) {
        if (source_of(plan, unit) != view_source::gathered) continue;
        const std::size_t uses = 2 * microbatches * unit.uses;
        const bool once = unit.after_backward != afterwards::free;
        const std::size_t gathers = once ? 1 : unit.after_forward == afterwards::keep ? microbatches : uses;
        sum += cost_of(plan, unit, gathers, unit.group > 1 ? uses - 1 : 0);
    }
    return sum;
}

inline std::string of_cap(std::size_t owned, std::size_t cap) {
    return cap == dynamic ? text("a rank owns ", owned, " bytes, without a cap")
                          : text("a rank owns ", owned, " bytes of the cap of ", cap);
}

inline std::string within_reason(const model_plan& plan, const model_plan& always, std::size_t owned, std::size_t cap,
                                 std::size_t microbatches, bool exact) {
    const gather_cost sent = step_cost(plan, microbatches), before = step_cost(always, microbatches);
    return text(choices_text(plan), "; ", of_cap(owned, cap), "; in a step of ", microbatches,
                microbatches == 1 ? " microbatch" : " microbatches", " its gathers send ", sent.shard_bytes,
                " bytes over the shard group",
                sent.group_bytes == 0 ? std::string() : text(" and ", sent.group_bytes, " within secondary groups"),
                ", those of reshard_always ", before.shard_bytes,
                exact ? "" : "; units of too many sizes to try every choice, a slightly better one may exist");
}

/// The walks over the units that share rotating buffers: the last unit's class alone, all others together.
struct buffer_walks {
    front_walk others, last;

    buffer_walks(const model_plan& plan, const order_list& order, std::size_t microbatches)
        : buffer_walks(plan, single_use_units(order, needs_of(plan), true), plan.slots.rotating(), microbatches,
                       !order.scheduled()) {}

private:
    static constexpr std::size_t most_states = std::size_t{1} << 21;  // of all fronts: bounds time and memory

    buffer_walks(const model_plan& plan, const std::vector<std::uint32_t>& units, std::size_t rotating,
                 std::size_t microbatches, bool plain)
        : others(most_states / (units.size() + 1)), last(most_states / (units.size() + 1)) {
        for (std::size_t first = 0; first < rotating && first < units.size(); ++first) {
            std::vector<unit_options_of> sharing;
            std::size_t j = first;
            for (; j < units.size(); j += rotating)
                sharing.push_back(options_of(plan, units[j], microbatches, plain && j + rotating >= units.size()));
            sort_by_bytes(sharing);
            (j - rotating + 1 == units.size() ? last : others).add(sharing);
        }
    }
};

}  // namespace detail

/// The choice for every unit with which a rank owns at most `cap` bytes (control_bytes among them) and gathers in a
/// plain loop of `microbatches` microbatches send the fewest bytes over the shard groups, then within secondary groups,
/// then in the fewest collectives, then with the fewest bytes owned; among equal units later ones keep more. A unit is
/// freed after each use, keeps a secondary shard or all of it until the step, or, among the last units of a plain loop
/// that need no memory for it, stays from forward to backward. Precondition: `order` has every unit in it, facts of
/// the plan are settled. Throws argument_error (E-POLICY-11) for a cap below what every choice needs.
inline chosen_plan choose_within(const model_plan& plan, const order_list& order, std::size_t cap,
                                 std::size_t microbatches, std::size_t control_bytes) {
    chosen_plan chosen{std::vector<unit_choice>(plan.units.size()), plan.reduce_once, {}};
    const model_plan always = with_choices(plan, chosen.units, plan.reduce_once);
    // A rotating buffer is as large as the largest unit that uses it, and a kept unit owns one as large as itself:
    // no choice takes less than freeing everything.
    const std::size_t least = detail::total_bytes(always, order, control_bytes);
    if (cap < least) {
        throw argument_error("E-POLICY-11",
                             text(detail::reshard_within_text(cap, microbatches), ": the cap of ", cap,
                                  " bytes a rank is below the least that any choice needs, ", least,
                                  " bytes: that of reshard_always, every unit freed after each use. Raise the cap, or "
                                  "shard more: over more ranks, or parameters, gradients and optimizer state alike"));
    }
    const detail::buffer_walks walks(always, order, microbatches);
    const detail::choice_front &others = walks.others.states(), &last = walks.last.states();
    const auto best = detail::cheapest(others, last, cap - least + others.front().bytes + last.front().bytes);
    // Units that the walks say nothing of are kept; those that take no turns own a buffer in any case.
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
        if (source_of(plan, plan.units[u]) == view_source::gathered) chosen.units[u] = detail::kept_until_step;
    }
    walks.others.tell(best.first, chosen.units);
    walks.last.tell(best.second, chosen.units);
    const model_plan found = with_choices(plan, chosen.units, plan.reduce_once);
    chosen.why = detail::within_reason(found, always, detail::total_bytes(found, order, control_bytes), cap,
                                       microbatches, walks.others.exact() && walks.last.exact());
    return chosen;
}

/// Everything is kept until the step; gradients are reduced once a step if a rank then owns at most `cap` bytes
/// (control_bytes among them), else for each microbatch. Throws argument_error (E-POLICY-11) for a cap below both.
inline chosen_plan choose_pipeline(const model_plan& plan, const order_list& order, std::size_t cap,
                                   std::size_t control_bytes) {
    chosen_plan chosen{std::vector<unit_choice>(plan.units.size(), detail::kept_until_step), true, {}};
    const std::size_t once = detail::total_bytes(with_choices(plan, chosen.units, true), order, control_bytes);
    const std::size_t each = detail::total_bytes(with_choices(plan, chosen.units, false), order, control_bytes);
    chosen.reduce_once = once <= cap;
    if (once > cap && each > cap) {
        throw argument_error("E-POLICY-11", text(detail::pipeline_default_text(cap), ": the cap of ", cap,
                                                 " bytes a rank is below the ", each < once ? each : once,
                                                 " bytes of all units kept until the step and gradients reduced ",
                                                 each < once ? "for each microbatch" : "once a step",
                                                 ". Raise the cap, or use reshard_within, which keeps what fits"));
    }
    chosen.why = text("every unit is kept until the step; gradients are reduced ",
                      chosen.reduce_once ? "once a step" : "for each microbatch", "; ",
                      detail::of_cap(chosen.reduce_once ? once : each, cap),
                      chosen.reduce_once ? std::string() : text(", reduced once a step it would be ", once));
    return chosen;
}

/// Lets a policy that is chosen when the model is built choose. Preconditions and errors as above.
template <ChosenReshard Reshard>
void choose(Reshard& reshard, const model_plan& plan, const order_list& order, std::size_t control_bytes) {
    chosen_plan found = reshard.chooses_units()
                            ? choose_within(plan, order, reshard.cap(), reshard.microbatches(), control_bytes)
                            : choose_pipeline(plan, order, reshard.cap(), control_bytes);
    reshard.accept(std::move(found.units), found.reduce_once, std::move(found.why));
}

}  // namespace v0
}  // namespace reshard
