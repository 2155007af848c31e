// The host kernels against plain loops in double. Built plainly and with -Ofast: nothing here may depend on that.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <reshard/device/immediate.hpp>

using namespace reshard;

namespace {

const immediate_device device;
constexpr immediate_device::stream_ref caller{};

/// Infinities and NaN, unknown to the compiler: under -Ofast it takes a constant infinity for the largest number.
float by_bits(std::uint32_t bits) {
    const volatile std::uint32_t unknown = bits;
    return std::bit_cast<float>(std::uint32_t{unknown});
}
const float infinite = by_bits(0x7f800000u), minus_infinite = by_bits(0xff800000u), not_a_number = by_bits(0x7fc00001u);

/// Numbers of mixed size and sign; the same everywhere.
struct draws {
    std::uint64_t state = 12345;
    double operator()() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<double>(static_cast<std::int64_t>(state) >> 33) / 1073741824.0;
    }
};

template <class Type>
double wide(Type value) {
    if constexpr (std::is_arithmetic_v<Type>) {
        return static_cast<double>(value);
    } else {
        return static_cast<double>(static_cast<float>(value));
    }
}

template <class Type>
std::vector<Type> drawn(std::size_t count, double scale = 1) {
    draws draw;
    std::vector<Type> values(count);
    for (Type& value : values) value = kernels::rounded<Type>(draw() * scale);
    return values;
}

bool near(double found, double expected, double relative) {
    const double error = found - expected, size = expected < 0 ? -expected : expected;
    return (error < 0 ? -error : error) <= relative * (size + 1e-30);
}

/// Rounds to `bits` of significand (bf16: 8, fp16: 11), ties to even; for values that are normal in that type.
double rounded_by_hand(double value, int bits) {
    if (value == 0) return 0;
    int exponent = 0;
    const double scaled = std::ldexp(std::frexp(value, &exponent), bits);
    double below = std::floor(scaled);
    const double rest = scaled - below;
    if (rest > 0.5 || (rest == 0.5 && std::fmod(below, 2.0) != 0)) below += 1;
    return std::ldexp(below, exponent - bits);
}

commit_outcome applied(double factor, std::uint64_t steps) {
    commit_outcome outcome;
    outcome.result = verdict::applied;
    outcome.factor = factor;
    outcome.applied = steps;
    return outcome;
}

}  // namespace

TEST_CASE("kernels: zero") {
    std::vector<float> values(100, 3.0f);
    device.zero(std::as_writable_bytes(std::span<float>(values.data() + 1, 98)), caller);
    CHECK(values[0] == 3.0f);
    CHECK(values[1] == 0.0f);
    CHECK(values[98] == 0.0f);
    CHECK(values[99] == 3.0f);
    device.zero({}, caller);
}

TEST_CASE_TEMPLATE("kernels: cast rounds once, to nearest, ties to even", From, float, double) {
    std::vector<From> values = drawn<From>(3001, 7);
    // Just beside a tie: rounding to float first would make it a tie, and then go the wrong way.
    values.push_back(static_cast<From>(1 + 0x1p-8 + 0x1p-40));
    values.push_back(static_cast<From>(1 + 0x1p-11 + 0x1p-40));
    values.push_back(static_cast<From>(1 + 3 * 0x1p-8 - 0x1p-40));
    values.push_back(static_cast<From>(-(1 + 0x1p-8 + 0x1p-40)));
    values.push_back(From{0});
    std::vector<bf16> narrow(values.size());
    std::vector<fp16> half(values.size());
    std::vector<float> single(values.size());
    std::vector<double> twice(values.size());
    std::vector<From> same(values.size());
    device.cast(values.data(), narrow.data(), values.size(), caller);
    device.cast(values.data(), half.data(), values.size(), caller);
    device.cast(values.data(), single.data(), values.size(), caller);
    device.cast(values.data(), twice.data(), values.size(), caller);
    device.cast(values.data(), same.data(), values.size(), caller);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double value = wide(values[i]);
        CAPTURE(value);
        REQUIRE(wide(narrow[i]) == rounded_by_hand(value, 8));
        if (std::fabs(value) > 1e-3 || value == 0) REQUIRE(wide(half[i]) == rounded_by_hand(value, 11));
        REQUIRE(single[i] == static_cast<float>(value));
        REQUIRE(twice[i] == value);
        REQUIRE(same[i] == values[i]);
    }
    device.cast(narrow.data(), half.data(), narrow.size(), caller);
    CHECK(wide(half[5]) == rounded_by_hand(wide(narrow[5]), 11));
}

