// What the library itself costs: host time of one unit's forward and backward scopes, nothing computed, nothing sent.
// Units are tiny (one parameter of 64 elements), so that zeroing a gradient costs next to nothing. The bar is 0.5
// microseconds a unit; best of 30 rounds, since other programs' time is not ours.
#include <reshard/comm/idle.hpp>
#include <reshard/comm/self.hpp>
#include <reshard/optim/adamw.hpp>
#include <reshard/policy/runtime.hpp>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "support/allocations.hpp"

using namespace reshard;

namespace {

constexpr std::size_t unit_count = 12, steps = 2000, rounds = 30;

template <class Policy, class Communicator>
void measure(const char* name, Communicator world, Policy chosen = {}) {
    using model_type = sharded_model<Policy, Communicator>;
    model_type model{world, {}, chosen};
    const auto& shape = model.layout({{"weight", {8, 8}}});
    const auto weight = shape.parameter("weight");
    std::vector<typename model_type::unit*> units;
    for (std::size_t k = 0; k < unit_count; ++k) units.push_back(&model.add_unit("u" + std::to_string(k), shape));
    adamw optimizer{model};
    model.initialize([](const parameter_info&, std::size_t, auto values) {
        for (auto& value : values) value = 1;
    });
    double best = 1e300;
    std::size_t allocated = 0;
    for (std::size_t round = 0; round < rounds; ++round) {
        double scopes = 0;
        const std::size_t before = allocations();
        for (std::size_t step = 0; step < steps; ++step) {
            model.begin_step();
            const auto start = std::chrono::steady_clock::now();
            for (auto* unit : units) {
                const auto weights = unit->forward();
                __asm__ volatile("" : : "r"(weights[weight].data()));
            }
            for (std::size_t k = unit_count; k-- > 0;) {
                auto scope = units[k]->backward();
                __asm__ volatile("" : : "r"(scope.gradient(weight).data()), "r"(scope[weight].data()));
            }
            scopes += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
            optimizer.step();
        }
        if (round > 0) allocated += allocations() - before;
        if (scopes < best) best = scopes;
    }
    std::printf("%-58s %6.3f us a unit, %zu allocations in %zu steps\n", name, best / (steps * unit_count), allocated,
                steps * (rounds - 1));
}

}  // namespace

int main() {
    using loop = policy<full_shard, keep_last<1>>;
    measure<loop>("self, full_shard + keep_last<1>", self_communicator{});
    measure<loop>("4 ranks that do nothing, full_shard + keep_last<1>", idle_communicator{4});
    measure<policy<full_shard>>("4 ranks that do nothing, full_shard + reshard_always", idle_communicator{4});
    measure<policy<shard_gradients>>("4 ranks that do nothing, shard_gradients", idle_communicator{4});
    measure<runtime_policy<>>("4 ranks that do nothing, run-time policy of full_shard", idle_communicator{4});
}
