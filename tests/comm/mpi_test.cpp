// The MPI backend: the conformance suite in every mode, and what is its own. Runs under mpirun at any thread level.
#include <doctest/doctest.h>

#include <reshard/comm/counted.hpp>
#include <reshard/comm/mpi.hpp>

#include "conformance.hpp"
#include "support/count.hpp"

using namespace reshard;

namespace {

int world_rank() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}
std::size_t world_size() {
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return static_cast<std::size_t>(size);
}
int thread_level() {
    int level = 0;
    MPI_Query_thread(&level);
    return level;
}

/// What one rank's run came to, as the ranks tell each other.
struct outcome {
    enum class kind : int { fine, peer, timeout, communication, domain, other };
    kind what = kind::fine;
    char words[1500] = {};
};

template <class Function>
outcome outcome_of(const Function& function) {
    outcome result;
    const auto note = [&](outcome::kind what, const std::exception& error) {
        result.what = what;
        std::strncpy(result.words, error.what(), sizeof result.words - 1);
    };
    try {
        function();
    } catch (const peer_error& error) {
        note(outcome::kind::peer, error);
    } catch (const timeout_error& error) {
        note(outcome::kind::timeout, error);
    } catch (const communication_error& error) {
        note(outcome::kind::communication, error);
    } catch (const std::domain_error& error) {
        note(outcome::kind::domain, error);
    } catch (const std::exception& error) {
        note(outcome::kind::other, error);
    }
    return result;
}

/// Throws on every rank what the first rank with an error of its own threw.
void rethrow_root_cause(const outcome& mine) {
    std::vector<outcome> all(world_size());
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
    const outcome* root = nullptr;
    for (const outcome& each : all) {
        if (each.what == outcome::kind::fine) continue;
        if (root == nullptr || (root->what == outcome::kind::peer && each.what != outcome::kind::peer)) root = &each;
    }
    if (root == nullptr) return;
    switch (root->what) {
    case outcome::kind::timeout:
        throw timeout_error("E-TIME-1", root->words);
    case outcome::kind::peer:
    case outcome::kind::communication:
        throw communication_error("E-COMM-1", root->words);
    case outcome::kind::domain:
        throw std::domain_error(root->words);
    default:
        throw std::runtime_error(root->words);
    }
}

/// Runs `function(session)` on the first `ranks` ranks, each run with a session of its own.
template <class Function>
void with_session(std::size_t ranks, const mpi_options& options, const Function& function) {
    MPI_Comm part = MPI_COMM_NULL;
    const bool inside = static_cast<std::size_t>(world_rank()) < ranks;
    MPI_Comm_split(MPI_COMM_WORLD, inside ? 0 : MPI_UNDEFINED, world_rank(), &part);
    outcome mine;
    if (inside) {
        mine = outcome_of([&] {
            mpi_session session = mpi_session::adopt(part, options);
            function(session);
        });
        MPI_Comm_free(&part);
    }
    rethrow_root_cause(mine);
}

template <bool Survives>
struct basic_harness {
    static constexpr bool survives_errors = Survives, sums_in_fp32 = true;
    mpi_options options{};
    std::size_t smallest = 1;

    std::vector<std::size_t> sizes() {
        std::vector<std::size_t> all;
        for (std::size_t ranks = smallest; ranks <= world_size(); ++ranks) all.push_back(ranks);
        return all;
    }
    template <class Function>
    void run(std::size_t ranks, const Function& function, const conformance::settings& how) {
        const random_delays delays(ranks + 17, 300);
        mpi_options chosen = options;
        chosen.deadline = how.deadline_seconds;
        chosen.delays = how.delays ? &delays : nullptr;
        with_session(ranks, chosen, [&](mpi_session& session) { function(session.world()); });
    }
};
using harness = basic_harness<false>;
using failing_harness = basic_harness<true>;

mpi_options quiet_options() {
    mpi_options options;
    options.no_mpi_calls_meanwhile = true;
    return options;
}
mpi_options pumped_options() {
    mpi_options options;
    options.pumped = true;
    return options;
}

/// Numbers whose sums round.
template <class Type>
Type rough(std::size_t rank, std::size_t i) {
    return conformance::as<Type>(1.0 / static_cast<double>(3 + (rank * 29 + i * 7) % 97) - 0.1);
}

