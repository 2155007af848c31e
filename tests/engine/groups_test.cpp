// Hybrid strategies, smaller groups and meshes: training equals plain loops; counts, bytes and memory are as planned.
#include <doctest/doctest.h>

#include <reshard/comm/counted.hpp>

#include "support/grouped.hpp"

namespace {

using namespace toy;
using reshard::operation;
using reshard::rank_set;

/// Of other sizes too, on up to eight ranks.
constexpr grouped settings[] = {
    {"hybrid_shard", "reshard_always", "mesh:2x2", 4},
    {"hybrid_shard", "keep_last:1", "mesh:3x2", 6},
    {"hybrid_shard", "reshard_never", "mesh:2x3", 6},
    {"hybrid_shard", "reshard_to_group:2", "mesh:2x4", 8},
    {"hybrid_shard", "reshard_to_group:2,until_step", "mesh:2x4", 8},
    {"hybrid_shard", "reshard_always", "mesh:*x1", 3},
    {"hybrid_shard", "reshard_always", "mesh:1x3", 3},
    {"hybrid_full_shard", "reshard_always", "mesh:2x2", 4},
    {"hybrid_full_shard", "keep_until_step", "mesh:2x3", 6},
    {"hybrid_full_shard", "keep_last:1", "mesh:3x2", 6},
    {"hybrid_full_shard", "reshard_to_group:2", "mesh:2x4", 8},
    {"hybrid_full_shard", "reshard_to_group:2,until_step", "mesh:*x4", 8},
    {"full_shard", "reshard_to_group:2", "flat", 4},
    {"full_shard", "reshard_to_group:3", "flat", 6},
    {"full_shard", "reshard_to_group:2,until_step", "flat", 6},
    {"full_shard", "reshard_to_group:4,until_step", "mesh:2x4", 8},
    {"full_shard", "reshard_to_group:1", "flat", 3},
    {"full_shard", "reshard_to_group:4,until_step", "flat", 4},
    {"full_shard", "reshard_always", "mesh:2x2", 4},
    {"shard_optimizer", "reshard_always", "mesh:2x2", 4},
    {"sharding:replicated,replicated,inner", "reshard_always", "mesh:2x3", 6},
    {"sharding:replicated,inner,inner", "reshard_always", "mesh:2x2", 4},
    {"sharding:replicated,inner,whole", "reshard_always", "mesh:3x2", 6},
    {"sharding:inner,whole,whole", "reshard_always", "mesh:2x2", 4},
    {"sharding:inner,whole,whole", "reshard_to_group:2,until_step", "mesh:2x4", 8},
};

template <class Body>
void under_every_setting(Body body) {
    for (const grouped& one : settings) {
        if (sanitized() && one.ranks > 4) continue;
        for (const bool once : {false, true}) {
            for (const std::size_t m : {1u, 2u, 4u}) {
                if (one.ranks == 8 && once != (m == 2)) continue;  // eight threads take long
                if (sanitized() && m != 2) continue;
                CAPTURE(one.words(once));
                CAPTURE(m);
                body(one, once, m);
            }
        }
    }
}

/// `ranks` threads as one.ranks / nothing: the batch divides by 4 microbatches of 2, 3, 4, 6 and 8 ranks.
oracle::net net_of() {
    oracle::net net;
    net.batch = 96;
    return net;
}

template <class Number>
void equals_plain_loops(double tolerance, bool tied) {
    oracle::net net = net_of();
    net.tied = tied;
    oracle::trainer<Number> plain(net);
    std::vector<double> right;
    for (std::size_t s = 0; s < 8; ++s) {
        right.push_back(plain.run(s, 0, net.batch, static_cast<double>(net.batch)));
        plain.adamw({});
    }
    under_every_setting([&](const grouped& one, bool once, std::size_t m) {
        std::vector<std::vector<double>> losses(one.ranks);
        std::vector<owned_values> owned(one.ranks);
        run_threads(one.ranks, [&](threads_communicator world) {
            trainer<runtime_policy<precision<Number>>, threads_communicator> train(net, world,
                                                                                   one.policy<precision<Number>>(once));
            for (std::size_t s = 0; s < right.size(); ++s) train.train(m);
            losses[world.rank()] = train.losses;
            owned[world.rank()] = train.owned();
        });
        CHECK(join(owned).whole);
        for (std::size_t s = 0; s < right.size(); ++s) {
            double loss = 0;
            for (const auto& mine : losses) loss += mine[s] / static_cast<double>(one.ranks * m);
            CHECK(std::fabs(loss - right[s]) <= tolerance * std::fabs(right[s]));
        }
    });
}

TEST_CASE("groups: AdamW in double has the losses of plain loops") { equals_plain_loops<double>(1e-9, false); }
TEST_CASE("groups: the same with a tied unit, in float") { equals_plain_loops<float>(1e-4, true); }

TEST_CASE("groups: whole numbers come out exact under every setting") {
    oracle::net net = net_of();
    net.whole = true;
    net.tied = true;
    oracle::trainer<float> plain(net);
    for (std::size_t s = 0; s < 4; ++s) {
        plain.run(s, 0, net.batch, 1);
        plain.sgd({});
    }
    trainer_options options;
    options.sgd = true;
    options.averaged = false;
    under_every_setting([&](const grouped& one, bool once, std::size_t m) {
        std::vector<owned_values> owned(one.ranks);
        run_threads(one.ranks, [&](threads_communicator world) {
            trainer<runtime_policy<precision<float>>, threads_communicator> train(net, world, one.policy(once),
                                                                                  options);
            for (std::size_t s = 0; s < 4; ++s) train.train(m);
            owned[world.rank()] = train.owned();
        });
        const auto found = join(owned);
        CHECK(found.whole);
        CHECK(same_weights(found.all, plain.weights));
    });
}

reshard::operation_count counted_as(const counter& measured, rank_set which, operation kind) {
    const auto found = measured.of(name_of(which), kind);
    return {found.calls, found.bytes};
}

TEST_CASE("groups: collectives and bytes of every group, and memory, are as predicted") {
    using communicator = counted<threads_communicator>;
    for (const bool tied : {false, true}) {
        oracle::net net = net_of();
        net.tied = tied;
        under_every_setting([&](const grouped& one, bool once, std::size_t m) {
            std::vector<counter> measured(one.ranks);
            std::vector<reshard::model_report> reports(one.ranks);
            std::vector<std::size_t> allocated(one.ranks), live_after(one.ranks);
            run_threads(one.ranks, [&](threads_communicator world) {
                const std::size_t rank = world.rank(), before = world.device().allocated();
                trainer<runtime_policy<precision<float>>, communicator> train(net, communicator(world, measured[rank]),
                                                                              one.policy(once));
                for (int s = 0; s < 2; ++s) train.train(m);
                train.begin(m);
                for (std::size_t k = 0; k < m; ++k) {
                    train.forward(k);
                    train.backward(k);
                }
                train.model.discard_step();
                train.train(m);
                reports[rank] = train.model.report();
                allocated[rank] = world.device().allocated() - before;
                live_after[rank] = train.model.internals().live_bytes;
            });
            for (std::size_t r = 0; r < one.ranks; ++r) {
                const reshard::model_report& report = reports[r];
                CHECK(report.missed_prefetches == 0);
                CHECK(report.predicted_owned.total() == report.measured_owned);
                CHECK(report.measured_owned == allocated[r]);
                CHECK(report.measured_live == report.planned_live);
                CHECK(live_after[r] == 0);
                for (const rank_set which : {rank_set::whole, rank_set::inner, rank_set::outer, rank_set::secondary}) {
                    CAPTURE(name_of(which));
                    auto gathers = report.predicted_setup[which].all_gather;
                    gathers += report.predicted_steps[which].all_gather;
                    CHECK(counted_as(measured[r], which, operation::all_gather) == gathers);
                    CHECK(counted_as(measured[r], which, operation::reduce_scatter) ==
                          report.predicted_steps[which].reduce_scatter);
                    CHECK(counted_as(measured[r], which, operation::all_reduce) ==
                          report.predicted_steps[which].all_reduce);
                }
            }
        });
    }
}

/// Bytes a rank sends in a step of two microbatches over four ranks: 16 fp32 elements at alignment 1, by hand.
struct toy_row {
    grouped policy;
    std::size_t each, once;
};
constexpr toy_row toy_rows[] = {
    {{"no_shard", "reshard_always", "flat", 4}, 96, 96},
    {{"shard_optimizer", "reshard_always", "flat", 4}, 96, 96},
    {{"shard_gradients", "reshard_always", "flat", 4}, 144, 96},
    {{"full_shard", "reshard_always", "flat", 4}, 288, 240},
    {{"full_shard", "reshard_never", "flat", 4}, 192, 144},
    {{"full_shard", "keep_until_step", "flat", 4}, 144, 96},
    {{"full_shard", "reshard_to_group:2", "flat", 4}, 256, 208},
    {{"full_shard", "reshard_to_group:2,until_step", "flat", 4}, 240, 192},
    {{"hybrid_shard", "reshard_always", "mesh:2x2", 4}, 224, 192},
    {{"hybrid_full_shard", "reshard_always", "mesh:2x2", 4}, 224, 192},
    {{"sharding:replicated,replicated,inner", "reshard_always", "mesh:2x2", 4}, 96, 96},
    {{"sharding:replicated,inner,inner", "reshard_always", "mesh:2x2", 4}, 128, 96},
    {{"sharding:replicated,inner,whole", "reshard_always", "mesh:2x2", 4}, 128, 96},
    {{"sharding:inner,whole,whole", "reshard_always", "mesh:2x2", 4}, 240, 192},
};

std::size_t sent_in_a_step(const toy_row& row, bool once, std::size_t alignment) {
    using communicator = counted<threads_communicator>;
    std::vector<std::size_t> sent(4);
    run_threads(4, [&](threads_communicator threads) {
        counter all;
        by_hand<runtime_policy<precision<float>>, communicator> one(
            communicator(threads, all), row.policy.policy(once), {16}, 1, 1,
            {.layout = {.parameter_alignment = alignment, .slice_alignment = alignment}});
        counter before;
        for (int step = 0; step < 2; ++step) {
            before = all;
            one.model.begin_step({.microbatches = 2});
            one.microbatch(1);
            one.microbatch(1);
            one.optimizer.step();
        }
        for (const auto& group : (all - before).groups) {
            for (const reshard::traffic& each : group.by_operation) sent[threads.rank()] += each.bytes;
        }
    });
    for (const std::size_t bytes : sent) CHECK(bytes == sent[0]);
    return sent[0] - 3 * 64 - 3 * 32;  // agreement and vote
}

TEST_CASE("groups: the toy numbers, and sixteen times as much where padding makes 16 elements 256") {
    for (const toy_row& row : toy_rows) {
        CAPTURE(row.policy.words());
        CHECK(sent_in_a_step(row, false, 1) == row.each);
        CHECK(sent_in_a_step(row, true, 1) == row.once);
        CHECK(sent_in_a_step(row, false, 64) == 16 * row.each);
        CHECK(sent_in_a_step(row, true, 64) == 16 * row.once);
    }
}

}  // namespace
