// Plans chosen under a cap against every assignment, replayed one by one.
#include <doctest/doctest.h>

#include <reshard/schedule/within.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <tuple>
#include <vector>

#include "toy.hpp"

namespace {

using reshard::afterwards;
using reshard::chosen_plan;
using reshard::dtype;
using reshard::model_plan;
using reshard::order_list;
using reshard::rank_set;
using reshard::unit_choice;

/// Bytes over shard groups, within secondary groups, collectives, bytes owned; control and refreshes, the same for all
/// assignments, are in it.
using cost = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

cost cost_of(const model_plan& plan, const order_list& order) {
    const toy::prediction found = toy::predict(plan, order);
    const reshard::group_counts& sent = found.step.groups;
    return {sent[rank_set::whole].all_gather.bytes + sent[rank_set::inner].all_gather.bytes,
            sent[rank_set::secondary].all_gather.bytes, found.step.groups.sum().total().calls, found.owned.total()};
}
cost cost_of(const model_plan& plan, const order_list& order, const chosen_plan& chosen) {
    return cost_of(reshard::with_choices(plan, chosen.units, chosen.reduce_once), order);
}

/// All that a unit may do, more than the planner looks at; in a schedule without what schedules refuse.
std::vector<unit_choice> all_choices(const std::vector<std::size_t>& groups, bool plain) {
    std::vector<unit_choice> all = {{}, {afterwards::keep, afterwards::keep}};
    if (plain) all.push_back({afterwards::keep, afterwards::free});
    for (const std::size_t k : groups) {
        all.push_back({afterwards::group, afterwards::group, k});
        all.push_back({afterwards::group, afterwards::free, k});
    }
    return all;
}

/// The costs of all assignments.
std::vector<cost> every_cost(const model_plan& plan, const order_list& order, const std::vector<std::size_t>& groups) {
    const std::vector<unit_choice> all = all_choices(groups, !order.scheduled());
    std::vector<std::size_t> digits(plan.units.size(), 0);
    std::vector<unit_choice> units(plan.units.size());
    std::vector<cost> found;
    for (;;) {
        for (std::size_t u = 0; u < digits.size(); ++u) units[u] = all[digits[u]];
        found.push_back(cost_of(reshard::with_choices(plan, units, plan.reduce_once), order));
        std::size_t u = 0;
        while (u < digits.size() && ++digits[u] == all.size()) digits[u++] = 0;
        if (u == digits.size()) return found;
    }
}

std::size_t least_owned(const std::vector<cost>& all) {
    std::size_t least = std::get<3>(all.front());
    for (const cost& one : all) least = std::min(least, std::get<3>(one));
    return least;
}
std::size_t most_owned(const std::vector<cost>& all) {
    std::size_t most = 0;
    for (const cost& one : all) most = std::max(most, std::get<3>(one));
    return most;
}
cost best_under(const std::vector<cost>& all, std::size_t cap) {
    cost best{static_cast<std::size_t>(-1), 0, 0, 0};
    for (const cost& one : all) {
        if (std::get<3>(one) <= cap) best = std::min(best, one);
    }
    return best;
}

std::string refusal(const model_plan& plan, const order_list& order, std::size_t cap, std::size_t microbatches) {
    try {
        reshard::choose_within(plan, order, cap, microbatches, 0);
    } catch (const reshard::argument_error& error) {
        CHECK(std::string(error.id()) == "E-POLICY-11");
        return error.what();
    }
    return "";
}

/// The planner at many caps, the least one and one byte less among them.
void check_against_every_assignment(const model_plan& plan, const order_list& order,
                                    const std::vector<std::size_t>& groups, std::size_t microbatches) {
    CAPTURE(microbatches);
    const std::vector<cost> all = every_cost(plan, order, groups);
    const std::size_t least = least_owned(all), most = most_owned(all);
    const std::string words = refusal(plan, order, least - 1, microbatches);
    CAPTURE(words);
    CHECK(words.find(reshard::text("the cap of ", least - 1)) != std::string::npos);
    CHECK(words.find(reshard::text("any choice needs, ", least, " bytes: that of reshard_always")) !=
          std::string::npos);
    const cost always = cost_of(plan, order);
    cost before{static_cast<std::size_t>(-1), 0, 0, 0};
    for (std::size_t step = 0; step <= 24; ++step) {
        const std::size_t cap = least + (most - least) * step / 24;
        CAPTURE(cap);
        const chosen_plan chosen = reshard::choose_within(plan, order, cap, microbatches, 0);
        const cost found = cost_of(plan, order, chosen);
        REQUIRE(found == best_under(all, cap));
        // What the reason tells is what is sent: all that is not gathered is the same in both.
        const model_plan with = reshard::with_choices(plan, chosen.units, plan.reduce_once);
        const auto told = reshard::detail::step_cost(with, microbatches);
        const auto told_always = reshard::detail::step_cost(plan, microbatches);
        CHECK(std::get<0>(always) - std::get<0>(found) == told_always.shard_bytes - told.shard_bytes);
        CHECK(std::get<1>(found) == told.group_bytes);
        CHECK(found <= before);
        before = found;
    }
    CHECK_NOTHROW(reshard::choose_within(plan, order, reshard::dynamic, microbatches, 0));
}

/// A small generator of its own.
struct dice {
    std::uint32_t state = 1;
    std::size_t below(std::size_t bound) {
        state = state * 1664525u + 1013904223u;
        return (state >> 16) % bound;
    }
};

std::vector<std::size_t> random_sizes(dice& random, std::size_t units, std::size_t multiple) {
    std::vector<std::size_t> sizes;
    for (std::size_t u = 0; u < units; ++u) sizes.push_back(multiple * (1 + random.below(random.below(2) ? 3 : 9)));
    return sizes;
}

std::vector<unit_choice> chosen_at(const model_plan& plan, std::size_t over_the_least, std::size_t microbatches) {
    const order_list order = toy::plain(toy::in_order(plan.units.size()), microbatches);
    const std::size_t least = toy::predict(plan, order).owned.total();
    return reshard::choose_within(plan, order, least + over_the_least, microbatches, 0).units;
}

constexpr unit_choice freed{}, kept{afterwards::keep, afterwards::keep}, waits{afterwards::keep, afterwards::free};

}  // namespace

