// The contract of a communicator as cases that every backend runs. A harness runs a function on n ranks:
//   std::vector<std::size_t> sizes();                       rank counts to try
//   void run(std::size_t ranks, function, settings);        function(communicator) on every rank; throws what one threw
//   static constexpr bool survives_errors, sums_in_fp32;    whether a failed operation leaves the process standing
//                                                           within run(); whether bf16 sums are rounded once
#pragma once

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <reshard/comm/concept.hpp>
#include <reshard/core/error.hpp>
#include <reshard/core/types.hpp>
#include <reshard/device/concept.hpp>

namespace conformance {

using reshard::label;
using reshard::text;
using std::size_t;

struct settings {
    double deadline_seconds = 60;
    bool delays = false;  // up to 300 microseconds before every queued command, other ones on every rank
};

/// Checks inside ranks throw: other ranks hear of it at once, and assertion macros stay on one thread.
template <class... Pieces>
void demand(bool holds, const Pieces&... pieces) {
    if (!holds) throw std::logic_error(text("not so: ", pieces...));
}

inline void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

template <class Type>
double as_double(Type value) {
    if constexpr (std::is_arithmetic_v<Type>) {
        return static_cast<double>(value);
    } else if constexpr (std::is_same_v<Type, std::byte>) {
        return static_cast<double>(std::to_integer<unsigned>(value));
    } else {
        return static_cast<double>(static_cast<float>(value));
    }
}

template <class Type>
Type as(double value) {
    if constexpr (std::is_same_v<Type, std::byte>) {
        return static_cast<std::byte>(static_cast<unsigned>(value));
    } else if constexpr (std::is_arithmetic_v<Type>) {
        return static_cast<Type>(value);
    } else {
        return Type(static_cast<float>(value));
    }
}

/// Whole numbers of -15 to 15 (0 to 30 for bytes): sums over 16 ranks are exact even in bf16.
template <class Type>
double number(size_t rank, size_t i) {
    const double from = std::is_same_v<Type, std::byte> ? 0 : -15;
    return static_cast<double>((rank * 7 + i * 3 + i / 31) % 31) + from;
}

inline std::vector<size_t> element_counts() { return {0, 1, 7, 64, 1000, 4099}; }

template <class Type>
std::span<Type> whole(std::vector<Type>& values) {
    return std::span<Type>(values);
}

/// What rank r contributes: `count` numbers, counted on from element `from`.
template <class Type>
std::vector<Type> contribution(size_t rank, size_t count, size_t from = 0) {
    std::vector<Type> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = as<Type>(number<Type>(rank, from + i));
    return values;
}

template <class Type>
double sum_of(size_t ranks, size_t i) {
    double sum = 0;
    for (size_t r = 0; r < ranks; ++r) sum += number<Type>(r, i);
    return sum;
}

inline void demand_same(double found, double expected, const char* what, size_t i, size_t ranks, size_t count) {
    demand(found == expected, what, ", element ", i, " of ", count, " over ", ranks, " ranks is ", found, ", expected ",
           expected);
}
template <class Type>
void demand_equal(const Type& found, double expected, const char* what, size_t i, size_t ranks, size_t count) {
    demand_same(as_double(found), expected, what, i, ranks, count);
}

template <class Type>
void demand_gathered(const std::vector<Type>& all, size_t ranks, size_t block, const char* what) {
    for (size_t i = 0; i < all.size(); ++i) {
        demand_equal(all[i], number<Type>(i / block, i % block), what, i, ranks, all.size());
    }
}

/// Waits on the host for all that is on a stream.
template <class Comm, class Stream>
void finish(const Comm& comm, const Stream& stream) {
    auto device = comm.device();
    auto point = device.make_event();
    device.record(point, stream);
    device.synchronize(point);
}

// ---- every operation, type and size

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
        harness.run(ranks, [&](auto comm) {
            demand(comm.size() == ranks && comm.rank() < ranks, "rank ", comm.rank(), " of ", comm.size());
            all_operations_of<double>(comm);
            all_operations_of<float>(comm);
            all_operations_of<reshard::bf16>(comm);
            all_operations_of<reshard::fp16>(comm);
            all_operations_of<std::byte>(comm);
            comm.barrier(comm.device().caller(), {"barrier"});
        }, settings{});
    }
}

