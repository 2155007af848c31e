// Models and pipeline schedules for the tests of the schedule room, made from facts alone.
#pragma once

#include <reshard/schedule/replay.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace toy {

using reshard::afterwards;
using reshard::pass;
using reshard::phase;
using reshard::placement;

struct strategy {
    const char* name;
    placement parameters, gradients, optimizer;
};
inline constexpr strategy no_shard{"no_shard", placement::replicated, placement::replicated, placement::replicated};
inline constexpr strategy shard_optimizer{"shard_optimizer", placement::replicated, placement::replicated,
                                          placement::whole};
inline constexpr strategy shard_gradients{"shard_gradients", placement::replicated, placement::whole, placement::whole};
inline constexpr strategy full_shard{"full_shard", placement::whole, placement::whole, placement::whole};
inline constexpr strategy strategies[] = {no_shard, shard_optimizer, shard_gradients, full_shard};

/// Keeps the last `after_forward` units until their backward, or everything until the step.
struct reshard_policy {
    std::size_t after_forward = 0;
    bool until_step = false;
};
inline constexpr std::size_t every = 1000;
inline constexpr reshard_policy always{}, never{every}, until_step{every, true};

/// Trainable fp32 units of `elements` elements each.
inline reshard::model_plan model(const strategy& where, const reshard_policy& keep, std::size_t ranks,
                                 const std::vector<std::size_t>& elements, bool once = false) {
    reshard::model_plan plan;
    plan.ranks = ranks;
    plan.reduce_once = once;
    for (std::size_t u = 0; u < elements.size(); ++u) {
        reshard::unit_plan unit;
        unit.name = "h." + std::to_string(u);
        unit.parameters = where.parameters;
        unit.gradients = where.gradients;
        unit.optimizer = where.optimizer;
        if (u + keep.after_forward >= elements.size()) unit.after_forward = afterwards::keep;
        if (keep.until_step) unit.after_backward = afterwards::keep;
        unit.segments.push_back({reshard::dtype::f32, true, elements[u]});
        plan.units.push_back(unit);
    }
    return plan;
}

inline std::vector<std::uint32_t> in_order(std::size_t units) {
    std::vector<std::uint32_t> order;
    for (std::uint32_t u = 0; u < units; ++u) order.push_back(u);
    return order;
}

inline reshard::order_list plain(std::vector<std::uint32_t> forward_order, std::size_t microbatches) {
    reshard::order_list order(std::move(forward_order));
    order.plan(microbatches);
    return order;
}

inline reshard::order_list scheduled(std::vector<std::uint32_t> forward_order, const std::vector<pass>& passes,
                                     std::size_t microbatches) {
    reshard::order_list order(std::move(forward_order));
    order.plan(passes, microbatches);
    return order;
}

inline std::vector<pass> gpipe(std::size_t microbatches) {
    std::vector<pass> passes;
    for (std::size_t m = 0; m < microbatches; ++m) passes.push_back({phase::forward, m});
    for (std::size_t m = 0; m < microbatches; ++m) passes.push_back({phase::backward, m});
    return passes;
}

/// Stage `stage` of `stages`: as many forwards ahead as there are stages behind it, then one of each in turn.
inline std::vector<pass> one_forward_one_backward(std::size_t microbatches, std::size_t stage, std::size_t stages) {
    std::vector<pass> passes;
    std::size_t forwards = 0, backwards = 0;
    while (backwards < microbatches) {
        while (forwards < microbatches && forwards - backwards < stages - stage) {
            passes.push_back({phase::forward, forwards++});
        }
        passes.push_back({phase::backward, backwards++});
    }
    return passes;
}

/// Stage `stage` of two, four microbatches, two chunks of `uses` uses each: microbatches go through in pairs, chunk
/// by chunk, and every stage starts with two forwards more for each stage behind it.
inline std::vector<pass> interleaved(std::size_t stage, std::size_t uses) {
    const auto chunk_pass = [uses](phase what, std::size_t number) {
        const std::size_t pair = number / 4, within = number % 4;
        const std::size_t chunk = what == phase::forward ? within / 2 : 1 - within / 2;
        return pass{what, pair * 2 + within % 2, chunk * uses, uses};
    };
    std::vector<pass> passes;
    const std::size_t ahead = stage == 0 ? 4 : 2;
    for (std::size_t k = 0; k < ahead; ++k) passes.push_back(chunk_pass(phase::forward, k));
    for (std::size_t k = 0; k < 8; ++k) {
        if (ahead + k < 8) passes.push_back(chunk_pass(phase::forward, ahead + k));
        passes.push_back(chunk_pass(phase::backward, k));
    }
    return passes;
}

/// GPipe with each backward in two parts, the weight parts last.
inline std::vector<pass> split_backward(std::size_t microbatches) {
    std::vector<pass> passes;
    for (const phase what : {phase::forward, phase::backward_input, phase::backward_weight}) {
        for (std::size_t m = 0; m < microbatches; ++m) passes.push_back({what, m});
    }
    return passes;
}

struct prediction {
    reshard::slot_map map;
    reshard::step_prediction step;
    reshard::owned_bytes owned;
};

/// The plan through slots, replay and memory; sets the units' uses from the order.
inline prediction predict(reshard::model_plan plan, const reshard::order_list& order, bool evaluated = false) {
    for (reshard::unit_plan& unit : plan.units) unit.uses = 0;
    for (const std::uint32_t unit : order.forward_order()) ++plan.units[unit].uses;
    const std::vector<reshard::slot_need> needs = reshard::needs_of(plan);
    prediction found;
    found.map = reshard::map_slots(order, needs, plan.slots);
    reshard::check_slots(order, needs, found.map);
    found.step = reshard::replay_step(order, plan, needs, found.map, evaluated);
    found.owned = reshard::predict_memory(plan, found.map, 0);
    return found;
}

}  // namespace toy
