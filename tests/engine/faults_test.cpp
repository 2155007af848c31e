// One rank throws anywhere in a step; after reset() all ranks stand at the last commit and go on as if nothing was.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <stdexcept>

#include "support/grouped.hpp"

namespace {

using namespace toy;
using trainer_type = trainer<policy_type, threads_communicator>;

struct injected : std::runtime_error {
    injected() : std::runtime_error("injected") {}
};

/// Compute on the calling thread, or on a queue that the host runs ahead of.
struct compute_place {
    compute_place(threads_communicator world, bool queued, const reshard::delay_source* delays = nullptr) {
        if (!queued) return;
        worker.emplace(reshard::worker_options{reshard::worker_mode::threaded, 60, world.rank(), delays, nullptr},
                       world.device().worker());
        stream.emplace(reshard::host_device(*worker).make_stream("compute", 4096));
    }
    reshard::host_device::stream_ref ref() const {
        return stream ? static_cast<reshard::host_device::stream_ref>(*stream) : reshard::host_device::stream_ref{};
    }
    std::optional<reshard::host_worker> worker;
    std::optional<reshard::host_device::stream> stream;
};

oracle::net small_net() {
    oracle::net net;
    net.widths = {3, 5, 2, 4};
    net.batch = 16;
    return net;
}

constexpr std::size_t ranks = 4, microbatches = 2, steps = 3;

/// What all ranks own after `count` steps without a fault.
owned_values clean_run(const policy_type& policy, std::size_t count) {
    std::vector<owned_values> owned(ranks);
    run_threads(ranks, [&](threads_communicator world) {
        trainer_type one(small_net(), world, policy);
        for (std::size_t s = 0; s < count; ++s) one.train(microbatches);
        owned[world.rank()] = one.owned();
    });
    return join(owned).all;
}

struct faulty_run {
    std::vector<owned_values> after_reset, at_end;
    std::uint64_t thrown = 0;  // how many ranks threw
    std::uint64_t leaks = 0;   // ranks on which something was still in use after reset()
};

/// Whether any copy, buffer or secondary shard counts as in use.
template <class State>
bool anything_in_use(const State& state) {
    bool used = state.live_bytes != 0 || state.outer_due != nullptr;
    for (const auto* unit : state.units) {
        used = used || unit->secondary_here || unit->slice_here || unit->accumulating;
        used = used || (unit->here && unit->source == reshard::view_source::gathered);
    }
    for (const auto& buffer : state.gradient_buffers) used = used || buffer.holder != reshard::detail::nobody;
    return used;
}

/// Rank `culprit` throws at point `at` of step 1 (from 0); everybody resets, and trains to the end.
faulty_run run_with_fault(const policy_type& policy, std::size_t culprit, std::size_t at, bool queued,
                          const reshard::delay_source* delays = nullptr) {
    faulty_run out{std::vector<owned_values>(ranks), std::vector<owned_values>(ranks)};
    std::atomic<std::uint64_t> thrown{0}, leaks{0};
    run_threads(ranks,
                [&](threads_communicator world) {
                    compute_place place(world, queued, delays);
                    trainer_type one(small_net(), world, policy, {}, place.ref());
                    bool counting = false;
                    std::size_t seen = 0;
                    one.at_point = [&](const char*) {
                        if (counting && seen++ == at && world.rank() == culprit) throw injected();
                    };
                    try {
                        world.barrier({});  // all are built
                        one.train(microbatches);
                        counting = true;
                        // the others may run ahead of the culprit, at most two steps
                        for (int s = 0; s < 3; ++s) one.train(microbatches);
                    } catch (const injected&) {
                        ++thrown;
                        // outside of scopes nobody is told: the trainer's own call to reset() does
                        world.control().raise("injected");
                    } catch (const reshard::error&) {
                        ++thrown;
                    }
                    one.at_point = nullptr;
                    one.model.reset();
                    if (anything_in_use(one.model.internals())) ++leaks;
                    out.after_reset[world.rank()] = one.owned();
                    while (one.model.steps() < steps) one.train(microbatches);
                    out.at_end[world.rank()] = one.owned();
                },
                {.deadline_seconds = 20});
    out.thrown = thrown;
    out.leaks = leaks;
    return out;
}

/// Every `stride`-th point from `first` on, of 40 in all: two around begin and step each, three around each of three
/// layers' scopes, twice.
void every_point(const policy_type& policy, std::size_t first, std::size_t stride, bool queued) {
    std::vector<owned_values> clean;
    for (std::size_t s = 0; s <= steps + 1; ++s) clean.push_back(clean_run(policy, s));
    for (std::size_t at = first; at < 40; at += stride) {
        CAPTURE(policy.describe());
        CAPTURE(at);
        const auto found = run_with_fault(policy, at % ranks, at, queued);
        const auto reset = join(found.after_reset), end = join(found.at_end);
        CHECK(found.thrown == ranks);
        CHECK(found.leaks == 0);
        CHECK(reset.whole);
        CHECK(end.whole);
        // the culprit's host may be ahead of its peers', who have not voted for step 0 yet
        CHECK(reset.all.steps >= (queued ? 0 : 1));
        CHECK(reset.all.steps <= 2);
        CHECK(same_values(reset.all, clean[reset.all.steps]));
        CHECK(same_values(end.all, clean[steps]));
    }
}

void every_point(bool queued) {
    std::size_t number = 0;
    for (const char* strategy : strategies) {
        for (const char* reshard : reshards) {
            const policy_type policy = parse_policy(strategy, reshard, number % 2 == 1);
            every_point(policy, number % 3, sanitized() ? 11 : 3, queued);
            ++number;
        }
    }
}

void every_point_of_groups(bool queued) {
    const std::size_t stride = sanitized() ? 13 : 1;
    for (const bool once : {false, true}) {
        const std::size_t first = once ? 1 : 0, every = once ? 5 * stride : stride;
        every_point(grouped{"hybrid_shard", "reshard_always", "mesh:2x2", ranks}.policy(once), first, every, queued);
        every_point(grouped{"hybrid_full_shard", "reshard_always", "mesh:2x2", ranks}.policy(once), first, every,
                    queued);
        every_point(grouped{"full_shard", "reshard_to_group:2", "flat", ranks}.policy(once), first, every, queued);
        every_point(grouped{"full_shard", "reshard_to_group:2,until_step", "flat", ranks}.policy(once), first,
                    5 * every, queued);
        every_point(grouped{"sharding:inner,whole,whole", "reshard_always", "mesh:2x2", ranks}.policy(once), first,
                    5 * every, queued);
    }
}

TEST_CASE("one rank of four throws at any point of a step; all are at the last commit after reset()") {
    SUBCASE("compute on the calling thread") { every_point(false); }
    SUBCASE("compute on a queue, peers run ahead") { every_point(true); }
}

TEST_CASE("one rank of four throws at any point of a step over smaller groups; nothing stays in use after reset()") {
    SUBCASE("compute on the calling thread") { every_point_of_groups(false); }
    SUBCASE("compute on a queue, peers run ahead") { every_point_of_groups(true); }
}

TEST_CASE("a fault under delays on every stream, over smaller groups") {
    for (std::uint64_t seed = 1; seed <= 18; ++seed) {
        CAPTURE(seed);
        const policy_type policies[] = {
            grouped{"hybrid_shard", "reshard_always", "mesh:2x2", ranks}.policy(seed % 2 == 1),
            grouped{"hybrid_full_shard", "keep_last:1", "mesh:2x2", ranks}.policy(false),
            grouped{"full_shard", "reshard_to_group:2", "flat", ranks}.policy(false)};
        const policy_type& policy = policies[seed % 3];
        const reshard::random_delays delays(seed, 200);
        const auto found = run_with_fault(policy, seed % ranks, (seed * 7) % 40, seed % 4 != 0, &delays);
        const auto reset = join(found.after_reset), end = join(found.at_end);
        CHECK(found.leaks == 0);
        CHECK(reset.whole);
        CHECK(end.whole);
        CHECK(same_values(reset.all, clean_run(policy, reset.all.steps)));
        CHECK(same_values(end.all, clean_run(policy, steps)));
    }
}

TEST_CASE("a fault under delays on every stream") {
    for (std::uint64_t seed = 1; seed <= 24; ++seed) {
        CAPTURE(seed);
        const policy_type policy = parse_policy(strategies[seed % 4], reshards[seed / 4 % 4], seed / 16 % 2 == 1);
        const reshard::random_delays delays(seed, 200);
        const auto found = run_with_fault(policy, seed % ranks, (seed * 7) % 40, seed % 3 != 0, &delays);
        const auto reset = join(found.after_reset), end = join(found.at_end);
        CHECK(reset.whole);
        CHECK(end.whole);
        CHECK(same_values(reset.all, clean_run(policy, reset.all.steps)));
        CHECK(same_values(end.all, clean_run(policy, steps)));
    }
}

TEST_CASE("all ranks throw at the same point; a reset on one rank alone does the same") {
    const policy_type policy = parse_policy("full_shard", "reshard_never");
    const owned_values clean = clean_run(policy, 2);
    std::vector<owned_values> owned(ranks);
    run_threads(ranks, [&](threads_communicator world) {
        trainer_type one(small_net(), world, policy);
        one.train(microbatches);
        std::size_t seen = 0;
        one.at_point = [&](const char*) {
            if (++seen == 12) throw injected();
        };
        CHECK_THROWS(one.train(microbatches));
        one.at_point = nullptr;
        one.model.reset();
        one.train(microbatches);
        owned[world.rank()] = one.owned();
    });
    CHECK(same_values(join(owned).all, clean));

    trainer<policy_type, self_communicator> one(small_net(), self_communicator(), policy);
    trainer<policy_type, self_communicator> other(small_net(), self_communicator(), policy);
    one.train(microbatches);
    std::size_t seen = 0;
    one.at_point = [&](const char* where) {
        if (std::string(where) == "in backward" && ++seen == 2) throw injected();
    };
    CHECK_THROWS_AS(one.train(microbatches), injected);
    CHECK_THROWS_WITH(one.model.begin_step(), doctest::Contains("E-STATE-1"));
    one.at_point = nullptr;
    one.model.reset();
    one.train(microbatches);
    for (int s = 0; s < 2; ++s) other.train(microbatches);
    CHECK(same_values(one.owned(), other.owned()));
}

TEST_CASE("peers hear of a scope left by an exception, and who left it") {
    std::vector<std::string> heard(3);
    run_threads(3, [&](threads_communicator world) {
        trainer_type one(small_net(), world, parse_policy("full_shard", "reshard_always"));
        one.at_point = [&](const char* where) {
            if (world.rank() == 1 && std::string(where) == "in backward") throw injected();
        };
        try {
            for (int s = 0; s < 3; ++s) one.train(1);
        } catch (const std::exception& known) {
            heard[world.rank()] = known.what();
        }
        one.at_point = nullptr;
        one.model.reset();
    });
    CHECK(heard[1] == "injected");
    for (const std::size_t rank : {0u, 2u}) {
        CHECK(heard[rank].find("E-PEER-1") != std::string::npos);
        CHECK(heard[rank].find("rank 1 failed") != std::string::npos);
        CHECK(heard[rank].find("layer.2") != std::string::npos);
        CHECK(heard[rank].find("backward") != std::string::npos);
    }
}

TEST_CASE("a model may end right behind its last step: what is queued has ended before its memory goes") {
    for (const char* strategy : strategies) {
        for (const bool with_optimizer : {false, true}) {
            CAPTURE(strategy);
            CAPTURE(with_optimizer);
            const reshard::random_delays delays(7, 3000);
            std::vector<int> ended(2);
            run_threads(2, [&](threads_communicator world) {
                compute_place place(world, true, &delays);
                std::atomic<bool> late{false};
                const auto policy = parse_policy(strategy, "reshard_always");
                if (with_optimizer) {
                    trainer_type one(small_net(), world, policy, {}, place.ref());
                    one.train(1);
                    one.launch([&late] { late.store(true); });
                } else {
                    sharded_model<policy_type, threads_communicator> model(world, {}, policy, place.ref());
                    auto& unit = model.add_unit("only", {{"w", {40}, {}}});
                    const auto w = unit.layout().parameter("w");
                    auto scope = unit.forward();
                    const auto values = scope[w];
                    world.device().launch(place.ref(), [values, &late] { late.store(values[39] == 0.0f); });
                }
                ended[world.rank()] = late.load() ? 1 : 2;
            });
            for (const int each : ended) CHECK(each == 1);
        }
    }
}

}  // namespace
