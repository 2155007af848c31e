// Draws that depend on what they are for and never on who draws: any rank can fill any range of any parameter.
#pragma once

#include "model.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace gpt {

/// Stirs 64 bits (the finisher of splitmix64).
constexpr std::uint64_t stir(std::uint64_t bits) {
    bits += 0x9e3779b97f4a7c15U;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9U;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebU;
    return bits ^ (bits >> 31);
}

/// Draw number `number` of the stream (seed, purpose).
constexpr std::uint64_t draw(std::uint64_t seed, std::uint64_t purpose, std::uint64_t number) {
    return stir(stir(stir(seed) ^ purpose) ^ number);
}

/// A purpose from a name (FNV-1a).
constexpr std::uint64_t purpose_of(std::string_view name) {
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const char letter : name) {
        hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
    }
    return hash;
}

/// Uniform in (0, 1).
constexpr double uniform(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

/// Normal with mean 0 and deviation 1 (Box and Muller).
inline double normal(std::uint64_t seed, std::uint64_t purpose, std::uint64_t number) {
    const double radius = std::sqrt(-2 * std::log(uniform(draw(seed, purpose, 2 * number))));
    return radius * std::cos(6.283185307179586 * uniform(draw(seed, purpose, 2 * number + 1)));
}

/// Initial values of the elements from `first` on of the parameter `facts` in the unit called `unit`.
template <class Real>
void fill_initial(std::span<Real> out, std::uint64_t seed, std::string_view unit, const parameter_facts& facts,
                  std::size_t first = 0) {
    const std::uint64_t purpose = purpose_of(unit) ^ stir(purpose_of(facts.name));
    for (std::size_t i = 0; i < out.size(); ++i) {
        const double offset = facts.deviation > 0 ? facts.deviation * normal(seed, purpose, first + i) : 0;
        out[i] = static_cast<Real>(facts.mean + offset);
    }
}

}  // namespace gpt
