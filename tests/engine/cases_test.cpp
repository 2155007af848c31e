// Scenarios that went wrong in other engines: versions of weights, order, addresses, kept memory, lone ranks.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <thread>

#include "support/by_hand.hpp"

namespace {

using namespace toy;
using policy_type = runtime_policy<precision<float>>;
using trainer_type = trainer<policy_type, threads_communicator>;
using hand = by_hand<policy_type, threads_communicator>;

template <class Model>
void write_all(Model& model, float value) {
    auto writing = model.write_weights();
    for (auto& each : model.masters()) each = value;
    writing.close();
}

enum class writer { load, user, broadcast };
enum class copy { resting, kept, prefetched };

/// What a forward of the first unit reads after a write of 2s, and again one step of gradient 1 later.
std::vector<float> seen_after(writer how, copy what) {
    std::vector<float> seen(4, -1);
    const char* strategy = how == writer::broadcast ? "no_shard"
                           : what == copy::resting  ? "shard_gradients"
                                                    : "full_shard";
    const char* reshard = what == copy::kept ? "keep_until_step" : "reshard_always";
    run_threads(2, [&](threads_communicator world) {
        hand one(world, parse_policy(strategy, reshard), {70}, 3);
        one.initialize(1);
        {
            auto evaluating = one.model.evaluate();
            for (std::size_t u = 0; u < (what == copy::prefetched ? 2u : 3u); ++u) {
                auto scope = one.list[u]->forward();
                CHECK(scope[one.w][0] == 1);
            }
        }
        if (how == writer::load) {
            one.model.initialize([](const auto&, std::size_t, auto values) {
                for (auto& each : values) each = 2;
            });
        } else if (how == writer::user) {
            write_all(one.model, 2);
        } else {
            write_all(one.model, world.rank() == 1 ? 2.0f : 5.0f);
            one.model.synchronize_weights(1);
        }
        one.microbatch(1);
        const std::size_t r = world.rank();
        seen[2 * r] = one.seen;
        one.optimizer.step();
        one.microbatch(1);
        seen[2 * r + 1] = one.seen;
        one.optimizer.step();
    });
    return seen;
}

TEST_CASE("a write to the weights voids every copy made before") {
    for (const writer how : {writer::load, writer::user, writer::broadcast}) {
        for (const copy what : {copy::resting, copy::kept, copy::prefetched}) {
            CAPTURE(static_cast<int>(how));
            CAPTURE(static_cast<int>(what));
            CHECK(seen_after(how, what) == std::vector<float>{2, 1, 2, 1});
        }
    }
}

TEST_CASE("a write in the middle of a step, between scopes, is what the next scope shows") {
    under_every_policy([](const policy_type& policy) {
        run_threads(2, [&](threads_communicator world) {
            hand one(world, policy, {70}, 3);
            one.initialize(1);
            for (auto* unit : one.list) auto scope = unit->forward();
            write_all(one.model, 2);
            for (std::size_t u = 3; u-- > 0;) {
                auto scope = one.list[u]->backward();
                CHECK(scope[one.w][69] == 2);
            }
            one.optimizer.step();
        });
    });
}

TEST_CASE("a write while a scope is open throws and names it") {
    run_threads(2, [&](threads_communicator world) {
        hand one(world, parse_policy("full_shard", "reshard_always"), {70}, 2);
        {
            auto scope = one.list[0]->forward();
            CHECK_THROWS_WITH_AS(one.model.write_weights(), doctest::Contains("unit.0"), reshard::state_error);
        }
        {
            auto scope = one.list[1]->forward();
        }
        for (std::size_t u = 2; u-- > 0;) auto scope = one.list[u]->backward();
        one.optimizer.step();
    });
}

TEST_CASE("units visited in another order on rank 1: an error that names both, and no hang") {
    std::vector<std::string> words(2);
    const auto began = std::chrono::steady_clock::now();
    run_threads(2,
                [&](threads_communicator world) {
                    hand one(world, parse_policy("full_shard", "reshard_always"), {70}, 3);
                    try {
                        for (const std::size_t u : {0u, world.rank() == 1 ? 2u : 1u, world.rank() == 1 ? 1u : 2u}) {
                            auto scope = one.list[u]->forward();
                        }
                        one.list[2]->backward([&](auto&) {});
                        one.list[1]->backward([&](auto&) {});
                        one.list[0]->backward([&](auto&) {});
                        one.optimizer.step();
                    } catch (const reshard::error& known) {
                        words[world.rank()] = known.what();
                        world.control().raise(known.what());
                    }
                    one.model.reset();
                },
                {.deadline_seconds = 5});
    CHECK(words[1].find("E-ORDER-1") != std::string::npos);
    CHECK(words[1].find("forward of \"unit.2\"") != std::string::npos);
    CHECK(words[1].find("forward of \"unit.1\"") != std::string::npos);
    CHECK(words[1].find("{\"unit.0\", \"unit.2\"}") != std::string::npos);
    CHECK(words[0].find("rank 1 failed") != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(4));
}

TEST_CASE("one rank alone runs an evaluation: an error that says who waits for what, and no hang") {
    std::vector<std::string> words(2);
    const auto began = std::chrono::steady_clock::now();
    SUBCASE("the other has ended") {
        CHECK_THROWS_WITH_AS(run_threads(2,
                                         [&](threads_communicator world) {
                                             trainer_type one({}, world, parse_policy("full_shard", "reshard_always"));
                                             one.train(1);
                                             if (world.rank() == 0) one.evaluate(0, 4);
                                         },
                                         {.deadline_seconds = 30}),
                             doctest::Contains("layer.0"), reshard::timeout_error);
    }
    SUBCASE("the other is busy elsewhere") {
        CHECK_THROWS_WITH_AS(run_threads(2,
                                         [&](threads_communicator world) {
                                             trainer_type one({}, world, parse_policy("full_shard", "reshard_always"));
                                             one.train(1);
                                             if (world.rank() == 0) one.evaluate(0, 4);
                                             std::this_thread::sleep_for(std::chrono::milliseconds(1200));
                                         },
                                         {.deadline_seconds = 0.3}),
                             doctest::Contains("rank 1"), reshard::timeout_error);
    }
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(6));
}

