// Streams that run late, ahead or side by side: what is read is what was written, and memory stays bounded.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "support/grouped.hpp"

namespace {

using namespace toy;
using trainer_type = trainer<policy_type, threads_communicator>;
using hand = by_hand<policy_type, threads_communicator>;
using stream_ref = reshard::host_device::stream_ref;

/// Queues of a further worker of the rank: compute streams that the host runs ahead of.
struct queues {
    explicit queues(threads_communicator world, const reshard::delay_source* delays = nullptr)
        : worker({reshard::worker_mode::threaded, 60, world.rank(), delays, nullptr}, world.device().worker()),
          compute(reshard::host_device(worker).make_stream("compute", 4096)),
          second(reshard::host_device(worker).make_stream("second", 4096)) {}
    reshard::host_worker worker;
    reshard::host_device::stream compute, second;
};

/// Holds every command of one stream back.
struct late_stream final : reshard::delay_source {
    late_stream(const char* which, std::uint64_t microseconds) : name(which), us(microseconds) {}
    std::uint64_t before(std::size_t, const char* stream, std::uint64_t) const override {
        return std::strcmp(stream, name) == 0 ? us : 0;
    }
    const char* name;
    std::uint64_t us;
};

oracle::net small_net(std::size_t layers = 3) {
    oracle::net net;
    net.widths = {3, 5, 2, 4};
    while (net.widths.size() < layers + 1) net.widths.push_back(3 + net.widths.size() % 3);
    net.batch = 12;
    return net;
}

owned_values run(const oracle::net& net, const policy_type& policy, std::size_t ranks, bool queued,
                 const reshard::delay_source* delays) {
    std::vector<owned_values> owned(ranks);
    run_threads(ranks,
                [&](threads_communicator world) {
                    std::optional<queues> side;
                    if (queued) side.emplace(world, delays);
                    trainer_type one(net, world, policy, {}, queued ? stream_ref(side->compute) : stream_ref{});
                    for (const std::size_t m : {2u, 1u, 3u}) one.train(m);
                    owned[world.rank()] = one.owned();
                },
                {.deadline_seconds = 60, .delays = delays});
    const auto found = join(owned);
    CHECK(found.whole);
    return found.all;
}

TEST_CASE("random delays on every stream change no bit") {
    oracle::net net = small_net(5);
    net.tied = false;
    std::uint64_t seed = 0;
    for (const char* strategy : strategies) {
        for (const char* reshard : reshards) {
            for (const bool once : {false, true}) {
                const policy_type policy = parse_policy(strategy, reshard, once);
                const owned_values right = run(net, policy, 2, false, nullptr);
                for (int k = 0; k < 6; ++k) {
                    ++seed;
                    CAPTURE(named(strategy, reshard, once, 2, 0));
                    CAPTURE(seed);
                    const reshard::random_delays delays(seed, seed % 3 == 0 ? 400 : 60);
                    CHECK(same_values(run(net, policy, 2, k != 0, &delays), right));
                }
            }
        }
    }
}

TEST_CASE("random delays on every stream change no bit where groups are smaller than the whole") {
    const oracle::net net = small_net(4);
    std::uint64_t seed = 1000;
    for (const grouped& one : groupings) {
        for (const bool once : {false, true}) {
            CAPTURE(one.words(once));
            const policy_type policy = one.policy(once);
            const owned_values right = run(net, policy, one.ranks, false, nullptr);
            for (int k = 0; k < (sanitized() ? 2 : 6); ++k) {
                ++seed;
                CAPTURE(seed);
                const reshard::random_delays delays(seed, seed % 3 == 0 ? 400 : 60);
                CHECK(same_values(run(net, policy, one.ranks, k != 0, &delays), right));
            }
        }
    }
}

TEST_CASE("one late stream at a time changes no bit where groups are smaller than the whole") {
    for (const char* name : {"compute", "gathers", "reductions", "outer"}) {
        const late_stream delays(name, 300);
        for (const grouped& one : groupings) {
            CAPTURE(name);
            CAPTURE(one.words());
            const policy_type policy = one.policy();
            const oracle::net net = small_net();
            CHECK(same_values(run(net, policy, one.ranks, true, &delays), run(net, policy, one.ranks, false, nullptr)));
        }
    }
}

TEST_CASE("one late stream at a time changes no bit") {
    oracle::net net = small_net();
    for (const char* name : {"compute", "gathers", "reductions"}) {
        const late_stream delays(name, 300);
        for (const char* strategy : strategies) {
            for (const char* reshard : reshards) {
                CAPTURE(name);
                CAPTURE(named(strategy, reshard, false, 3, 0));
                const policy_type policy = parse_policy(strategy, reshard);
                CHECK(same_values(run(net, policy, 3, true, &delays), run(net, policy, 3, false, nullptr)));
            }
        }
    }
}

TEST_CASE("two streams write halves of one gradient, one of them late: the sum is exact") {
    under_every_policy([](const policy_type& policy) {
        const late_stream delays("second", 2000);
        std::vector<std::vector<float>> weights(2);
        run_threads(2, [&](threads_communicator world) {
            queues side(world, &delays);
            hand one(world, policy, {64}, 3, 1, {}, side.compute);
            const auto device = world.device();
            for (int s = 0; s < 2; ++s) {
                for (auto* unit : one.list) auto scope = unit->forward();
                for (std::size_t u = 3; u-- > 0;) {
                    auto scope = one.list[u]->backward();
                    scope.use_on(side.second);
                    const auto gradient = scope.gradient(one.w);
                    device.launch(stream_ref(side.compute), [gradient] {
                        for (std::size_t i = 0; i < 32; ++i) gradient[i] += 1;
                    });
                    device.launch(stream_ref(side.second), [gradient] {
                        for (std::size_t i = 32; i < 64; ++i) gradient[i] += 1;
                    });
                }
                one.optimizer.step();
            }
            one.model.outcome();
            weights[world.rank()] = one.weights();
        });
        CHECK(all_are(weights, -2));
    });
}

TEST_CASE("a second stream reads late: its buffer is not gathered into, nor are its masters updated, before") {
    under_every_policy([](const policy_type& policy) {
        const late_stream delays("second", 2000);
        std::vector<std::vector<float>> seen(2, std::vector<float>(24, -1));
        run_threads(2, [&](threads_communicator world) {
            queues side(world, &delays);
            hand one(world, policy, {64}, 4, 1, {}, side.compute);
            auto& mine = seen[world.rank()];
            const auto device = world.device();
            // unit u is 10 u everywhere, and falls by 1 a step
            one.model.initialize([](const reshard::parameter_info& info, std::size_t, auto values) {
                for (auto& each : values) each = static_cast<float>(info.unit_index) * 10;
            });
            for (std::size_t s = 0; s < 3; ++s) {
                for (std::size_t u = 0; u < 4; ++u) {
                    auto scope = one.list[u]->forward();
                    scope.use_on(side.second);
                    const auto values = scope[one.w];
                    float* out = &mine[s * 8 + u];
                    device.launch(stream_ref(side.second), [values, out] { *out = values[63]; });
                }
                for (std::size_t u = 4; u-- > 0;) {
                    auto scope = one.list[u]->backward();
                    scope.use_on(side.second);
                    const auto values = scope[one.w];
                    const auto gradient = scope.gradient(one.w);
                    float* out = &mine[s * 8 + 4 + u];
                    device.launch(stream_ref(side.compute), [gradient] {
                        for (float& each : gradient) each += 1;
                    });
                    device.launch(stream_ref(side.second), [values, out] { *out = values[0]; });
                }
                one.optimizer.step();
            }
            one.model.outcome();
            const reshard::host_event end = side.second.operator stream_ref().queue->last();
            device.synchronize(end);
        });
        for (const auto& mine : seen) {
            for (std::size_t k = 0; k < mine.size(); ++k) {
                CHECK(mine[k] == static_cast<float>(k % 4 * 10) - static_cast<float>(k / 8));
            }
        }
    });
}

TEST_CASE("six layers, two gradient buffers, slow reductions, two steps: all sums are right") {
    for (const char* reshard : reshards) {
        CAPTURE(reshard);
        const late_stream delays("reductions", 1500);
        std::vector<std::size_t> buffers(2);
        std::vector<std::string> wrong(2);
        run_threads(2,
                    [&](threads_communicator world) {
                        queues side(world);
                        hand one(world, parse_policy("full_shard", reshard), {33}, 6, 1, {}, side.compute);
                        buffers[world.rank()] = one.model.internals().slots.gradient_bytes.size();
                        for (std::size_t s = 1; s <= 2; ++s) {
                            for (auto* unit : one.list) auto scope = unit->forward();
                            for (std::size_t u = 6; u-- > 0;) {
                                auto scope = one.list[u]->backward();
                                const auto gradient = scope.gradient(one.w);
                                const float add = static_cast<float>(10 * s + u);
                                world.device().launch(stream_ref(side.compute), [gradient, add] {
                                    for (float& each : gradient) each += add;
                                });
                            }
                            const auto sums = one.model.gradients();  // joined into the compute stream
                            one.model.gradient_norm();                // waits for it
                            for (const auto& slice : one.model.owned()) {
                                const auto expected = static_cast<float>(10 * s + slice.parameter.unit_index);
                                for (std::size_t i = 0; i < slice.count; ++i) {
                                    if (sums[slice.arena_offset + i] != expected)
                                        wrong[world.rank()] += slice.parameter.unit;
                                }
                            }
                            one.optimizer.step();
                        }
                    },
                    {.deadline_seconds = 60, .delays = &delays});
        CHECK(buffers[0] == 2);
        for (const std::string& each : wrong) CHECK(each == "");
    }
}

TEST_CASE("gradients are final after the last backward, and an error before") {
    const late_stream delays("reductions", 20000);
    std::vector<float> read(2);
    std::vector<std::string> early(2);
    run_threads(2,
                [&](threads_communicator world) {
                    hand one(world, parse_policy("full_shard", "reshard_always"), {128});
                    one.model.begin_step({.microbatches = 2});
                    one.microbatch(static_cast<float>(world.rank() * 2 + 1));
                    try {
                        one.model.gradients();
                    } catch (const reshard::state_error& known) {
                        early[world.rank()] = known.what();
                    }
                    one.microbatch(static_cast<float>(world.rank() * 2 + 1));
                    read[world.rank()] = one.model.gradients()[0];
                    one.optimizer.step();
                },
                {.deadline_seconds = 60, .delays = &delays});
    for (const float each : read) CHECK(each == 4);
    for (const std::string& each : early) {
        CHECK(each.find("E-STATE-16") != std::string::npos);
        CHECK(each.find("not final") != std::string::npos);
    }
}

TEST_CASE("fifty units, the host far ahead of compute: live buffers stay within the plan") {
    for (const char* reshard : {"reshard_always", "reshard_never"}) {
        CAPTURE(reshard);
        std::vector<std::size_t> most(2), buffers(2), live(2), planned(2);
        run_threads(2, [&](threads_communicator world) {
            queues side(world);
            hand one(world, parse_policy("full_shard", reshard), {64}, 50, 1, {}, side.compute);
            const std::size_t before = world.device().allocated();
            for (int s = 0; s < 2; ++s) {
                for (auto* unit : one.list) {
                    auto scope = unit->forward();
                    world.device().launch(stream_ref(side.compute),
                                          [] { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
                }
                for (std::size_t u = 50; u-- > 0;) {
                    auto scope = one.list[u]->backward();
                    const auto gradient = scope.gradient(one.w);
                    world.device().launch(stream_ref(side.compute), [gradient] { gradient[0] += 1; });
                }
                one.optimizer.step();
            }
            one.model.outcome();
            CHECK(world.device().allocated() == before);
            const auto report = one.model.report();
            live[world.rank()] = report.measured_live;
            planned[world.rank()] = report.planned_live;
            buffers[world.rank()] = one.model.internals().slots.gather_bytes.size();
        });
        CHECK(live[0] <= planned[0]);
        CHECK(live[1] == live[0]);
        CHECK(buffers[0] == (std::string(reshard) == "reshard_always" ? 2 : 50));
        // one open, one ahead, two gradient buffers at most
        if (buffers[0] == 2) CHECK(live[0] <= std::size_t{4} * 128 * 4);
    }
}

TEST_CASE("peers far behind: a rank whose compute is slow gets what the fast ones got") {
    struct slow_rank final : reshard::delay_source {
        std::uint64_t before(std::size_t rank, const char*, std::uint64_t) const override {
            return rank == 1 ? 200 : 0;
        }
    };
    const slow_rank delays;
    const oracle::net net = small_net();
    for (const char* strategy : strategies) {
        CAPTURE(strategy);
        const policy_type policy = parse_policy(strategy, "reshard_never");
        CHECK(same_values(run(net, policy, 3, true, &delays), run(net, policy, 3, false, nullptr)));
    }
}

}  // namespace
