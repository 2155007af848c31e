// What every policy owns and sends for a model on a cluster, from the plan alone, and which policy to take.
#pragma once

#include "transformer.hpp"

#include <reshard/engine/control.hpp>
#include <reshard/layout/extent.hpp>
#include <reshard/policy/any_reshard.hpp>
#include <reshard/policy/any_sharding.hpp>
#include <reshard/policy/precision.hpp>
#include <reshard/schedule/replay.hpp>
#include <reshard/schedule/within.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace planning {

struct cluster {
    std::size_t nodes = 1, node_ranks = 1, microbatches = 1;
    std::size_t cap = reshard::dynamic;  // bytes that a rank may own
    reshard::dtype compute = reshard::dtype::f32;

    std::size_t ranks() const { return nodes * node_ranks; }
    bool has_cap() const { return cap != reshard::dynamic; }
    std::string topology() const {
        return nodes == 1 ? "flat" : "mesh:" + std::to_string(nodes) + "x" + std::to_string(node_ranks);
    }
};

struct figures {
    std::string strategy, reshard;
    reshard::owned_bytes owned;
    std::size_t sent = 0, link = 0, collectives = 0;  // sent: by a rank; link: by a node to others
    bool fits = true;

    std::string name() const { return reshard == "-" ? strategy : strategy + " + " + reshard; }
};

/// Everything of the plan but what policies say.
inline reshard::model_plan bare_plan(const transformer& model, const cluster& where) {
    reshard::model_plan plan;
    plan.ranks = where.ranks();
    plan.outer = where.nodes;
    reshard::layout_options layout;
    layout.smallest_element = where.compute == reshard::dtype::bf16
                                  ? reshard::precision<reshard::bf16>::smallest_element()
                                  : reshard::precision<float>::smallest_element();
    for (const unit_of_model& unit : units_of(model)) {
        reshard::unit_plan planned;
        planned.name = unit.name;
        planned.uses = unit.uses;
        const auto places = reshard::unit_layout::build(0, unit.parameters, plan.ranks, layout, where.compute);
        for (const reshard::segment& part : places.segments()) {
            planned.segments.push_back({part.type, part.trainable, part.elements});
        }
        plan.units.insert(plan.units.end(), unit.alike, planned);
    }
    return plan;
}

/// A plain loop over the units, the first of them again at the end where it is the head too.
inline reshard::order_list order_of(const reshard::model_plan& plan, std::size_t microbatches) {
    std::vector<std::uint32_t> uses;
    for (std::uint32_t unit = 0; unit < plan.units.size(); ++unit) uses.push_back(unit);
    if (plan.units.front().uses == 2) uses.push_back(0);
    reshard::order_list order(std::move(uses));
    order.plan(microbatches);
    return order;
}

inline std::size_t control_bytes(const reshard::model_plan& plan) {
    return reshard::detail::control_layout{plan.ranks, plan.metrics, plan.units.size()}.bytes();
}

inline void say_units(reshard::model_plan& plan, const reshard::any_sharding& strategy,
                      const reshard::any_reshard& reshard) {
    plan.reduce_once = reshard.reduce_once();
    for (std::size_t index = 0; index < plan.units.size(); ++index) {
        const reshard::unit_place place{index, plan.units.size()};
        plan.units[index] = with_facts(plan, plan.units[index], strategy, reshard, place);
    }
}

/// Lets a policy that is decided for the whole model decide. Under a cap below its least it keeps the facts that need
/// least, and is seen not to fit.
inline void decide(const reshard::model_plan& plan, const reshard::order_list& order, reshard::any_reshard& reshard) {
    if (!reshard.chosen_at_build()) return;
    try {
        choose(reshard, plan, order, control_bytes(plan));
    } catch (const reshard::argument_error&) {
    }
}