TEST_CASE("no assignment under the cap beats the plan: keep or free, 6 units, all depths") {
    dice random{7};
    for (int round = 0; round < 12; ++round) {
        for (const std::size_t microbatches : {1u, 2u, 4u}) {
            model_plan plan = toy::model(toy::full_shard, toy::always, 2, random_sizes(random, 6, 2), round % 4 == 3);
            plan.slots.prefetch_depth = static_cast<std::size_t>(round) % 3;
            check_against_every_assignment(plan, toy::plain(toy::in_order(6), microbatches), {}, microbatches);
        }
    }
}

TEST_CASE("no assignment under the cap beats the plan: secondary groups of 2 and 4 of 8 ranks") {
    dice random{11};
    for (int round = 0; round < 6; ++round) {
        const std::size_t microbatches = std::size_t{1} << (round % 3), units = round < 3 ? 4 : 3;
        model_plan plan = toy::model(toy::full_shard, toy::always, 8, random_sizes(random, units, 8));
        plan.slots.prefetch_depth = round < 3 ? 1 : 0;
        const auto order = toy::plain(toy::in_order(units), microbatches);
        check_against_every_assignment(plan, order, {2, 4}, microbatches);
    }
    const model_plan plan = toy::model(toy::full_shard, toy::always, 4, random_sizes(random, 6, 4));
    check_against_every_assignment(plan, toy::plain(toy::in_order(6), 2), {2}, 2);
}

TEST_CASE("no assignment under the cap beats the plan: hybrid strategies, mixed types, a resting unit, a tied one") {
    using toy::placement;
    dice random{13};
    for (const std::size_t microbatches : {1u, 2u, 4u}) {
        model_plan hybrid = toy::model({"", placement::inner, placement::inner, placement::whole}, toy::always, 8,
                                       random_sizes(random, 5, 8));
        hybrid.outer = 2;
        check_against_every_assignment(hybrid, toy::plain(toy::in_order(5), microbatches), {2}, microbatches);

        model_plan mixed = toy::model(toy::full_shard, toy::always, 4, random_sizes(random, 5, 4));
        mixed.gradient = dtype::bf16;
        mixed.units[1].segments.push_back({dtype::bf16, true, 12});
        mixed.units[3].segments = {{dtype::bf16, false, 20}};
        mixed.units[4].parameters = placement::replicated;
        check_against_every_assignment(mixed, toy::plain(toy::in_order(5), microbatches), {2}, microbatches);

        model_plan tied = toy::model(toy::full_shard, toy::always, 4, random_sizes(random, 4, 4));
        tied.units[0].uses = 2;
        const order_list order = toy::plain({0, 1, 2, 3, 0}, microbatches);
        check_against_every_assignment(tied, order, {2}, microbatches);
        CHECK(reshard::choose_within(tied, order, least_owned(every_cost(tied, order, {})), microbatches, 0).units[0] ==
              kept);
    }
}