TEST_CASE("kernels: cast of the largest, infinite and not-a-number") {
    const double values[] = {1e300, -1e300, wide(infinite), wide(minus_infinite), wide(not_a_number), 3.5e38};
    bf16 narrow[6];
    fp16 half[6];
    float single[] = {infinite, minus_infinite, not_a_number, 3e38f, -3e38f, 70000.0f};
    device.cast(values, narrow, 6, caller);
    device.cast(single, half, 6, caller);
    const std::uint16_t narrow_bits[] = {0x7f80, 0xff80, 0x7f80, 0xff80};
    for (int i = 0; i < 4; ++i) CHECK(narrow[i].bits == narrow_bits[i]);
    CHECK((narrow[4].bits & 0x7fffu) > 0x7f80u);
    CHECK(narrow[5].bits == 0x7f80);
    CHECK(half[0].bits == 0x7c00);
    CHECK(half[1].bits == 0xfc00);
    CHECK((half[2].bits & 0x7fffu) > 0x7c00u);
    CHECK(half[3].bits == 0x7c00);
    CHECK(half[4].bits == 0xfc00);
    CHECK(half[5].bits == 0x7c00);
}

TEST_CASE_TEMPLATE("kernels: accumulate adds or writes the true quotient", Gradient, double, float, bf16, fp16) {
    using acc = std::conditional_t<std::is_same_v<Gradient, double>, double, float>;
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{1003}}) {
        for (const std::size_t divisor :
             {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{8}, std::size_t{12}, std::size_t{49}}) {
            CAPTURE(count);
            CAPTURE(divisor);
            const std::vector<Gradient> in = drawn<Gradient>(count, 3);
            std::vector<acc> sums = drawn<acc>(count, 5), before = sums, written(count, acc{9});
            device.accumulate(in.data(), sums.data(), count, write_mode::add, divisor, caller);
            device.accumulate(in.data(), written.data(), count, write_mode::overwrite, divisor, caller);
            for (std::size_t i = 0; i < count; ++i) {
                // A double is wide enough that rounding its quotient of floats to float is the float quotient. The
                // divisor is volatile so that -Ofast divides here too.
                volatile double by = static_cast<double>(divisor);
                const auto quotient = static_cast<acc>(wide(in[i]) / by);
                REQUIRE(written[i] == quotient);
                REQUIRE(sums[i] == before[i] + quotient);
            }
        }
    }
}

TEST_CASE("kernels: accumulate in place, and into narrow sums") {
    std::vector<float> values = drawn<float>(101), expected = values;
    device.accumulate(values.data(), values.data(), values.size(), write_mode::overwrite, 3, caller);
    for (std::size_t i = 0; i < values.size(); ++i) {
        volatile double by = 3;
        REQUIRE(values[i] == static_cast<float>(static_cast<double>(expected[i]) / by));
    }
    std::vector<float> in(3, 1.0f);
    std::vector<bf16> sums(3, bf16(256.0f));
    device.accumulate(in.data(), sums.data(), 3, write_mode::add, 1, caller);
    CHECK(wide(sums[0]) == 256);
    in.assign(3, 3.0f);
    device.accumulate(in.data(), sums.data(), 3, write_mode::add, 1, caller);
    CHECK(wide(sums[2]) == 260);
}

