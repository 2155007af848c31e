// What a trainer may choose beside one policy: policies of single units, another one between steps, a cap of memory,
// one rank that runs alone, units that are left out.
#include <doctest/doctest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include <reshard/comm/counted.hpp>
#include <reshard/comm/idle.hpp>

#include "support/by_hand.hpp"
#include "support/count.hpp"

namespace {

using namespace toy;
using reshard::operation;
using policy_type = runtime_policy<precision<float>>;
using trainer_type = trainer<policy_type, threads_communicator>;
using hand = by_hand<policy_type, threads_communicator>;
using communicator = counted<threads_communicator>;

oracle::net whole_net() {
    oracle::net net;
    net.whole = true;
    net.batch = 96;
    return net;
}
trainer_options whole_options() {
    trainer_options options;
    options.sgd = true;
    options.averaged = false;
    return options;
}

TEST_CASE("units with strategies and reshard policies of their own train as plain loops do") {
    struct shape {
        const char *strategy, *reshard;
    };
    const shape shapes[] = {{"full_shard", "reshard_to_group:2"},
                            {"hybrid_shard", "reshard_always"},
                            {"no_shard", "reshard_never"},
                            {"hybrid_full_shard", "keep_until_step"},
                            {"shard_gradients", "reshard_always"}};
    std::vector<std::vector<float>> weights(4);
    std::vector<reshard::model_report> reports(4);
    std::vector<counter> counts(4);
    run_threads(4, [&](threads_communicator threads) {
        const std::size_t rank = threads.rank();
        communicator world(threads, counts[rank]);
        policy_type policy = parse_policy("full_shard", "reshard_always");
        policy.topology = reshard::any_topology::parse("mesh:2x2");
        sharded_model<policy_type, communicator> model(world, {.average_over_ranks = false}, policy);
        std::vector<sharded_model<policy_type, communicator>::unit*> units;
        const auto& layout = model.layout({{"w", {13}}});
        for (const shape& one : shapes) {
            units.push_back(&model.add_unit(
                one.strategy, layout,
                {.strategy = any_sharding::parse(one.strategy), .reshard = any_reshard::parse(one.reshard)}));
        }
        const auto w = layout.parameter("w");
        reshard::sgd optimizer{model, {.learning_rate = 1}};
        model.initialize([](const auto&, std::size_t, auto values) {
            for (auto& each : values) each = 100;
        });
        for (std::size_t step = 0; step < 3; ++step) {
            model.begin_step({.microbatches = 2});
            for (std::size_t m = 0; m < 2; ++m) {
                for (auto* unit : units) auto scope = unit->forward();
                for (std::size_t u = units.size(); u-- > 0;) {
                    auto scope = units[u]->backward();
                    CHECK(scope[w][12] == 100.0f - static_cast<float>(step) * 20);
                    for (auto& each : scope.gradient(w)) each += static_cast<float>(rank + 1);
                }
            }
            optimizer.step();
        }
        for (const auto& slice : model.owned()) {
            for (std::size_t k = 0; k < slice.count; ++k) weights[rank].push_back(slice.master[k]);
        }
        reports[rank] = model.report();
    });
    for (std::size_t r = 0; r < 4; ++r) {
        for (const float each : weights[r]) CHECK(each == 40);  // 100 - 3 steps x 2 microbatches x (1 + 2 + 3 + 4)
        CHECK(reports[r].missed_prefetches == 0);
        CHECK(reports[r].predicted_owned.total() == reports[r].measured_owned);
        const auto gathers = counts[r].of("whole", operation::all_gather);
        CHECK(gathers.calls == reports[r].predicted_steps[reshard::rank_set::whole].all_gather.calls +
                                   reports[r].predicted_setup[reshard::rank_set::whole].all_gather.calls);
        CHECK(counts[r].of("secondary", operation::all_gather).calls == 6);  // 3 steps x 2 microbatches
    }
}

TEST_CASE("a policy of a unit's own is refused where the slot is fixed, or where it does not go with the model's") {
    sharded_model<reshard::policy<reshard::full_shard>, self_communicator> fixed{self_communicator{}};
    CHECK_THROWS_WITH_AS(fixed.add_unit("a", {{"w", {3}}}, {.reshard = any_reshard(reshard::keep_until_step{})}),
                         doctest::Contains("E-POLICY-12"), reshard::argument_error);
    CHECK_THROWS_WITH_AS(fixed.add_unit("a", {{"w", {3}}}, {.strategy = any_sharding(reshard::no_shard{})}),
                         doctest::Contains("any_sharding"), reshard::argument_error);
    for (const char* own : {"accumulate_unsharded:reshard_never", "reshard_within:1GiB", "pipeline_default"}) {
        CAPTURE(own);
        sharded_model<policy_type, self_communicator> model{self_communicator{}};
        model.add_unit("a", {{"w", {3}}}, {.reshard = any_reshard::parse(own)});
        CHECK_THROWS_WITH_AS(model.begin_step(), doctest::Contains("E-POLICY-12"), reshard::argument_error);
    }
    std::vector<std::string> words(4);
    run_threads(4, [&](threads_communicator world) {
        sharded_model<policy_type, threads_communicator> model(world, {}, parse_policy("full_shard", "reshard_always"));
        model.add_unit("a", {{"w", {3}}}, {.reshard = any_reshard::parse("reshard_to_group:3")});
        try {
            model.begin_step();
        } catch (const reshard::topology_error& known) {
            words[world.rank()] = known.what();
        }
    });
    for (const std::string& each : words) {
        CHECK(each.find("secondary group of 3 does not divide the shard group of 4") != std::string::npos);
    }
}

TEST_CASE("another reshard policy between steps: same numbers, counts as predicted, memory as planned") {
    const oracle::net net = whole_net();
    oracle::trainer<float> plain(net);
    const char* const all[] = {"reshard_always",        "reshard_to_group:2,until_step",
                               "keep_until_step",       "accumulate_unsharded:reshard_never",
                               "reshard_within:1GiB,2", "keep_last:2"};
    for (std::size_t s = 0; s < 2 * std::size(all); ++s) {
        plain.run(s, 0, net.batch, 1);
        plain.sgd({});
    }
    for (const char* strategy : {"full_shard", "hybrid_full_shard", "hybrid_shard"}) {
        for (const bool queued : {false, true}) {
            CAPTURE(strategy);
            std::vector<owned_values> owned(4);
            std::vector<reshard::model_report> reports(4);
            std::vector<counter> counts(4);
            std::vector<std::size_t> allocated(4);
            run_threads(4, [&](threads_communicator threads) {
                const std::size_t rank = threads.rank(), before = threads.device().allocated();
                auto stream = threads.device().make_stream("compute");
                auto policy = parse_policy(strategy, "reshard_always");
                policy.topology = reshard::any_topology::parse("mesh:2x2");
                trainer<policy_type, communicator> one(
                    net, communicator(threads, counts[rank]), policy, whole_options(),
                    queued ? reshard::host_device::stream_ref(stream) : threads.device().caller());
                for (const char* next : all) {
                    one.model.change_reshard(any_reshard::parse(next));
                    one.train(2);
                    one.train(1);
                }
                owned[rank] = one.owned();
                reports[rank] = one.model.report();
                allocated[rank] = threads.device().allocated() - before;
            });
            const auto found = join(owned);
            CHECK(found.whole);
            CHECK(same_weights(found.all, plain.weights));
            for (std::size_t r = 0; r < 4; ++r) {
                const auto& report = reports[r];
                CHECK(report.missed_prefetches == 0);
                CHECK(report.predicted_owned.total() == report.measured_owned);
                CHECK(report.measured_owned == allocated[r]);
                for (const auto which : {reshard::rank_set::whole, reshard::rank_set::inner, reshard::rank_set::outer,
                                         reshard::rank_set::secondary}) {
                    CAPTURE(name_of(which));
                    auto predicted = report.predicted_setup[which];
                    predicted += report.predicted_steps[which];
                    const auto of = [&](operation kind) { return counts[r].of(name_of(which), kind); };
                    CHECK(of(operation::all_gather).bytes == predicted.all_gather.bytes);
                    CHECK(of(operation::all_gather).calls == predicted.all_gather.calls);
                    CHECK(of(operation::reduce_scatter).bytes == predicted.reduce_scatter.bytes);
                    CHECK(of(operation::all_reduce).bytes == predicted.all_reduce.bytes);
                }
            }
        }
    }
}

TEST_CASE("a policy that does not fit is refused between steps and changes nothing") {
    std::vector<std::string> words(4);
    run_threads(4, [&](threads_communicator world) {
        hand one(world, parse_policy("full_shard", "reshard_always"), {9}, 3);
        one.microbatch(1);
        one.optimizer.step();
        try {
            one.model.change_reshard(any_reshard::parse("reshard_to_group:3"));
        } catch (const reshard::topology_error& known) {
            words[world.rank()] = known.what();
        }
        one.model.begin_step();
        CHECK_THROWS_WITH_AS(one.model.change_reshard(reshard::reshard_never{}), doctest::Contains("E-STATE-19"),
                             reshard::state_error);
        one.microbatch(1);
        one.optimizer.step();
        CHECK(one.model.describe().find("reshard_always") != std::string::npos);
    });
    for (const std::string& each : words) CHECK(each.find("group of 3") != std::string::npos);
}

TEST_CASE("reshard_within chooses under its cap and says why; the model owns no more") {
    std::vector<std::string> described(2);
    std::vector<std::size_t> owned(2);
    std::size_t least = 0;
    run_threads(2, [&](threads_communicator world) {
        hand one(world, parse_policy("full_shard", "reshard_always"), {1000}, 6);
        least = one.model.report().measured_owned;
    });
    const std::size_t cap = least + 9000;
    run_threads(2, [&](threads_communicator world) {
        hand one(world, parse_policy("full_shard", "reshard_within:" + std::to_string(cap) + ",2"), {1000}, 6);
        one.model.begin_step({.microbatches = 2});
        one.microbatch(1);
        one.microbatch(1);
        one.optimizer.step();
        if (world.rank() == 0) CHECK(one.weights()[0] == -2);
        described[world.rank()] = one.model.describe();
        owned[world.rank()] = one.model.report().measured_owned;
        CHECK(one.model.report().missed_prefetches == 0);
    });
    CHECK(owned[0] <= cap);
    CHECK(owned[0] > least);  // something is kept
    CHECK(described[0].find("chosen") != std::string::npos);
    std::vector<std::string> words(2);
    run_threads(2, [&](threads_communicator world) {
        try {
            hand one(world, parse_policy("full_shard", "reshard_within:" + std::to_string(least - 1)), {1000}, 6);
        } catch (const reshard::argument_error& known) {
            words[world.rank()] = known.what();
        }
    });
    for (const std::string& each : words) {
        CHECK(each.find("E-POLICY-11") != std::string::npos);
        CHECK(each.find(std::to_string(least)) != std::string::npos);
    }
}

TEST_CASE("on_rank: one rank runs the model alone under every policy, and training goes on as if it had not") {
    const oracle::net net = whole_net();
    const char* const more[] = {"reshard_to_group:2", "reshard_to_group:2,until_step"};
    const auto compare = [&](const policy_type& policy) {
        std::vector<owned_values> with(4), without(4);
        std::vector<double> alone(4, -1), together(4, -2);
        for (const bool sampling : {true, false}) {
            run_threads(4, [&](threads_communicator world) {
                const std::size_t rank = world.rank();
                trainer_type one(net, world, policy, whole_options());
                const auto sample = [&](std::size_t leader) {
                    if (!sampling) return;
                    one.model.on_rank(leader, [&] {
                        for (int pass = 0; pass < 2; ++pass) {
                            one.load(3, 0, 5);
                            for (std::size_t use = 0; use < net.uses(); ++use) {
                                auto scope = one.unit_of(use).forward();
                                alone[rank] = static_cast<double>(scope[one.weight_handle(net.unit_of(use))][0]);
                            }
                        }
                    });
                };
                sample(2);
                one.train(2);
                sample(0);
                one.begin(1);
                one.forward(0);
                sample(1);
                one.backward(0);
                one.step();
                sample(3);
                together[rank] = 0;
                {
                    auto evaluation = one.model.evaluate();
                    for (std::size_t use = 0; use < net.uses(); ++use) {
                        auto scope = one.unit_of(use).forward();
                        together[rank] = static_cast<double>(scope[one.weight_handle(net.unit_of(use))][0]);
                    }
                }
                one.train(1);
                (sampling ? with : without)[rank] = one.owned();
                CHECK(one.model.internals().live_bytes == 0);
            });
        }
        CHECK(alone[3] == together[3]);
        CHECK(same_values(join(with).all, join(without).all));
        CHECK(join(with).whole);
    };
    under_every_policy(compare);
    for (const char* reshard : more) compare(parse_policy("full_shard", reshard));
    for (const char* strategy : {"hybrid_shard", "hybrid_full_shard"}) {
        auto policy = parse_policy(strategy, "reshard_always");
        policy.topology = reshard::any_topology::parse("mesh:2x2");
        compare(policy);
    }
}

TEST_CASE("on_rank: what the function throws leaves there, the others hear of it, the model goes on") {
    std::vector<std::string> words(3);
    run_threads(3, [&](threads_communicator world) {
        hand one(world, parse_policy("full_shard", "reshard_always"), {9}, 3);
        try {
            one.model.on_rank(1, [&] {
                auto scope = one.list[0]->forward();
                throw std::runtime_error("no text to go on with");
            });
        } catch (const std::exception& known) {
            words[world.rank()] = known.what();
        }
        CHECK_THROWS_AS(one.model.on_rank(3, [] {}), reshard::argument_error);
        one.microbatch(1);
        one.optimizer.step();
        CHECK(one.model.steps() == 1);
    });
    CHECK(words[1] == "no text to go on with");
    for (const std::size_t rank : {0u, 2u}) CHECK(words[rank].find("rank 1 failed") != std::string::npos);
}

TEST_CASE("gather_all: many passes, one gather of each unit; refused where units share a buffer") {
    std::vector<counter> counts(2), during(2);
    run_threads(2, [&](threads_communicator threads) {
        const std::size_t rank = threads.rank();
        trainer<policy_type, communicator> one({}, communicator(threads, counts[rank]),
                                               parse_policy("full_shard", "reshard_never"), {});
        one.train(1);
        const counter before = counts[rank];
        {
            auto evaluation = one.model.evaluate();
            evaluation.gather_all();
            for (int pass = 0; pass < 3; ++pass) {
                for (std::size_t use = 0; use < one.shape.uses(); ++use) auto scope = one.unit_of(use).forward();
            }
        }
        during[rank] = counts[rank] - before;
        CHECK(one.model.internals().live_bytes == 0);
        one.train(1);
        hand small(threads, parse_policy("full_shard", "reshard_always"), {9}, 4);
        auto evaluation = small.model.evaluate();
        CHECK_THROWS_WITH_AS(evaluation.gather_all(), doctest::Contains("E-STATE-20"), reshard::state_error);
    });
    // five units, one of which has a frozen segment beside the trainable one
    for (const counter& one : during) CHECK(one.of("whole", operation::all_gather).calls == 6);
}

/// Two experts, of which each rank uses one; average over ranks.
struct experts {
    std::vector<std::vector<float>> weights{std::vector<float>(2), std::vector<float>(2)};
    std::vector<std::string> words{2};
};
experts run_experts(reshard::skipped_units skipped, bool announced, const char* reshard, bool last) {
    experts out;
    run_threads(2,
                [&](threads_communicator world) {
                    reshard::model_options options;
                    options.skipped = skipped;
                    hand one(world, parse_policy("full_shard", reshard), {200}, last ? 2 : 3, 1, options);
                    const std::size_t mine = world.rank();
                    try {
                        one.model.begin_step();
                        if (announced) {
                            if (last)
                                one.model.announce_use({one.list[mine]});
                            else
                                one.model.announce_use({one.list[mine], one.list[2]});
                        }
                        {
                            auto scope = one.list[mine]->forward();
                        }
                        if (!last) auto scope = one.list[2]->forward();
                        one.model.finish_pass();
                        world.barrier({});  // the trainer's own blocking message
                        if (!last) auto scope = one.list[2]->backward();
                        {
                            auto scope = one.list[mine]->backward();
                            for (auto& each : scope.gradient(one.w)) each += mine == 0 ? 2 : 4;
                        }
                        one.optimizer.step();
                        for (const auto& slice : one.model.owned()) {
                            if (slice.parameter.unit_index < 2)
                                out.weights[slice.parameter.unit_index][mine] = -slice.master[0];
                        }
                    } catch (const reshard::error& known) {
                        out.words[mine] = known.what();
                        if (announced) return;  // all throw alike, and nothing is under way
                        world.control().raise(known.what());
                        one.model.reset();
                    }
                },
                {.deadline_seconds = 20});
    return out;
}

TEST_CASE("an expert that a rank leaves out: with zeros, refused, announced") {
    for (const char* reshard : {"reshard_always", "keep_until_step", "reshard_never"}) {
        for (const bool last : {false, true}) {
            CAPTURE(reshard);
            CAPTURE(last);
            const experts zeros = run_experts(reshard::skipped_units::with_zeros, false, reshard, last);
            CHECK(zeros.words == std::vector<std::string>(2));
            CHECK(zeros.weights[0] == std::vector<float>{1, 1});
            CHECK(zeros.weights[1] == std::vector<float>{2, 2});
            const experts both = run_experts(reshard::skipped_units::with_zeros, true, reshard, last);
            CHECK(both.words == std::vector<std::string>(2));
            CHECK(both.weights == zeros.weights);
            const experts announced = run_experts(reshard::skipped_units::refused, true, reshard, last);
            for (const std::string& each : announced.words) {
                CHECK(each.find("E-AGREE-6") != std::string::npos);
                CHECK(each.find("\"unit.0\" is used on ranks 0 and not on 1") != std::string::npos);
            }
        }
        const experts refused = run_experts(reshard::skipped_units::refused, false, reshard, false);
        CHECK(refused.words[1].find("E-ORDER-1") != std::string::npos);
        CHECK(refused.words[1].find("forward of \"unit.0\"") != std::string::npos);
        CHECK(refused.words[1].find("skipped_units::with_zeros") != std::string::npos);
        CHECK(refused.words[0].find("rank 1 failed") != std::string::npos);
    }
}

TEST_CASE("one rank alone in an evaluation: the deadline names who waits, and on_rank") {
    std::string words;
    try {
        run_threads(2,
                    [&](threads_communicator world) {
                        hand one(world, parse_policy("full_shard", "reshard_always"), {9}, 3);
                        world.barrier({});
                        if (world.rank() == 0) {
                            auto evaluation = one.model.evaluate();
                            auto scope = one.list[0]->forward();
                        } else {
                            std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                        }
                    },
                    {.deadline_seconds = 0.5});
    } catch (const reshard::error& known) {
        words = known.what();
    }
    CHECK(words.find("E-TIME") != std::string::npos);
    CHECK(words.find("on_rank") != std::string::npos);
}

TEST_CASE("on_rank behind a backward: the order of collectives is the same on all ranks") {
    for (const char* strategy : {"hybrid_shard", "hybrid_full_shard", "sharding:inner,whole,whole"}) {
        CAPTURE(strategy);
        std::vector<std::vector<reshard::detail::issue>> logs(4);
        run_threads(4, [&](threads_communicator world) {
            auto policy = parse_policy(strategy, "reshard_always");
            policy.topology = reshard::any_topology::parse("mesh:2x2");
            hand one(world, policy, {70}, 2);
            one.microbatch(1);
            one.model.on_rank(1, [&] {
                for (auto* unit : one.list) auto scope = unit->forward();
            });
            one.optimizer.step();
            const auto& log = one.model.internals().log;
            for (std::uint64_t k = 0; k < log.count(); ++k) logs[world.rank()].push_back(log.at(k));
        });
        for (const auto& each : logs) CHECK(each == logs[0]);
    }
}

TEST_CASE("a fault in announce_use, change_reshard or check_replicas, then reset(): the next step is a clean one") {
    for (const int call : {0, 1, 2}) {
        CAPTURE(call);
        std::vector<std::vector<float>> weights(3);
        run_threads(3, [&](threads_communicator world) {
            hand one(world, parse_policy(call == 2 ? "no_shard" : "full_shard", "reshard_always"), {9}, 3);
            if (call == 0) one.model.begin_step();
            meet(world);
            try {
                if (world.rank() == 0) throw std::runtime_error("a file is missing");
                if (call == 0) one.model.announce_use({one.list[0]});
                if (call == 1) one.model.change_reshard(reshard::keep_until_step{});
                if (call == 2) one.model.check_replicas();
                if (call == 2) one.model.begin_step();
            } catch (const std::exception&) {
            }
            one.model.reset();
            one.microbatch(1);
            one.optimizer.step();
            weights[world.rank()] = one.weights();
        });
        CHECK(all_are(weights, -1));
    }
}

/// A topology of the user's that is wrong about the world.
struct crooked {
    std::size_t outer = 0, inner = 0;
    static constexpr auto levels() { return reshard::fact<std::size_t{2}>; }
    reshard::group_shape resolve(std::size_t) const { return {outer, inner}; }
};

TEST_CASE("shapes that are not the world's and units of other models are refused") {
    using policy_of_user = reshard::policy<reshard::hybrid_shard, reshard::reshard_always, crooked>;
    const crooked shapes[] = {{0, 6}, {4, 1}, {2, 2}};
    for (const crooked& one : shapes) {
        CHECK_THROWS_AS((sharded_model<policy_of_user, reshard::idle_communicator>{
                            reshard::idle_communicator{6}, {}, policy_of_user{{}, {}, one}}),
                        reshard::topology_error);
    }
    run_threads(2, [&](threads_communicator world) {
        hand one(world, parse_policy("full_shard", "reshard_always"), {9}, 1);
        hand other(world, parse_policy("full_shard", "reshard_always"), {9}, 40);
        one.model.begin_step();
        CHECK_THROWS_WITH_AS(one.model.announce_use({other.list[39]}), doctest::Contains("E-ARGUMENT-13"),
                             reshard::argument_error);
        CHECK_THROWS_WITH_AS(one.model.announce_use({other.list[0]}), doctest::Contains("unit.0"),
                             reshard::argument_error);
    });
}

TEST_CASE("a schedule is checked again against what another reshard policy keeps") {
    run_threads(2, [&](threads_communicator world) {
        trainer_type one(whole_net(), world, parse_policy("full_shard", "reshard_always"), whole_options());
        const reshard::pass passes[] = {{reshard::phase::forward, 0},
                                        {reshard::phase::forward, 1},
                                        {reshard::phase::backward, 1},
                                        {reshard::phase::backward, 0}};
        one.train(2, passes);
        one.model.change_reshard(any_reshard::parse("keep_last:2"));
        CHECK_THROWS_WITH_AS(one.model.begin_step({.microbatches = 2, .schedule = passes}),
                             doctest::Contains("E-ORDER-3"), reshard::order_error);
    });
}

TEST_CASE("announce_use allocates nothing after the first step, and costs what is predicted") {
    std::vector<long> calls(2);
    std::vector<counter> counts(2);
    std::vector<reshard::model_report> reports(2);
    run_threads(2, [&](threads_communicator threads) {
        const std::size_t rank = threads.rank();
        by_hand<policy_type, communicator> one(communicator(threads, counts[rank]),
                                               parse_policy("full_shard", "reshard_always"), {9}, 11);
        const auto step = [&] {
            one.model.begin_step();
            one.model.announce_use(one.list);
            one.microbatch(1);
            one.optimizer.step();
        };
        const auto count = [&] {
            threads.barrier({});
            const long now = test_support::allocation_count();
            threads.barrier({});
            return now;
        };
        for (int s = 0; s < 2; ++s) step();
        const long before = count();
        for (int s = 0; s < 3; ++s) step();
        calls[rank] = count() - before;
        reports[rank] = one.model.report();
    });
    for (std::size_t r = 0; r < 2; ++r) {
        CHECK(calls[r] == 0);
        auto gathers = reports[r].predicted_setup.sum().all_gather;
        gathers += reports[r].predicted_steps.sum().all_gather;
        CHECK(counts[r].of("whole", operation::all_gather).calls == gathers.calls);
        CHECK(counts[r].of("whole", operation::all_gather).bytes == gathers.bytes);
        CHECK(reports[r].predicted_owned.total() == reports[r].measured_owned);
    }
}

TEST_CASE("types of several sizes at alignment 1: the plan knows the gaps between them, and a cap holds") {
    using mixed_policy = runtime_policy<precision<reshard::bf16>>;
    for (const char* strategy : {"full_shard", "shard_optimizer", "hybrid_full_shard"}) {
        for (const std::size_t ranks : {1u, 4u}) {
            CAPTURE(strategy);
            std::vector<reshard::model_report> reports(ranks);
            std::vector<std::size_t> allocated(ranks);
            const auto own = [&](const char* reshard) {
                run_threads(ranks, [&](threads_communicator world) {
                    const std::size_t before = world.device().allocated();
                    mixed_policy policy = parse_policy<precision<reshard::bf16>>(strategy, reshard);
                    policy.topology = reshard::any_topology::parse(ranks == 4 ? "mesh:2x2" : "mesh:1x1");
                    sharded_model<mixed_policy, threads_communicator> model(
                        world, {.layout = {.parameter_alignment = 1, .slice_alignment = 1}}, policy);
                    for (const char* name : {"a", "b", "c"}) {
                        model.add_unit(name, {{"half", {7}},
                                              {"single", {13}, {.type = reshard::dtype::f32}},
                                              {"frozen", {2}, {.trainable = false}}});
                    }
                    model.begin_step();
                    model.idle_microbatch();
                    model.discard_step();
                    reports[world.rank()] = model.report();
                    allocated[world.rank()] = world.device().allocated() - before;
                });
                for (std::size_t r = 0; r < ranks; ++r) {
                    CHECK(reports[r].predicted_owned.total() == reports[r].measured_owned);
                    CHECK(reports[r].measured_owned == allocated[r]);
                    CHECK(reports[r].measured_live == reports[r].planned_live);
                }
                return reports[0].measured_owned;
            };
            const std::size_t least = own("reshard_always");
            for (const std::size_t more : {0u, 20u, 60u, 200u}) {
                const std::size_t cap = least + more;
                CHECK(own(("reshard_within:" + std::to_string(cap)).c_str()) <= cap);
            }
        }
    }
}

}  // namespace
