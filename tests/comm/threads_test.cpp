// The threads backend: the conformance suite in two worker modes, and what is its own.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>

#include <reshard/comm/counted.hpp>
#include <reshard/comm/threads.hpp>

#include "conformance.hpp"

using namespace reshard;

namespace {

struct threads_harness {
    static constexpr bool survives_errors = true, sums_in_fp32 = true;
    worker_mode mode = worker_mode::threaded;
    std::vector<std::size_t> rank_counts = {1, 2, 3, 4};
    std::size_t ranks_per_node = 0;

    std::vector<std::size_t> sizes() { return rank_counts; }
    template <class Function>
    void run(std::size_t ranks, const Function& function, const conformance::settings& how) {
        const random_delays delays(ranks + 17, 300);
        run_threads(ranks, function, {how.deadline_seconds, how.delays ? &delays : nullptr, mode, ranks_per_node});
    }
};

/// The same through the counting wrapper, at one size.
struct counted_harness {
    static constexpr bool survives_errors = true, sums_in_fp32 = true;

    std::vector<std::size_t> sizes() { return {3}; }
    template <class Function>
    void run(std::size_t ranks, const Function& function, const conformance::settings& how) {
        run_threads(ranks,
                    [&](threads_communicator comm) {
                        counter traffic;
                        function(counted(comm, traffic));
                    },
                    {how.deadline_seconds});
    }
};

}  // namespace

TEST_CASE("threads: conformance") {
    threads_harness harness;
    if (std::getenv("RESHARD_TEST_SANITIZED") == nullptr) harness.rank_counts.push_back(8);  // sanitizers are slow
    conformance::run_all(harness);
}

TEST_CASE("threads: conformance with operations complete at issue") {
    threads_harness harness{worker_mode::at_issue, {1, 3, 4}};
    conformance::run_all(harness);
}

TEST_CASE("threads: conformance with progress inside waits") {
    threads_harness harness{worker_mode::pumped, {2, 3, 4}};
    conformance::run_all(harness);
}

TEST_CASE("counted: passes everything on") {
    counted_harness harness;
    conformance::all_operations(harness);
    conformance::splits(harness);
    conformance::nodes(harness);
}

TEST_CASE("threads: ranks pretend nodes") {
    for (const std::size_t together : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{9}}) {
        threads_harness harness;
        harness.ranks_per_node = together;
        conformance::nodes(harness);
    }
    run_threads(4,
                [](threads_communicator comm) {
                    using numbers = std::vector<std::size_t>;
                    CHECK(comm.nodes() == numbers{0, 0, 0, 1});
                    CHECK(comm.split(0, 4 - comm.rank()).view().nodes() == numbers{0, 1, 1, 1});
                    CHECK(comm.split(comm.rank() / 2, 0).view().nodes() ==
                          (comm.rank() < 2 ? numbers{0, 0} : numbers{0, 1}));
                },
                {.ranks_per_node = 3});
    run_threads(3, [](threads_communicator comm) { CHECK(comm.nodes() == std::vector<std::size_t>{0, 0, 0}); });
}

TEST_CASE("threads: a rank that leaves early is named at once") {
    std::atomic<int> waiting{0};
    const std::string said = [&] {
        try {
            run_threads(3, [&](threads_communicator comm) {
                if (comm.rank() == 1) {
                    while (waiting.load() < 2) conformance::pause_ms(1);  // else the others may count as late too
                    return;
                }
                auto stream = comm.device().make_stream("end");
                comm.barrier(stream, {"barrier", "end"});
                ++waiting;
                conformance::finish(comm, stream);
            });
        } catch (const timeout_error& error) {
            return std::string(error.what());
        }
        return std::string("no error");
    }();
    for (const char* part : {"E-TIME-3", "barrier of end", "waits for rank 1", "has ended"}) {
        CHECK(said.find(part) != std::string::npos);
    }
}

TEST_CASE("threads: host meetings have the deadline and name who is missing") {
    for (const bool split : {true, false}) {
        std::string said;
        try {
            run_threads(3,
                        [split](threads_communicator comm) {
                            if (comm.rank() == 2) return conformance::pause_ms(700);
                            if (split) comm.split(0, 0);
                            comm.control().exchange({});
                        },
                        {0.2});
        } catch (const timeout_error& error) {
            said = error.what();
        }
        CAPTURE(said);
        CHECK(said.find("E-TIME-2") != std::string::npos);
        CHECK(said.find("waits for rank 2") != std::string::npos);
        CHECK(said.find("200 ms") != std::string::npos);
    }
}

