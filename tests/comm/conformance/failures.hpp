// Mistakes, deadlines and faults.
#pragma once

#include "check.hpp"
#include "operations.hpp"

namespace conformance {

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
        harness.run(
            ranks,
            [ranks](auto comm) {
                auto caller = comm.device().caller();
                std::vector<float> values(ranks * 3 + 1), block(3);
                const std::string expected = text("expected ", ranks * 3);
                demand_says(
                    refusal([&] { comm.all_gather(std::span<const float>(block), whole(values), caller, {"g", "u"}); }),
                    expected);
                demand_says(refusal([&] { comm.reduce_scatter(std::span<const float>(values), whole(block), caller); }),
                            expected);
                demand_says(refusal([&] { comm.all_reduce(std::span<const float>(values), whole(block), caller); }),
                            "equal");
                demand_says(refusal([&] { comm.broadcast(whole(block), ranks, caller); }), text("rank ", ranks));
                if (ranks > 1) {
                    demand_says(refusal([&] { comm.all_gather_in_place(whole(values), caller); }),
                                text("to ", ranks * 4));
                    demand_says(refusal([&] { comm.reduce_scatter_in_place(whole(values), caller); }), "Pad");
                }
                gathers<float>(comm, 5);
            },
            settings{});
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
                comm.all_gather_in_place(std::span<float>(values.data(), used), comm.device().caller(),
                                         {"gather", "h.0"});
            });
            for (const char* part :
                 {"E-COMM-1", "number 1", "all_gather of 6 float (gather of h.0)", "all_gather of 5 float"})
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
                    if (!on_stream)
                        return comm.all_gather_in_place(whole(values), device.caller(), {"gather", "block.0"});
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
            harness.run(
                ranks,
                [ranks](auto comm) {
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
                            heard =
                                error.rank() == ranks - 1 && std::string(error.what()).find(why) != std::string::npos;
                        }
                        demand(heard == 1, "rank ", comm.rank(), " did not hear of the fault of rank ", ranks - 1);
                        demand(control.raised() != nullptr && control.raised()->text == why, "the fault is not kept");
                        control.raise("a later one");

                        const std::byte mine[2] = {static_cast<std::byte>(comm.rank()), static_cast<std::byte>(time)};
                        const auto all = control.exchange(
                            std::span<const std::byte>(mine, comm.rank() + 1 > 2 ? 2 : comm.rank() + 1));
                        demand(all.size() == ranks, "exchange gave ", all.size(), " entries");
                        for (size_t r = 0; r < ranks; ++r) {
                            demand(all[r].size() == (r + 1 > 2 ? 2 : r + 1) && all[r][0] == static_cast<std::byte>(r),
                                   "exchange mixed up rank ", r);
                        }
                        control.clear();
                        if (comm.rank() == ranks - 1)
                            comm.all_gather_in_place(whole(values), stream, {"gather in the drain", "queued"});
                        finish(comm, stream);
                        for (size_t i = 0; i < values.size(); ++i) {
                            demand_equal(values[i], static_cast<double>(i / 4), "drained gather", i, ranks,
                                         values.size());
                        }
                        demand(control.raised() == nullptr, "the fault is not cleared");
                    }
                },
                settings{});
        }
    }
}

/// One rank throws: run() gives that error, and no rank hangs.
template <class Harness>
void one_rank_throws(Harness& harness) {
    if constexpr (Harness::survives_errors) {
        for (const size_t ranks : harness.sizes()) {
            const std::string said = failure<std::domain_error>(
                harness, ranks,
                [ranks](auto comm) {
                    std::vector<float> values(ranks * 1000);
                    auto stream = comm.device().make_stream("left behind");
                    comm.all_reduce_in_place(whole(values), stream, {"reduce"});
                    if (comm.rank() == ranks / 2) throw std::domain_error("the cat is on the keyboard");
                    for (int i = 0; i < 10; ++i) comm.all_reduce_in_place(whole(values), stream, {"reduce"});
                    finish(comm, stream);
                    for (;;) comm.barrier(comm.device().caller(), {"barrier"});
                },
                settings{});
            if (ranks > 1) demand_says(said, "the cat");
        }
    }
}

}  // namespace conformance
