// What a plan predicts is what a counting communicator measures.
#include <doctest/doctest.h>

#include <reshard/comm/counted.hpp>

#include "support/toy_trainer.hpp"

namespace {

using namespace toy;
using reshard::operation;
using reshard::traffic;
using communicator = counted<threads_communicator>;
using policy_type = runtime_policy<precision<float>>;
using trainer_type = trainer<policy_type, communicator>;

bool same(const traffic& measured, const reshard::operation_count& predicted) {
    return measured.calls == predicted.calls && measured.bytes == predicted.bytes;
}

struct figures {
    counter measured;
    reshard::model_report report;
};

/// Runs `body` on every rank and returns what each measured and predicted.
template <class Body>
std::vector<figures> measure(const oracle::net& net, const policy_type& policy, std::size_t ranks, Body body,
                             const trainer_options& options = {}) {
    std::vector<figures> out(ranks);
    run_threads(ranks, [&](threads_communicator world) {
        figures& mine = out[world.rank()];
        trainer_type one(net, communicator(world, mine.measured), policy, options);
        body(one);
        mine.report = one.model.report();
    });
    return out;
}

reshard::operation_count all_gathers(const reshard::model_report& report) {
    reshard::operation_count sum = report.predicted_setup.sum().all_gather;
    sum += report.predicted_steps.sum().all_gather;
    return sum;
}

TEST_CASE("collectives and bytes are as predicted under every policy") {
    for (const bool tied : {false, true}) {
        oracle::net net;
        net.tied = tied;
        for (const char* strategy : strategies) {
            for (const char* reshard : reshards) {
                for (const bool once : {false, true}) {
                    for (const std::size_t m : thinned({1, 2, 4})) {
                        const std::size_t ranks = m == 2 ? 3 : 2;
                        CAPTURE(named(strategy, reshard, once, ranks, m));
                        const auto all =
                            measure(net, parse_policy(strategy, reshard, once), ranks, [&](trainer_type& one) {
                                one.train(m);
                                one.begin(m);
                                for (std::size_t k = 0; k < m; ++k) {
                                    one.forward(k);
                                    one.backward(k);
                                }
                                one.model.discard_step();
                                one.train(m);
                            });
                        for (const figures& one : all) {
                            CHECK(one.report.missed_prefetches == 0);
                            CHECK(one.report.steps == 3);
                            CHECK(same(one.measured.of("whole", operation::all_gather), all_gathers(one.report)));
                            CHECK(same(one.measured.of("whole", operation::reduce_scatter),
                                       one.report.predicted_steps.sum().reduce_scatter));
                            CHECK(same(one.measured.of("whole", operation::all_reduce),
                                       one.report.predicted_steps.sum().all_reduce));
                        }
                    }
                }
            }
        }
    }
}

/// How often every unit is gathered and reduced in one step, by hand: what semantics tables say.
struct expected {
    const char *strategy, *reshard;
    bool once;
    std::size_t gathers, reductions;  // of each of five units in a step of four microbatches
};

TEST_CASE("gathers and reductions of a step are those of the tables") {
    const expected rows[] = {
        {"no_shard", "reshard_always", false, 0, 1},        {"no_shard", "keep_until_step", true, 0, 1},
        {"shard_optimizer", "reshard_always", false, 1, 1}, {"shard_gradients", "reshard_always", false, 1, 4},
        {"shard_gradients", "reshard_always", true, 1, 1},  {"full_shard", "reshard_always", false, 8, 4},
        {"full_shard", "reshard_never", false, 4, 4},       {"full_shard", "keep_until_step", false, 1, 4},
        {"full_shard", "reshard_always", true, 8, 1},       {"full_shard", "keep_until_step", true, 1, 1},
    };
    for (const expected& row : rows) {
        CAPTURE(named(row.strategy, row.reshard, row.once, 2, 4));
        std::vector<counter> one_step(2);
        run_threads(2, [&](threads_communicator world) {
            counter all;
            trainer_type one({}, communicator(world, all), parse_policy(row.strategy, row.reshard, row.once));
            one.train(4);
            const counter before = all;
            one.train(4);
            one_step[world.rank()] = all - before;
        });
        // Unit 1 has a frozen segment beside the trainable one: six all-gathers for five units; agreement and vote.
        CHECK(one_step[0].of("whole", operation::all_gather).calls == 6 * row.gathers + 2);
        CHECK(one_step[0].of("whole", operation::reduce_scatter).calls +
                  one_step[0].of("whole", operation::all_reduce).calls ==
              5 * row.reductions);
        CHECK(one_step[0] == one_step[1]);
    }
}

TEST_CASE("evaluations between, before and inside steps cost what is counted, and change nothing") {
    for (const char* strategy : {"shard_gradients", "full_shard"}) {
        for (const char* reshard : reshards) {
            CAPTURE(named(strategy, reshard, false, 2, 2));
            const auto policy = parse_policy(strategy, reshard);
            std::vector<owned_values> with(2), without(2);
            const auto all = measure({}, policy, 2, [&](trainer_type& one) {
                const std::size_t rank = one.model.rank();
                const auto evaluate = [&] { one.evaluate(0, 8, 3); };
                evaluate();
                one.train(2);
                evaluate();
                evaluate();
                one.begin(2);
                one.forward(0);
                evaluate();
                one.backward(0);
                evaluate();
                one.forward(1);
                one.backward(1);
                one.step();
                one.train(2);
                with[rank] = one.owned();
            });
            measure({}, policy, 2, [&](trainer_type& one) {
                for (int s = 0; s < 3; ++s) one.train(2);
                without[one.model.rank()] = one.owned();
            });
            CHECK(same_values(join(with).all, join(without).all));
            for (const figures& one : all) {
                CHECK(same(one.measured.of("whole", operation::reduce_scatter),
                           one.report.predicted_steps.sum().reduce_scatter));
                // whatever was gathered beyond the prediction: for evaluations, or again because one was in between
                CHECK(one.measured.of("whole", operation::all_gather).calls >= all_gathers(one.report).calls);
            }
            CHECK(all[0].measured == all[1].measured);
        }
    }
}

TEST_CASE("measured is predicted plus what evaluation gathers plus missed prefetches") {
    for (const char* reshard : reshards) {
        for (const int place : {0, 1, 2, 3}) {  // before the first step, between, in the middle, after a forward
            CAPTURE(named("full_shard", reshard, false, 2, 2));
            CAPTURE(place);
            std::vector<counter> during(2);
            std::vector<std::uint64_t> missed(2);
            std::vector<figures> all(2);
            run_threads(2, [&](threads_communicator world) {
                const std::size_t rank = world.rank();
                figures& mine = all[rank];
                trainer_type one({}, communicator(world, mine.measured), parse_policy("full_shard", reshard));
                const auto evaluate = [&] {
                    const counter before = mine.measured;
                    one.evaluate(0, 8, 3);
                    during[rank] = mine.measured - before;
                };
                if (place == 0) evaluate();
                one.train(2);
                if (place == 1) evaluate();
                one.begin(2);
                one.forward(0);
                if (place == 3) evaluate();
                one.backward(0);
                if (place == 2) evaluate();
                one.forward(1);
                one.backward(1);
                one.step();
                one.train(2);
                mine.report = one.model.report();
                missed[rank] = mine.report.missed_prefetches;
            });
            for (std::size_t rank = 0; rank < 2; ++rank) {
                const std::size_t measured = all[rank].measured.of("whole", operation::all_gather).calls;
                const std::size_t evaluated = during[rank].of("whole", operation::all_gather).calls;
                const std::size_t predicted = all_gathers(all[rank].report).calls;
                // Unit 1 has two segments: a miss of it costs two calls.
                CHECK(measured >= predicted + evaluated + missed[rank]);
                CHECK(measured <= predicted + evaluated + 2 * missed[rank]);
            }
        }
    }
}

}  // namespace