/// The sum in rank order in the arithmetic type, rounded once.
template <class Type>
Type rank_order_sum(std::size_t ranks, std::size_t i) {
    auto sum = static_cast<arithmetic<Type>>(rough<Type>(0, i));
    for (std::size_t rank = 1; rank < ranks; ++rank) sum += static_cast<arithmetic<Type>>(rough<Type>(rank, i));
    return static_cast<Type>(sum);
}

template <class Type>
void check_rank_order(const mpi_communicator& comm, std::size_t block) {
    const std::size_t ranks = comm.size();
    std::vector<Type> values(ranks * block), sums(block), all(ranks * block);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = rough<Type>(comm.rank(), i);
    const auto caller = comm.device().caller();
    comm.reduce_scatter(std::span<const Type>(values), std::span(sums), caller);
    comm.all_reduce(std::span<const Type>(values), std::span(all), caller);
    for (std::size_t i = 0; i < all.size(); ++i) {
        const Type expected = rank_order_sum<Type>(ranks, i);
        conformance::demand(std::memcmp(&all[i], &expected, sizeof expected) == 0, "element ", i, " of ", all.size(),
                            " is not the rank-order sum");
        if (i / block != comm.rank()) continue;
        conformance::demand(std::memcmp(&sums[i % block], &expected, sizeof expected) == 0, "scattered element ", i,
                            " is not the rank-order sum");
    }
}

}  // namespace

TEST_CASE("mpi: conformance in the mode that the thread level gives") {
    harness plain;
    conformance::run_all(plain);
}

TEST_CASE("mpi: conformance where no other MPI calls are declared, in short messages") {
    harness quiet{quiet_options()};
    quiet.options.message_bytes = 1000;
    conformance::run_all(quiet);
}

TEST_CASE("mpi: conformance with progress inside waits") {
    harness pumped{pumped_options()};
    conformance::run_all(pumped);
}

TEST_CASE("mpi: messages of at most 7 elements, 1 to 40 elements") {
    for (std::size_t ranks = 1; ranks <= world_size(); ++ranks) {
        for (const mpi_sums sums : {mpi_sums::ring, mpi_sums::rank_order}) {
            mpi_options options;
            options.message_bytes = 7 * sizeof(float);
            options.sums = sums;
            with_session(ranks, options, [](mpi_session& session) {
                const mpi_communicator comm = session.world();
                for (std::size_t count = 1; count <= 40; ++count) {
                    conformance::gathers<float>(comm, count);
                    conformance::scatters<float>(comm, count);
                    conformance::reductions<float>(comm, count);
                    conformance::broadcasts<float>(comm, count);
                }
            });
        }
    }
}

