// Collectives of the threads backend against plain loops over the same bytes by the same four ranks, in one run.
// Floor of an all-gather: every rank copies the whole buffer once. Floor of a reduce-scatter: every rank reads its
// block of all four buffers and writes one. Bars: 0.75 and 0.6 of the floor's speed from 16 MB up; 4 KB in 40 us; a
// 256 KB collective within 3 ms while all callers compute.
#include <reshard/comm/threads.hpp>

#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "support/ranks.hpp"

using namespace reshard;

namespace {

constexpr std::size_t rank_count = 4;

struct row {
    std::size_t bytes;
    double gather, copy, reduce, add;
};

/// out = the sum of four blocks: what a rank of a reduce-scatter has to do at least.
void add_blocks(const std::vector<std::vector<float>>& blocks, std::vector<float>& out) {
    const float *a = blocks[0].data(), *b = blocks[1].data(), *c = blocks[2].data(), *d = blocks[3].data();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = a[i] + b[i] + c[i] + d[i];
    __asm__ volatile("" : : "r"(out.data()) : "memory");
}

row measure(const threads_communicator& world, std::size_t bytes) {
    const std::size_t count = bytes / sizeof(float), block = count / rank_count, rounds = bytes > 1 << 20 ? 15 : 300;
    std::vector<float> all(count, 1.0f), other(count, 2.0f), part(block);
    std::vector<std::vector<float>> blocks(rank_count, std::vector<float>(block, 3.0f));
    const auto caller = world.device().caller();
    row found{bytes, 0, 0, 0, 0};
    found.gather = bench::best_of(world, rounds, [&] { world.all_gather_in_place(std::span(all), caller, {}); });
    found.copy = bench::best_of(world, rounds, [&] {
        std::memcpy(other.data(), all.data(), bytes);
        __asm__ volatile("" : : "r"(other.data()) : "memory");
    });
    found.reduce = bench::best_of(world, rounds, [&] { world.reduce_scatter_in_place(std::span(all), caller, {}); });
    found.add = bench::best_of(world, rounds, [&] { add_blocks(blocks, part); });
    return found;
}

/// Milliseconds from issue to completion of a collective while every caller goes on computing.
double under_compute(const threads_communicator& world) {
    std::vector<float> all((256 << 10) / sizeof(float), 1.0f), work(4096, 1.0f);
    const auto device = world.device();
    auto stream = device.make_stream("bench");
    auto done = device.make_event();
    return bench::best_of(world, 20, [&] {
        world.all_gather_in_place(std::span(all), stream, {});
        device.record(done, stream);
        while (!device.done(done)) {
            for (float& value : work) value = value * 0.999f + 0.001f;
            __asm__ volatile("" : : "r"(work.data()) : "memory");
        }
    });
}

}  // namespace

int main() {
    run_threads(rank_count, [](threads_communicator world) {
        for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{256} << 10, std::size_t{1} << 20,
                                        std::size_t{16} << 20, std::size_t{64} << 20}) {
            world.prepare(bytes);
            const row now = measure(world, bytes);
            if (world.rank() != 0) continue;
            std::printf("%8zu KiB: all-gather %9.3f ms = %.2f of memcpy's speed, reduce-scatter %9.3f ms = %.2f of an "
                        "add loop's\n",
                        now.bytes >> 10, now.gather, now.copy / now.gather, now.reduce, now.add / now.reduce);
        }
        const double busy = under_compute(world);
        if (world.rank() == 0) std::printf("256 KiB all-gather while all callers compute: %.2f ms\n", busy);
    });
}