/// Blocks larger than any internal piece, of odd length.
template <class Harness>
void large_blocks(Harness& harness) {
    harness.run(harness.sizes().back(), [&](auto comm) {
        const size_t block = 500'009;
        comm.prepare(block * comm.size() * sizeof(float));
        gathers<float>(comm, block);
        scatters<float>(comm, block);
        reductions<float>(comm, comm.size() * block - 1);
        broadcasts<std::byte>(comm, 3 * block);
    }, settings{});
}

// ---- numbers

/// Ranks hold 1 and 3 (in turn); the sum is divided outside.
template <class Type, class Comm>
void averages(const Comm& comm) {
    auto device = comm.device();
    for (const size_t count : {size_t{1}, size_t{7}, size_t{4096}}) {
        const size_t ranks = comm.size(), first = comm.rank() * count;
        const double expected = ranks % 2 == 0 ? 2 : (2.0 * static_cast<double>(ranks) - 1) / static_cast<double>(ranks);
        const Type held = as<Type>(comm.rank() % 2 == 0 ? 1 : 3);
        std::vector<Type> reduced(count, held), scattered(ranks * count, held);
        comm.all_reduce_in_place(whole(reduced), device.caller());
        comm.reduce_scatter_in_place(whole(scattered), device.caller());
        std::vector<Type> mean(count);
        device.accumulate(reduced.data(), mean.data(), count, reshard::write_mode::overwrite, ranks, device.caller());
        for (size_t i = 0; i < count; ++i) demand_equal(mean[i], as_double(as<Type>(expected)), "mean", i, ranks, count);
        device.accumulate(scattered.data() + first, mean.data(), count, reshard::write_mode::overwrite, ranks,
                          device.caller());
        for (size_t i = 0; i < count; ++i) demand_equal(mean[i], as_double(as<Type>(expected)), "mean", i, ranks, count);
    }
}

template <class Harness>
void averages_of_one_and_three(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(ranks, [](auto comm) {
            averages<double>(comm);
            averages<float>(comm);
        }, settings{});
    }
}

/// Sums that round: near the sum in double, and the same bits on all ranks.
template <class Harness>
void rounded_sums(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(ranks, [ranks](auto comm) {
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
        }, settings{});
    }
}

/// 256 + 1 + ... + 1 in bf16: sums kept in bf16 would stay at 256.
template <class Harness>
void narrow_sums_are_kept_in_fp32(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(ranks, [ranks](auto comm) {
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
        }, settings{});
    }
}

// ---- stream order

/// A slow producer on the stream; the gather behind it; a consumer behind that; then the input is overwritten. The
/// host waits at the end only.
template <class Harness>
void stream_order(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(ranks, [ranks](auto comm) {
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
        }, settings{.delays = true});
    }
}

/// A collective on one stream, its consumer on another behind an event.
template <class Harness>
void across_streams(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(ranks, [ranks](auto comm) {
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
        }, settings{.delays = true});
    }
}

/// Operations of one communicator from two streams, in issue order whatever the delays.
template <class Harness>
void interleaved_streams(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(ranks, [ranks](auto comm) {
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
                    demand(gathered[i] == base + static_cast<float>(i / block), "round ", round, ": gathered ", gathered[i]);
                }
                for (size_t i = 0; i < block; ++i) {
                    demand(reduced[rank * block + i] == base * static_cast<float>(ranks), "round ", round, ": reduced ",
                           reduced[rank * block + i]);
                }
            }
        }, settings{.delays = true});
    }
}

/// More operations in flight than the queue is deep, without a host wait between.
template <class Harness>
void run_ahead(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(ranks, [ranks](auto comm) {
            auto device = comm.device();
            std::vector<double> value(1, 1.0);
            auto stream = device.make_stream("ahead");
            for (int i = 0; i < 600; ++i) {
                comm.all_reduce_in_place(whole(value), stream);
                device.launch(stream, [&value, ranks] { value[0] = value[0] / static_cast<double>(ranks) + 1.0; });
            }
            finish(comm, stream);
            demand(value[0] == 601.0, "600 reductions one behind another give ", value[0]);
        }, settings{});
    }
}

// ---- groups