TEST_CASE("under overlapping forwards nothing waits in a rotating buffer, and the plan is the best of the rest") {
    dice random{17};
    const model_plan plan = toy::model(toy::full_shard, toy::always, 4, random_sizes(random, 5, 4));
    check_against_every_assignment(plan, toy::scheduled(toy::in_order(5), toy::gpipe(4), 4), {2}, 4);
    check_against_every_assignment(plan, toy::scheduled(toy::in_order(5), toy::split_backward(2), 2), {2}, 2);
}

TEST_CASE("a large first unit is kept before later ones where that saves more") {
    // Buffers of 64 and 32 bytes without it; 32 more keep either unit 0, saving 32 bytes sent, or unit 1, saving 16.
    const model_plan plan = toy::model(toy::full_shard, toy::always, 2, {16, 8, 8, 8});
    CHECK(chosen_at(plan, 31, 1) == std::vector<unit_choice>{freed, freed, waits, waits});
    CHECK(chosen_at(plan, 32, 1) == std::vector<unit_choice>{kept, freed, kept, waits});
    CHECK(chosen_at(plan, 64, 1) == std::vector<unit_choice>{kept, kept, kept, kept});
}

TEST_CASE("equal units: the last ones are kept, and the last two from forward to backward at no cost") {
    const model_plan plan = toy::model(toy::full_shard, toy::always, 2, std::vector<std::size_t>(7, 16));
    CHECK(chosen_at(plan, 0, 2) == std::vector<unit_choice>{freed, freed, freed, freed, freed, waits, waits});
    CHECK(chosen_at(plan, 64, 2) == std::vector<unit_choice>{freed, freed, freed, freed, kept, waits, waits});
    CHECK(chosen_at(plan, 5 * 64, 2) == std::vector<unit_choice>(7, kept));
}

TEST_CASE("secondary groups divide the shard group and lie inside a block") {
    model_plan plan = toy::model(toy::full_shard, toy::always, 24, {24});
    const auto sizes = [&plan] { return reshard::detail::secondary_sizes(plan, plan.units[0]); };
    CHECK(sizes() == std::vector<std::size_t>{12, 8, 6, 4, 3, 2});
    plan.outer = 4;
    CHECK(sizes() == std::vector<std::size_t>{6, 3, 2});
    plan.units[0].parameters = toy::placement::inner;
    CHECK(sizes() == std::vector<std::size_t>{3, 2});
    plan = toy::model(toy::full_shard, toy::always, 2, {24});
    CHECK(sizes().empty());
}

TEST_CASE("an embedding 40 times a block: gathers take at most the largest unit and two blocks") {
    const model_plan plan = toy::model(toy::full_shard, toy::always, 8, {3200, 80, 80, 80, 80, 80, 80});
    const order_list order = toy::plain(toy::in_order(7), 2);
    const std::size_t least = toy::predict(plan, order).owned.total();
    const chosen_plan chosen = reshard::choose_within(plan, order, least + 80 * 4, 2, 0);
    const toy::prediction found = toy::predict(reshard::with_choices(plan, chosen.units, false), order);
    CHECK(found.owned.gather_buffers + found.owned.secondary_shards <= (3200 + 2 * 80) * 4);
    CHECK(found.owned.total() <= least + 80 * 4);
    CHECK(chosen.units[0] == kept);  // the one that saves most
}

TEST_CASE("control bytes and reduction once a step count in the cap; the choice keeps the plan's") {
    const model_plan plan = toy::model(toy::full_shard, toy::always, 4, {16, 16, 16, 16}, true);
    const order_list order = toy::plain(toy::in_order(4), 2);
    const std::size_t least = toy::predict(plan, order).owned.total();
    CHECK(least == 640);
    CHECK(reshard::choose_within(plan, order, 740, 2, 100).reduce_once);
    CHECK_THROWS_AS(reshard::choose_within(plan, order, 739, 2, 100), reshard::argument_error);
}