TEST_CASE("mpi: all-to-all") {
    for (const std::size_t message : {std::size_t{28}, std::size_t{1} << 20}) {
        mpi_options options;
        options.message_bytes = message;
        with_session(world_size(), options, [](mpi_session& session) {
            const mpi_communicator comm = session.world();
            for (const std::size_t block : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{100}}) {
                const std::size_t ranks = comm.size();
                std::vector<float> in(ranks * block), out(ranks * block, -1.0f);
                for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(comm.rank() * 10'000 + i);
                comm.all_to_all(std::span<const float>(in), std::span(out), comm.device().caller(), {"exchange"});
                for (std::size_t i = 0; i < out.size(); ++i) {
                    const std::size_t from = i / block, there = comm.rank() * block + i % block;
                    conformance::demand_equal(out[i], static_cast<double>(from * 10'000 + there), "all_to_all", i,
                                              ranks, out.size());
                }
            }
        });
    }
}

TEST_CASE("mpi: bf16 and fp16 sums are those in rank order, rounded once") {
    for (std::size_t ranks = 1; ranks <= world_size(); ++ranks) {
        with_session(ranks, {}, [](mpi_session& session) {
            check_rank_order<bf16>(session.world(), 1003);
            check_rank_order<fp16>(session.world(), 1003);
        });
        mpi_options options;
        options.sums = mpi_sums::rank_order;
        with_session(ranks, options, [](mpi_session& session) {
            check_rank_order<float>(session.world(), 1003);
            check_rank_order<double>(session.world(), 1003);
        });
    }
}

TEST_CASE("mpi: bytes sent are those of the ring, and 96 for each operation") {
    with_session(world_size(), {}, [](mpi_session& session) {
        const mpi_communicator comm = session.world();
        const std::size_t ranks = comm.size(), block = 300'001;
        std::vector<float> floats(ranks * block);
        std::vector<bf16> halves(ranks * block);
        const auto caller = comm.device().caller();
        const auto sent = [&](auto call) {
            const std::size_t bytes = comm.sent_bytes(), headers = comm.sent_header_bytes();
            call();
            conformance::demand(comm.sent_header_bytes() - headers == (ranks > 1 ? 96u : 0u), "headers of ",
                                comm.sent_header_bytes() - headers, " bytes");
            return comm.sent_bytes() - bytes;
        };
        const std::size_t once = (ranks - 1) * block * 4;
        const std::size_t gathered = sent([&] { comm.all_gather_in_place(std::span(floats), caller); });
        const std::size_t scattered = sent([&] { comm.reduce_scatter_in_place(std::span(floats), caller); });
        const std::size_t reduced = sent([&] { comm.all_reduce_in_place(std::span(floats), caller); });
        const std::size_t narrow = sent([&] { comm.reduce_scatter_in_place(std::span(halves), caller); });
        conformance::demand(gathered == once && scattered == once && reduced == 2 * once && narrow == once / 2, "sent ",
                            gathered, ", ", scattered, ", ", reduced, ", ", narrow, "; expected ", once);
    });
}

TEST_CASE("mpi: nothing is allocated after prepare") {
    with_session(world_size(), {}, [](mpi_session& session) {
        const mpi_communicator comm = session.world();
        std::vector<float> values(comm.size() * 5000), part(5000);
        std::vector<bf16> narrow(comm.size() * 5000);
        auto stream = comm.device().make_stream("work");
        comm.prepare(values.size() * sizeof(float));
        comm.barrier(comm.device().caller());
        const auto before = test_support::allocation_count();
        comm.reduce_scatter(std::span<const float>(values), std::span(part), stream);
        comm.all_reduce_in_place(std::span(values), stream);
        comm.all_gather(std::span<const float>(part), std::span(values), stream);
        comm.reduce_scatter_in_place(std::span(narrow), stream);
        conformance::finish(comm, stream);
        const auto allocated = test_support::allocation_count() - before;
        conformance::demand(allocated == 0, "operations made ", allocated, " allocations");
    });
}

TEST_CASE("mpi: an application that goes on with its own MPI calls") {
    for (const bool pumped : {false, true}) {
        with_session(world_size(), pumped ? pumped_options() : mpi_options{}, [](mpi_session& session) {
            const mpi_communicator comm = session.world();
            const std::size_t ranks = comm.size();
            auto stream = comm.device().make_stream("reduce");
            std::vector<double> values(ranks * 1000);
            for (int step = 0; step < 40; ++step) {
                for (double& value : values) value = static_cast<double>(comm.rank() + 1);
                comm.reduce_scatter_in_place(std::span(values), stream, {"reduce", "u"});
                int token = step, sum = 0, mine = 1;
                if (session.mode() == worker_mode::pumped) {
                    MPI_Request request;
                    MPI_Iallreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
                    for (int done = 0; done == 0; session.progress()) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
                } else {
                    if (ranks > 1 && comm.rank() == 0) MPI_Send(&token, 1, MPI_INT, 1, 5, MPI_COMM_WORLD);
                    if (comm.rank() == 1) {
                        token = -1;
                        MPI_Recv(&token, 1, MPI_INT, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                    }
                    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
                }
                conformance::demand(sum == static_cast<int>(ranks) && token == step, "the application's own sum is ",
                                    sum, " and its message ", token);
                conformance::finish(comm, stream);
                const double expected = static_cast<double>(ranks * (ranks + 1) / 2);
                for (std::size_t i = 0; i < 1000; ++i)
                    conformance::demand_equal(values[comm.rank() * 1000 + i], expected, "reduction", i, ranks, 1000);
            }
        });
    }
}

TEST_CASE("mpi: the mode follows from the lowest thread level and the declarations of all ranks") {
    using detail::mpi_standing;
    const mpi_standing multiple{60, 1024, MPI_THREAD_MULTIPLE, 0, 0, 0}, single{60, 1024, MPI_THREAD_SINGLE, 0, 0, 0};
    mpi_standing serialized{60, 1024, MPI_THREAD_SERIALIZED, 0, 0, 0}, pumped = single;
    CHECK(detail::choose_mode({multiple, multiple}).mode == worker_mode::threaded);
    CHECK(detail::choose_mode({multiple, serialized}).mode == worker_mode::at_issue);
    serialized.quiet = 1;
    CHECK(detail::choose_mode({multiple, serialized}).mode == worker_mode::threaded);
    const auto low = detail::choose_mode({multiple, multiple, single});
    CHECK(low.mode == worker_mode::at_issue);
    CHECK(low.why.find("rank 2 has MPI_THREAD_SINGLE") != std::string::npos);
    pumped.pumped = 1;
    CHECK(detail::choose_mode({pumped, pumped}).mode == worker_mode::pumped);
    const auto mixed = detail::choose_mode({pumped, single});
    CHECK(mixed.mode == worker_mode::at_issue);
    CHECK(mixed.why.find("not by rank 1") != std::string::npos);
    mpi_standing other = multiple;
    other.message_bytes = 2048;
    CHECK_THROWS_AS(detail::choose_mode({multiple, other}), disagreement_error);
    other.message_bytes = 0;
    CHECK_THROWS_AS(detail::choose_mode({other}), argument_error);
}

TEST_CASE("mpi: the session takes the mode of this launch and says so") {
    const int level = thread_level();
    with_session(world_size(), {}, [&](mpi_session& session) {
        const bool threaded = session.mode() == worker_mode::threaded;
        conformance::demand(threaded == (level == MPI_THREAD_MULTIPLE), session.describe());
        conformance::demand_says(session.describe(), detail::mpi_level_name(level));
    });
    with_session(world_size(), quiet_options(), [&](mpi_session& session) {
        conformance::demand((session.mode() == worker_mode::threaded) == (level >= MPI_THREAD_SERIALIZED),
                            session.describe());
    });
}

TEST_CASE("mpi: a session leaves the application's MPI as it was") {
    MPI_Errhandler before, after;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
    with_session(world_size(), {}, [](mpi_session& session) { session.world().barrier(host_device::stream_ref{}); });
    try {
        with_session(world_size(), {}, [](mpi_session&) { throw std::domain_error("left"); });
    } catch (const std::domain_error&) {
    }
    int ended = 1, sum = 0, one = 1;
    MPI_Finalized(&ended);
    CHECK(ended == 0);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
    CHECK(before == after);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == static_cast<int>(world_size()));
}

TEST_CASE("mpi: a compute stream that another worker serves") {
    with_session(world_size(), {}, [](mpi_session& session) {
        const mpi_communicator comm = session.world();
        host_worker second({}, comm.device().worker());
        auto compute = host_device(second).make_stream("compute");
        std::vector<double> value(1);
        const auto ranks = static_cast<double>(comm.size());
        for (int round = 0; round < 50; ++round) {
            compute.launch([&value, round] { value[0] = round; });
            comm.all_reduce_in_place(std::span(value), compute, {"sum", "foreign"});
            compute.launch([&value] { value[0] += 1; });
            conformance::finish(comm, compute);
            conformance::demand(value[0] == ranks * round + 1, "round ", round, " gives ", value[0]);
        }
    });
}

TEST_CASE("mpi: machines are told apart by their names") {
    const auto nodes = [](std::initializer_list<std::string> names) {
        std::vector<char> all;
        for (std::string name : names) {
            name.resize(8);
            all.insert(all.end(), name.begin(), name.end());
        }
        return detail::mpi_nodes_of(all, names.size());
    };
    using numbers = std::vector<std::size_t>;
    CHECK(nodes({"b"}) == numbers{0});
    CHECK(nodes({"b", "b", "a", "a"}) == numbers{0, 0, 1, 1});
    CHECK(nodes({"n10", "n1", "n10", "n2", "n1"}) == numbers{0, 1, 0, 2, 1});
    with_session(world_size(), {}, [](mpi_session& session) {
        std::vector<char> names(world_size() * MPI_MAX_PROCESSOR_NAME), mine(MPI_MAX_PROCESSOR_NAME);
        int length = 0;
        MPI_Get_processor_name(mine.data(), &length);
        const auto caller = session.world().device().caller();
        session.world().all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(names)), caller);
        const auto name_of_rank = [&](std::size_t r) { return std::string(&names[r * MPI_MAX_PROCESSOR_NAME]); };
        const numbers found = session.world().nodes();
        for (std::size_t r = 0; r < found.size(); ++r) {
            for (std::size_t other = 0; other < r; ++other) {
                const bool same = name_of_rank(r) == name_of_rank(other);
                conformance::demand((found[r] == found[other]) == same, "ranks ", r, " and ", other, " on nodes ",
                                    found[r], " and ", found[other]);
            }
        }
    });
}

