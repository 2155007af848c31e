// What must not depend on the compiler's liberties with floating-point numbers. Built with -Ofast, and passes without.
// Infinities and NaN are made and found by their bits here: under -Ofast comparisons with them mean nothing.
#include <doctest/doctest.h>

#include <reshard/comm/threads.hpp>
#include <reshard/reshard.hpp>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

using namespace reshard;

namespace {

/// Unknown to the compiler, which under -Ofast takes a constant infinity for the largest number.
float by_bits(std::uint32_t bits) {
    const volatile std::uint32_t unknown = bits;
    return std::bit_cast<float>(std::uint32_t{unknown});
}
const float infinite = by_bits(0x7f800000u), minus_infinite = by_bits(0xff800000u), not_a_number = by_bits(0x7fc00001u);

std::uint64_t bits_of(double value) { return std::bit_cast<std::uint64_t>(value); }

/// What rank `rank` adds to element `i` of unit `unit`: whole numbers, so that sums over ranks are exact.
float contribution(std::size_t rank, std::size_t unit, std::size_t i) {
    return static_cast<float>((rank * 11 + unit * 7 + i * 3 + i / 13) % 23) - 11.0f;
}

/// Division and addition that the compiler must carry out as written.
float quotient(float sum, std::size_t by) {
    volatile float above = sum, below = static_cast<float>(by);
    volatile float result = above / below;
    return result;
}

/// Two units of one parameter each, SGD with rate 1.
template <class Policy>
struct small_model {
    using model_type = sharded_model<Policy, threads_communicator>;
    static constexpr std::size_t counts[] = {1003, 77};

    explicit small_model(threads_communicator world) : model(world), optimizer(model, {.learning_rate = 1}) {
        for (std::size_t u = 0; u < 2; ++u) {
            units.push_back(&model.add_unit("unit." + std::to_string(u), {{"w", {counts[u]}}}));
        }
        model.initialize([](const parameter_info&, std::size_t, auto values) {
            for (auto& each : values) each = 8;
        });
    }

    /// One forward and backward; write(unit, gradient) fills in.
    template <class Write>
    void microbatch(Write write) {
        for (auto* unit : units) {
            auto scope = unit->forward();
        }
        for (std::size_t u = units.size(); u-- > 0;) {
            auto scope = units[u]->backward();
            write(u, scope.gradient(units[u]->layout().parameter("w")));
        }
    }
    /// Whether all elements that this rank owns are `value`.
    bool all_are(float value) {
        for (const auto& slice : model.owned()) {
            for (std::size_t i = 0; i < slice.count; ++i) {
                if (std::memcmp(&slice.master[i], &value, sizeof value) != 0) return false;
            }
        }
        return true;
    }

    model_type model;
    sgd<model_type> optimizer;
    std::vector<typename model_type::unit*> units;
};

/// The norm of the mean gradient in the documented order: per rank and unit in eight lanes, then units, then ranks.
double norm_by_hand(std::size_t ranks, const std::vector<std::size_t>& slices) {
    volatile double all = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
        volatile double mine = 0;
        for (std::size_t unit = 0; unit < slices.size(); ++unit) {
            const std::size_t count = small_model<policy<>>::counts[unit];
            volatile double lanes[8] = {};
            for (std::size_t k = 0; k < slices[unit]; ++k) {
                const std::size_t i = rank * slices[unit] + k;
                float sum = 0;
                for (std::size_t r = 0; r < ranks && i < count; ++r) sum += contribution(r, unit, i);
                const double mean = static_cast<double>(quotient(sum, ranks));
                lanes[k % 8] = lanes[k % 8] + mean * mean;
            }
            volatile double sum = 0;
            for (const volatile double& lane : lanes) sum = sum + lane;
            mine = mine + sum;
        }
        all = all + mine;
    }
    return __builtin_sqrt(all);
}

template <class Policy>
void norm_has_the_bits_of_the_documented_order() {
    for (const std::size_t ranks : {std::size_t{1}, std::size_t{3}, std::size_t{4}}) {
        CAPTURE(ranks);
        std::vector<double> before(ranks), after(ranks);
        std::vector<std::size_t> slices;
        run_threads(ranks, [&](threads_communicator world) {
            small_model<Policy> one(world);
            one.microbatch([&](std::size_t unit, auto gradient) {
                for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += contribution(world.rank(), unit, i);
            });
            before[world.rank()] = one.model.gradient_norm();
            one.optimizer.step();
            after[world.rank()] = one.model.outcome().norm;
            if (world.rank() != 0) return;
            for (const auto* unit : one.units) slices.push_back(unit->layout().segments()[0].slice);
        });
        const double expected = norm_by_hand(ranks, slices);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            CHECK(bits_of(before[rank]) == bits_of(expected));
            CHECK(bits_of(after[rank]) == bits_of(expected));
        }
    }
}

