// What is settled before memory is made: all ranks were started alike, the plan of every unit, the groups it needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "../schedule/within.hpp"
#include "commit.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

inline std::uint64_t hash_text(const std::string& words) {
    std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 64 bits
    for (const char letter : words) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
    return hash;
}

/// Whether units may have a strategy, or a reshard policy, of their own: only where the policy's slot takes values.
template <class State>
inline constexpr bool may_own_strategy = std::is_same_v<typename State::strategy_type, any_sharding>;
template <class State>
inline constexpr bool may_own_reshard = std::is_same_v<typename State::reshard_type, any_reshard>;

template <class State>
std::string own_text(const unit_record& unit) {
    std::string out;
    if constexpr (may_own_strategy<State>) {
        if (unit.strategy.is_set) out.append(unit.strategy.value.describe());
    }
    if constexpr (may_own_reshard<State>) {
        if (unit.reshard.is_set) out.append(text(out.empty() ? "" : " + ", unit.reshard.value.describe()));
    }
    return out;
}

template <class State>
std::string units_text(const State& state) {
    std::string out;
    for (const unit_record* unit : state.units) {
        out.append(text(unit->name, " x", unit->uses, own_text<State>(*unit), ":"));
        for (const parameter_place& place : unit->layout->parameters()) {
            out.append(text(" ", place.name, "[", joined(place.shape), "]", place.group, place.segment,
                            static_cast<int>(place.write)));
        }
        for (const segment& part : unit->layout->segments()) {
            out.append(text(" ", name_of(part.type), part.trainable, part.elements));
        }
        out.append("\n");
    }
    return out + joined(state.forward_order);
}

template <class State>
std::string options_text(const State& state) {
    const model_options& o = state.options;
    return text(o.slots.prefetch_depth, " ", o.slots.max_open, " ", o.slots.recompute_segment, " ",
                o.average_over_ranks, " ", o.average_over_microbatches, " ", o.overlap_refresh, " ",
                static_cast<int>(o.skipped), " states ", joined(state.states), " metrics ", joined(state.metrics),
                " blocks ", state.shape.outer);
}

/// Every rank must have been started alike: compares hashes of policy, units and options, and names the ranks.
template <class State>
void check_fingerprints(State& state) {
    if (state.alone()) return;
    std::uint64_t mine[8] = {hash_text(state.policy.describe()), hash_text(units_text(state)),
                             hash_text(options_text(state))};
    state.scratch = state.device.allocate(state.ranks() * sizeof(mine));
    std::byte* table = state.scratch.data();
    state.device.upload(table + state.rank() * sizeof(mine), reinterpret_cast<std::byte*>(mine), sizeof(mine));
    const std::size_t bytes = state.ranks() * sizeof(mine);
    const auto stream = state.gather_stream();
    issue_collective(state, whole_gather(bytes), [&](const auto& world) {
        world.all_gather_in_place(std::span(table, bytes), stream, label{"build", "all ranks"});
    });
    state.device.record(state.agreed, stream);
    state.device.synchronize(state.agreed);
    std::vector<std::uint64_t> all(state.ranks() * 8);
    state.device.download(reinterpret_cast<std::byte*>(all.data()), table, bytes);
    state.scratch = {};
    constexpr const char* names[] = {"policy", "units (names, shapes, groups, order)", "options, states or metrics"};
    for (std::size_t field = 0; field < 3; ++field) {
        std::vector<std::uint64_t> values;
        bool differ = false;
        for (std::size_t rank = 0; rank < state.ranks(); ++rank) {
            values.push_back(all[rank * 8 + field]);
            differ = differ || values[rank] != values[0];
        }
        if (differ) {
            state.poisoned = true;  // every rank throws this: its end is no news that could overtake it
            throw disagreement_error("E-AGREE-3", text("the ranks were started with different ", names[field],
                                                       "; fingerprints are ", spread(values)));
        }
    }
}

/// The strategy and the reshard policy of a unit: its own, where it has them and the slot takes values.
template <class State>
const auto& strategy_of(const State& state, const unit_record& unit) {
    if constexpr (may_own_strategy<State>) {
        if (unit.strategy.is_set) return unit.strategy.value;
    }
    return state.policy.strategy;
}
template <class State>
const auto& reshard_of(const State& state, const unit_record& unit) {
    if constexpr (may_own_reshard<State>) {
        if (unit.reshard.is_set) return unit.reshard.value;
    }
    return state.policy.reshard;
}

