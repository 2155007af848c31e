// Pipeline schedules and split backwards on one group, scopes that end in halves, recomputation.
#include <doctest/doctest.h>

#include <atomic>
#include <map>

#include "support/by_hand.hpp"

namespace {

using namespace toy;
using reshard::pass;
using reshard::phase;
using policy_type = runtime_policy<precision<float>>;
using trainer_type = trainer<policy_type, threads_communicator>;
using hand = by_hand<policy_type, threads_communicator>;

std::vector<pass> gpipe(std::size_t microbatches, bool reversed) {
    std::vector<pass> passes;
    for (std::size_t m = 0; m < microbatches; ++m) passes.push_back({phase::forward, m});
    for (std::size_t m = 0; m < microbatches; ++m) {
        passes.push_back({phase::backward, reversed ? microbatches - 1 - m : m});
    }
    return passes;
}
std::vector<pass> one_forward_one_backward(std::size_t microbatches, std::size_t ahead) {
    std::vector<pass> passes;
    std::size_t forwards = 0;
    for (std::size_t m = 0; m < microbatches; ++m) {
        while (forwards < microbatches && forwards < m + ahead) passes.push_back({phase::forward, forwards++});
        passes.push_back({phase::backward, m});
    }
    return passes;
}
/// Input parts at once, weight parts as late as can be.
std::vector<pass> split(std::size_t microbatches) {
    std::vector<pass> passes;
    for (std::size_t m = 0; m < microbatches; ++m) {
        passes.push_back({phase::forward, m});
        passes.push_back({phase::backward_input, m});
    }
    for (std::size_t m = 0; m < microbatches; ++m) passes.push_back({phase::backward_weight, m});
    return passes;
}
/// Two chunks of the uses, as an interleaved stage has them.
std::vector<pass> chunks(std::size_t microbatches, std::size_t uses) {
    const std::size_t half = uses / 2;
    std::vector<pass> passes;
    for (std::size_t m = 0; m < microbatches; ++m) passes.push_back({phase::forward, m, 0, half});
    for (std::size_t m = 0; m < microbatches; ++m) passes.push_back({phase::forward, m, half, uses - half});
    for (std::size_t m = 0; m < microbatches; ++m) passes.push_back({phase::backward, m, half, uses - half});
    for (std::size_t m = 0; m < microbatches; ++m) passes.push_back({phase::backward, m, 0, half});
    return passes;
}

TEST_CASE("schedules train as the plain loop does, to the bit on whole numbers") {
    oracle::net net;
    net.whole = true;
    net.overwrites = true;
    oracle::trainer<float> plain(net);
    for (std::size_t s = 0; s < 3; ++s) {
        plain.run(s, 0, net.batch, 1);
        plain.sgd({});
    }
    trainer_options options;
    options.sgd = true;
    options.averaged = false;
    const std::vector<std::vector<pass>> schedules = {
        gpipe(3, false), gpipe(3, true),       one_forward_one_backward(3, 2), one_forward_one_backward(3, 3),
        split(3),        chunks(3, net.uses())};
    under_every_policy([&](const policy_type& policy) {
        for (std::size_t number = 0; number < schedules.size(); ++number) {
            CAPTURE(number);
            std::vector<owned_values> owned(2);
            std::vector<reshard::model_report> reports(2);
            std::vector<std::string> refused(2);
            run_threads(2, [&](threads_communicator world) {
                trainer_type one(net, world, policy, options);
                try {
                    for (int s = 0; s < 3; ++s) one.train(3, schedules[number]);
                } catch (const reshard::order_error& known) {
                    refused[world.rank()] = known.what();
                    return;
                }
                owned[world.rank()] = one.owned();
                reports[world.rank()] = one.model.report();
            });
            if (refused[0] != "") {  // the last unit is kept in a buffer that the next forward's units need
                CHECK(refused[0] == refused[1]);
                CHECK(refused[0].find("E-ORDER-3") != std::string::npos);
                CHECK(policy.reshard.after_forward({4, 5}) == reshard::afterwards::keep);
                CHECK(policy.reshard.after_forward({0, 5}) == reshard::afterwards::free);
                CHECK(policy.strategy.parameters({}) == reshard::placement::whole);
                continue;
            }
            const auto found = join(owned);
            CHECK(found.whole);
            CHECK(same_weights(found.all, plain.weights));
            CHECK(reports[0].measured_live <= reports[0].planned_live);
        }
    });
}

TEST_CASE("weights_done() and gradients_done() end a half early") {
    under_every_policy([](const policy_type& policy) {
        std::vector<std::vector<float>> weights(2);
        std::vector<std::string> wrong(2);
        run_threads(2, [&](threads_communicator world) {
            hand one(world, policy, {70}, 3);
            for (auto* unit : one.list) auto scope = unit->forward();
            for (std::size_t u = 3; u-- > 0;) {
                auto scope = one.list[u]->backward();
                const float seen = scope[one.w][0];
                if (u == 2) {
                    for (auto& each : scope.gradient(one.w)) each += 1;
                    scope.gradients_done();  // the weights stay
                    if (scope[one.w][0] != seen) wrong[world.rank()] += "weights changed; ";
                    try {
                        scope.gradient(one.w)[0] = 5;
                        wrong[world.rank()] += "a gradient after its end; ";
                    } catch (const reshard::state_error&) {
                    }
                } else {
                    scope.weights_done();  // the gradients stay
                    for (auto& each : scope.gradient(one.w)) each += 1;
                    try {
                        if (scope[one.w][0] == 12345) throw 1;
                        wrong[world.rank()] += "weights after their end; ";
                    } catch (const reshard::state_error&) {
                    }
                }
            }
            one.optimizer.step();
            weights[world.rank()] = one.weights();
        });
        CHECK(all_are(weights, -1));
        for (const std::string& each : wrong) CHECK(each == "");
    });
}

TEST_CASE("callback forms hand the scope over and throw what goes wrong") {
    std::vector<std::vector<float>> weights(2);
    std::atomic<int> thrown{0};
    run_threads(2, [&](threads_communicator world) {
        hand one(world, parse_policy("full_shard", "reshard_never"), {5}, 2);
        for (auto* unit : one.list) unit->forward([&](auto& scope) { CHECK(scope[one.w][4] == 0); });
        for (std::size_t u = 2; u-- > 0;) {
            one.list[u]->backward([&](auto& scope) {
                for (auto& each : scope.gradient(one.w)) each += 1;
            });
        }
        one.optimizer.step();
        weights[world.rank()] = one.weights();
        meet(world);  // the reset of the first rank to throw must not reach another inside its step
        try {
            one.list[0]->backward([](auto&) {});
            FAIL_CHECK("no error");
        } catch (const reshard::order_error&) {
            ++thrown;
        } catch (const reshard::peer_error&) {
        }
        one.model.reset();
    });
    CHECK(all_are(weights, -1));
    CHECK(thrown >= 1);
}

/// All-gathers of every unit in a step of six units in which segments of `segment` units are recomputed.
std::vector<std::size_t> gathers_with_recompute(const std::string& reshard, std::size_t segment) {
    std::vector<std::size_t> gathers(6, 0);
    run_threads(2, [&](threads_communicator world) {
        reshard::model_options options;
        options.slots.recompute_segment = segment == 0 ? 1 : segment;
        hand one(world, parse_policy("full_shard", reshard), {64}, 6, 1, options);
        one.microbatch(1);
        one.optimizer.step();
        const std::uint64_t before = one.model.internals().log.count();
        for (auto* unit : one.list) auto scope = unit->forward();
        for (std::size_t end = 6; end > 0; end -= segment == 0 ? 1 : segment) {
            for (std::size_t u = end - segment; u < end; ++u) {
                auto scope = one.list[u]->recompute();
                CHECK(scope[one.w][0] == -1);
            }
            for (std::size_t u = end; u-- > end - (segment == 0 ? 1 : segment);) {
                auto scope = one.list[u]->backward();
                for (auto& each : scope.gradient(one.w)) each += 1;
            }
        }
        one.optimizer.step();
        CHECK(one.model.report().missed_prefetches == 0);
        CHECK(all_are({one.weights(), std::vector<float>(64, -2.0f)}, -2));
        if (world.rank() != 0) return;
        const auto& log = one.model.internals().log;
        for (std::uint64_t k = before; k < log.count(); ++k) {
            if (log.at(k).what == reshard::detail::collective::all_gather && log.at(k).unit < 6)
                ++gathers[log.at(k).unit];
        }
    });
    return gathers;
}

TEST_CASE("recomputation over segments of one and three units gathers as often as without") {
    for (const char* reshard : reshards) {
        CAPTURE(reshard);
        const auto without = gathers_with_recompute(reshard, 0);
        CHECK(without[0] >= 1);
        CHECK(gathers_with_recompute(reshard, 1) == without);
        CHECK(gathers_with_recompute(reshard, 3) == without);
    }
}

TEST_CASE("a longer segment than declared throws with both numbers") {
    std::atomic<int> thrown{0};
    run_threads(2, [&](threads_communicator world) {
        reshard::model_options options;
        options.slots.recompute_segment = 2;
        hand one(world, parse_policy("full_shard", "reshard_always"), {64}, 6, 1, options);
        for (auto* unit : one.list) auto scope = unit->forward();
        {
            auto scope = one.list[3]->recompute();
        }
        {
            auto scope = one.list[4]->recompute();
        }
        meet(world);  // the reset of the first rank to throw must not reach another inside a scope
        try {
            auto scope = one.list[5]->recompute();
            FAIL_CHECK("no error");
        } catch (const reshard::state_error& known) {
            const std::string words = known.what();
            CHECK(words.find("E-STATE-10") != std::string::npos);
            CHECK(words.find("unit.5") != std::string::npos);
            CHECK(words.find("number 3") != std::string::npos);
            CHECK(words.find("recompute_segment is 2") != std::string::npos);
            ++thrown;
        } catch (const reshard::peer_error&) {
        }
        one.model.reset();
    });
    CHECK(thrown >= 1);
}

}  // namespace
