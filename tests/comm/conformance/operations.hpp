// Every operation, type and size, and what sums must be.
#pragma once

#include "check.hpp"

namespace conformance {

template <class Type, class Comm>
void gathers(const Comm& comm, size_t block) {
    auto device = comm.device();
    const size_t ranks = comm.size(), rank = comm.rank();
    const std::vector<Type> mine = contribution<Type>(rank, block);
    std::vector<Type> all(ranks * block, as<Type>(99));
    comm.all_gather(std::span<const Type>(mine), whole(all), device.caller(), {"gather"});
    demand_gathered(all, ranks, block, "all_gather");
    demand(block == 0 || std::memcmp(mine.data(), contribution<Type>(rank, block).data(), block * sizeof(Type)) == 0,
           "all_gather changed its input");

    std::vector<Type> placed(ranks * block, as<Type>(77));
    for (size_t i = 0; i < block; ++i) placed[rank * block + i] = mine[i];
    comm.all_gather_in_place(whole(placed), device.caller());
    demand_gathered(placed, ranks, block, "all_gather_in_place");
}

template <class Type, class Comm>
void scatters(const Comm& comm, size_t block) {
    auto device = comm.device();
    const size_t ranks = comm.size(), first = comm.rank() * block;
    const std::vector<Type> mine = contribution<Type>(comm.rank(), ranks * block);
    std::vector<Type> sums(block, as<Type>(99)), placed = mine;
    comm.reduce_scatter(std::span<const Type>(mine), whole(sums), device.caller(), {"reduce"});
    comm.reduce_scatter_in_place(whole(placed), device.caller());
    for (size_t i = 0; i < block; ++i) {
        const double expected = sum_of<Type>(ranks, first + i);
        demand_equal(sums[i], expected, "reduce_scatter", i, ranks, block);
        demand_equal(placed[first + i], expected, "reduce_scatter_in_place", i, ranks, block);
    }
    demand(mine.empty() || std::memcmp(mine.data(), contribution<Type>(comm.rank(), mine.size()).data(),
                                       mine.size() * sizeof(Type)) == 0,
           "reduce_scatter changed its input");
}

template <class Type, class Comm>
void reductions(const Comm& comm, size_t count) {
    auto device = comm.device();
    const std::vector<Type> mine = contribution<Type>(comm.rank(), count);
    std::vector<Type> sums(count, as<Type>(99)), placed = mine;
    comm.all_reduce(std::span<const Type>(mine), whole(sums), device.caller());
    comm.all_reduce_in_place(whole(placed), device.caller());
    for (size_t i = 0; i < count; ++i) {
        demand_equal(sums[i], sum_of<Type>(comm.size(), i), "all_reduce", i, comm.size(), count);
        demand_equal(placed[i], sum_of<Type>(comm.size(), i), "all_reduce_in_place", i, comm.size(), count);
    }
}

template <class Type, class Comm>
void broadcasts(const Comm& comm, size_t count) {
    for (size_t root = 0; root < comm.size(); ++root) {
        std::vector<Type> values = contribution<Type>(comm.rank(), count);
        comm.broadcast(whole(values), root, comm.device().caller(), {"broadcast"});
        for (size_t i = 0; i < count; ++i) {
            demand_equal(values[i], number<Type>(root, i), "broadcast", i, comm.size(), count);
        }
    }
}

template <class Type, class Comm>
void all_operations_of(const Comm& comm) {
    for (const size_t count : element_counts()) {
        comm.prepare(count * comm.size() * sizeof(Type));
        gathers<Type>(comm, count);
        broadcasts<Type>(comm, count);
        if constexpr (reshard::Element<Type>) {
            scatters<Type>(comm, count);
            reductions<Type>(comm, count);
        }
    }
}

template <class Harness>
void all_operations(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(
            ranks,
            [&](auto comm) {
                demand(comm.size() == ranks && comm.rank() < ranks, "rank ", comm.rank(), " of ", comm.size());
                all_operations_of<double>(comm);
                all_operations_of<float>(comm);
                all_operations_of<reshard::bf16>(comm);
                all_operations_of<reshard::fp16>(comm);
                all_operations_of<std::byte>(comm);
                comm.barrier(comm.device().caller(), {"barrier"});
            },
            settings{});
    }
}

