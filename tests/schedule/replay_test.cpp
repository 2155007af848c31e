// Predicted collectives and live bytes against formulas, tables and steps traced by hand.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "toy.hpp"

namespace {

using reshard::collective_counts;
using reshard::dtype;
using reshard::live_bytes;
using reshard::model_plan;
using reshard::operation_count;
using reshard::order_list;
using reshard::unit_counts;
using toy::every;
using toy::reshard_policy;

/// What begin_step and commit send: 64 and 32 bytes from every rank to all others.
std::size_t control_bytes(std::size_t ranks) { return 96 * (ranks - 1); }

std::size_t toy_bytes(const toy::strategy& where, const reshard_policy& keep, bool once,
                      const std::vector<std::size_t>& elements = {16}) {
    const model_plan plan = toy::model(where, keep, 4, elements, once);
    const auto found = toy::predict(plan, toy::plain(toy::in_order(elements.size()), 2));
    return found.step.groups.sum().total().bytes - control_bytes(4);
}

std::vector<std::size_t> gathers(const model_plan& plan, const order_list& order) {
    std::vector<std::size_t> found;
    for (const unit_counts& unit : toy::predict(plan, order).step.units) found.push_back(unit.gathers);
    return found;
}

/// How often the count of open forwards of a unit rises from zero.
std::size_t busy_periods(const order_list& order, std::uint32_t unit) {
    std::size_t open = 0, periods = 0;
    for (auto at = order.first(); !order.at_end(at); at = order.next(at)) {
        const reshard::order_entry entry = order.at(at);
        if (entry.unit != unit) continue;
        if (entry.what == toy::phase::forward) {
            if (open++ == 0) ++periods;
        } else if (entry.what != toy::phase::backward_weight) {
            --open;
        }
    }
    return periods;
}

}  // namespace

TEST_CASE("bytes sent by a rank for 16 fp32 elements, 4 ranks, 2 microbatches") {
    CHECK(toy_bytes(toy::no_shard, toy::always, false) == 96);
    CHECK(toy_bytes(toy::shard_optimizer, toy::always, false) == 96);
    CHECK(toy_bytes(toy::shard_gradients, toy::always, false) == 144);
    CHECK(toy_bytes(toy::shard_gradients, toy::always, true) == 96);
    CHECK(toy_bytes(toy::full_shard, toy::never, false) == 192);
    CHECK(toy_bytes(toy::full_shard, toy::always, false) == 288);
    CHECK(toy_bytes(toy::full_shard, toy::always, true) == 240);
    CHECK(toy_bytes(toy::full_shard, toy::until_step, false) == 144);
    CHECK(toy_bytes(toy::full_shard, toy::until_step, true) == 96);
    CHECK(toy_bytes(toy::full_shard, {1}, false, {4, 4, 4, 4}) == 264);
    CHECK(toy_bytes(toy::full_shard, {1}, true, {4, 4, 4, 4}) == 216);
}

