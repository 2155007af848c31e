// Small scenarios with whole numbers whose right answers are known by heart: accumulation, factors, clipping, ties.
#include <doctest/doctest.h>

#include "support/by_hand.hpp"

namespace {

using namespace toy;

using policy_type = runtime_policy<precision<float>>;
using hand = by_hand<policy_type, threads_communicator>;

/// Runs one step of microbatches with gradient [rank][microbatch] and returns what every rank owns then.
std::vector<std::vector<float>> step_of(const policy_type& policy, std::vector<std::vector<float>> gradients,
                                        std::vector<std::size_t> shape, reshard::model_options options = {},
                                        std::size_t uses = 1, std::size_t units = 1) {
    std::vector<std::vector<float>> out(gradients.size());
    run_threads(gradients.size(), [&](threads_communicator world) {
        hand one(world, policy, shape, units, uses, options);
        const auto& mine = gradients[world.rank()];
        one.model.begin_step({.microbatches = mine.size()});
        for (const float gradient : mine) one.microbatch(gradient);
        one.optimizer.step();
        out[world.rank()] = one.weights();
    });
    return out;
}

TEST_CASE("a group of one sums three microbatches of gradient 1 to 3") {
    under_every_policy([](const policy_type& policy) { CHECK(all_are(step_of(policy, {{1, 1, 1}}, {5, 3}), -3)); });
}

TEST_CASE("microbatches with gradients 1, 2 and 4 sum to 7") {
    under_every_policy(
        [](const policy_type& policy) { CHECK(all_are(step_of(policy, {{1, 2, 4}, {1, 2, 4}}, {5, 3}), -7)); });
}

TEST_CASE("sums over ranks and microbatches: two ranks, two microbatches, gradient 1 is 4") {
    under_every_policy([](const policy_type& policy) {
        reshard::model_options sums;
        sums.average_over_ranks = false;
        CHECK(all_are(step_of(policy, {{1, 1}, {1, 1}}, {7}, sums), -4));
    });
}

TEST_CASE("mean over microbatches of 1 and 3 is 2, with one rank and with two") {
    under_every_policy([](const policy_type& policy) {
        reshard::model_options mean;
        mean.average_over_microbatches = true;
        CHECK(all_are(step_of(policy, {{1, 3}}, {3}, mean), -2));
        CHECK(all_are(step_of(policy, {{1, 3}, {1, 3}}, {3}, mean), -2));
        CHECK(all_are(step_of(policy, {{1, 1}, {3, 3}}, {3}, mean), -2));
    });
}

TEST_CASE("a group of one multiplies by the late factor and issues nothing") {
    for (const char* strategy : strategies) {
        CAPTURE(strategy);
        run_threads(1, [&](threads_communicator world) {
            hand one(world, parse_policy(strategy, "reshard_always"), {9});
            one.model.begin_step({.microbatches = 2});
            one.microbatch(1);
            one.microbatch(3);
            one.optimizer.step({.gradient_scale = 0.5});
            CHECK(all_are({one.weights()}, -2));
            CHECK(one.model.internals().log.count() == 0);
        });
    }
}

TEST_CASE("what is written into the gradients of a step is in its norm and its update") {
    under_every_policy([](const policy_type& policy) {
        std::vector<std::vector<float>> out(2);
        std::vector<double> before(2), after(2);
        run_threads(2, [&](threads_communicator world) {
            hand one(world, policy, {4});
            one.microbatch(3);
            before[world.rank()] = one.model.gradient_norm();
            const auto gradients = one.model.write_gradients();
            for (const auto& slice : one.model.owned()) {
                for (std::size_t i = 0; i < slice.count; ++i) gradients[slice.arena_offset + i] += 2;
            }
            after[world.rank()] = one.model.gradient_norm();
            one.optimizer.step();
            out[world.rank()] = one.weights();
        });
        CHECK(before == std::vector<double>{6, 6});   // of four threes
        CHECK(after == std::vector<double>{10, 10});  // of four fives
        CHECK(all_are(out, -5));
    });
}

TEST_CASE("the norm of a gradient that every rank holds is not multiplied by ranks") {
    under_every_policy([](const policy_type& policy) {
        std::vector<double> norms(4);
        run_threads(4, [&](threads_communicator world) {
            hand one(world, policy, {2});
            {
                auto scope = one.list[0]->forward();
            }
            {
                auto scope = one.list[0]->backward();
                scope.gradient(one.w)[0] += 3;
                scope.gradient(one.w)[1] += 4;
            }
            norms[world.rank()] = one.model.gradient_norm();
            one.optimizer.step();
            CHECK(one.model.outcome().norm == norms[world.rank()]);
        });
        for (const double norm : norms) CHECK(norm == 5.0);
    });
}

TEST_CASE("a tied weight of 5 x 2 used twice falls by 2 on both ranks") {
    under_every_policy(
        [](const policy_type& policy) { CHECK(all_are(step_of(policy, {{1}, {1}}, {5, 2}, {}, 2), -2)); });
}

TEST_CASE("a parameter of two rows over four ranks: ranks that own nothing take part") {
    reshard::model_options rows;
    rows.layout.slice_alignment = 1;
    rows.layout.parameter_alignment = 1;
    under_every_policy([&](const policy_type& policy) {
        const auto found = step_of(policy, {{1}, {1}, {1}, {1}}, {2}, rows);
        CHECK(all_are(found, -1));
        const bool sliced = policy.strategy.optimizer_state({}) != reshard::placement::replicated;
        CHECK(std::isnan(found[3][0]) == sliced);
        CHECK(std::isnan(found[3][1]) == sliced);
    });
}

TEST_CASE("one infinite gradient on rank 2 of 4: all skip the step, and say so") {
    under_every_policy([](const policy_type& policy) {
        std::vector<std::vector<float>> weights(4);
        run_threads(4, [&](threads_communicator world) {
            hand one(world, policy, {6}, 3);
            one.microbatch(world.rank() == 2 ? std::numeric_limits<float>::infinity() : 1.0f);
            one.optimizer.step();
            auto outcome = one.model.outcome();
            CHECK(outcome.result == reshard::verdict::overflow);
            CHECK(outcome.skipped == 1);
            CHECK(outcome.applied == 0);
            CHECK(all_are({one.weights(), std::vector<float>(6, 0.0f)}, 0));
            one.microbatch(1);
            one.optimizer.step();
            outcome = one.model.outcome();
            CHECK(outcome.result == reshard::verdict::applied);
            CHECK(outcome.applied == 1);
            CHECK(one.model.steps() == 2);
            weights[world.rank()] = one.weights();
        });
        CHECK(all_are(weights, -1));
    });
}

TEST_CASE("uses = 2: the gradient is the sum of both, one reduction a microbatch, also with two in flight") {
    using reshard::pass;
    using reshard::phase;
    const std::vector<pass> in_flight = {
        {phase::forward, 0}, {phase::forward, 1}, {phase::backward, 0}, {phase::backward, 1}};
    under_every_policy([&](const policy_type& policy) {
        CHECK(all_are(step_of(policy, {{1}, {3}}, {4}, {}, 2, 2), -4));
        CHECK(all_are(step_of(policy, {{1, 1, 1}, {1, 2, 3}}, {4}, {}, 2, 2), -9));
        std::vector<std::vector<float>> weights(2);
        std::size_t reductions = 0;
        run_threads(2, [&](threads_communicator world) {
            hand one(world, policy, {4}, 2, 2);
            const std::uint64_t before = one.model.internals().log.count();
            one.model.begin_step({.microbatches = 2, .schedule = in_flight});
            for (std::size_t m : {0u, 1u}) {
                for (int use = 0; use < 2; ++use) {
                    for (auto* unit : one.list) auto scope = unit->forward(m);
                }
            }
            for (std::size_t m : {0u, 1u}) {
                for (int use = 0; use < 2; ++use) {
                    for (std::size_t u = 2; u-- > 0;) {
                        auto scope = one.list[u]->backward(m);
                        for (auto& each : scope.gradient(one.w)) each += static_cast<float>(m + 1);
                    }
                }
            }
            one.optimizer.step();
            weights[world.rank()] = one.weights();
            if (world.rank() != 0) return;
            const auto& log = one.model.internals().log;
            for (std::uint64_t k = before; k < log.count(); ++k) {
                const auto what = log.at(k).what;
                if (what == reshard::detail::collective::reduce_scatter) ++reductions;
                if (what == reshard::detail::collective::all_reduce) ++reductions;
            }
        });
        CHECK(all_are(weights, -6));
        CHECK(reductions == (policy.reduces_once({}) ? 2 : 4));
    });
}

TEST_CASE("ranks with 3, 1, 0 and 2 microbatches and 5, 1, 0 and 9 tokens equal one rank with all six") {
    // per rank: gradient sums of each microbatch; the mean is over 15 tokens, known only at the end
    const std::vector<std::vector<float>> gradients = {{1, 2, 4}, {8}, {}, {16, 29}};
    const double tokens[] = {5, 1, 0, 9};
    reshard::model_options sums;
    sums.average_over_ranks = false;
    under_every_policy([&](const policy_type& policy) {
        std::vector<std::vector<float>> weights(4);
        run_threads(4, [&](threads_communicator world) {
            hand one(world, policy, {11}, 1, 1, sums);
            one.model.begin_step({.microbatches = 3});
            for (const float gradient : gradients[world.rank()]) one.microbatch(gradient);
            for (std::size_t m = gradients[world.rank()].size(); m < 3; ++m) one.model.idle_microbatch();
            double all = 0;
            for (const double each : tokens) all += each;
            one.optimizer.step({.gradient_scale = 1 / all});
            weights[world.rank()] = one.weights();
        });
        CHECK(all_are(weights, -static_cast<float>(60.0 / 15)));
    });
}

TEST_CASE("metrics are summed over ranks before and after the step") {
    using model_type = sharded_model<policy_type, threads_communicator>;
    std::vector<double> before(3), after(3), discarded(3), cleared(3);
    run_threads(3, [&](threads_communicator world) {
        const std::size_t r = world.rank();
        model_type model(world);
        reshard::sgd<model_type> optimizer(model);
        auto& unit = model.add_unit("only", {{"w", {3}, {}}});
        const auto loss = model.add_metric("loss");
        const auto tokens = model.add_metric("tokens");
        const auto pass = [&] {
            auto forward = unit.forward();
            forward.close();
            auto backward = unit.backward();
            backward.close();
        };
        pass();
        model.set_metric(loss, 0.25 * static_cast<double>(r + 1));
        model.set_metric(tokens, static_cast<double>(r));
        before[r] = model.metric_sum(tokens);
        model.set_metric(tokens, 10 + static_cast<double>(r));
        optimizer.step();
        after[r] = model.metric_sum(loss) + 100 * model.metric_sum(tokens);
        pass();
        model.set_metric(loss, 1);
        model.discard_step();
        discarded[r] = model.metric_sum(loss) + 100 * model.metric_sum(tokens);
        pass();
        optimizer.step();
        cleared[r] = model.metric_sum(loss);
    });
    for (std::size_t r = 0; r < 3; ++r) {
        CHECK(before[r] == 3);
        CHECK(after[r] == 1.5 + 3300);
        CHECK(discarded[r] == 3);
        CHECK(cleared[r] == 0);
    }
}

TEST_CASE("step 1 discarded, step 2 with other betas, rate and count: as one rank told the same") {
    oracle::net net;
    oracle::trainer<double> plain(net);
    oracle::adamw_numbers told;
    told.beta1 = 0.8;
    told.beta2 = 0.95;
    told.rate = 0.02;
    plain.run(1, 0, net.batch, static_cast<double>(net.batch));
    plain.applied = 6;  // the update counts up to 7
    plain.adamw(told);
    plain.run(2, 0, net.batch, static_cast<double>(net.batch));
    plain.adamw({});  // number 8
    for (const char* strategy : strategies) {
        for (const char* reshard : reshards) {
            CAPTURE(named(strategy, reshard, false, 3, 2));
            std::vector<owned_values> owned(3);
            run_threads(3, [&](threads_communicator world) {
                trainer<runtime_policy<precision<double>>, threads_communicator> one(
                    net, world, parse_policy<precision<double>>(strategy, reshard));
                one.begin(2);
                for (std::size_t m = 0; m < 2; ++m) {
                    one.forward(m);
                    one.backward(m);
                }
                one.model.discard_step();
                CHECK(one.model.outcome().result == reshard::verdict::discarded);
                one.adamw_now = {.learning_rate = told.rate, .beta1 = told.beta1, .beta2 = told.beta2, .count = 7};
                one.train(2);
                one.adamw_now = {};
                one.train(2);
                owned[world.rank()] = one.owned();
            });
            const auto found = join(owned);
            CHECK(found.whole);
            CHECK(found.all.applied == 8);
            CHECK(found.all.steps == 3);
            double worst = 0;
            for (std::size_t u = 0; u < net.units(); ++u) {
                for (std::size_t i = 0; i < plain.weights[u].w.size(); ++i) {
                    worst = std::max(worst, std::fabs(found.all.weights[u][0][i] - plain.weights[u].w[i]));
                }
            }
            CHECK(worst < 1e-9);
        }
    }
}

TEST_CASE("SGD with momentum, dampening, Nesterov and decay follows the textbook") {
    oracle::net net;
    for (const bool nesterov : {false, true}) {
        oracle::sgd_numbers numbers{0.1, 0.9, nesterov ? 0.0 : 0.25, 0.01, nesterov};
        oracle::trainer<double> plain(net);
        trainer_options options;
        options.sgd = true;
        options.sgd_with = sgd_numbers(numbers);
        std::vector<owned_values> owned(2);
        run_threads(2, [&](threads_communicator world) {
            trainer<runtime_policy<precision<double>>, threads_communicator> one(
                net, world, parse_policy<precision<double>>("full_shard", "reshard_always"), options);
            for (int s = 0; s < 4; ++s) one.train(1);
            owned[world.rank()] = one.owned();
        });
        for (std::size_t s = 0; s < 4; ++s) {
            plain.run(s, 0, net.batch, static_cast<double>(net.batch));
            plain.sgd(numbers);
        }
        double worst = 0;
        const auto found = join(owned);
        for (std::size_t u = 0; u < net.units(); ++u) {
            for (std::size_t i = 0; i < plain.weights[u].b.size(); ++i) {
                worst = std::max(worst, std::fabs(found.all.weights[u][1][i] - plain.weights[u].b[i]));
            }
        }
        CHECK(worst < 1e-9);
    }
}

TEST_CASE("bf16 parameters with masters in float: whole numbers stay exact") {
    oracle::net net;
    net.whole = true;
    oracle::trainer<float> plain(net);
    trainer_options options;
    options.sgd = true;
    options.averaged = false;
    plain.run(0, 0, net.batch, 1);
    plain.sgd({});
    for (const char* strategy : strategies) {
        CAPTURE(strategy);
        using bf16_policy = runtime_policy<precision<reshard::bf16>>;
        std::vector<owned_values> owned(2);
        run_threads(2, [&](threads_communicator world) {
            trainer<bf16_policy, threads_communicator> one(
                net, world, parse_policy<precision<reshard::bf16>>(strategy, "reshard_always"), options);
            one.train(2);
            owned[world.rank()] = one.owned();
        });
        CHECK(join(owned).whole);
        CHECK(same_weights(join(owned).all, plain.weights));
    }
}

}  // namespace