/// Blocks larger than any internal piece, of odd length.
template <class Harness>
void large_blocks(Harness& harness) {
    harness.run(
        harness.sizes().back(),
        [&](auto comm) {
            const size_t block = 500'009;
            comm.prepare(block * comm.size() * sizeof(float));
            gathers<float>(comm, block);
            scatters<float>(comm, block);
            reductions<float>(comm, comm.size() * block - 1);
            broadcasts<std::byte>(comm, 3 * block);
        },
        settings{});
}

/// Ranks hold 1 and 3 (in turn); the sum is divided outside.
template <class Type, class Comm>
void averages(const Comm& comm) {
    auto device = comm.device();
    for (const size_t count : {size_t{1}, size_t{7}, size_t{4096}}) {
        const size_t ranks = comm.size(), first = comm.rank() * count;
        const double expected =
            ranks % 2 == 0 ? 2 : (2.0 * static_cast<double>(ranks) - 1) / static_cast<double>(ranks);
        const Type held = as<Type>(comm.rank() % 2 == 0 ? 1 : 3);
        std::vector<Type> reduced(count, held), scattered(ranks * count, held);
        comm.all_reduce_in_place(whole(reduced), device.caller());
        comm.reduce_scatter_in_place(whole(scattered), device.caller());
        std::vector<Type> mean(count);
        device.accumulate(reduced.data(), mean.data(), count, reshard::write_mode::overwrite, ranks, device.caller());
        for (size_t i = 0; i < count; ++i)
            demand_equal(mean[i], as_double(as<Type>(expected)), "mean", i, ranks, count);
        device.accumulate(scattered.data() + first, mean.data(), count, reshard::write_mode::overwrite, ranks,
                          device.caller());
        for (size_t i = 0; i < count; ++i)
            demand_equal(mean[i], as_double(as<Type>(expected)), "mean", i, ranks, count);
    }
}

template <class Harness>
void averages_of_one_and_three(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(
            ranks,
            [](auto comm) {
                averages<double>(comm);
                averages<float>(comm);
            },
            settings{});
    }
}

/// Sums that round: near the sum in double, and the same bits on all ranks.
template <class Harness>
void rounded_sums(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(
            ranks,
            [ranks](auto comm) {
                const size_t count = 1003;
                auto term = [](size_t rank, size_t i) {
                    return 1.0f / static_cast<float>(3 + (rank * 13 + i * 7) % 101) - 0.02f;
                };
                std::vector<float> sums(count), all(ranks * count);
                for (size_t i = 0; i < count; ++i) sums[i] = term(comm.rank(), i);
                comm.all_reduce_in_place(whole(sums), comm.device().caller());
                for (size_t i = 0; i < count; ++i) {
                    double expected = 0;
                    for (size_t r = 0; r < ranks; ++r) expected += static_cast<double>(term(r, i));
                    const double error = static_cast<double>(sums[i]) - expected;
                    demand(error < 1e-6 && error > -1e-6, "sum ", i, " is ", sums[i], ", expected ", expected);
                }
                comm.all_gather(std::span<const float>(sums), whole(all), comm.device().caller());
                for (size_t r = 0; r < ranks; ++r) {
                    demand(std::memcmp(all.data() + r * count, sums.data(), count * sizeof(float)) == 0, "ranks ",
                           comm.rank(), " and ", r, " have other bits in their sums");
                }
            },
            settings{});
    }
}

/// 256 + 1 + ... + 1 in bf16: sums kept in bf16 would stay at 256.
template <class Harness>
void narrow_sums_are_kept_in_fp32(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(
            ranks,
            [ranks](auto comm) {
                const auto exact = static_cast<float>(255 + ranks);
                std::vector<reshard::bf16> block(ranks * 5, reshard::bf16(comm.rank() == 0 ? 256.0f : 1.0f));
                comm.reduce_scatter_in_place(whole(block), comm.device().caller());
                const float found = static_cast<float>(block[comm.rank() * 5]);
                const float once = static_cast<float>(reshard::bf16(exact));
                if constexpr (Harness::sums_in_fp32) {
                    demand(found == once, "256 and ", ranks - 1, " ones are ", found, " in bf16, expected ", once);
                } else {
                    const auto most = 2.0f * static_cast<float>(ranks);
                    demand(found >= exact - most && found <= exact + most, "256 and ", ranks - 1, " ones are ", found);
                }
            },
            settings{});
    }
}

}  // namespace conformance