TEST_CASE("gathers of a unit under pipeline schedules, 4 microbatches, 2 stages") {
    struct row {
        const char* name;
        order_list order;
        std::vector<std::size_t> busy;  // periods of the units, two to a chunk
    };
    const auto four = toy::in_order(4);
    const std::vector<row> table = {
        {"plain loop", toy::plain(four, 4), {4, 4, 4, 4}},
        {"GPipe", toy::scheduled(four, toy::gpipe(4), 4), {1, 1, 1, 1}},
        {"1F1B, first stage", toy::scheduled(four, toy::one_forward_one_backward(4, 0, 2), 4), {1, 1, 1, 1}},
        {"1F1B, last stage", toy::scheduled(four, toy::one_forward_one_backward(4, 1, 2), 4), {4, 4, 4, 4}},
        {"interleaved, first stage", toy::scheduled(four, toy::interleaved(0, 2), 4), {1, 1, 2, 2}},
        {"interleaved, last stage", toy::scheduled(four, toy::interleaved(1, 2), 4), {1, 1, 4, 4}},
        {"split backward", toy::scheduled(four, toy::split_backward(4), 4), {1, 1, 1, 1}},
    };
    const std::vector<std::size_t> sizes = {8, 8, 8, 8};
    for (const row& line : table) {
        CAPTURE(std::string(line.name));
        CHECK_NOTHROW(reshard::check_schedule(line.order));
        CHECK(gathers(toy::model(toy::full_shard, toy::never, 2, sizes), line.order) == line.busy);
        CHECK(gathers(toy::model(toy::full_shard, toy::until_step, 2, sizes), line.order) ==
              std::vector<std::size_t>{1, 1, 1, 1});
        CHECK(gathers(toy::model(toy::full_shard, toy::always, 2, sizes), line.order) ==
              std::vector<std::size_t>{8, 8, 8, 8});
        for (const bool once : {false, true}) {
            const auto found = toy::predict(toy::model(toy::full_shard, toy::always, 2, sizes, once), line.order);
            for (const unit_counts& unit : found.step.units) CHECK(unit.reductions == (once ? 1 : 4));
        }
    }
}

namespace {

/// The table of gathers and reductions, and bytes from it, for one model; nothing is replayed.
struct formula {
    std::vector<unit_counts> units;
    collective_counts collectives;
};

formula by_formula(const toy::strategy& where, const reshard_policy& keep, bool once, const order_list& order,
                   std::size_t ranks, const std::vector<std::size_t>& elements) {
    formula out;
    out.units.resize(elements.size());
    if (ranks == 1) return out;
    const std::size_t microbatches = order.microbatches();
    const bool whole_gradients = where.gradients == toy::placement::replicated || once;
    out.collectives.all_gather = {2, control_bytes(ranks)};
    for (std::uint32_t u = 0; u < elements.size(); ++u) {
        std::size_t uses = 0;
        for (const std::uint32_t each : order.forward_order()) uses += each == u ? 1 : 0;
        const bool kept = u + keep.after_forward >= elements.size();
        const std::size_t share = elements[u] * 4 * (ranks - 1) / ranks;
        unit_counts& unit = out.units[u];
        unit.reductions = whole_gradients ? 1 : microbatches;
        if (where.parameters == toy::placement::whole) {
            unit.gathers = keep.until_step ? 1 : kept ? busy_periods(order, u) : 2 * microbatches * uses;
        } else if (where.optimizer == toy::placement::whole) {
            unit.refreshes = 1;
        }
        out.collectives.all_gather += {unit.gathers + unit.refreshes, (unit.gathers + unit.refreshes) * share};
        const bool all_reduce = where.optimizer == toy::placement::replicated;
        operation_count& reductions = all_reduce ? out.collectives.all_reduce : out.collectives.reduce_scatter;
        reductions += {unit.reductions, unit.reductions * share * (all_reduce ? 2 : 1)};
    }
    return out;
}

void check_model(const toy::strategy& where, const reshard_policy& keep, bool once, const order_list& order,
                 std::size_t ranks, const std::vector<std::size_t>& elements) {
    CAPTURE(std::string(where.name));
    CAPTURE(keep.after_forward);
    CAPTURE(keep.until_step);
    CAPTURE(once);
    CAPTURE(ranks);
    CAPTURE(elements.size());
    CAPTURE(order.microbatches());
    CAPTURE(order.forward_order().size());
    const auto found = toy::predict(toy::model(where, keep, ranks, elements, once), order);
    const formula expected = by_formula(where, keep, once, order, ranks, elements);
    CHECK(found.step.units == expected.units);
    CHECK(found.step.groups.sum() == expected.collectives);

    CHECK(found.step.live.size() == order.forward_order().size() * 4 * order.microbatches());
    std::size_t peak = 0, kept_at_end = 0;
    bool within = true;
    for (const live_bytes& now : found.step.live) {
        within = within && now.gathered <= found.owned.gather_buffers && now.gradients <= found.owned.gradient_buffers;
        peak = peak < now.total() ? now.total() : peak;
    }
    CHECK(within);
    CHECK(found.step.peak.total() == peak);
    if (keep.until_step && where.parameters == toy::placement::whole && ranks > 1) {
        for (const std::size_t one : elements) kept_at_end += one * 4;
    }
    CHECK(found.step.live.back() == live_bytes{kept_at_end, 0});
}

}  // namespace