TEST_CASE("the reason names what each unit does, bytes owned and sent") {
    const model_plan plan = toy::model(toy::full_shard, toy::always, 4, std::vector<std::size_t>(4, 16));
    const order_list order = toy::plain(toy::in_order(4), 2);
    CHECK(
        reshard::choose_within(plan, order, 607, 2, 0).why ==
        "2 units are in secondary groups of 2 ranks until the step, 2 units are kept from forward to backward; a rank "
        "owns 576 bytes of the cap of 607; in a step of 2 microbatches its gathers send 288 bytes over the shard "
        "group and 192 within secondary groups, those of reshard_always 768");
    CHECK(
        reshard::choose_within(plan, order, reshard::dynamic, 1, 0).why ==
        "4 units are kept until the step; a rank owns 640 bytes, without a cap; in a step of 1 microbatch its gathers "
        "send 192 bytes over the shard group, those of reshard_always 384");
    const model_plan whole = toy::model(toy::no_shard, toy::always, 4, {16});
    CHECK(reshard::choose_within(whole, toy::plain({0}, 1), 256, 1, 0).why ==
          "1 unit is never gathered; a rank owns 256 bytes of the cap of 256; in a step of 1 microbatch its gathers "
          "send 0 bytes "
          "over the shard group, those of reshard_always 0");
}

TEST_CASE("pipelines: reduced once where that fits, else for each microbatch, else refused") {
    const model_plan plan = toy::model(toy::full_shard, toy::until_step, 4, std::vector<std::size_t>(4, 16));
    const order_list order = toy::scheduled(toy::in_order(4), toy::gpipe(2), 2);
    const std::size_t each = 640, once = 640 + 256 - 128;
    CHECK(reshard::choose_pipeline(plan, order, once + 7, 7).reduce_once);
    CHECK_FALSE(reshard::choose_pipeline(plan, order, once + 6, 7).reduce_once);
    CHECK_FALSE(reshard::choose_pipeline(plan, order, each + 7, 7).reduce_once);
    CHECK_THROWS_WITH_AS(reshard::choose_pipeline(plan, order, each + 6, 7),
                         doctest::Contains("the cap of 646 bytes a rank is below the 647 bytes"),
                         reshard::argument_error);
    CHECK(reshard::choose_pipeline(plan, order, reshard::dynamic, 7).why ==
          "every unit is kept until the step; gradients are reduced once a step; a rank owns 775 bytes, without a cap");
    // Partial sums over a block make a single unit need more for each microbatch than once.
    model_plan hybrid =
        toy::model({"", toy::placement::inner, toy::placement::inner, toy::placement::whole}, toy::until_step, 4, {16});
    hybrid.outer = 2;
    const order_list alone = toy::plain({0}, 2);
    CHECK(reshard::choose_pipeline(hybrid, alone, 224, 0).reduce_once);
    CHECK_THROWS_WITH_AS(reshard::choose_pipeline(hybrid, alone, 223, 0), doctest::Contains("below the 224 bytes"),
                         reshard::argument_error);
    for (const bool reduce_once : {true, false}) {
        const chosen_plan chosen = reshard::choose_pipeline(plan, order, reduce_once ? once : each, 0);
        const auto found = toy::predict(reshard::with_choices(plan, chosen.units, chosen.reduce_once), order);
        CHECK(found.owned.total() == (reduce_once ? once : each));
        for (const reshard::unit_counts& unit : found.step.units) {
            CHECK(unit.gathers == 1);
            CHECK(unit.reductions == (reduce_once ? 1 : 2));
        }
    }
}

TEST_CASE("units of 200 different sizes: bounded time, the cap holds, and more memory is never worse") {
    dice random{23};
    std::vector<std::size_t> sizes;
    for (int u = 0; u < 200; ++u) sizes.push_back(64 * (1000 + random.below(1000)));
    const model_plan plan = toy::model(toy::full_shard, toy::always, 64, sizes);
    const order_list order = toy::plain(toy::in_order(200), 2);
    const std::size_t least = toy::predict(plan, order).owned.total();
    cost before{static_cast<std::size_t>(-1), 0, 0, 0};
    for (const std::size_t cap : {least, least + 1'000'000, least + 1'001'000, least + 20'000'000}) {
        const auto start = std::chrono::steady_clock::now();
        const chosen_plan chosen = reshard::choose_within(plan, order, cap, 2, 0);
        CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
        CHECK(chosen.why.find("a slightly better one may exist") != std::string::npos);
        const cost found = cost_of(plan, order, chosen);
        CHECK(std::get<3>(found) <= cap);
        CHECK(found <= before);
        before = found;
    }
}