/// E-POLICY-12: what a unit has of its own must go together with the model's policy.
template <class State>
void check_own(const State& state, const unit_record& unit) {
    if (!unit.strategy.is_set && !unit.reshard.is_set) return;
    const auto& reshard = reshard_of(state, unit);
    const bool once = reshard.reduce_once(), all_once = state.policy.reshard.reduce_once();
    bool chosen = unit.reshard.is_set && unit.reshard.value.chosen_at_build();
    if constexpr (ChosenReshard<typename State::reshard_type>) {
        chosen = chosen || (unit.reshard.is_set && state.policy.reshard.chosen_at_build());
    }
    if (unit.reshard.is_set && (chosen || once != all_once)) {
        throw argument_error("E-POLICY-12",
                             text("\"", unit.name, "\" has the reshard policy ", unit.reshard.value.describe(),
                                  " of its own; neither may be chosen for the whole model at once, and both must "
                                  "reduce as often; the model's is ",
                                  state.policy.describe()));
    }
    require_placements(strategy_of(state, unit), state.policy.topology.levels(), unit.place);
    if constexpr (may_use_groups<std::remove_cvref_t<decltype(reshard)>>)
        require_group(strategy_of(state, unit), reshard, state.shape, unit.place);
}

/// Policy facts of one unit, as values.
template <class State>
unit_plan plan_unit(const State& state, const unit_record& unit) {
    unit_plan one;
    one.name = unit.name;
    one.uses = unit.uses;
    one.gap_bytes = unit.layout->bytes();
    for (const segment& part : unit.layout->segments()) {
        one.segments.push_back({part.type, part.trainable, part.elements});
        one.gap_bytes -= part.elements * size_of(part.type);
    }
    return with_facts(state.plan, std::move(one), strategy_of(state, unit), reshard_of(state, unit), unit.place);
}

template <class State>
void plan_units(State& state) {
    model_plan& plan = state.plan;
    plan.reduce_once = state.policy.reshard.reduce_once();
    plan.units.clear();
    for (unit_record* unit : state.units) {
        plan.units.push_back(plan_unit(state, *unit));
        const unit_plan& planned = plan.units.back();
        unit->source = source_of(plan, planned);
        unit->part = part_of(plan, planned, state.rank());
        unit->how = reduction_of(plan, planned);
        unit->after_forward = planned.after_forward;
        unit->after_backward = planned.after_backward;
        unit->group = planned.group;
    }
}

template <class State>
void make_plan(State& state) {
    using state_t = State;
    model_plan& plan = state.plan;
    plan.ranks = state.ranks();
    plan.outer = state.shape.outer;
    plan.gradient = dtype_of<typename state_t::gradient_type>;
    plan.accumulate = dtype_of<typename state_t::accumulate_type>;
    plan.master = dtype_of<typename state_t::master_type>;
    plan.moment = dtype_of<typename state_t::moment_type>;
    plan.moments = state.states.size();
    plan.metrics = state.metrics.size();
    plan.slots = state.options.slots;
    plan_units(state);
}

/// A policy that is chosen for the model and its cap, from sizes that are the same on all ranks.
template <class State>
void choose(State& state) {
    if constexpr (ChosenReshard<typename State::reshard_type>) {
        auto& reshard = state.policy.reshard;
        if (!reshard.chosen_at_build()) return;
        const bool poisoned = state.poisoned;
        state.poisoned = poisoned || state.at == stage::declaring;  // a refusal is every rank's: no news for peers
        v0::choose(reshard, state.plan, state.order, control_of(state).bytes());
        state.poisoned = poisoned;
        plan_units(state);
    }
}

/// Collective: the smaller groups that units of this plan need, in one order on all ranks.
template <class State>
void make_groups(State& state) {
    if constexpr (may_split<typename State::policy_type>) {
        const std::size_t inner = state.plan.inner(), rank = state.rank();
        for (unit_record* unit : state.units) {
            const auto make = [&](rank_set which, std::size_t ranks, std::size_t colour) {
                unit->groups[static_cast<std::size_t>(which)] = state.groups.make(which, ranks, colour);
            };
            if (rests_inner(state.plan.units[unit->index])) {
                make(rank_set::inner, inner, rank / inner);
                make(rank_set::outer, state.plan.outer, rank % inner);
                if (state.outer_streams.empty()) state.outer_streams.push_back(state.device.make_stream("outer"));
            }
            if (unit->group > 1) make(rank_set::secondary, unit->group, rank / unit->group);
        }
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
