// Scenarios from the field under smaller groups and hybrid strategies: versions of weights, counts, memory, order.
#include <doctest/doctest.h>

#include <cstring>

#include "support/grouped.hpp"

namespace {

using namespace toy;
using reshard::rank_set;
using reshard::detail::collective;
using hand = by_hand<policy_type, threads_communicator>;

/// Slices of any number of elements.
reshard::model_options unaligned(std::size_t slice = 1) {
    reshard::model_options options;
    options.layout.slice_alignment = slice;
    options.layout.parameter_alignment = 1;
    return options;
}

// ----------------------------------------------------------------------------------------- smaller groups, versions

/// What each gather of two steps shows (forward, recompute, backward, evaluation), from weights 1..8 on.
std::vector<std::vector<float>> weights_seen(const grouped& one) {
    std::vector<std::vector<float>> seen(one.ranks);
    run_threads(one.ranks, [&](threads_communicator world) {
        hand h(world, one.policy(), {8}, 1, 1, unaligned());
        h.model.initialize([](const auto&, std::size_t offset, auto values) {
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(offset + i + 1);
        });
        auto& mine = seen[world.rank()];
        const auto note = [&](const auto& scope) {
            const auto values = scope[h.w];
            mine.insert(mine.end(), values.begin(), values.end());
        };
        for (int s = 0; s < 2; ++s) {
            h.list[0]->forward([&](const auto& scope) { note(scope); });
            {
                auto scope = h.list[0]->recompute();
                note(scope);
            }
            h.list[0]->backward([&](auto& scope) {
                note(scope);
                for (auto& each : scope.gradient(h.w)) each += 1;
            });
            for (int again = 0; again < 2; ++again) {
                auto evaluation = h.model.evaluate();
                auto scope = h.list[0]->forward();
                note(scope);
            }
            h.optimizer.step();
        }
    });
    return seen;
}

TEST_CASE("a secondary shard kept until the step shows the new weights after it, in every gather") {
    std::vector<float> right;
    for (const float first : {1.0f, 0.0f}) {
        for (int gather = 0; gather < 5; ++gather) {
            for (std::size_t i = 0; i < 8; ++i) right.push_back(first + static_cast<float>(i));
        }
    }
    for (const grouped& one :
         {grouped{"full_shard", "reshard_to_group:2,until_step", "flat", 4},
          grouped{"full_shard", "reshard_to_group:2", "flat", 4}, grouped{"full_shard", "reshard_always", "flat", 4},
          grouped{"hybrid_shard", "reshard_to_group:2,until_step", "mesh:2x4", 8},
          grouped{"hybrid_full_shard", "reshard_to_group:2,until_step", "mesh:2x4", 8}}) {
        CAPTURE(one.strategy);
        CAPTURE(one.reshard);
        for (const auto& seen : weights_seen(one)) CHECK(seen == right);
    }
}

/// Holds one command in 97 of the gather streams back by 20 ms: each kind of command in its turn.
struct late_now_and_then final : reshard::delay_source {
    std::uint64_t before(std::size_t, const char* stream, std::uint64_t number) const override {
        return std::strcmp(stream, "gathers") == 0 && number % 97 == 0 ? 20'000 : 0;
    }
};

TEST_CASE("a late copy into the secondary shard: the gather from it, issued at once, shows the source") {
    const late_now_and_then delays;
    const std::size_t rounds = sanitized() ? 100 : 1000;
    std::vector<std::size_t> right(4), small(4);
    run_threads(4,
                [&](threads_communicator world) {
                    const grouped one{"full_shard", "reshard_to_group:2,until_step", "flat", 4};
                    hand h(world, one.policy(), {40}, 1, 1, unaligned());
                    const std::uint64_t first = h.model.internals().log.count();
                    for (std::size_t round = 0; round < rounds; ++round) {
                        {
                            auto writing = h.model.write_weights();
                            const auto masters = h.model.masters();
                            for (std::size_t i = 0; i < masters.size(); ++i)
                                masters[i] = static_cast<float>(round + 10 * world.rank() + i);
                        }
                        for (int gather = 0; gather < 2; ++gather) {
                            auto evaluation = h.model.evaluate();
                            auto scope = h.list[0]->forward();
                            const auto values = scope[h.w];
                            bool same = true;
                            for (std::size_t i = 0; i < 40; ++i)
                                same = same && values[i] == static_cast<float>(round + i);
                            right[world.rank()] += same;
                        }
                    }
                    small[world.rank()] = issued(h.model, first, collective::all_gather, rank_set::secondary);
                },
                {.deadline_seconds = 60, .delays = &delays});
    for (std::size_t r = 0; r < 4; ++r) {
        CHECK(right[r] == 2 * rounds);
        CHECK(small[r] == rounds);
    }
}

enum class writer { load, user, broadcast };
struct copy_kind {
    const char* name;
    grouped held;
    std::size_t units;  // how many an evaluation enters before the write
};

TEST_CASE("a write to the weights voids every kind of copy over blocks, also in the middle of a step") {
    const copy_kind kinds[] = {
        {"secondary", {"hybrid_shard", "reshard_to_group:2,until_step", "mesh:2x4", 8}, 3},
        {"kept", {"hybrid_shard", "keep_until_step", "mesh:2x2", 4}, 3},
        {"prefetched", {"hybrid_shard", "reshard_always", "mesh:2x2", 4}, 2},
        {"resting", {"sharding:replicated,inner,inner", "reshard_always", "mesh:2x2", 4}, 3},
        {"resting slice", {"hybrid_full_shard", "reshard_always", "mesh:2x2", 4}, 3},
    };
    for (const copy_kind& kind : kinds) {
        for (const writer how : {writer::load, writer::user, writer::broadcast}) {
            // where all is sharded over the whole, a broadcast has nothing to send
            if (how == writer::broadcast && std::strcmp(kind.name, "resting slice") == 0) continue;
            CAPTURE(kind.name);
            CAPTURE(static_cast<int>(how));
            std::vector<std::vector<float>> seen(kind.held.ranks);
            run_threads(kind.held.ranks, [&](threads_communicator world) {
                hand h(world, kind.held.policy(), {70}, 3);
                h.initialize(1);
                auto& mine = seen[world.rank()];
                const auto write = [&](float value) {
                    if (how == writer::load) return h.initialize(value);
                    const bool right = how == writer::user || world.rank() < world.size() / 2;  // the block of rank 1
                    auto writing = h.model.write_weights();
                    for (auto& each : h.model.masters()) each = right ? value : -7;
                    writing.close();
                    if (how == writer::broadcast) h.model.synchronize_weights(1);
                };
                {
                    auto evaluation = h.model.evaluate();
                    for (std::size_t u = 0; u < kind.units; ++u) {
                        auto scope = h.list[u]->forward();
                        mine.push_back(scope[h.w][69]);
                    }
                }
                write(2);
                for (auto* unit : h.list) unit->forward([&](const auto& scope) { mine.push_back(scope[h.w][69]); });
                {
                    auto scope = h.list[2]->backward();
                    CHECK_THROWS_WITH_AS(static_cast<void>(h.model.write_weights()), doctest::Contains("unit.2"),
                                         reshard::state_error);
                }
                write(3);
                for (const std::size_t u : {1u, 0u}) {
                    auto scope = h.list[u]->backward();
                    mine.push_back(scope[h.w][69]);
                }
                h.optimizer.step();
            });
            std::vector<float> right(kind.units, 1);
            right.insert(right.end(), {2, 2, 2, 3, 3});
            for (const auto& mine : seen) CHECK(mine == right);
        }
    }
}

/// A team's communicator that counts the groups that are split off it.
struct splits_counted : threads_communicator {
    struct owner {
        threads_communicator::owner inner;
        std::size_t* count;
        splits_counted view() const { return {inner.view(), count}; }
        bool empty() const { return inner.empty(); }
        void close() { inner.close(); }
    };
    splits_counted(const threads_communicator& inner, std::size_t* into) : threads_communicator(inner), count(into) {}
    owner split(std::size_t colour, std::size_t key) const {
        ++*count;
        return {threads_communicator::split(colour, key), count};
    }
    std::size_t* count;
};

TEST_CASE("a hundred units with secondary groups need one further communicator a rank") {
    for (const grouped& one : {grouped{"full_shard", "reshard_to_group:4", "flat", 8},
                               grouped{"hybrid_shard", "reshard_to_group:2", "mesh:2x4", 8}}) {
        std::vector<std::size_t> splits(one.ranks);
        run_threads(one.ranks, [&](threads_communicator world) {
            by_hand<policy_type, splits_counted> h({world, &splits[world.rank()]}, one.policy(), {8}, 100, 1,
                                                   unaligned());
            h.microbatch(1);
            h.optimizer.step();
        });
        const std::size_t right = one.strategy == std::string("full_shard") ? 1 : 3;  // inner, outer, secondary
        for (const std::size_t each : splits) CHECK(each == right);
    }
}

TEST_CASE("a secondary group that does not divide the shard group: refused before anything is allocated or sent") {
    struct refused {
        grouped one;
        const char *group, *shard, *valid;
    };
    for (const refused& each :
         {refused{{"full_shard", "reshard_to_group:3", "flat", 8}, "group of 3", "8", "1, 2, 4 or 8"},
          refused{{"hybrid_shard", "reshard_to_group:3", "mesh:2x4", 8}, "group of 3", "4", "1, 2 or 4"},
          refused{{"hybrid_shard", "reshard_to_group:8", "mesh:2x4", 8}, "group of 8", "4", "1, 2 or 4"}}) {
        std::vector<counter> counts(8);
        std::vector<std::size_t> allocated(8, 1);
        std::string words;
        try {
            run_threads(8, [&](threads_communicator world) {
                const std::size_t rank = world.rank(), before = world.device().allocated();
                try {
                    using communicator = counted<threads_communicator>;
                    by_hand<policy_type, communicator> h(communicator(world, counts[rank]), each.one.policy(), {8}, 2);
                } catch (...) {
                    allocated[rank] = world.device().allocated() - before;
                    throw;
                }
            });
        } catch (const reshard::topology_error& known) {
            words = known.what();
        }
        CAPTURE(words);
        for (const char* part : {each.group, each.shard, each.valid}) CHECK(words.find(part) != std::string::npos);
        for (std::size_t r = 0; r < 8; ++r) {
            CHECK(allocated[r] == 0);
            for (const auto& group : counts[r].groups) {
                for (const auto& kind : group.by_operation) CHECK(kind.calls == 0);
            }
        }
    }
}

TEST_CASE("a secondary shard lives from the first gather to the backward; backwards gather within the group alone") {
    for (const grouped& one : {grouped{"full_shard", "reshard_to_group:2", "flat", 4},
                               grouped{"hybrid_full_shard", "reshard_to_group:2", "mesh:1x4", 4}}) {
        run_threads(one.ranks, [&](threads_communicator world) {
            reshard::model_options options;
            options.slots.prefetch_depth = 0;
            hand h(world, one.policy(), {256}, 5, 1, options);
            const auto live = [&] { return h.model.internals().live_bytes; };
            for (auto* unit : h.list) auto scope = unit->forward();
            CHECK(live() == 5 * 128 * 4);
            for (std::size_t u = 5; u-- > 0;) {
                {
                    auto scope = h.list[u]->backward();
                }
                CHECK(!h.list[u]->record().secondary_here);
                CHECK(live() == u * 128 * 4);
            }
            h.optimizer.step();
            CHECK(live() == 0);
        });
        run_threads(one.ranks, [&](threads_communicator world) {
            hand h(world, one.policy(), {256}, 5);  // prefetches
            h.microbatch(1);
            h.optimizer.step();
            for (auto* unit : h.list) auto scope = unit->forward();
            const std::uint64_t turn = h.model.internals().log.count();
            for (std::size_t u = 5; u-- > 0;) auto scope = h.list[u]->backward();
            // the first backward's was prefetched at the turn
            CHECK(issued(h.model, turn, collective::all_gather, rank_set::secondary) == 4);
            CHECK(issued(h.model, turn, collective::all_gather, rank_set::inner) == 0);
            CHECK(issued(h.model, turn, collective::all_gather, rank_set::whole) == 0);
            h.optimizer.step();
        });
    }
}

TEST_CASE("five rows on four ranks: the secondary group's rank 0 holds rows 0 to 3, rank 1 row 4 and padding") {
    for (const std::size_t row : {1u, 16u}) {
        std::vector<std::string> wrong(4);
        run_threads(4, [&](threads_communicator world) {
            const grouped one{"full_shard", "reshard_to_group:2", "flat", 4};
            hand h(world, one.policy(), {5, row}, 1, 1, unaligned(row));
            h.model.initialize([](const auto&, std::size_t offset, auto values) {
                for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(offset + i + 1);
            });
            const auto& record = h.list[0]->record();
            {
                auto scope = h.list[0]->forward();
            }
            if (record.secondary_slices.total != 4 * row * sizeof(float)) wrong[world.rank()] += "size ";
            std::vector<float> held(4 * row);
            std::memcpy(held.data(), record.secondary, held.size() * sizeof(float));
            for (std::size_t i = 0; i < 4 * row; ++i) {
                const std::size_t at = world.rank() % 2 * 4 * row + i;
                const float right = at < 5 * row ? static_cast<float>(at + 1) : 0;
                if (held[i] != right) wrong[world.rank()] += "held ";
            }
            auto scope = h.list[0]->backward();
            for (std::size_t i = 0; i < 5 * row; ++i) {
                if (scope[h.w][i] != static_cast<float>(i + 1)) wrong[world.rank()] += "gathered ";
            }
        });
        for (const std::string& each : wrong) CHECK(each == "");
    }
}

TEST_CASE("four microbatches on two nodes of two: one gather of the whole, seven within the node, a unit and step") {
    struct expected {
        const char* reshard;
        std::size_t whole, within;
    };
    for (const expected& each : {expected{"reshard_to_group:2,until_step", 1, 7}, {"reshard_to_group:2", 4, 4}}) {
        CAPTURE(each.reshard);
        run_threads(4, [&](threads_communicator world) {
            hand h(world, grouped{"full_shard", each.reshard, "mesh:2x2", 4}.policy(), {70}, 5);
            for (int s = 0; s < 2; ++s) {
                const std::uint64_t first = h.model.internals().log.count();
                h.model.begin_step({.microbatches = 4});
                for (int m = 0; m < 4; ++m) h.microbatch(1);
                h.optimizer.step();
                for (std::size_t u = 0; u < 5; ++u) {
                    CHECK(issued(h.model, first, collective::all_gather, rank_set::whole, u) == each.whole);
                    CHECK(issued(h.model, first, collective::all_gather, rank_set::secondary, u) == each.within);
                }
            }
        });
    }
}

// ------------------------------------------------------------------------------------------- accumulation, scaling

/// The sums of a step in which rank r adds gradients[r][m] in microbatch m; every rank's owned elements.
std::vector<std::vector<float>> sums_of(const grouped& one, bool once, bool averaged,
                                        const std::vector<std::vector<float>>& gradients) {
    std::vector<std::vector<float>> sums(one.ranks);
    run_threads(one.ranks, [&](threads_communicator world) {
        reshard::model_options options;
        options.average_over_ranks = averaged;
        hand h(world, one.policy(once), {256 * 3}, 2, 1, options);
        const auto& mine = gradients[world.rank() % gradients.size()];
        for (int s = 0; s < 2; ++s) {  // the second step must not add to the first
            h.model.begin_step({.microbatches = mine.size()});
            for (const float gradient : mine) h.microbatch(gradient);
            const auto found = h.model.gradients();
            sums[world.rank()].assign(found.begin(), found.end());
            h.optimizer.step();
        }
    });
    return sums;
}

void sums_are(float right, const std::vector<std::vector<float>>& sums) {
    for (const auto& mine : sums) {
        CHECK(mine.size() >= 2 * 256 * 3 / sums.size());
        for (const float each : mine) {
            if (each != right) CHECK(each == right);
        }
    }
}

TEST_CASE("sums over microbatches, ranks and replicas come out as by hand") {
    for (const bool once : {false, true}) {
        CAPTURE(once);
        for (const char* strategy :
             {"hybrid_shard", "hybrid_full_shard", "sharding:inner,whole,whole", "sharding:replicated,inner,whole",
              "sharding:replicated,inner,inner", "sharding:replicated,replicated,inner"}) {
            CAPTURE(strategy);
            const grouped alone{strategy, "reshard_always", "mesh:1x1", 1},
                two{strategy, "reshard_always", "mesh:1x2", 2}, replicas{strategy, "reshard_always", "mesh:2x1", 2},
                four{strategy, "reshard_always", "mesh:2x2", 4};
            sums_are(3, sums_of(alone, once, true, {{1, 1, 1}}));
            sums_are(8, sums_of(four, once, true, {{1, 3}, {1, 3}, {5, 7}, {5, 7}}));
            sums_are(8, sums_of(replicas, once, true, {{1, 3}, {5, 7}}));
            sums_are(7, sums_of(four, once, true, {{1, 2, 4}}));
            sums_are(4, sums_of(two, once, false, {{1, 1}}));
            sums_are(4, sums_of(replicas, once, false, {{1, 1}}));
            sums_are(8, sums_of(four, once, false, {{1, 1}}));
            sums_are(2, sums_of(replicas, once, true, {{1}, {3}}));
        }
        for (const char* reshard : {"reshard_to_group:2", "reshard_to_group:2,until_step"}) {
            const grouped group{"full_shard", reshard, "flat", 4},
                single{"full_shard", "reshard_to_group:1", "flat", 1};
            sums_are(8, sums_of(group, once, true, {{1, 3}, {1, 3}, {5, 7}, {5, 7}}));
            sums_are(8, sums_of(group, once, false, {{1, 1}}));
            sums_are(3, sums_of(single, once, true, {{1, 1, 1}}));
        }
    }
}

TEST_CASE("hybrid_shard with four microbatches: four reduce-scatters in the block and one all-reduce between, a unit") {
    struct expected {
        const char* strategy;
        bool once;
        std::size_t inner_scatters, outer_scatters, outer_sums;
    };
    for (const expected& each : {expected{"hybrid_shard", false, 4, 0, 1},
                                 {"hybrid_shard", true, 1, 0, 1},
                                 {"hybrid_full_shard", false, 4, 1, 0},
                                 {"hybrid_full_shard", true, 1, 1, 0},
                                 {"sharding:inner,whole,whole", false, 4, 4, 0}}) {
        CAPTURE(each.strategy);
        CAPTURE(each.once);
        run_threads(4, [&](threads_communicator world) {
            hand h(world, grouped{each.strategy, "reshard_always", "mesh:2x2", 4}.policy(each.once), {70}, 3);
            for (int s = 0; s < 2; ++s) {
                const std::uint64_t first = h.model.internals().log.count();
                h.model.begin_step({.microbatches = 4});
                for (int m = 0; m < 4; ++m) h.microbatch(1);
                h.optimizer.step();
                for (std::size_t u = 0; u < 3; ++u) {
                    CHECK(issued(h.model, first, collective::reduce_scatter, rank_set::inner, u) ==
                          each.inner_scatters);
                    CHECK(issued(h.model, first, collective::reduce_scatter, rank_set::outer, u) ==
                          each.outer_scatters);
                    CHECK(issued(h.model, first, collective::all_reduce, rank_set::outer, u) == each.outer_sums);
                    CHECK(issued(h.model, first, collective::reduce_scatter, rank_set::whole, u) == 0);
                    CHECK(issued(h.model, first, collective::all_reduce, rank_set::inner, u) == 0);
                }
            }
        });
    }
}

TEST_CASE("two units in backward at once: neither's sum between blocks is lost") {
    over_every_grouping([](const grouped& one, bool once) {
        std::vector<std::vector<float>> sums(one.ranks);
        run_threads(one.ranks, [&](threads_communicator world) {
            reshard::model_options options;
            options.slots.max_open = 2;
            hand h(world, one.policy(once), {70}, 2, 1, options);
            for (auto* unit : h.list) auto scope = unit->forward();
            {
                auto second = h.list[1]->backward();
                auto first = h.list[0]->backward();
                for (auto& each : second.gradient(h.w)) each += 5;
                for (auto& each : first.gradient(h.w)) each += 5;
                second.gradients_done();
                first.gradients_done();
            }
            h.optimizer.step();
            for (const auto& slice : h.model.owned())
                sums[world.rank()].insert(sums[world.rank()].end(), slice.master, slice.master + slice.count);
        });
        for (const auto& mine : sums) {
            for (const float each : mine) CHECK(each == -5);
        }
    });
}

}  // namespace
