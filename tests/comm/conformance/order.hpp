// Order on one stream, across streams, and of several streams on one communicator.
#pragma once

#include "check.hpp"

namespace conformance {

/// A slow producer on the stream; the gather behind it; a consumer behind that; then the input is overwritten. The
/// host waits at the end only.
template <class Harness>
void stream_order(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(
            ranks,
            [ranks](auto comm) {
                auto device = comm.device();
                const size_t block = 257;
                std::vector<float> mine(block, -1.0f), all(ranks * block), seen(ranks * block);
                auto stream = device.make_stream("order");
                for (int round = 0; round < 20; ++round) {
                    const float base = static_cast<float>(round) * 100.0f;
                    const size_t rank = comm.rank();
                    device.launch(stream, [&mine, base, rank, round] {
                        if ((round + static_cast<int>(rank)) % 4 == 0) pause_ms(2);
                        for (float& value : mine) value = base + static_cast<float>(rank);
                    });
                    comm.all_gather(std::span<const float>(mine), whole(all), stream, {"gather", "late"});
                    device.launch(stream, [&] { seen = all; });
                    device.launch(stream, [&mine] {
                        for (float& value : mine) value = -2.0f;
                    });
                    finish(comm, stream);
                    for (size_t i = 0; i < seen.size(); ++i) {
                        const double expected = static_cast<double>(base) + static_cast<double>(i / block);
                        demand_equal(seen[i], expected, "gather behind its producer", i, ranks, seen.size());
                    }
                }
            },
            settings{.delays = true});
    }
}

/// A collective on one stream, its consumer on another behind an event.
template <class Harness>
void across_streams(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(
            ranks,
            [ranks](auto comm) {
                auto device = comm.device();
                std::vector<double> values(ranks * 33), seen(33);
                auto producer = device.make_stream("producer"), reducer = device.make_stream("reducer"),
                     consumer = device.make_stream("consumer");
                const size_t first = comm.rank() * 33;
                for (int round = 0; round < 30; ++round) {
                    auto made = device.make_event(), reduced = device.make_event();
                    device.launch(producer, [&values, round] {
                        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) + round;
                    });
                    device.record(made, producer);
                    device.wait(reducer, made);
                    comm.reduce_scatter_in_place(whole(values), reducer, {"reduce", "across"});
                    device.record(reduced, reducer);
                    device.wait(consumer, reduced);
                    device.launch(consumer, [&values, &seen, first] {
                        for (size_t i = 0; i < seen.size(); ++i) seen[i] = values[first + i];
                    });
                    finish(comm, consumer);
                    demand(device.done(made) && device.done(reduced), "an event before a finished one is not done");
                    for (size_t i = 0; i < seen.size(); ++i) {
                        const double expected = static_cast<double>(ranks) * (static_cast<double>(first + i) + round);
                        demand_equal(seen[i], expected, "reduction across streams", i, ranks, seen.size());
                    }
                }
            },
            settings{.delays = true});
    }
}

/// Operations of one communicator from two streams, in issue order whatever the delays.
template <class Harness>
void interleaved_streams(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(
            ranks,
            [ranks](auto comm) {
                auto device = comm.device();
                const size_t block = 16, rank = comm.rank();
                std::vector<float> gathered(ranks * block), reduced(ranks * block);
                auto one = device.make_stream("one"), two = device.make_stream("two");
                for (int round = 0; round < 500; ++round) {
                    const auto base = static_cast<float>(round % 100);
                    for (size_t i = 0; i < block; ++i) gathered[rank * block + i] = base + static_cast<float>(rank);
                    for (float& value : reduced) value = base;
                    comm.all_gather_in_place(whole(gathered), one, {"gather"});
                    comm.reduce_scatter_in_place(whole(reduced), two, {"reduce"});
                    if (round % 3 == 0) comm.barrier(round % 2 == 0 ? one : two, {"barrier"});
                    if (round % 7 == 0) comm.barrier(device.caller(), {"barrier"});
                    finish(comm, one);
                    finish(comm, two);
                    for (size_t i = 0; i < gathered.size(); ++i) {
                        demand(gathered[i] == base + static_cast<float>(i / block), "round ", round, ": gathered ",
                               gathered[i]);
                    }
                    for (size_t i = 0; i < block; ++i) {
                        demand(reduced[rank * block + i] == base * static_cast<float>(ranks), "round ", round,
                               ": reduced ", reduced[rank * block + i]);
                    }
                }
            },
            settings{.delays = true});
    }
}

/// More operations in flight than the queue is deep, without a host wait between.
template <class Harness>
void run_ahead(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(
            ranks,
            [ranks](auto comm) {
                auto device = comm.device();
                std::vector<double> value(1, 1.0);
                auto stream = device.make_stream("ahead");
                for (int i = 0; i < 600; ++i) {
                    comm.all_reduce_in_place(whole(value), stream);
                    device.launch(stream, [&value, ranks] { value[0] = value[0] / static_cast<double>(ranks) + 1.0; });
                }
                finish(comm, stream);
                demand(value[0] == 601.0, "600 reductions one behind another give ", value[0]);
            },
            settings{});
    }
}

}  // namespace conformance