TEST_CASE("replicas that start from different values: a check names the first unit, a broadcast makes them equal") {
    std::vector<std::string> words(3);
    std::vector<std::vector<float>> weights(3);
    run_threads(3, [&](threads_communicator world) {
        hand one(world, parse_policy("no_shard", "reshard_always"), {7}, 3);
        one.model.check_replicas();
        one.model.initialize([&](const reshard::parameter_info& info, std::size_t, auto values) {
            for (auto& each : values) each = info.unit_index == 0 ? 1.0f : static_cast<float>(world.rank());
        });
        try {
            one.model.check_replicas();
        } catch (const reshard::disagreement_error& known) {
            words[world.rank()] = known.what();
        }
        one.model.synchronize_weights(2);
        one.model.check_replicas();
        for (auto& each : one.model.masters()) {
            weights[world.rank()].push_back(each);
        }
        // where nothing is held twice there is nothing to compare or to send
        hand sharded(world, parse_policy("full_shard", "reshard_always"), {7}, 3);
        sharded.model.check_replicas();
        sharded.model.synchronize_weights();
    });
    for (const std::string& each : words) {
        CHECK(each.find("E-AGREE-4") != std::string::npos);
        CHECK(each.find("\"unit.1\"") != std::string::npos);
        CHECK(each == words[0]);
    }
    CHECK(weights[0] == weights[1]);
    CHECK(weights[0] == weights[2]);
    CHECK(weights[0][0] == 1);
}