template <class Policy>
void all_skip_what_is_not_finite(float bad, std::uint32_t expected_count) {
    run_threads(4, [&](threads_communicator world) {
        small_model<Policy> one(world);
        const auto step = [&](bool with_bad) {
            one.microbatch([&](std::size_t unit, auto gradient) {
                for (auto& each : gradient) each += 4;
                if (with_bad && world.rank() == 2 && unit == 1) std::memcpy(&gradient[33], &bad, sizeof bad);
            });
            one.optimizer.step({.clip_norm = 1000});
        };
        step(true);
        const commit_outcome skipped = one.model.outcome();
        CHECK(skipped.result == verdict::overflow);
        CHECK(skipped.skipped == 1);
        CHECK(skipped.applied == 0);
        CHECK(skipped.non_finite == expected_count);
        CHECK(one.all_are(8));
        step(false);
        const commit_outcome applied = one.model.outcome();
        CHECK(applied.result == verdict::applied);
        CHECK(applied.skipped == 1);
        CHECK(applied.applied == 1);
        CHECK(applied.committed == 2);
        CHECK(one.all_are(4));
    });
}

template <class Type>
float as_float(Type value) {
    return static_cast<float>(value);
}

/// Small whole numbers through both sums, then means by 3 and 7.
template <class Type>
void whole_numbers_stay_exact(threads_communicator world, std::size_t block) {
    const std::size_t ranks = world.size(), count = ranks * block;
    std::vector<Type> in(count), scattered(block), reduced(count);
    for (std::size_t i = 0; i < count; ++i) in[i] = kernels::rounded<Type>(contribution(world.rank(), 0, i));
    const auto device = world.device();
    world.reduce_scatter(std::span<const Type>(in), std::span(scattered), device.caller());
    world.all_reduce(std::span<const Type>(in), std::span(reduced), device.caller());
    for (const std::size_t by : {std::size_t{1}, std::size_t{3}, std::size_t{7}}) {
        std::vector<arithmetic<Type>> mean(block);
        device.accumulate(scattered.data(), mean.data(), block, write_mode::overwrite, by, device.caller());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < count; ++i) {
            float sum = 0;
            for (std::size_t rank = 0; rank < ranks; ++rank) sum += contribution(rank, 0, i);
            wrong += as_float(reduced[i]) != sum;
            if (i / block != world.rank()) continue;
            volatile double divisor = static_cast<double>(by);
            wrong += as_float(scattered[i % block]) != sum;
            wrong += mean[i % block] != static_cast<arithmetic<Type>>(static_cast<double>(sum) / divisor);
        }
        CHECK(wrong == 0);
    }
}

}  // namespace

TEST_CASE("ofast: an infinity or a NaN on rank 2 of 4 makes all ranks skip the step, and the next one is fine") {
    for (const float bad : {infinite, minus_infinite, not_a_number}) {
        all_skip_what_is_not_finite<policy<full_shard>>(bad, 1);
        all_skip_what_is_not_finite<policy<shard_gradients>>(bad, 1);
        all_skip_what_is_not_finite<policy<no_shard>>(bad, 1);
    }
}

TEST_CASE("ofast: the norm has the same bits on all ranks, those of sums in the documented order") {
    norm_has_the_bits_of_the_documented_order<policy<full_shard>>();
    norm_has_the_bits_of_the_documented_order<policy<no_shard>>();
}

TEST_CASE("ofast: sums of whole numbers over 3 and 4 ranks are exact, and so are their means") {
    for (const std::size_t ranks : {std::size_t{3}, std::size_t{4}}) {
        run_threads(ranks, [](threads_communicator world) {
            for (const std::size_t block : {std::size_t{1}, std::size_t{7}, std::size_t{4099}}) {
                whole_numbers_stay_exact<double>(world, block);
                whole_numbers_stay_exact<float>(world, block);
                whole_numbers_stay_exact<bf16>(world, block);
                whole_numbers_stay_exact<fp16>(world, block);
            }
        });
    }
}

TEST_CASE("ofast: options that are not finite are refused") {
    sharded_model<policy<>, self_communicator> model{self_communicator{}};
    auto& unit = model.add_unit("unit", {{"w", {3}}});
    sgd optimizer{model};
    {
        const auto scope = unit.forward();
    }
    {
        const auto scope = unit.backward();
    }
    const double bad = std::bit_cast<double>(0x7ff0000000000000u), worse = std::bit_cast<double>(0x7ff8000000000001u);
    CHECK_THROWS_AS(optimizer.step({.gradient_scale = bad}), argument_error);
    CHECK_THROWS_AS(optimizer.step({.clip_norm = worse}), argument_error);
    CHECK_THROWS_AS(optimizer.step({.learning_rate = worse}), argument_error);
    optimizer.step();
    CHECK(model.outcome().applied == 1);
}