TEST_CASE("kernels: one, three, averaged") {
    for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{4096}}) {
        std::vector<float> sum(count, 4.0f), six(count, 6.0f), mean(count);
        device.accumulate(sum.data(), mean.data(), count, write_mode::overwrite, 2, caller);
        CHECK(mean == std::vector<float>(count, 2.0f));
        device.accumulate(six.data(), mean.data(), count, write_mode::overwrite, 3, caller);
        CHECK(mean == std::vector<float>(count, 2.0f));
    }
}

TEST_CASE_TEMPLATE("kernels: square_norm over ranges", Acc, float, double) {
    const std::vector<Acc> values = drawn<Acc>(5000);
    const arena_range ranges[] = {{3, 1000}, {1003, 0}, {2000, 1}, {2001, 2999}};
    vote_record record;
    device.square_norm(values.data(), ranges, 4, &record, caller);
    long double expected = 0;
    for (const arena_range& range : ranges) {
        for (std::size_t i = range.begin; i < range.begin + range.count; ++i) {
            expected += static_cast<long double>(values[i]) * static_cast<long double>(values[i]);
        }
    }
    CHECK(near(record.square_norm, static_cast<double>(expected), 1e-13));
    CHECK(record.non_finite == 0);
    CHECK(record.says == 0);
    device.square_norm(values.data(), ranges, 0, &record, caller);
    CHECK(record.square_norm == 0);
}

TEST_CASE("kernels: square_norm has one order of summation") {
    // The documented one: eight lanes, the lanes one after another, the ranges in order.
    const std::vector<float> values = drawn<float>(4099);
    const arena_range ranges[] = {{0, 1003}, {1003, 3096}};
    vote_record record;
    device.square_norm(values.data(), ranges, 2, &record, caller);
    volatile double total = 0;
    for (const arena_range& range : ranges) {
        volatile double lanes[8] = {};
        for (std::size_t i = 0; i < range.count; ++i) {
            const double value = static_cast<double>(values[range.begin + i]);
            lanes[i % 8] = lanes[i % 8] + value * value;
        }
        volatile double sum = 0;
        for (const volatile double& lane : lanes) sum = sum + lane;
        total = total + sum;
    }
    const double expected = total;
    CHECK(std::memcmp(&record.square_norm, &expected, sizeof expected) == 0);
}

TEST_CASE("kernels: square_norm counts what is not finite and leaves it out") {
    for (std::size_t at = 0; at < 19; ++at) {
        std::vector<float> values(19, 1.0f);
        values[at] = at % 3 == 0 ? infinite : at % 3 == 1 ? minus_infinite : not_a_number;
        values[(at + 5) % 19] = not_a_number;
        const arena_range range{0, 19};
        vote_record record;
        record.non_finite = 77;
        device.square_norm(values.data(), &range, 1, &record, caller);
        CHECK(record.non_finite == 2);
        CHECK(record.square_norm == 17);
    }
    const double huge[] = {1e200, 1};
    const arena_range range{0, 2};
    vote_record record;
    device.square_norm(huge, &range, 1, &record, caller);
    CHECK(record.non_finite == 0);
    CHECK_FALSE(is_finite(record.square_norm));
}

namespace {

struct votes {
    static constexpr std::size_t stride = 64;
    alignas(vote_record) std::byte bytes[4 * stride] = {};

    explicit votes(std::uint64_t step, std::uint32_t says = vote_apply) {
        for (std::size_t r = 0; r < 4; ++r) {
            of(r).square_norm = static_cast<double>(r + 1);
            device.seal(&of(r), says, step, 0, caller);
        }
    }
    vote_record& of(std::size_t rank) { return *reinterpret_cast<vote_record*>(bytes + rank * stride); }
    commit_outcome decided(std::uint64_t step, commit_terms terms = {}) const {
        commit_outcome outcome;
        outcome.applied = 10;
        outcome.skipped = 3;
        device.decide(bytes, stride, 4, step, terms, &outcome, caller);
        return outcome;
    }
};

}  // namespace

