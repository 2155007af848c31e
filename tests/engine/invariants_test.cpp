// What holds in every run: order of collectives, memory, state after a step, norms.
#include <doctest/doctest.h>

#include <reshard/comm/counted.hpp>

#include "support/by_hand.hpp"
#include "support/count.hpp"

namespace {

using namespace toy;
using policy_type = runtime_policy<precision<float>>;
using trainer_type = trainer<policy_type, threads_communicator>;

TEST_CASE("the log of collectives is the same on all ranks") {
    under_every_policy([](const policy_type& policy) {
        oracle::net net;
        net.tied = true;
        std::vector<std::vector<reshard::detail::issue>> logs(3);
        run_threads(3, [&](threads_communicator world) {
            // addresses differ between ranks: nothing in the log may depend on them
            std::vector<std::vector<double>> shift(world.rank() * 3, std::vector<double>(17 + world.rank()));
            trainer_type one(net, world, policy);
            for (const std::size_t m : {1u, 3u, 2u}) one.train(m);
            const auto& log = one.model.internals().log;
            for (std::uint64_t k = 0; k < log.count(); ++k) logs[world.rank()].push_back(log.at(k));
        });
        CHECK(logs[0].size() > 6);
        CHECK(logs[0] == logs[1]);
        CHECK(logs[0] == logs[2]);
    });
}

TEST_CASE("memory: live bytes stay within the plan, owned bytes are predicted, measured and allocated alike") {
    under_every_policy([](const policy_type& policy) {
        for (const std::size_t ranks : {1u, 3u}) {
            std::vector<reshard::model_report> reports(ranks);
            std::vector<std::size_t> allocated(ranks), later(ranks), planned(ranks);
            std::vector<std::uint64_t> live_after(ranks);
            run_threads(ranks, [&](threads_communicator world) {
                const std::size_t before = world.device().allocated();
                trainer_type one({}, world, policy);
                allocated[world.rank()] = world.device().allocated() - before;
                for (const std::size_t m : {1u, 2u}) {
                    for (int s = 0; s < 3; ++s) one.train(m);
                }
                later[world.rank()] = world.device().allocated() - before;
                reports[world.rank()] = one.model.report();
                live_after[world.rank()] = one.model.internals().live_bytes;
            });
            for (std::size_t r = 0; r < ranks; ++r) {
                CHECK(reports[r].measured_live <= reports[r].planned_live);
                CHECK(reports[r].measured_live == reports[r].planned_live);  // every step reaches its peak
                CHECK(reports[r].predicted_owned.total() == reports[r].measured_owned);
                CHECK(reports[r].measured_owned == allocated[r]);
                CHECK(later[r] == allocated[r]);
                CHECK(live_after[r] == 0);
            }
        }
    });
}

/// Every rank stands still while `look` runs on one of them.
template <class Look>
void alone(threads_communicator world, Look look) {
    world.barrier({});
    if (world.rank() == 0) look();
    world.barrier({});
}

TEST_CASE("nothing is allocated after the first step") {
    under_every_policy([](const policy_type& policy) {
        std::vector<long> calls(2);
        run_threads(2, [&](threads_communicator world) {
            oracle::net net;
            net.tied = net.overwrites = true;
            trainer_type one(net, world, policy);
            for (int s = 0; s < 2; ++s) one.train(2);
            long before = 0;
            alone(world, [&] { before = test_support::allocation_count(); });
            for (int s = 0; s < 3; ++s) one.train(2);
            alone(world, [&] { calls[0] = test_support::allocation_count() - before; });
        });
        CHECK(calls[0] == 0);
    });
}

TEST_CASE("after step() nothing is open, kept or half summed, and resting copies are of the new version") {
    under_every_policy([](const policy_type& policy) {
        for (const std::size_t ranks : {1u, 2u}) {
            std::vector<std::string> wrong(ranks);
            run_threads(ranks, [&](threads_communicator world) {
                oracle::net net;
                net.tied = true;
                trainer_type one(net, world, policy);
                for (int s = 0; s < 2; ++s) {
                    one.train(2);
                    const auto& state = one.model.internals();
                    auto& text = wrong[world.rank()];
                    if (state.open_scopes != 0 || state.live_bytes != 0) text += "open or live; ";
                    for (const auto* unit : state.units) {
                        if (unit->open_scopes != 0 || unit->open_forwards != 0) text += unit->name + " open; ";
                        if (unit->accumulating) text += unit->name + " half summed; ";
                        if (unit->source == reshard::view_source::gathered && unit->here)
                            text += unit->name + " kept; ";
                        if (unit->source == reshard::view_source::resting && !state.valid(*unit)) {
                            text += unit->name + " rests old; ";
                        }
                    }
                }
            });
            for (const std::string& text : wrong) CHECK(text == "");
        }
    });
}

TEST_CASE("a group of one issues no collective") {
    under_every_policy([](const policy_type& policy) {
        counter counts;
        run_threads(1, [&](threads_communicator world) {
            trainer<policy_type, counted<threads_communicator>> one({}, counted<threads_communicator>(world, counts),
                                                                    policy);
            one.train(2);
            one.evaluate(0, 4);
            one.train(1);
            CHECK(one.model.internals().log.count() == 0);
        });
        for (const auto& group : counts.groups) {
            for (const reshard::traffic& one : group.by_operation) CHECK(one.calls == 0);
        }
    });
}

TEST_CASE("the norm has the same bits on all ranks and under all policies, and is that of plain loops") {
    oracle::net net;
    net.tied = true;
    oracle::trainer<double> plain(net);
    plain.run(0, 0, net.batch, static_cast<double>(net.batch));
    const double right = plain.norm();
    std::vector<double> by_policy;
    under_every_policy([&](const policy_type& policy) {
        std::vector<double> before(4), after(4);
        run_threads(4, [&](threads_communicator world) {
            trainer_type one(net, world, policy);
            one.begin(2);
            for (std::size_t m = 0; m < 2; ++m) {
                one.forward(m);
                one.backward(m);
            }
            before[world.rank()] = one.model.gradient_norm();
            one.adamw_now.gradient_scale = 0.5;
            one.step();
            after[world.rank()] = one.model.outcome().norm;
        });
        for (std::size_t r = 0; r < 4; ++r) {
            CHECK(same_bits(before[r], before[0]));
            CHECK(same_bits(after[r], after[0]));
        }
        CHECK(std::fabs(before[0] - right) / right < 1e-6);
        CHECK(std::fabs(after[0] - right / 2) / right < 1e-6);
        by_policy.push_back(before[0]);
    });
    for (const double norm : by_policy) CHECK(std::fabs(norm - by_policy[0]) / right < 1e-6);
}

TEST_CASE("clipping scales the whole gradient to the norm that was asked for") {
    for (const char* strategy : strategies) {
        CAPTURE(strategy);
        oracle::net net;
        oracle::trainer<double> plain(net);
        plain.run(0, 0, net.batch, static_cast<double>(net.batch));
        const double norm = plain.norm();
        oracle::sgd_numbers rate;
        rate.rate = 0.5;
        trainer_options options;
        options.sgd = true;
        options.sgd_with = sgd_numbers(rate);
        std::vector<owned_values> owned(2);
        run_threads(2, [&](threads_communicator world) {
            trainer<runtime_policy<precision<double>>, threads_communicator> one(
                net, world, parse_policy<precision<double>>(strategy, "reshard_always"), options);
            one.sgd_now.clip_norm = norm / 4;
            one.train(1);
            owned[world.rank()] = one.owned();
        });
        // clipped to norm / 4: every gradient times 1/4
        oracle::trainer<double> quarter(net);
        quarter.run(0, 0, net.batch, static_cast<double>(net.batch));
        quarter.sgd(rate, 0.25);
        const auto found = join(owned);
        for (std::size_t u = 0; u < net.units(); ++u) {
            for (std::size_t i = 0; i < quarter.weights[u].w.size(); ++i) {
                CHECK(found.all.weights[u][0][i] == doctest::Approx(quarter.weights[u].w[i]).epsilon(1e-12));
            }
        }
    }
}

}  // namespace
