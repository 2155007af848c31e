// Steps under smaller groups and hybrid strategies: order of what is sent, memory, evaluation, recomputation, tied
// units, pipelines, replicas.
#include <doctest/doctest.h>

#include <random>

#include "support/grouped.hpp"

namespace {

using namespace toy;
using reshard::phase;
using reshard::rank_set;
using reshard::detail::collective;
using trainer_type = trainer<policy_type, threads_communicator>;
using hand = by_hand<policy_type, threads_communicator>;

// ------------------------------------------------------------------------------------------------- logs and order

TEST_CASE("logs of collectives are equal on all ranks, wherever their memory lies") {
    over_every_grouping([](const grouped& one, bool once) {
        std::vector<std::vector<reshard::detail::issue>> logs(one.ranks);
        run_threads(one.ranks, [&](threads_communicator world) {
            std::vector<std::vector<char>> elsewhere;
            std::mt19937 random(static_cast<unsigned>(world.rank()));
            for (int k = 0; k < 40; ++k) elsewhere.emplace_back(random() % 5000 + 1);
            for (std::size_t k = 0; k < 40; k += 2) elsewhere[k] = {};
            oracle::net net;
            net.tied = true;
            trainer_type train(net, world, one.policy(once));
            train.train(2);
            train.evaluate(0, 4);
            train.train(1);
            const auto& log = train.model.internals().log;
            for (std::uint64_t k = 0; k < log.count(); ++k) logs[world.rank()].push_back(log.at(k));
        });
        CHECK(logs[0].size() > 20);
        for (const auto& log : logs) CHECK(log == logs[0]);
    });
}

TEST_CASE(
    "in backward the gather of unit i - 1 is launched before the reduction of unit i and its sum between blocks") {
    for (const grouped& one : groupings) {
        const std::string reshard = one.reshard;
        if (reshard != "reshard_always" && reshard != "reshard_to_group:2") continue;
        if (std::string(one.strategy).find("replicated") != std::string::npos) continue;  // gathers nothing
        CAPTURE(one.words());
        run_threads(one.ranks, [&](threads_communicator world) {
            hand h(world, one.policy(), {70}, 5);
            h.microbatch(1);
            h.optimizer.step();
            for (auto* unit : h.list) auto scope = unit->forward();
            const auto& log = h.model.internals().log;
            const std::uint64_t turn = log.count();
            for (std::size_t u = 5; u-- > 0;) auto scope = h.list[u]->backward();
            const std::uint64_t behind = log.count();  // the last sum between blocks does not wait for step()
            h.optimizer.step();
            std::vector<std::uint64_t> gather(5, 0), reduction(5, 0), between(5, 0);
            for (std::uint64_t k = turn; k < log.count(); ++k) {
                const auto& each = log.at(k);
                if (each.unit >= 5) continue;
                if (each.what == collective::all_gather) {
                    // refreshes behind the step are over the outer group too
                    if (each.set != rank_set::outer) gather[each.unit] = k;
                } else if (each.set == rank_set::outer) {
                    between[each.unit] = k;
                } else {
                    reduction[each.unit] = k;
                }
            }
            const bool blocks = world.size() == 4 && std::string(one.topology) == "mesh:2x2";
            for (std::size_t u = 1; u < 5; ++u) {
                CHECK(reduction[u] > 0);
                CHECK(gather[u - 1] < reduction[u]);
                if (!blocks) continue;
                CHECK(reduction[u] < between[u]);
                CHECK(between[u] < reduction[u - 1]);
                if (u >= 2) CHECK(gather[u - 2] < between[u]);
            }
            if (blocks) CHECK(between[0] < behind);
        });
    }
}

// ---------------------------------------------------------------------------------------------------------- memory

TEST_CASE("what is in use after a forward and a backward is what the policy says, the first unit no exception") {
    struct row {
        grouped one;
        std::size_t after_forward, after_backward;  // elements of 5 units of 512
    };
    for (const row& each : {row{{"full_shard", "reshard_to_group:2", "flat", 4}, 5 * 256, 0},
                            {{"full_shard", "reshard_to_group:2,until_step", "flat", 4}, 5 * 256, 5 * 256},
                            {{"full_shard", "reshard_to_group:4,until_step", "flat", 8}, 5 * 128, 5 * 128},
                            {{"full_shard", "reshard_to_group:1", "flat", 4}, 5 * 512, 0},
                            {{"full_shard", "reshard_to_group:4", "flat", 4}, 0, 0},
                            {{"hybrid_shard", "reshard_to_group:2", "mesh:2x4", 8}, 5 * 256, 0},
                            {{"hybrid_full_shard", "reshard_to_group:2,until_step", "mesh:2x4", 8}, 5 * 256, 5 * 256},
                            {{"hybrid_shard", "reshard_always", "mesh:2x2", 4}, 0, 0},
                            {{"hybrid_shard", "reshard_never", "mesh:2x2", 4}, 5 * 512, 0},
                            {{"hybrid_shard", "keep_last:3", "mesh:2x2", 4}, 3 * 512, 0},
                            {{"hybrid_full_shard", "keep_until_step", "mesh:2x2", 4}, 5 * 512, 5 * 512},
                            {{"sharding:inner,whole,whole", "reshard_always", "mesh:2x2", 4}, 0, 0}}) {
        CAPTURE(each.one.words());
        run_threads(each.one.ranks, [&](threads_communicator world) {
            reshard::model_options options;
            options.slots.prefetch_depth = 0;  // nothing of the next pass is here
            hand h(world, each.one.policy(), {512}, 5, 1, options);
            for (int s = 0; s < 2; ++s) {
                h.model.begin_step({.microbatches = 2});
                for (int m = 0; m < 2; ++m) {
                    for (auto* unit : h.list) auto scope = unit->forward();
                    CHECK(h.model.internals().live_bytes == each.after_forward * 4);
                    for (std::size_t u = 5; u-- > 0;) auto scope = h.list[u]->backward();
                    CHECK(h.model.internals().live_bytes == each.after_backward * 4);
                }
                h.optimizer.step();
                CHECK(h.model.internals().live_bytes == 0);
            }
        });
    }
}

TEST_CASE("an embedding forty times a block: gather space is that of the largest unit and two blocks at most") {
    const std::size_t block = 1280, embedding = 40 * block;
    for (const grouped& one : groupings) {
        const std::string reshard = one.reshard;
        if (reshard == "reshard_never" || reshard == "keep_until_step") continue;
        for (const std::size_t uses : {1u, 2u}) {
            CAPTURE(one.words());
            CAPTURE(uses);
            run_threads(one.ranks, [&](threads_communicator world) {
                using communicator = counted<threads_communicator>;
                using model_type = sharded_model<policy_type, communicator>;
                counter counts;
                model_type model(communicator(world, counts), {}, one.policy());
                reshard::sgd<model_type> optimizer(model);
                std::vector<typename model_type::unit*> order = {
                    &model.add_unit("embedding", {{"w", {embedding}, {}}}, {.uses = uses})};
                for (int u = 0; u < 6; ++u)
                    order.push_back(&model.add_unit("h." + std::to_string(u), {{"w", {block}, {}}}));
                if (uses == 2) order.push_back(order[0]);
                model.set_order(order);
                model.initialize([](const auto&, std::size_t, auto) {});
                for (int s = 0; s < 2; ++s) {
                    for (auto* unit : order) auto scope = unit->forward();
                    for (std::size_t u = order.size(); u-- > 0;) auto scope = order[u]->backward();
                    optimizer.step();
                }
                const auto report = model.report();
                CHECK(report.predicted_owned.gather_buffers <= 4 * (embedding + 2 * block));
                CHECK(report.predicted_owned.total() == report.measured_owned);
                CHECK(report.measured_live <= report.planned_live);
                CHECK(report.missed_prefetches == 0);
            });
        }
    }
}

// --------------------------------------------------------------------------------------------------------- weights

TEST_CASE("replicas that start from different values: a check names the first unit, a broadcast makes them equal") {
    for (const char* strategy :
         {"hybrid_shard", "sharding:replicated,inner,inner", "sharding:replicated,replicated,inner"}) {
        CAPTURE(strategy);
        std::vector<std::string> words(4);
        std::vector<std::vector<float>> weights(4);
        run_threads(4, [&](threads_communicator world) {
            hand h(world, grouped{strategy, "reshard_always", "mesh:2x2", 4}.policy(), {512}, 3);
            h.model.check_replicas();
            h.model.initialize([&](const reshard::parameter_info& info, std::size_t offset, auto values) {
                for (std::size_t i = 0; i < values.size(); ++i) {
                    const float own = info.unit_index == 0 ? 0.0f : static_cast<float>(world.rank() / 2) * 1000;
                    values[i] = own + static_cast<float>(offset + i);
                }
            });
            try {
                h.model.check_replicas();
            } catch (const reshard::disagreement_error& known) {
                words[world.rank()] = known.what();
            }
            h.model.synchronize_weights(3);  // of the second block
            h.model.check_replicas();
            auto evaluation = h.model.evaluate();
            for (auto* unit : h.list) {
                auto scope = unit->forward();
                weights[world.rank()].insert(weights[world.rank()].end(), scope[h.w].begin(), scope[h.w].end());
            }
        });
        for (std::size_t r = 0; r < 4; ++r) {
            CHECK(words[r].find("E-AGREE-4") != std::string::npos);
            CHECK(words[r].find("\"unit.1\"") != std::string::npos);
            REQUIRE(weights[r].size() == 3 * 512);
            for (std::size_t i = 0; i < 3 * 512; ++i) {
                const float right = static_cast<float>(i % 512) + (i < 512 ? 0.0f : 1000.0f);
                if (weights[r][i] != right) CHECK(weights[r][i] == right);
            }
        }
    }
}

TEST_CASE("a save after the forward alone holds the step's weights and harms nothing") {
    over_every_grouping([](const grouped& one, bool once) {
        std::vector<std::vector<float>> saved(one.ranks), after(one.ranks);
        run_threads(one.ranks, [&](threads_communicator world) {
            hand h(world, one.policy(once), {512}, 3);
            h.initialize(5);
            h.microbatch(1);
            h.optimizer.step();
            for (auto* unit : h.list) auto scope = unit->forward();
            saved[world.rank()] = h.weights();
            for (std::size_t u = 3; u-- > 0;) {
                auto scope = h.list[u]->backward();
                CHECK(scope[h.w][511] == 4);
                for (auto& each : scope.gradient(h.w)) each += 1;
            }
            h.optimizer.step();
            after[world.rank()] = h.weights();
        });
        CHECK(all_are(saved, 4));
        CHECK(all_are(after, 3));
    });
}

TEST_CASE("validation before, between and inside steps changes no loss, and counts nothing beyond gathers") {
    over_every_grouping([](const grouped& one, bool once) {
        const oracle::net net;
        std::vector<owned_values> owned[2];
        std::vector<std::vector<double>> losses[2];
        std::vector<counter> counts[2];
        for (const bool validating : {false, true}) {
            owned[validating].resize(one.ranks);
            losses[validating].resize(one.ranks);
            counts[validating].resize(one.ranks);
            run_threads(one.ranks, [&](threads_communicator world) {
                using communicator = counted<threads_communicator>;
                trainer<policy_type, communicator> train(net, communicator(world, counts[validating][world.rank()]),
                                                         one.policy(once));
                train_three_steps(train, validating);
                owned[validating][world.rank()] = train.owned();
                losses[validating][world.rank()] = train.losses;
                const auto& state = train.model.internals();
                for (const auto* unit : state.units) {
                    CHECK((!unit->secondary_here || state.keeps_secondary(*unit)));
                    if (unit->source == reshard::view_source::gathered)
                        CHECK((!unit->here || state.keeps_after_backward(*unit)));
                }
            });
        }
        CHECK(same_values(join(owned[1]).all, join(owned[0]).all));
        CHECK(losses[1] == losses[0]);
        for (std::size_t r = 0; r < one.ranks; ++r) {
            const counter more = counts[1][r] - counts[0][r];
            for (const auto& group : more.groups) {
                for (const auto kind : {reshard::operation::reduce_scatter, reshard::operation::all_reduce,
                                        reshard::operation::broadcast, reshard::operation::barrier})
                    CHECK(group.by_operation[static_cast<std::size_t>(kind)].calls == 0);
            }
        }
    });
}

// ------------------------------------------------------------------------------------- recomputation, tied, in flight

/// Gathers of every unit over each set of ranks, in a step of six units with segments of `segment` recomputed (0:
/// none).
std::vector<std::size_t> gathers_with_recompute(const grouped& one, std::size_t segment) {
    std::vector<std::size_t> gathers;
    run_threads(one.ranks, [&](threads_communicator world) {
        const std::size_t together = segment == 0 ? 1 : segment;
        reshard::model_options options;
        options.slots.recompute_segment = together;
        hand h(world, one.policy(), {70}, 6, 1, options);
        h.microbatch(1);
        h.optimizer.step();
        const std::uint64_t first = h.model.internals().log.count();
        for (auto* unit : h.list) auto scope = unit->forward();
        for (std::size_t end = 6; end > 0; end -= together) {
            for (std::size_t u = end - segment; u < end; ++u) {
                auto scope = h.list[u]->recompute();
                CHECK(scope[h.w][69] == -1);
            }
            for (std::size_t u = end; u-- > end - together;) {
                auto scope = h.list[u]->backward();
                for (auto& each : scope.gradient(h.w)) each += 1;
            }
        }
        const std::uint64_t last = h.model.internals().log.count();
        h.optimizer.step();
        CHECK(h.model.report().missed_prefetches == 0);
        for (const float each : h.weights()) CHECK((std::isnan(each) || each == -2));
        if (world.rank() != 0) return;
        const auto& log = h.model.internals().log;
        gathers.assign(6 * 4, 0);
        for (std::uint64_t k = first; k < last; ++k) {
            const auto& each = log.at(k);
            if (each.what == collective::all_gather && each.unit < 6)
                ++gathers[each.unit * 4 + static_cast<std::size_t>(each.set)];
        }
    });
    return gathers;
}

TEST_CASE(
    "recomputation over segments of one and three units gathers as often as without, and within the same groups") {
    for (const grouped& one : groupings) {
        CAPTURE(one.words());
        const auto without = gathers_with_recompute(one, 0);
        CHECK(gathers_with_recompute(one, 1) == without);
        CHECK(gathers_with_recompute(one, 3) == without);
    }
}

TEST_CASE("a longer segment than declared throws with both numbers under a secondary group") {
    std::vector<std::string> words(4);
    run_threads(4, [&](threads_communicator world) {
        hand h(world, grouped{"full_shard", "reshard_to_group:2", "flat", 4}.policy(), {70}, 4);
        for (auto* unit : h.list) auto scope = unit->forward();
        {
            auto scope = h.list[2]->recompute();
        }
        meet(world);
        try {
            auto scope = h.list[3]->recompute();
        } catch (const reshard::error& known) {
            words[world.rank()] = known.what();
        }
        h.model.reset();
    });
    std::size_t named = 0;
    for (const std::string& each : words) {
        CHECK(each != "");
        named += each.find("number 2") != std::string::npos && each.find("recompute_segment is 1") != std::string::npos;
    }
    CHECK(named >= 1);
}

TEST_CASE("a unit used twice: the sum of both uses, one reduction a microbatch, also with two in flight") {
    std::vector<grouped> all(std::begin(groupings), std::end(groupings));
    for (const char* reshard : {"reshard_always", "reshard_never", "keep_until_step"})
        all.push_back({"full_shard", reshard, "flat", 2});
    for (const grouped& one : all) {
        for (const std::size_t m : {1u, 2u, 3u}) {
            const bool in_flight = m == 2;
            if (in_flight && std::string(one.reshard).find("keep_last") != std::string::npos) continue;
            CAPTURE(one.words());
            CAPTURE(m);
            run_threads(one.ranks, [&](threads_communicator world) {
                hand h(world, one.policy(), {70}, 2, 2);
                const std::vector<reshard::pass> both = {
                    {phase::forward, 0}, {phase::forward, 1}, {phase::backward, 0}, {phase::backward, 1}};
                for (int s = 0; s < 2; ++s) {
                    const std::uint64_t first = h.model.internals().log.count();
                    if (in_flight) {
                        h.model.begin_step({.microbatches = 2, .schedule = both});
                        for (int pass = 0; pass < 2; ++pass) {
                            for (int use = 0; use < 2; ++use)
                                for (auto* unit : h.list) auto scope = unit->forward();
                        }
                        for (int pass = 0; pass < 2; ++pass) {
                            for (const std::size_t u : {1u, 0u, 1u, 0u}) {
                                auto scope = h.list[u]->backward();
                                for (auto& each : scope.gradient(h.w)) each += 1;
                            }
                        }
                    } else {
                        h.model.begin_step({.microbatches = m});
                        for (std::size_t k = 0; k < m; ++k) h.microbatch(1);
                    }
                    h.optimizer.step();
                    const auto& state = h.model.internals();
                    const bool once = state.reduces_once(*state.units[0]);
                    const bool outer = state.units[0]->how == reshard::reduction::inner_and_outer;
                    const std::size_t inner_set =
                                          issued(h.model, first, collective::reduce_scatter, rank_set::inner, 0),
                                      whole_set =
                                          issued(h.model, first, collective::reduce_scatter, rank_set::whole, 0);
                    CHECK(inner_set + whole_set == (once ? 1 : m));
                    if (outer) CHECK(issued(h.model, first, collective::reduce_scatter, rank_set::outer, 0) == m);
                    for (const float each : h.weights())
                        CHECK((std::isnan(each) || each == -2 * static_cast<float>(m) * static_cast<float>(s + 1)));
                }
                CHECK(h.model.report().missed_prefetches == 0);
            });
        }
    }
}

}  // namespace