template <class Harness>
void groups_of_one(Harness& harness) {
    harness.run(harness.sizes().back(), [](auto comm) {
        if constexpr (reshard::Splittable<decltype(comm)>) {
            auto owner = comm.split(comm.rank(), 0);
            auto alone = owner.view();
            demand(alone.size() == 1 && alone.rank() == 0, "a group of one has size ", alone.size());
            gathers<float>(alone, 7);
            scatters<float>(alone, 7);
            reductions<float>(alone, 7);
            broadcasts<float>(alone, 7);
            alone.barrier(alone.device().caller(), {"barrier"});
            std::vector<float> in(3, 1.0f), out(3);
            auto stream = alone.device().make_stream("alone");
            alone.device().launch(stream, [&in] { pause_ms(1), in.assign(3, 2.0f); });
            alone.all_gather(std::span<const float>(in), whole(out), stream);
            finish(alone, stream);
            demand(out[2] == 2.0f, "a group of one copied before the work in front of it");
            owner.close();
        }
    }, settings{});
}

template <class Harness>
void splits(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(ranks, [ranks](auto comm) {
            if constexpr (reshard::Splittable<decltype(comm)>) {
                const size_t rank = comm.rank(), parity = rank % 2, members = (ranks + 1 - parity) / 2;
                auto owner = comm.split(parity, ranks - rank);  // backwards
                auto part = owner.view();
                demand(part.size() == members, "split into ", part.size(), " ranks, expected ", members);
                demand(part.rank() == members - 1 - rank / 2, "rank ", rank, " became ", part.rank());
                std::vector<double> order(members);
                order[part.rank()] = static_cast<double>(rank);
                part.all_gather_in_place(whole(order), part.device().caller());
                for (size_t i = 0; i < members; ++i) {
                    demand_equal(order[i], static_cast<double>(2 * (members - 1 - i) + parity), "split", i, ranks, members);
                }
                std::vector<double> small(1, 1.0), large(1, 1.0);
                auto stream = comm.device().make_stream("both");
                for (int i = 0; i < 20; ++i) {
                    part.all_reduce_in_place(whole(small), stream);
                    comm.all_reduce_in_place(whole(large), comm.device().caller());
                    finish(part, stream);
                    demand(small[0] == static_cast<double>(members) && large[0] == static_cast<double>(ranks),
                           "groups side by side sum to ", small[0], " and ", large[0]);
                    small[0] = large[0] = 1.0;
                }
                auto twins = comm.split(7, 3);  // equal keys: in rank order
                demand(twins.view().rank() == rank, "equal keys moved rank ", rank);
                auto some = comm.split(rank == 0 ? reshard::no_colour : 1, rank);
                demand(some.empty() == (rank == 0), "no_colour on rank 0 left rank ", rank,
                       some.empty() ? " without a group" : " with a group");
                if (!some.empty()) demand(some.view().size() == ranks - 1, "the others are ", some.view().size());
                some.close();
                twins.close();
                owner.close();
                demand(owner.empty(), "a closed group is not empty");
            }
        }, settings{});
    }
}

// ---- mistakes

template <class Call>
std::string refusal(Call&& call) {
    try {
        call();
    } catch (const reshard::argument_error& error) {
        return error.what();
    }
    return "no argument_error";
}

inline void demand_says(const std::string& found, const std::string& part) {
    demand(found.find(part) != std::string::npos, "\"", found, "\" does not say \"", part, "\"");
}

/// Wrong sizes are refused by the call itself, and nothing has been issued.
template <class Harness>
void wrong_sizes(Harness& harness) {
    for (const size_t ranks : harness.sizes()) {
        harness.run(ranks, [ranks](auto comm) {
            auto caller = comm.device().caller();
            std::vector<float> values(ranks * 3 + 1), block(3);
            const std::string expected = text("expected ", ranks * 3);
            demand_says(refusal([&] { comm.all_gather(std::span<const float>(block), whole(values), caller, {"g", "u"}); }),
                        expected);
            demand_says(refusal([&] { comm.reduce_scatter(std::span<const float>(values), whole(block), caller); }), expected);
            demand_says(refusal([&] { comm.all_reduce(std::span<const float>(values), whole(block), caller); }), "equal");
            demand_says(refusal([&] { comm.broadcast(whole(block), ranks, caller); }), text("rank ", ranks));
            if (ranks > 1) {
                demand_says(refusal([&] { comm.all_gather_in_place(whole(values), caller); }), text("to ", ranks * 4));
                demand_says(refusal([&] { comm.reduce_scatter_in_place(whole(values), caller); }), "Pad");
            }
            gathers<float>(comm, 5);
        }, settings{});
    }
}