TEST_CASE("kernels: decide applies when all agree") {
    const commit_outcome outcome = votes(7).decided(7);
    CHECK(outcome.result == verdict::applied);
    CHECK(near(outcome.norm, std::sqrt(10.0), 1e-15));
    CHECK(outcome.factor == 1);
    CHECK(outcome.applied == 11);
    CHECK(outcome.skipped == 3);
}

TEST_CASE("kernels: decide scales and clips") {
    const commit_outcome loose = votes(7).decided(7, {0.5, 2});
    CHECK(near(loose.norm, std::sqrt(10.0) / 2, 1e-15));
    CHECK(loose.factor == 0.5);
    const commit_outcome tight = votes(7).decided(7, {0.5, 1});
    CHECK(near(tight.factor, 0.5 * (1 / (std::sqrt(10.0) / 2)), 1e-15));
}

TEST_CASE("kernels: decide skips an overflow") {
    votes some(7);
    some.of(2).non_finite = 5;
    commit_outcome outcome = some.decided(7);
    CHECK(outcome.result == verdict::overflow);
    CHECK(outcome.non_finite == 5);
    CHECK(outcome.applied == 10);
    CHECK(outcome.skipped == 4);
    votes large(7);
    large.of(3).square_norm = wide(infinite);
    CHECK(large.decided(7).result == verdict::overflow);
}

TEST_CASE("kernels: decide discards when all say so, and only then") {
    const commit_outcome outcome = votes(7, vote_discard).decided(7);
    CHECK(outcome.result == verdict::discarded);
    CHECK(outcome.applied == 10);
    CHECK(outcome.skipped == 3);
    for (std::size_t odd = 0; odd < 4; ++odd) {
        votes mixed(7);
        mixed.of(odd).says = vote_discard;
        CHECK(mixed.decided(7).result == verdict::fault);
    }
}

TEST_CASE("kernels: decide takes anything unclear for a fault") {
    for (std::size_t odd = 0; odd < 4; ++odd) {
        votes cleared(7), failed(7), older(7), strange(7);
        cleared.of(odd) = {};
        failed.of(odd).says = vote_fault;
        older.of(odd).step = 6;
        strange.of(odd).says = 9;
        for (votes* each : {&cleared, &failed, &older, &strange}) {
            const commit_outcome outcome = each->decided(7);
            CHECK(outcome.result == verdict::fault);
            CHECK(outcome.applied == 10);
            CHECK(outcome.factor == 0);
        }
    }
    CHECK(votes(7, vote_fault).decided(7).result == verdict::fault);
    CHECK(votes(7, 0).decided(7).result == verdict::fault);
}

TEST_CASE("kernels: adamw against the published rule in double") {
    const std::size_t count = 200;
    const adamw_range ranges[] = {{0, 120, 1e-3, 0.9, 0.999, 1e-8, 0.1}, {150, 50, 5e-2, 0.8, 0.95, 1e-6, 0.0}};
    std::vector<float> weights = drawn<float>(count), first(count), second(count);
    const std::vector<float> start = weights;
    std::vector<double> weights64(weights.begin(), weights.end()), first64(count), second64(count);
    std::vector<double> w(weights64), m(count), v(count);
    for (std::uint64_t step = 1; step <= 20; ++step) {
        const std::vector<float> gradient = drawn<float>(count, 0.01 * static_cast<double>(step));
        const std::vector<double> gradient64(gradient.begin(), gradient.end());
        const commit_outcome outcome = applied(0.25, step);
        device.adamw(ranges, 2, &outcome, weights.data(), gradient.data(), first.data(), second.data(), caller);
        device.adamw(ranges, 2, &outcome, weights64.data(), gradient64.data(), first64.data(), second64.data(), caller);
        for (const adamw_range& range : ranges) {
            for (std::size_t i = range.begin; i < range.begin + range.count; ++i) {
                const double g = gradient64[i] * 0.25;
                m[i] = range.beta1 * m[i] + (1 - range.beta1) * g;
                v[i] = range.beta2 * v[i] + (1 - range.beta2) * g * g;
                const double m_hat = m[i] / (1 - std::pow(range.beta1, static_cast<double>(step)));
                const double v_hat = v[i] / (1 - std::pow(range.beta2, static_cast<double>(step)));
                w[i] -= range.learning_rate * range.weight_decay * w[i];
                w[i] -= range.learning_rate * m_hat / (std::sqrt(v_hat) + range.epsilon);
            }
        }
    }
    for (std::size_t i = 0; i < count; ++i) {
        CAPTURE(i);
        const double moved = w[i] - static_cast<double>(start[i]);
        REQUIRE(near(weights64[i], w[i], 1e-11));
        REQUIRE(std::fabs(static_cast<double>(weights[i]) - w[i]) < 1e-5);
        if (i >= 120 && i < 150) {
            REQUIRE(moved == 0);
            REQUIRE(weights[i] == start[i]);
        } else {
            REQUIRE(std::fabs(moved) > 1e-3);
        }
    }
}