inline figures figures_of(reshard::model_plan plan, const cluster& where, const std::string& strategy,
                          const std::string& reshard_text) {
    const reshard::order_list order = order_of(plan, where.microbatches);
    const auto placed = reshard::any_sharding::parse(strategy);
    auto kept = reshard::any_reshard::parse(reshard_text == "-" ? "reshard_always" : reshard_text);
    say_units(plan, placed, kept);
    decide(plan, order, kept);
    say_units(plan, placed, kept);

    const std::vector<reshard::slot_need> needs = needs_of(plan);
    const reshard::slot_map map = map_slots(order, needs, plan.slots);
    check_slots(order, needs, map);
    const reshard::step_prediction step = replay_step(order, plan, needs, map);
    const reshard::operation_count all = step.groups.sum().total();
    figures found{strategy, reshard_text, predict_memory(plan, map, control_bytes(plan)), all.bytes, 0, all.calls};
    // One rank of a node sends to the next node in a ring over all ranks; all of a node do in rings of outer groups;
    // the other groups lie inside a node.
    if (where.nodes > 1) {
        found.link = step.groups[reshard::rank_set::whole].total().bytes +
                     where.node_ranks * step.groups[reshard::rank_set::outer].total().bytes;
    }
    found.fits = found.owned.total() <= where.cap;
    return found;
}

/// As an option has it: 80GiB, or in bytes where that is not a whole number of a unit.
inline std::string cap_option(std::size_t bytes) {
    for (const auto& [suffix, power] : {std::pair("GiB", 30), std::pair("MiB", 20), std::pair("KiB", 10)}) {
        if (bytes % (std::size_t{1} << power) == 0) return std::to_string(bytes >> power) + suffix;
    }
    return std::to_string(bytes);
}

/// The reshard policies that differ for parameters sharded over groups of `shards` ranks.
inline std::vector<std::string> reshard_policies(const cluster& where, std::size_t shards) {
    const std::string ranks = std::to_string(where.node_ranks);
    const std::string last = std::to_string(reshard::slot_options{}.rotating());
    std::vector<std::string> list{"reshard_always", "keep_last:" + last, "reshard_never", "keep_until_step"};
    if (where.node_ranks > 1 && where.node_ranks < shards) {
        list.push_back("reshard_to_group:" + ranks);
        list.push_back("reshard_to_group:" + ranks + ",until_step");
    }
    const std::size_t decided_by_hand = list.size();
    const std::string cap = cap_option(where.cap);
    list.push_back(where.has_cap() ? "pipeline_default:" + cap : "pipeline_default");
    if (where.has_cap()) list.push_back("reshard_within:" + cap + "," + std::to_string(where.microbatches));
    for (std::size_t k = 0; where.microbatches > 1 && k < decided_by_hand; ++k) {
        list.push_back("accumulate_unsharded:" + list[k]);
    }
    return list;
}

/// From the least sharded to the most, as docs/policies.md has them.
inline std::vector<figures> all_policies(const transformer& model, const cluster& where) {
    const reshard::model_plan plan = bare_plan(model, where);
    std::vector<figures> table;
    for (const char* strategy : {"no_shard", "shard_optimizer", "shard_gradients"}) {
        table.push_back(figures_of(plan, where, strategy, "-"));
    }
    const auto add = [&](const char* strategy, std::size_t shards) {
        for (const std::string& reshard : reshard_policies(where, shards)) {
            table.push_back(figures_of(plan, where, strategy, reshard));
        }
    };
    add("full_shard", where.ranks());
    if (where.nodes > 1 && where.node_ranks > 1) {
        add("hybrid_shard", where.node_ranks);
        add("hybrid_full_shard", where.node_ranks);
    }
    return table;
}

/// Less is better: bytes between nodes, then bytes in all, then memory, then collectives.
inline auto rank_of(const figures& one) { return std::tuple(one.link, one.sent, one.owned.total(), one.collectives); }

/// The best that fits, the first of equals; null where none fits.
inline const figures* best_of(const std::vector<figures>& table) {
    const figures* best = nullptr;
    for (const figures& one : table) {
        if (one.fits && (best == nullptr || rank_of(one) < rank_of(*best))) best = &one;
    }
    return best;
}

}  // namespace planning