TEST_CASE("counts, bytes and live buffers of the plain loop over a grid of models") {
    const reshard_policy policies[] = {toy::always, {1}, {2}, {3}, toy::never, toy::until_step};
    for (std::size_t ranks = 1; ranks <= 8; ++ranks) {
        for (const std::size_t microbatches : {1u, 2u, 4u}) {
            for (std::size_t units = 1; units <= 7; ++units) {
                std::vector<std::size_t> elements;
                for (std::size_t u = 0; u < units; ++u) elements.push_back(ranks * (3 + u * 5 % 4));
                auto tied = toy::in_order(units);  // the first unit is used at the end again
                tied.push_back(0);
                for (const auto& uses : {toy::in_order(units), tied}) {
                    const order_list order = toy::plain(uses, microbatches);
                    for (const auto& where : toy::strategies) {
                        for (const reshard_policy& keep : policies) {
                            if (keep.after_forward != every && keep.after_forward > units) continue;
                            for (const bool once : {false, true}) {
                                check_model(where, keep, once, order, ranks, elements);
                            }
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("counts of a tied unit under pipeline schedules") {
    for (const auto& passes : {toy::gpipe(3), toy::one_forward_one_backward(3, 0, 2), toy::split_backward(3)}) {
        const order_list order = toy::scheduled({0, 1, 2, 0}, passes, 3);
        for (const reshard_policy& keep : {toy::always, toy::never, toy::until_step}) {
            for (const bool once : {false, true}) {
                const auto found = toy::predict(toy::model(toy::full_shard, keep, 4, {8, 8, 8}, once), order);
                const formula expected = by_formula(toy::full_shard, keep, once, order, 4, {8, 8, 8});
                CHECK(found.step.units == expected.units);
                CHECK(found.step.groups.sum() == expected.collectives);
            }
        }
    }
}

TEST_CASE("every prefetch depth gathers as often") {
    for (std::size_t depth = 0; depth <= 4; ++depth) {
        CAPTURE(depth);
        for (const auto& uses : {toy::in_order(6), std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 0}}) {
            for (const reshard_policy& keep : {toy::always, reshard_policy{2}, toy::never, toy::until_step}) {
                model_plan plan = toy::model(toy::full_shard, keep, 2, {8, 6, 4, 2, 4, 6});
                plan.slots.prefetch_depth = depth;
                const order_list order = toy::plain(uses, 3);
                const formula expected = by_formula(toy::full_shard, keep, false, order, 2, {8, 6, 4, 2, 4, 6});
                CHECK(toy::predict(plan, order).step.units == expected.units);
            }
        }
    }
}

TEST_CASE("live bytes of a step traced by hand: units of 4, 8 and 16 bytes, each freed after use") {
    const model_plan plan = toy::model(toy::full_shard, toy::always, 1 + 1, {2, 4, 8});
    const auto found = toy::predict(plan, toy::plain(toy::in_order(3), 1));
    const std::vector<live_bytes> expected = {
        {8 + 16, 0},   {16, 0},  // forward 0; 1 is on its way
        {16 + 32, 0},  {32, 0},  // forward 1; 2 is on its way
        {32, 0},       {32, 0},  // forward 2 is the next to be read too; dropped, and gathered again
        {32 + 16, 32}, {16, 0},  // backward 2; 1 is on its way
        {16 + 8, 16},  {8, 0},   // backward 1; 0 is on its way
        {8, 8},        {0, 0},   // backward 0; nothing is gathered across the end
    };
    CHECK(found.step.live == expected);
    CHECK(found.step.peak == live_bytes{48, 32});
}

TEST_CASE("a gather that runs ahead waits until its buffer is free") {
    const auto found = toy::predict(toy::model(toy::full_shard, toy::always, 2, {2, 4, 8}),
                                    toy::scheduled(toy::in_order(3), toy::gpipe(2), 2));
    const std::vector<live_bytes> first_microbatch = {
        {8 + 16, 0}, {16, 0}, {16 + 32, 0}, {32, 0}, {32, 0}, {8, 0},  // unit 0 is next, in the buffer of unit 2
        {8 + 16, 0},
    };
    CHECK(std::vector(found.step.live.begin(), found.step.live.begin() + 7) == first_microbatch);
}

TEST_CASE("looking ahead ends after as many entries as there are units, and one more") {
    model_plan plan = toy::model(toy::shard_optimizer, toy::always, 2, {2, 2, 2, 2});
    plan.units[0].parameters = plan.units[0].gradients = toy::placement::whole;
    const auto found = toy::predict(plan, toy::plain(toy::in_order(4), 1));
    std::vector<std::size_t> gathered;
    for (const live_bytes& now : found.step.live) gathered.push_back(now.gathered);
    CHECK(gathered == std::vector<std::size_t>{8, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 0});
    CHECK(found.step.units[0] == unit_counts{2, 0, 1});
}

TEST_CASE("live bytes of kept copies and of gradients that wait") {
    const order_list order = toy::plain(toy::in_order(3), 1);
    const auto never = toy::predict(toy::model(toy::full_shard, toy::never, 2, {2, 4, 8}), order);
    const std::vector<live_bytes> expected = {
        {24, 0}, {24, 0}, {56, 0}, {56, 0}, {56, 0}, {56, 0}, {56, 32}, {24, 0}, {24, 16}, {8, 0}, {8, 8}, {0, 0},
    };
    CHECK(never.step.live == expected);
    const auto until = toy::predict(toy::model(toy::full_shard, toy::until_step, 2, {2, 4, 8}), order);
    CHECK(until.step.peak == live_bytes{56, 32});
    CHECK(until.step.live.back() == live_bytes{56, 0});

    // Reduced once, gradients have whole buffers of their own; resting copies are no slots either.
    const auto once = toy::predict(toy::model(toy::full_shard, toy::always, 2, {2, 4, 8}, true), order);
    CHECK(once.step.peak == live_bytes{48, 0});
    CHECK(toy::predict(toy::model(toy::shard_optimizer, toy::always, 2, {2, 4, 8}), order).step.peak == live_bytes{});

    // A tied unit holds its gradients from its first use in backward to its last.
    const auto tied = toy::predict(toy::model(toy::full_shard, toy::always, 2, {2, 4}), toy::plain({0, 1, 0}, 1));
    std::vector<std::size_t> gradients;
    for (const live_bytes& now : tied.step.live) gradients.push_back(now.gradients);
    CHECK(gradients == std::vector<std::size_t>{0, 0, 0, 0, 0, 0, 8, 8, 24, 8, 8, 0});
}

TEST_CASE("an input part reads parameters and a weight part writes gradients") {
    const order_list order = toy::scheduled({0}, toy::split_backward(2), 2);
    const auto found = toy::predict(toy::model(toy::full_shard, toy::always, 2, {2}), order);
    const std::vector<live_bytes> expected = {
        {8, 0}, {8, 0}, {8, 0}, {8, 0},  // the next pass reads the copy again
        {8, 0}, {8, 0}, {8, 0}, {0, 0},  // the last input part drops it
        {0, 8}, {0, 0}, {0, 8}, {0, 0},
    };
    CHECK(found.step.live == expected);
}

TEST_CASE("copies that evaluation left behind are not gathered again") {
    const order_list order = toy::plain(toy::in_order(3), 2);
    const model_plan until = toy::model(toy::full_shard, toy::until_step, 4, {4, 4, 4});
    const auto found = toy::predict(until, order, true);
    for (const unit_counts& unit : found.step.units) CHECK(unit == unit_counts{0, 0, 2});
    CHECK(found.step.live.front().gathered == 48);
    const model_plan never = toy::model(toy::full_shard, toy::never, 4, {4, 4, 4});
    CHECK(toy::predict(never, order, true).step.units == toy::predict(never, order).step.units);
}

TEST_CASE("evaluation gathers every use, or once what is kept until the weights change") {
    const auto evaluated = [](const toy::strategy& where, const reshard_policy& keep, std::size_t ranks,
                              std::size_t passes) {
        model_plan plan = toy::model(where, keep, ranks, {16, 32});
        plan.units[0].uses = 2;
        return reshard::predict_evaluation(plan, passes).sum();
    };
    for (const reshard_policy& keep : {toy::always, toy::never, reshard_policy{1}}) {
        const collective_counts three = evaluated(toy::full_shard, keep, 4, 3);
        CHECK(three.all_gather == operation_count{9, 3 * (2 * 48 + 96)});
        CHECK(three.total() == three.all_gather);
    }
    CHECK(evaluated(toy::full_shard, toy::until_step, 4, 3).all_gather == operation_count{2, 48 + 96});
    CHECK(evaluated(toy::full_shard, toy::until_step, 4, 1).all_gather == operation_count{2, 48 + 96});
    CHECK(evaluated(toy::full_shard, toy::until_step, 4, 0).total() == operation_count{});
    CHECK(evaluated(toy::full_shard, toy::always, 1, 3).total() == operation_count{});
    CHECK(evaluated(toy::shard_optimizer, toy::always, 4, 3).total() == operation_count{});
}

TEST_CASE("the model's own collectives: 64 bytes a rank to begin, 32 and 8 for each metric to commit") {
    model_plan plan = toy::model(toy::full_shard, toy::until_step, 4, {4});
    plan.metrics = 3;
    const auto found = toy::predict(plan, toy::plain({0}, 1));
    CHECK(found.step.groups.sum().all_gather == operation_count{3, 3 * 64 + 3 * (32 + 24) + 12});
    CHECK(reshard::predict_setup(plan).sum().total() == operation_count{1, 3 * 64});
    plan.ranks = 1;
    CHECK(toy::predict(plan, toy::plain({0}, 1)).step.groups.sum().total() == operation_count{});
    CHECK(reshard::predict_setup(plan).sum().total() == operation_count{});
}

TEST_CASE("every segment that is not empty is a collective; frozen ones are gathered and not reduced") {
    model_plan plan = toy::model(toy::full_shard, toy::always, 4, {0, 0});
    plan.gradient = dtype::bf16;
    plan.units[0].segments = {
        {dtype::bf16, true, 16}, {dtype::f32, true, 8}, {dtype::bf16, false, 32}, {dtype::f64, true, 0}};
    plan.units[1].segments = {{dtype::bf16, false, 64}};
    const auto found = toy::predict(plan, toy::plain(toy::in_order(2), 1));
    CHECK(found.step.units == std::vector<unit_counts>{{2, 0, 1}, {2, 0, 0}});
    const std::size_t gathered = 2 * (24 + 24 + 48) + 2 * 96, reduced = 24 + 12;
    CHECK(found.step.groups.sum().all_gather == operation_count{2 + 6 + 2, control_bytes(4) + gathered});
    CHECK(found.step.groups.sum().reduce_scatter == operation_count{2, reduced});

    // Resting whole in another type than the masters: a refresh if masters are sharded, a local cast if not.
    for (const auto& where : {toy::shard_optimizer, toy::no_shard}) {
        model_plan resting = toy::model(where, toy::always, 4, {16});
        resting.units[0].segments[0].type = dtype::bf16;
        const bool sharded = where.optimizer == toy::placement::whole;
        const auto rests = toy::predict(resting, toy::plain({0}, 1));
        CHECK(rests.step.units == std::vector<unit_counts>{{0, sharded ? 1u : 0u, 1}});
        CHECK(rests.step.groups.sum().all_gather.bytes == control_bytes(4) + (sharded ? 24 : 0));
    }
}