/// Runs `function` on n ranks, expects it to fail, gives the text.
template <class Error, class Harness, class Function>
std::string failure(Harness& harness, size_t ranks, const Function& function, const settings& how) {
    try {
        harness.run(ranks, function, how);
    } catch (const Error& error) {
        return error.what();
    } catch (const std::exception& error) {
        return text("another error: ", error.what());
    }
    return "no error";
}

template <class Harness>
void mismatches(Harness& harness) {
    if constexpr (Harness::survives_errors) {
        for (const size_t ranks : harness.sizes()) {
            if (ranks == 1) continue;
            const auto last = ranks - 1;
            auto text_of = [&](auto call) {
                return failure<reshard::communication_error>(harness, ranks, call, settings{});
            };
            std::string said = text_of([last](auto comm) {
                std::vector<float> values(comm.size() * 6);
                const size_t used = comm.size() * (comm.rank() == last ? 5 : 6);
                comm.all_gather_in_place(std::span<float>(values.data(), used), comm.device().caller(), {"gather", "h.0"});
            });
            for (const char* part : {"E-COMM-1", "number 1", "all_gather of 6 float (gather of h.0)", "all_gather of 5 float"})
                demand_says(said, part);
            demand_says(said, text("rank ", last));
            said = text_of([last](auto comm) {
                std::vector<double> values(comm.size());
                comm.barrier(comm.device().caller(), {"barrier"});
                if (comm.rank() == last) {
                    comm.reduce_scatter_in_place(whole(values), comm.device().caller(), {"reduce", "x"});
                } else {
                    comm.all_gather_in_place(whole(values), comm.device().caller(), {"gather", "y"});
                }
            });
            for (const char* part : {"number 2", "reduce_scatter of 1 double (reduce of x)", "(gather of y)"})
                demand_says(said, part);
            said = text_of([last](auto comm) {
                std::vector<double> values(3);
                comm.broadcast(whole(values), comm.rank() == last ? 1 : 0, comm.device().caller());
            });
            for (const char* part : {"broadcast from rank 0", "broadcast from rank 1"}) demand_says(said, part);
        }
    }
}

/// One rank does not come: the others say who waits for whom, and how far those are, on the caller and on a stream.
template <class Harness>
void deadlines(Harness& harness) {
    if constexpr (Harness::survives_errors) {
        for (const size_t ranks : harness.sizes()) {
            if (ranks == 1 || (ranks > 2 && ranks != harness.sizes().back())) continue;  // each takes a second
            for (const bool on_stream : {false, true}) {
                auto run = [on_stream](auto comm) {
                    auto device = comm.device();
                    std::vector<float> values(comm.size() * 2);
                    auto stream = device.make_stream("late");  // ends before what it works on
                    comm.all_gather_in_place(whole(values), device.caller(), {"announce"});
                    if (comm.rank() == 1) return pause_ms(1000);
                    if (!on_stream) return comm.all_gather_in_place(whole(values), device.caller(), {"gather", "block.0"});
                    comm.all_gather_in_place(whole(values), stream, {"gather", "block.0"});
                    finish(comm, stream);
                };
                const auto begun = std::chrono::steady_clock::now();
                const std::string said =
                    failure<reshard::timeout_error>(harness, ranks, run, settings{.deadline_seconds = 0.4});
                const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
                for (const char* part : {"E-TIME-1", "timeout after 400 ms", "gather of block.0", "number 2",
                                         "waits for rank 1", "issued 1 operations", "announce"})
                    demand_says(said, part);
                demand(taken.count() < 20, "a deadline of 400 ms took ", taken.count(), " s");
            }
        }
    }
}