TEST_CASE("in backward the gather of unit i - 1 is launched before the reduction of unit i") {
    run_threads(2, [&](threads_communicator world) {
        hand one(world, parse_policy("full_shard", "reshard_always"), {70}, 5);
        one.microbatch(1);
        one.optimizer.step();
        const std::uint64_t before = one.model.internals().log.count();
        one.microbatch(1);
        one.optimizer.step();
        const auto& log = one.model.internals().log;
        std::vector<std::uint64_t> last_gather(5, 0), reduction(5, 0);
        for (std::uint64_t k = before; k < log.count(); ++k) {
            if (log.at(k).unit >= 5) continue;
            (log.at(k).what == reshard::detail::collective::all_gather ? last_gather : reduction)[log.at(k).unit] = k;
        }
        for (std::size_t u = 1; u < 5; ++u) CHECK(last_gather[u - 1] < reduction[u]);
    });
}

TEST_CASE("what is gathered after a forward is what the reshard policy says") {
    struct row {
        const char* reshard;
        std::size_t after_forward, after_backward;  // units of five, the first no exception
    };
    for (const row& each : {row{"reshard_always", 0, 0},
                            {"reshard_never", 5, 0},
                            {"keep_until_step", 5, 5},
                            {"keep_last:1", 1, 0},
                            {"keep_last:3", 3, 0}}) {
        CAPTURE(each.reshard);
        run_threads(2, [&](threads_communicator world) {
            reshard::model_options options;
            options.slots.prefetch_depth = 0;  // nothing of the next pass is here
            hand one(world, parse_policy("full_shard", each.reshard), {64}, 5, 1, options);
            for (int s = 0; s < 2; ++s) {
                one.model.begin_step({.microbatches = 2});
                for (std::size_t m = 0; m < 2; ++m) {
                    for (auto* unit : one.list) auto scope = unit->forward();
                    CHECK(one.model.internals().live_bytes == each.after_forward * 128 * 4);
                    for (std::size_t u = 5; u-- > 0;) auto scope = one.list[u]->backward();
                    CHECK(one.model.internals().live_bytes == each.after_backward * 128 * 4);
                }
                one.optimizer.step();
                CHECK(one.model.internals().live_bytes == 0);
            }
        });
    }
}

TEST_CASE("addresses are the same in every step and multiples of 256 bytes, under every policy") {
    for (const bool tied : {false, true}) {
        oracle::net net;
        net.tied = tied;  // five units: an odd number
        under_every_policy([&](const policy_type& policy) {
            std::vector<std::string> wrong(2);
            run_threads(2, [&](threads_communicator world) {
                trainer_type one(net, world, policy);
                std::vector<const void*> first, now;
                one.addresses = &first;
                one.train(2);
                one.addresses = &now;
                for (int s = 0; s < 9; ++s) {
                    now.clear();
                    one.train(2);
                    if (now != first) wrong[world.rank()] = "addresses changed";
                }
                for (const void* each : first) {
                    if (reinterpret_cast<std::uintptr_t>(each) % 256 != 0) wrong[world.rank()] += " unaligned";
                }
                if (first.size() < 10) wrong[world.rank()] += " nothing seen";
            });
            for (const std::string& each : wrong) CHECK(each == "");
        });
    }
}

TEST_CASE("parameters that rest whole keep one address; elsewhere resting() is refused") {
    for (const char* strategy : strategies) {
        CAPTURE(strategy);
        run_threads(2, [&](threads_communicator world) {
            hand one(world, parse_policy(strategy, "reshard_always"), {70}, 2);
            if (std::string(strategy) == "full_shard") {
                CHECK_THROWS_WITH_AS(one.list[0]->resting(one.w), doctest::Contains("E-STATE-13"),
                                     reshard::state_error);
                return;
            }
            const auto values = one.list[0]->resting(one.w);
            CHECK(values.size() == 70);
            for (int s = 1; s < 4; ++s) {
                one.microbatch(1);
                one.optimizer.step();
                const auto again = one.list[0]->resting(one.w);
                CHECK(again.data() == values.data());
                CHECK(again[69] == static_cast<float>(-s));
            }
        });
    }
}

