// Owned bytes by kind against numbers worked out by hand.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "toy.hpp"

namespace {

using reshard::dtype;
using reshard::model_plan;
using reshard::owned_bytes;

owned_bytes owned(const model_plan& plan) {
    return toy::predict(plan, toy::plain(toy::in_order(plan.units.size()), 2)).owned;
}

/// 4 units of 16 fp32 elements on 4 ranks.
owned_bytes toy_owned(const toy::strategy& where, const toy::reshard_policy& keep, bool once = false) {
    return owned(toy::model(where, keep, 4, {16, 16, 16, 16}, once));
}

}  // namespace

TEST_CASE("owned bytes of 4 units of 16 fp32 elements on 4 ranks with AdamW") {
    CHECK(toy_owned(toy::no_shard, toy::always).total() == 1024);
    CHECK(toy_owned(toy::shard_optimizer, toy::always).total() == 768);
    CHECK(toy_owned(toy::shard_gradients, toy::always).total() == 640);
    CHECK(toy_owned(toy::full_shard, toy::always).total() == 512);
    CHECK(toy_owned(toy::full_shard, toy::always, true).total() == 640);
    CHECK(toy_owned(toy::full_shard, {1}).total() == 512);
    CHECK(toy_owned(toy::full_shard, {2}).total() == 512);
    CHECK(toy_owned(toy::full_shard, {3}).total() == 576);
    CHECK(toy_owned(toy::full_shard, toy::never).total() == 640);
    CHECK(toy_owned(toy::full_shard, toy::until_step).total() == 640);
}

TEST_CASE("the kinds of the toy model") {
    CHECK(toy_owned(toy::no_shard, toy::always) == owned_bytes{256, 512, 256, 0, 0, 0, 0, 0});
    CHECK(toy_owned(toy::shard_optimizer, toy::always) == owned_bytes{64, 128, 64, 256, 256, 0, 0, 0});
    CHECK(toy_owned(toy::shard_gradients, toy::always) == owned_bytes{64, 128, 64, 256, 0, 0, 128, 0});
    CHECK(toy_owned(toy::full_shard, toy::always) == owned_bytes{64, 128, 64, 0, 0, 128, 128, 0});
    CHECK(toy_owned(toy::full_shard, toy::always, true) == owned_bytes{64, 128, 64, 0, 256, 128, 0, 0});
}

TEST_CASE("a rank alone owns masters, moments and gradients, and nothing twice") {
    for (const auto& where : toy::strategies) {
        for (const bool once : {false, true}) {
            CAPTURE(std::string(where.name));
            const model_plan plan = toy::model(where, toy::until_step, 1, {16, 5}, once);
            CHECK(owned(plan) == owned_bytes{84, 168, 84, 0, 0, 0, 0, 0});
        }
    }
}

TEST_CASE("bf16 parameters: a group of one and no_shard hold a resting copy, a sharded model none") {
    const auto bf16 = [](const toy::strategy& where, std::size_t ranks) {
        model_plan plan = toy::model(where, toy::always, ranks, {16, 32});
        for (auto& unit : plan.units) unit.segments[0].type = dtype::bf16;
        return owned(plan);
    };
    CHECK(bf16(toy::full_shard, 1) == owned_bytes{192, 384, 192, 96, 0, 0, 0, 0});
    CHECK(bf16(toy::no_shard, 4) == owned_bytes{192, 384, 192, 96, 0, 0, 0, 0});
    CHECK(bf16(toy::shard_optimizer, 4) == owned_bytes{48, 96, 48, 96, 192, 0, 0, 0});
    CHECK(bf16(toy::full_shard, 4) == owned_bytes{48, 96, 48, 0, 0, 96, 192, 0});
}

TEST_CASE("gradients in another type than their sums are never written straight into the owned arena") {
    const auto bf16_gradients = [](const toy::strategy& where, std::size_t ranks) {
        model_plan plan = toy::model(where, toy::always, ranks, {16, 32, 8});
        plan.gradient = dtype::bf16;
        return owned(plan);
    };
    CHECK(bf16_gradients(toy::no_shard, 4) == owned_bytes{224, 448, 224, 0, 112, 0, 0, 0});
    CHECK(bf16_gradients(toy::full_shard, 1) == owned_bytes{224, 448, 224, 0, 0, 0, 96, 0});
    CHECK(bf16_gradients(toy::full_shard, 4) == owned_bytes{56, 112, 56, 0, 0, 192, 96, 0});
}

TEST_CASE("frozen parameters have a master and nothing else; moments follow the optimizer; types their size") {
    model_plan plan = toy::model(toy::full_shard, toy::always, 4, {16});
    plan.units[0].segments.push_back({dtype::bf16, false, 64});
    plan.moments = 1;
    CHECK(owned(plan) == owned_bytes{80, 16, 16, 0, 0, 64 + 128, 64, 0});

    plan.gradient = plan.accumulate = plan.master = plan.moment = dtype::f64;
    CHECK(owned(plan) == owned_bytes{160, 32, 32, 0, 0, 192, 128, 0});
    plan.moments = 0;
    CHECK(owned(plan).moments == 0);
}

TEST_CASE("the control records are the engine's own number, and the rows add up to the total") {
    const model_plan plan = toy::model(toy::full_shard, {3}, 4, {16, 16, 16, 16});
    const auto found = toy::predict(plan, toy::plain(toy::in_order(4), 1));
    const owned_bytes all = reshard::predict_memory(plan, found.map, 640);
    CHECK(all.control == 640);
    CHECK(all.total() == 576 + 640);
    std::size_t sum = 0;
    for (const reshard::owned_row& row : reshard::rows(all)) sum += row.bytes;
    CHECK(sum == all.total());
    CHECK(std::string(reshard::rows(all).front().kind) == "masters");
}