TEST_SUITE("at least 2 ranks") {
    TEST_CASE("mpi: faults reach those who wait in other groups, or in split()") {
        for (const mpi_options& options : {mpi_options{}, quiet_options(), pumped_options()}) {
            failing_harness failing{options, 2};
            conformance::faults_in_groups(failing);
            conformance::faults_in_split(failing);
        }
    }

    TEST_CASE("mpi: ranks in different operations, and a rank that throws") {
        failing_harness failing{quiet_options(), 2};
        conformance::mismatches(failing);
        conformance::one_rank_throws(failing);
    }

    TEST_CASE("mpi: a rank that does not come") {
        failing_harness failing{quiet_options(), 2};
        if (thread_level() >= MPI_THREAD_SERIALIZED) return conformance::deadlines(failing);
        const auto said = conformance::failure<timeout_error>(
            failing, world_size(),
            [](auto comm) {
                if (comm.rank() == 1) return conformance::pause_ms(2500);
                std::vector<float> values(comm.size());
                comm.all_gather_in_place(std::span(values), comm.device().caller(), {"gather", "block.0"});
            },
            {.deadline_seconds = 0.25});
        for (const char* part : {"E-TIME-1", "gather of block.0", "number 1", "waits for rank 1", "does not answer"})
            conformance::demand_says(said, part);
    }

    TEST_CASE("mpi: a fault raised on one rank reaches the others in waits, and their look") {
        with_session(world_size(), {}, [](mpi_session& session) {
            const mpi_communicator comm = session.world();
            auto& control = comm.control();
            conformance::demand(control.raised() == nullptr, "a fault before any was raised");
            std::string heard;
            try {
                comm.barrier(comm.device().caller(), {"wait", "for all to have looked"});
                if (comm.rank() == 1) {
                    control.raise("the disk is full");
                    control.raise("a later one");
                }
                for (;;) comm.barrier(comm.device().caller(), {"wait", "for ever"});
            } catch (const peer_error& error) {
                heard = error.what();
                conformance::demand(error.rank() == 1, "the fault came from rank ", error.rank());
            }
            conformance::demand_says(heard, "the disk is full");
            conformance::demand(control.raised() != nullptr && control.raised()->text == "the disk is full" &&
                                    control.raised()->rank == 1,
                                "the first fault is not kept");
        });
    }

    TEST_CASE("mpi: an unequal option is refused on all ranks") {
        mpi_options options;
        options.message_bytes = world_rank() == 1 ? 4096 : 8192;
        std::string said;
        try {
            with_session(world_size(), options, [](mpi_session&) {});
        } catch (const std::exception& error) {
            said = error.what();
        }
        for (const char* part : {"E-MPI-2", "message_bytes 8192", "rank 1 has", "message_bytes 4096"})
            conformance::demand_says(said, part);
    }

    TEST_CASE("mpi: progress() completes operations where nobody waits") {
        with_session(world_size(), pumped_options(), [](mpi_session& session) {
            const mpi_communicator comm = session.world();
            auto stream = comm.device().make_stream("gather");
            std::vector<float> values(comm.size() * 10);
            comm.all_gather_in_place(std::span(values), stream, {"gather"});
            auto point = comm.device().make_event();
            comm.device().record(point, stream);
            conformance::demand(!comm.device().done(point), "an operation was complete before any progress");
            while (!comm.device().done(point)) session.progress();
        });
    }

    TEST_CASE("mpi: the application's messages through the session") {
        with_session(world_size(), quiet_options(), [](mpi_session& session) {
            const mpi_communicator comm = session.world();
            auto stream = comm.device().make_stream("gather");
            std::vector<float> values(comm.size() * 1000);
            for (int step = 0; step < 20; ++step) {
                comm.all_gather_in_place(std::span(values), stream, {"gather"});
                std::vector<int> message(1000, step);
                if (session.rank() == 0) session.send(std::span<const int>(message), 1, 3);
                if (session.rank() == 1) {
                    message.assign(1000, -1);
                    session.receive(std::span(message), 0, 3);
                }
                conformance::demand(message[999] == step, "message ", step, " reads ", message[999]);
                conformance::finish(comm, stream);
            }
        });
        std::string said;
        try {
            with_session(world_size(), quiet_options(), [](mpi_session& session) {
                std::vector<int> two(2), three(3);
                if (session.rank() == 0) session.send(std::span<const int>(two), 1);
                if (session.rank() == 1) session.receive(std::span(three), 0);
            });
        } catch (const communication_error& error) {
            said = error.what();
        }
        conformance::demand_says(said, "E-MPI-6");
        conformance::demand_says(said, "expects 12 bytes");
        conformance::demand_says(said, "sent 8");
    }
}

