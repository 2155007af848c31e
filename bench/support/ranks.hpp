// Timing over several ranks: all begin together, the slowest counts.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>

#include <reshard/comm/concept.hpp>

namespace bench {

using clock = std::chrono::steady_clock;

inline double milliseconds_since(clock::time_point start) {
    return std::chrono::duration<double, std::milli>(clock::now() - start).count();
}

/// The largest of every rank's value.
template <class Communicator>
double maximum(const Communicator& world, double value) {
    auto memory = world.device().allocate(world.size() * sizeof(double));
    auto* all = reinterpret_cast<double*>(memory.data());
    all[world.rank()] = value;
    world.all_gather_in_place(std::span(memory.data(), world.size() * sizeof(double)), world.device().caller(), {});
    double most = all[0];
    for (std::size_t rank = 1; rank < world.size(); ++rank) most = all[rank] > most ? all[rank] : most;
    return most;
}

/// Best of `rounds`: barrier, `work()`, the slowest rank's milliseconds.
template <class Communicator, class Work>
double best_of(const Communicator& world, std::size_t rounds, Work&& work) {
    double best = 1e300;
    for (std::size_t round = 0; round < rounds; ++round) {
        world.barrier(world.device().caller(), {});
        const auto start = clock::now();
        work();
        const double slowest = maximum(world, milliseconds_since(start));
        if (slowest < best) best = slowest;
    }
    return best;
}

}  // namespace bench