/// A fault raised on one rank reaches all others, in calls and in waits; after exchange and clear, what was queued
/// goes on where everybody issues it, and all is as before.
template <class Harness>
void faults(Harness& harness) {
    if constexpr (Harness::survives_errors) {
        for (const size_t ranks : harness.sizes()) {
            if (ranks == 1) continue;
            harness.run(ranks, [ranks](auto comm) {
                auto device = comm.device();
                auto& control = comm.control();
                std::vector<float> values(ranks * 4);
                auto stream = device.make_stream("queued");
                for (int time = 0; time < 3; ++time) {
                    for (size_t i = 0; i < 4; ++i) values[comm.rank() * 4 + i] = static_cast<float>(comm.rank());
                    const std::string why = text("trouble ", time);
                    int heard = 0;
                    try {
                        if (comm.rank() == ranks - 1) {
                            pause_ms(5);
                            control.raise(why);
                        } else {
                            comm.all_gather_in_place(whole(values), stream, {"gather", "queued"});
                        }
                        finish(comm, stream);
                        for (;;) comm.barrier(device.caller(), {"barrier"});
                    } catch (const reshard::peer_error& error) {
                        heard = error.rank() == ranks - 1 && std::string(error.what()).find(why) != std::string::npos;
                    }
                    demand(heard == 1, "rank ", comm.rank(), " did not hear of the fault of rank ", ranks - 1);
                    demand(control.raised() != nullptr && control.raised()->text == why, "the fault is not kept");
                    control.raise("a later one");

                    const std::byte mine[2] = {static_cast<std::byte>(comm.rank()), static_cast<std::byte>(time)};
                    const auto all = control.exchange(std::span<const std::byte>(mine, comm.rank() + 1 > 2 ? 2 : comm.rank() + 1));
                    demand(all.size() == ranks, "exchange gave ", all.size(), " entries");
                    for (size_t r = 0; r < ranks; ++r) {
                        demand(all[r].size() == (r + 1 > 2 ? 2 : r + 1) && all[r][0] == static_cast<std::byte>(r),
                               "exchange mixed up rank ", r);
                    }
                    control.clear();
                    if (comm.rank() == ranks - 1) comm.all_gather_in_place(whole(values), stream, {"gather", "drained"});
                    finish(comm, stream);
                    for (size_t i = 0; i < values.size(); ++i) {
                        demand_equal(values[i], static_cast<double>(i / 4), "drained gather", i, ranks, values.size());
                    }
                    demand(control.raised() == nullptr, "the fault is not cleared");
                }
            }, settings{});
        }
    }
}

/// One rank throws: run() gives that error, and no rank hangs.
template <class Harness>
void one_rank_throws(Harness& harness) {
    if constexpr (Harness::survives_errors) {
        for (const size_t ranks : harness.sizes()) {
            const std::string said = failure<std::domain_error>(harness, ranks, [ranks](auto comm) {
                std::vector<float> values(ranks * 1000);
                auto stream = comm.device().make_stream("left behind");
                comm.all_reduce_in_place(whole(values), stream, {"reduce"});
                if (comm.rank() == ranks / 2) throw std::domain_error("the cat is on the keyboard");
                for (int i = 0; i < 10; ++i) comm.all_reduce_in_place(whole(values), stream, {"reduce"});
                finish(comm, stream);
                for (;;) comm.barrier(comm.device().caller(), {"barrier"});
            }, settings{});
            if (ranks > 1) demand_says(said, "the cat");
        }
    }
}

template <class Harness>
void run_all(Harness& harness) {
    struct named {
        const char* name;
        void (*run)(Harness&);
    };
    const named cases[] = {
        {"all operations", all_operations<Harness>},
        {"large blocks", large_blocks<Harness>},
        {"averages of one and three", averages_of_one_and_three<Harness>},
        {"rounded sums", rounded_sums<Harness>},
        {"narrow sums", narrow_sums_are_kept_in_fp32<Harness>},
        {"stream order", stream_order<Harness>},
        {"across streams", across_streams<Harness>},
        {"interleaved streams", interleaved_streams<Harness>},
        {"run ahead", run_ahead<Harness>},
        {"groups of one", groups_of_one<Harness>},
        {"splits", splits<Harness>},
        {"wrong sizes", wrong_sizes<Harness>},
        {"mismatches", mismatches<Harness>},
        {"deadlines", deadlines<Harness>},
        {"faults", faults<Harness>},
        {"one rank throws", one_rank_throws<Harness>},
    };
    for (const named& each : cases) {
        try {
            each.run(harness);
        } catch (const std::exception& error) {
            throw std::runtime_error(text("conformance, ", each.name, ": ", error.what()));
        }
    }
}

}  // namespace conformance