TEST_CASE("threads: memory given to a call that threw is left alone") {
    // Rank 0's gather is cut short by a fault; it frees the memory, and the gather is drained later.
    run_threads(3, [](threads_communicator comm) {
        auto device = comm.device();
        std::vector<float> values(3 * 1000, static_cast<float>(comm.rank()));
        auto stream = device.make_stream("later");
        if (comm.rank() == 0) {
            auto* fleeting = new std::vector<float>(3 * 1000, 7.0f);
            CHECK_THROWS_AS(comm.all_gather_in_place(std::span<float>(*fleeting), device.caller()), peer_error);
            delete fleeting;  // an address sanitizer sees whoever touches it now
        } else {
            conformance::pause_ms(20);
            if (comm.rank() == 1) comm.control().raise("stop");
            while (comm.control().raised() == nullptr) conformance::pause_ms(1);
        }
        comm.control().exchange({});
        comm.control().clear();
        if (comm.rank() != 0) comm.all_gather_in_place(std::span<float>(values), stream);
        conformance::finish(comm, stream);
        comm.barrier(device.caller());
        if (comm.rank() == 1) CHECK(values[2999] == 2.0f);  // those that are there still exchange theirs
    });
}

TEST_CASE("threads: a compute stream that is a queue of a further worker") {
    const random_delays delays(5, 200);
    run_threads(4,
                [&](threads_communicator comm) {
                    auto device = comm.device();
                    std::vector<float> all(4 * 8);
                    float sum = 0;
                    host_worker second({worker_mode::threaded, 60, comm.rank(), &delays, nullptr}, device.worker());
                    const host_device compute_device(second);
                    auto compute = compute_device.make_stream("compute", 1024);
                    auto gathers = device.make_stream("gathers");
                    for (int round = 0; round < 100; ++round) {
                        auto made = device.make_event(), here = device.make_event(), used = device.make_event();
                        compute.launch([&all, round, rank = comm.rank()] {
                            for (std::size_t i = 0; i < 8; ++i)
                                all[rank * 8 + i] = static_cast<float>(round) + static_cast<float>(rank);
                        });
                        device.record(made, compute);
                        device.wait(gathers, made);
                        comm.all_gather_in_place(std::span<float>(all), gathers, {"gather"});
                        device.record(here, gathers);
                        device.wait(compute, here);
                        compute.launch([&all, &sum] {
                            for (const float value : all) sum += value;
                        });
                        comm.barrier(compute, {"barrier"});  // a collective on the further worker's queue
                        device.record(used, compute);
                        if (round % 10 == 0) device.synchronize(used);
                    }
                    conformance::finish(comm, compute);
                    CHECK(sum == 100 * 8 * 6 + 32 * 4950);
                },
                {60, &delays});
}

TEST_CASE("threads: refusals") {
    CHECK_THROWS_AS(run_threads(0, [](threads_communicator) {}), argument_error);
    run_threads(1, [](threads_communicator comm) {
        CHECK_THROWS_AS(comm.split(no_colour, 0).view(), state_error);
        CHECK(comm.describe().find("deadline 600 s") != std::string::npos);
    });
}

TEST_CASE("counted: calls and ring bytes by group and operation") {
    run_threads(4, [](threads_communicator inner) {
        counter traffic;
        const counted comm(inner, traffic);
        auto caller = comm.device().caller();
        std::vector<float> values(4 * 100);
        std::vector<double> block(25);
        comm.all_gather_in_place(std::span<float>(values), caller);
        comm.all_gather_in_place(std::span<float>(values), caller);
        const counter before = traffic;
        std::vector<double> all(100);
        comm.reduce_scatter(std::span<const double>(all), std::span<double>(block), caller);
        comm.all_reduce_in_place(std::span<float>(values), caller);
        comm.broadcast(std::span<float>(values), 2, caller);
        comm.barrier(caller);
        auto owner = comm.split(comm.rank() % 2, 0);
        auto pair = owner.view("pair");
        pair.all_gather_in_place(std::span<float>(values), caller);
        auto alone_owner = comm.split(comm.rank(), 0);
        alone_owner.view("alone").all_reduce_in_place(std::span<float>(values), caller);

        CHECK(traffic.of("whole", operation::all_gather) == (reshard::traffic{2, 2 * 1200}));
        CHECK((traffic - before).of("whole", operation::all_gather) == (reshard::traffic{0, 0}));
        CHECK((traffic - before).of("whole", operation::reduce_scatter) == (reshard::traffic{1, 600}));
        CHECK(traffic.of("whole", operation::all_reduce) == (reshard::traffic{1, 2400}));
        CHECK(traffic.of("whole", operation::broadcast) == (reshard::traffic{1, 1200}));
        CHECK(traffic.of("whole", operation::barrier) == (reshard::traffic{1, 0}));
        CHECK(traffic.of("pair", operation::all_gather) == (reshard::traffic{1, 800}));
        CHECK(traffic.of("alone", operation::all_reduce) == (reshard::traffic{0, 0}));
        CHECK(traffic.of("nobody", operation::all_reduce) == (reshard::traffic{0, 0}));
    });
}