TEST_CASE("kernels: sgd on whole numbers, exact") {
    const sgd_range plain{0, 4, 0.5, 0, 0, 0, false};
    float weights[] = {8, -4, 2, 100};
    const float gradient[] = {2, 4, -6, 8};
    const commit_outcome outcome = applied(0.5, 1);
    device.sgd(&plain, 1, &outcome, weights, gradient, static_cast<float*>(nullptr), caller);
    const float expected[] = {7.5f, -5, 3.5f, 98};
    for (int i = 0; i < 4; ++i) CHECK(weights[i] == expected[i]);
}

TEST_CASE("kernels: sgd with momentum, dampening, decay and nesterov") {
    for (const bool nesterov : {false, true}) {
        const double momentum = 0.5, dampening = nesterov ? 0 : 0.25, decay = 0.125, rate = 0.25;
        const sgd_range range{1, 2, rate, momentum, dampening, decay, nesterov};
        double weights[] = {5, 8, -4, 5}, buffer[4] = {}, w[] = {5, 8, -4, 5}, b[4] = {};
        for (std::uint64_t step = 1; step <= 4; ++step) {
            const double gradient[] = {1, 2.0 * static_cast<double>(step), -3, 1};
            const commit_outcome outcome = applied(2, step);
            device.sgd(&range, 1, &outcome, weights, gradient, buffer, caller);
            for (int i = 1; i < 3; ++i) {
                double g = gradient[i] * 2 + decay * w[i];
                b[i] = step == 1 ? g : momentum * b[i] + (1 - dampening) * g;
                g = nesterov ? g + momentum * b[i] : b[i];
                w[i] -= rate * g;
            }
            for (int i = 0; i < 4; ++i) CHECK(near(weights[i], w[i], 1e-15));
        }
        CHECK(buffer[0] == 0);
        CHECK(buffer[3] == 0);
    }
}

TEST_CASE("kernels: updates do nothing unless applied") {
    for (const verdict result : {verdict::pending, verdict::overflow, verdict::discarded, verdict::fault}) {
        commit_outcome outcome = applied(1, 1);
        outcome.result = result;
        const adamw_range adam{0, 2, 1, 0.9, 0.9, 1e-8, 0.5};
        const sgd_range descent{0, 2, 1, 0.9, 0, 0.5, false};
        float weights[] = {1, 2}, first[] = {3, 4}, second[] = {5, 6};
        const float gradient[] = {7, 8};
        device.adamw(&adam, 1, &outcome, weights, gradient, first, second, caller);
        device.sgd(&descent, 1, &outcome, weights, gradient, first, caller);
        CHECK((weights[0] == 1 && weights[1] == 2));
        CHECK((first[0] == 3 && first[1] == 4 && second[0] == 5 && second[1] == 6));
    }
}