TEST_CASE("an embedding forty times a block: gather space is the largest unit and two blocks at most") {
    const std::size_t block = 1280, embedding = 40 * block;
    for (const std::size_t uses : {1u, 2u}) {
        CAPTURE(uses);
        run_threads(2, [&](threads_communicator world) {
            using model_type = sharded_model<policy_type, threads_communicator>;
            model_type model(world, {}, parse_policy("full_shard", "reshard_always"));
            reshard::sgd<model_type> optimizer(model);
            std::vector<model_type::unit*> order = {
                &model.add_unit("embedding", {{"w", {embedding}, {}}}, {.uses = uses})};
            for (int u = 0; u < 6; ++u)
                order.push_back(&model.add_unit("h." + std::to_string(u), {{"w", {block}, {}}}));
            if (uses == 2) order.push_back(order[0]);
            model.set_order(order);
            model.initialize([](const auto&, std::size_t, auto) {});
            for (auto* unit : order) auto scope = unit->forward();
            for (std::size_t u = order.size(); u-- > 0;) auto scope = order[u]->backward();
            optimizer.step();
            const auto report = model.report();
            CHECK(report.predicted_owned.gather_buffers <= 4 * (embedding + 2 * block));
            CHECK(report.predicted_owned.total() == report.measured_owned);
        });
    }
}

TEST_CASE("validation and sampling before, between and inside steps change no loss") {
    under_every_policy([](const policy_type& policy) {
        oracle::net net;
        std::vector<owned_values> with(4), without(4);
        std::vector<std::vector<double>> losses(8);
        for (const bool validating : {false, true}) {
            run_threads(4, [&](threads_communicator world) {
                trainer_type one(net, world, policy);
                train_three_steps(one, validating);
                (validating ? with : without)[world.rank()] = one.owned();
                losses[world.rank() + (validating ? 4u : 0u)] = one.losses;
            });
        }
        CHECK(same_values(join(with).all, join(without).all));
        for (std::size_t r = 0; r < 4; ++r) CHECK(losses[r] == losses[r + 4]);
    });
}

TEST_CASE("initial values by element, by whole parameter, and on any number of ranks are the same") {
    const auto value = [](std::size_t unit, std::size_t i) { return static_cast<float>(unit * 1000 + i); };
    for (const char* strategy : strategies) {
        for (const std::size_t ranks : {1u, 3u}) {
            for (const bool whole : {false, true}) {
                std::vector<std::string> wrong(ranks);
                run_threads(ranks, [&](threads_communicator world) {
                    hand one(world, parse_policy(strategy, "reshard_always"), {11, 9}, 3);
                    std::size_t calls = 0;
                    if (whole) {
                        one.model.initialize(
                            reshard::by_whole_parameter{[&](const reshard::parameter_info& info, auto values) {
                                ++calls;
                                if (values.size() != 99 || info.shape.size() != 2) wrong[world.rank()] = "shape";
                                for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(info.unit_index, i);
                            }});
                        if (calls != 3) wrong[world.rank()] = "calls";
                    } else {
                        one.model.initialize([&](const reshard::parameter_info& info, std::size_t offset, auto values) {
                            for (std::size_t i = 0; i < values.size(); ++i) {
                                values[i] = value(info.unit_index, offset + i);
                            }
                        });
                    }
                    auto evaluating = one.model.evaluate();
                    for (std::size_t u = 0; u < 3; ++u) {
                        auto scope = one.list[u]->forward();
                        for (std::size_t i = 0; i < 99; ++i) {
                            if (scope[one.w][i] != value(u, i)) wrong[world.rank()] = "value";
                        }
                    }
                });
                for (const std::string& each : wrong) CHECK(each == "");
            }
        }
    }
}

}  // namespace
