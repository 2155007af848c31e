// Time of reshard_within's planner: a transformer of 200 units, three sizes, at several caps. Best of 5. The bar is 0.1
// seconds, for 8 and for 64 ranks in one shard group (2 and 5 sizes of secondary groups for every unit).
#include <reshard/schedule/within.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

using namespace reshard;

namespace {

constexpr std::size_t unit_count = 200, microbatches = 4, rounds = 5;

/// An embedding, equal blocks and a last norm.
model_plan transformer(std::size_t ranks) {
    model_plan plan;
    plan.ranks = ranks;
    for (std::size_t u = 0; u < unit_count; ++u) {
        const std::size_t elements = u == 0 ? 38'600'000 : u + 1 == unit_count ? 2'000 : 7'087'872;
        const std::size_t padding = ranks * 64;
        unit_plan unit;
        unit.segments.push_back({dtype::bf16, true, (elements + padding - 1) / padding * padding});
        plan.units.push_back(unit);
    }
    return plan;
}

double seconds(const model_plan& plan, const order_list& order, std::size_t cap) {
    double best = 1e300;
    for (std::size_t round = 0; round < rounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        const chosen_plan chosen = choose_within(plan, order, cap, microbatches, 0);
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        if (chosen.units.size() == unit_count && taken.count() < best) best = taken.count();
    }
    return best;
}

}  // namespace

int main() {
    std::vector<std::uint32_t> forward_order;
    for (std::uint32_t u = 0; u < unit_count; ++u) forward_order.push_back(u);
    order_list order(forward_order);
    order.plan(microbatches);
    for (const std::size_t ranks : {std::size_t{8}, std::size_t{64}}) {
        const model_plan plan = transformer(ranks);
        const std::size_t least = detail::total_bytes(plan, order, 0);
        for (std::size_t part = 0; part <= 4; part += 2) {
            const std::size_t cap = least + part * (std::size_t{1} << 29);
            std::printf("%2zu ranks, cap %6zu MiB: %.4f s\n", ranks, cap >> 20, seconds(plan, order, cap));
        }
    }
    return 0;
}