TEST_SUITE("at least 4 ranks") {
    TEST_CASE("mpi: a deadline tells how far all are in each of many groups") {
        if (thread_level() < MPI_THREAD_SERIALIZED) return;  // a rank that sleeps answers only by a progress thread
        failing_harness failing{quiet_options(), 4};
        const std::string said = conformance::failure<timeout_error>(
            failing, 4,
            [](mpi_communicator comm) {
                std::vector<mpi_communicator> groups{comm};
                for (int i = 0; i < 5; ++i) groups.push_back(comm.split(0, 0).view());
                comm.barrier(comm.device().caller(), {"announce"});
                if (comm.rank() == 1) return conformance::pause_ms(1500);
                std::vector<std::vector<float>> values(groups.size(), std::vector<float>(4));
                std::vector<host_device::stream> streams;
                for (std::size_t g = groups.size(); g-- > 0;) {  // the oldest group is the first to be late
                    streams.push_back(comm.device().make_stream("late"));
                    groups[g].all_gather_in_place(std::span(values[g]), streams.back(), {"gather"});
                }
                for (const auto& stream : streams) conformance::finish(comm, stream);
            },
            {.deadline_seconds = 0.4});
        for (const char* part : {"E-TIME-1", "of the whole group of 4", "waits for rank 1", "rank 1 has issued"}) {
            CAPTURE(said);
            CHECK(said.find(part) != std::string::npos);
        }
    }

    TEST_CASE("mpi: each of two by two groups sends the ring's bytes, counted under its own name") {
        with_session(4, {}, [](mpi_session& session) {
            counter traffic;
            const counted comm(session.world(), traffic);
            const auto caller = comm.device().caller();
            const auto inner_owner = comm.split(comm.rank() / 2, 0), outer_owner = comm.split(comm.rank() % 2, 0);
            const auto inner = inner_owner.view("inner"), outer = outer_owner.view("outer");
            const std::size_t block = 1003, before = comm.sent_bytes();
            std::vector<float> two(2 * block), four(4 * block);
            std::vector<bf16> narrow(2 * block);
            inner.all_gather_in_place(std::span(two), caller);
            for (int time = 0; time < 3; ++time) outer.all_reduce_in_place(std::span(two), caller);
            inner.reduce_scatter_in_place(std::span(narrow), caller);
            comm.all_gather_in_place(std::span(four), caller);

            // (n - 1) / n of the buffer for a gather or a scatter, twice that for a reduction.
            const std::size_t gathered = block * 4, summed = 3 * 2 * block * 4, scattered = block * 2;
            const auto check = [](const char* what, std::size_t counted, std::size_t sent, std::size_t expected) {
                conformance::demand(counted == expected && sent == expected, what, " counts ", counted,
                                    " bytes and sent ", sent, ", expected ", expected);
            };
            const auto bytes = [&](const char* group) {
                return traffic.of(group, operation::all_gather).bytes + traffic.of(group, operation::all_reduce).bytes +
                       traffic.of(group, operation::reduce_scatter).bytes;
            };
            check("inner", bytes("inner"), inner.sent_bytes(), gathered + scattered);
            check("outer", bytes("outer"), outer.sent_bytes(), summed);
            check("whole", bytes("whole"), comm.sent_bytes() - before, 3 * block * 4);
            conformance::demand(bytes("split") == 0 && traffic.of("outer", operation::all_reduce).calls == 3 &&
                                    traffic.of("inner", operation::all_reduce).calls == 0,
                                "calls are counted under another name");
        });
    }

    TEST_CASE("mpi: partial sums stay whole while a late rank has not taken them") {
        with_session(world_size(), {}, [](mpi_session& session) {
            const mpi_communicator comm = session.world();
            const std::size_t block = 100'003;
            for (std::size_t late = 0; late < comm.size(); ++late) {
                if (comm.rank() == late) conformance::pause_ms(50);
                conformance::scatters<float>(comm, block);
                conformance::reductions<float>(comm, comm.size() * block);
            }
        });
    }
}
