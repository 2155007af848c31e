// Ranks that were started or called differently: every one of them hears it, with the numbers.
#include <doctest/doctest.h>

#include <chrono>
#include <initializer_list>
#include <thread>

#include "support/by_hand.hpp"

namespace {

using namespace toy;
using policy_type = runtime_policy<precision<float>>;
using hand = by_hand<policy_type, threads_communicator>;

/// Runs body(communicator, attempt) on each of `ranks` ranks; what attempt(action) throws, while the model lives on, is
/// that rank's entry.
template <class Body>
std::vector<std::string> errors_of(std::size_t ranks, Body body) {
    std::vector<std::string> words(ranks, "no error");
    try {
        run_threads(ranks,
                    [&](threads_communicator world) {
                        body(world, [&](auto action) {
                            try {
                                action();
                            } catch (const reshard::error& known) {
                                words[world.rank()] = known.what();
                            }
                        });
                    },
                    {.deadline_seconds = 10});
    } catch (const reshard::peer_error&) {  // a fault that was never reset
    }
    return words;
}
void expect_on_all(const std::vector<std::string>& words, const char* id, std::initializer_list<const char*> parts) {
    for (const std::string& each : words) {
        CAPTURE(each);
        CHECK(each.find("[" + std::string(id) + "]") != std::string::npos);
        for (const char* part : parts) {
            CAPTURE(part);
            CHECK(each.find(part) != std::string::npos);
        }
    }
}

TEST_CASE("other options, policies or units on one rank") {
    expect_on_all(errors_of(3,
                            [](threads_communicator world, auto attempt) {
                                reshard::model_options options;
                                options.slots.prefetch_depth = world.rank() == 1 ? 2 : 1;
                                attempt([&] {
                                    hand one(world, parse_policy("full_shard", "reshard_always"), {5}, 2, 1, options);
                                });
                            }),
                  "E-AGREE-3", {"options", "ranks 0, 2", "rank 1"});
    expect_on_all(errors_of(2,
                            [](threads_communicator world, auto attempt) {
                                attempt([&] {
                                    hand one(world, parse_policy(strategies[2 + world.rank()], "reshard_always"), {5});
                                });
                            }),
                  "E-AGREE-3", {"policy", "rank 0", "rank 1"});
    expect_on_all(errors_of(2,
                            [](threads_communicator world, auto attempt) {
                                attempt([&] {
                                    hand one(world, parse_policy("full_shard", "reshard_always"), {5 + world.rank()});
                                });
                            }),
                  "E-AGREE-3", {"units", "rank 0", "rank 1"});
}

TEST_CASE("another number of microbatches or another schedule on one rank") {
    using reshard::phase;
    const reshard::pass in_turn[] = {
        {phase::forward, 0}, {phase::backward, 0}, {phase::forward, 1}, {phase::backward, 1}};
    const reshard::pass together[] = {
        {phase::forward, 0}, {phase::forward, 1}, {phase::backward, 0}, {phase::backward, 1}};
    expect_on_all(errors_of(3,
                            [](threads_communicator world, auto attempt) {
                                hand one(world, parse_policy("full_shard", "reshard_always"), {5});
                                attempt([&] { one.model.begin_step({.microbatches = world.rank() == 2 ? 5u : 4u}); });
                            }),
                  "E-AGREE-1", {"number of microbatches", "4 on ranks 0, 1", "5 on rank 2", "idle_microbatch()"});
    expect_on_all(errors_of(2,
                            [&](threads_communicator world, auto attempt) {
                                hand one(world, parse_policy("full_shard", "reshard_always"), {5});
                                attempt([&] {
                                    one.model.begin_step(
                                        {.microbatches = 2, .schedule = world.rank() == 0 ? in_turn : together});
                                });
                            }),
                  "E-AGREE-1", {"schedule"});
    expect_on_all(errors_of(2,
                            [](threads_communicator world, auto attempt) {
                                hand one(world, parse_policy("full_shard", "reshard_always"), {5});
                                if (world.rank() == 1) auto writing = one.model.write_weights();
                                attempt([&] { one.model.begin_step(); });
                            }),
                  "E-AGREE-1", {"weight version"});
}

TEST_CASE("after a refused begin_step the model goes on") {
    std::vector<std::vector<float>> weights(2);
    run_threads(2, [&](threads_communicator world) {
        hand one(world, parse_policy("shard_gradients", "reshard_always"), {5});
        CHECK_THROWS_AS(one.model.begin_step({.microbatches = 1 + world.rank()}), reshard::disagreement_error);
        one.microbatch(1);
        one.optimizer.step();
        CHECK(one.model.steps() == 1);
        weights[world.rank()] = one.weights();
    });
    CHECK(all_are(weights, -1));
}

TEST_CASE("where compute is a queue the difference is found later, and reset() mends it") {
    std::vector<std::vector<float>> weights(2);
    std::vector<std::string> words(2);
    run_threads(2, [&](threads_communicator world) {
        reshard::host_worker side({reshard::worker_mode::threaded, 60, world.rank(), nullptr, nullptr},
                                  world.device().worker());
        const auto compute = reshard::host_device(side).make_stream("compute");
        hand one(world, parse_policy("full_shard", "reshard_always"), {5}, 1, 1, {}, compute);
        const auto pass = [&] {
            {
                auto scope = one.list[0]->forward();
            }
            auto scope = one.list[0]->backward();
            const auto gradient = scope.gradient(one.w);
            world.device().launch(compute, [gradient] {
                for (float& each : gradient) each += 1;
            });
        };
        try {
            one.model.begin_step({.microbatches = 1 + world.rank()});
            pass();
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            one.optimizer.step();
        } catch (const reshard::error& known) {
            words[world.rank()] = known.what();
        }
        one.model.reset();
        pass();
        one.optimizer.step();
        CHECK(one.model.outcome().applied == 1);
        weights[world.rank()] = one.weights();
    });
    for (const std::string& each : words) {
        CAPTURE(each);
        CHECK(each.find("ranks differ in the number of microbatches: 1 on rank 0 and 2 on rank 1") !=
              std::string::npos);
    }
    CHECK(all_are(weights, -1));
}

TEST_CASE("step() on one rank and discard_step() on another: no rank applies it, all hear it and go on") {
    under_every_policy([](const policy_type& policy) {
        std::vector<std::vector<float>> refused(3), weights(3);
        std::vector<std::string> words(3);
        run_threads(3, [&](threads_communicator world) {
            const std::size_t r = world.rank();
            hand one(world, policy, {5});
            one.microbatch(1);
            try {
                if (r == 1) {
                    one.model.discard_step();
                } else {
                    one.optimizer.step();
                }
            } catch (const reshard::disagreement_error& known) {
                words[r] = known.what();
            }
            refused[r] = one.weights();
            one.microbatch(1);
            one.optimizer.step();
            CHECK(one.model.outcome().applied == 1);
            CHECK(one.model.steps() == 1);
            weights[r] = one.weights();
        });
        expect_on_all(words, "E-AGREE-2", {"step 1", "1 on ranks 0, 2", "2 on rank 1", "discard"});
        CHECK(all_are(refused, 0));
        CHECK(all_are(weights, -1));
    });
}

TEST_CASE("reset() that cannot mend: other orders, too far apart, other commits") {
    using reshard::detail::collective;
    expect_on_all(errors_of(3,
                            [](threads_communicator world, auto attempt) {
                                hand one(world, parse_policy("full_shard", "reshard_always"), {5}, 2);
                                reshard::detail::issue forged;
                                forged.unit = 1;
                                forged.what = world.rank() == 0 ? collective::all_gather : collective::all_reduce;
                                if (world.rank() != 2) one.model.internals().log.add(forged);
                                meet(world);
                                attempt([&] { one.model.reset(); });
                            }),
                  "E-RESET-2", {"all_gather of unit 1 on rank 0", "all_reduce of unit 1 on rank 1", "end the job"});
    expect_on_all(errors_of(2,
                            [](threads_communicator world, auto attempt) {
                                hand one(world, parse_policy("full_shard", "reshard_always"), {5});
                                for (int k = 0; world.rank() == 1 && k < 5000; ++k) one.model.internals().log.add({});
                                meet(world);
                                attempt([&] { one.model.reset(); });
                            }),
                  "E-RESET-3", {"5000", "4096"});
    expect_on_all(errors_of(2,
                            [](threads_communicator world, auto attempt) {
                                hand one(world, parse_policy("full_shard", "reshard_always"), {5});
                                one.microbatch(1);
                                one.optimizer.step();
                                if (world.rank() == 1) ++one.model.internals().outcome()->committed;
                                meet(world);
                                attempt([&] { one.model.reset(); });
                            }),
                  "E-RESET-4", {"checkpoint"});
}

TEST_CASE("a rank that never calls reset(): the deadline names it") {
    const auto words = errors_of(2, [](threads_communicator world, auto attempt) {
        hand one(world, parse_policy("full_shard", "reshard_always"), {5});
        meet(world);
        if (world.rank() == 0) attempt([&] { one.model.reset(); });
    });
    CHECK(words[0].find("E-TIME-2") != std::string::npos);
    CHECK(words[0].find("rank 1") != std::string::npos);
}

TEST_CASE("use_on() takes seven streams beside the compute stream") {
    run_threads(1, [&](threads_communicator world) {
        hand one(world, parse_policy("full_shard", "reshard_always"), {5});
        std::vector<reshard::host_device::stream> streams;
        for (int k = 0; k < 8; ++k) streams.push_back(world.device().make_stream("more"));
        auto scope = one.list[0]->forward();
        for (int k = 0; k < 7; ++k) scope.use_on(streams[static_cast<std::size_t>(k)]);
        scope.use_on(streams[3]);  // known already
        CHECK_THROWS_WITH_AS(scope.use_on(streams[7]), doctest::Contains("E-ARGUMENT-2"), reshard::argument_error);
    });
}

}  // namespace
