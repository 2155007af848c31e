// Random numbers by position: element i of a stream has the same value on whatever rank it is drawn.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reshard {
inline namespace v0 {

/// The 128 random bits of one counter.
struct random_bits {
    std::uint32_t word[4];
    bool operator==(const random_bits&) const = default;
};

/// Philox4x32-10 of J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11,
/// doi 10.1145/2063384.2063405): ten rounds turn a 128-bit counter into 128 random bits under a 64-bit key.
/// Different counters give different bits (it is a bijection under each key).
constexpr random_bits philox(random_bits counter, std::uint64_t key) {
    std::uint32_t low_key = static_cast<std::uint32_t>(key), high_key = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t first = std::uint64_t{0xD2511F53u} * counter.word[0];
        const std::uint64_t second = std::uint64_t{0xCD9E8D57u} * counter.word[2];
        counter = {
            {static_cast<std::uint32_t>(second >> 32) ^ counter.word[1] ^ low_key, static_cast<std::uint32_t>(second),
             static_cast<std::uint32_t>(first >> 32) ^ counter.word[3] ^ high_key, static_cast<std::uint32_t>(first)}};
        low_key += 0x9E3779B9u;
        high_key += 0xBB67AE85u;
    }
    return counter;
}

/// Draws that depend on (seed, stream, element) alone, never on rank, order or how elements are split. `stream` says
/// what the numbers are for: a parameter's number for initial values, the step for stochastic rounding.
struct random_draws {
    std::uint64_t seed = 0;
    std::uint64_t stream = 0;

    constexpr random_bits bits(std::uint64_t element) const {
        return philox({{static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(element >> 32),
                        static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}},
                      seed);
    }

    /// Uniform in [0, 1): a multiple of 2^-53, the same on any platform.
    constexpr double uniform(std::uint64_t element) const {
        const random_bits drawn = bits(element);
        return fraction(drawn.word[0], drawn.word[1]);
    }

    /// Standard normal, from uniform(element) and a second draw (Box and Muller). Equal between ranks and runs of one
    /// program; between platforms up to the last bits of their log and cos.
    /// Not inlined: each element goes through the same machine code, also where -Ofast makes vectors of a loop's
    /// middle and not of its ends, which lie elsewhere on every rank.
    [[gnu::noinline]] double normal(std::uint64_t element) const {
        const random_bits drawn = bits(element);
        const double radius = __builtin_sqrt(-2.0 * __builtin_log(1.0 - fraction(drawn.word[0], drawn.word[1])));
        return radius * __builtin_cos(6.283185307179586 * fraction(drawn.word[2], drawn.word[3]));
    }

private:
    static constexpr double fraction(std::uint32_t high, std::uint32_t low) {
        const std::uint64_t joined = (std::uint64_t{high} << 32) | low;
        return static_cast<double>(joined >> 11) * 0x1p-53;
    }
};

}  // namespace v0
}  // namespace reshard
