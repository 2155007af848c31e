// The engine over MPI, at every thread level, beside an application that goes on with messages of its own.
#include <doctest/doctest.h>

#include <reshard/comm/mpi.hpp>

#include <string>
#include <vector>

#include "support/grouped.hpp"

namespace {

using namespace toy;
using reshard::mpi_communicator;
using reshard::mpi_options;
using reshard::mpi_session;
using reshard::operation;
using reshard::rank_set;
using reshard::worker_mode;
using trainer_type = trainer<policy_type, counted<mpi_communicator>>;
using hand = by_hand<policy_type, mpi_communicator>;

/// The application's own messages, on a communicator of its own: a sum over all ranks and a ring of sends. How it may
/// send depends on what the session was told. Made before the session, ends behind it.
class application {
public:
    application() {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
        MPI_Comm_rank(comm_, &rank_);
        MPI_Comm_size(comm_, &size_);
    }
    ~application() { MPI_Comm_free(&comm_); }
    application(const application&) = delete;
    application& operator=(const application&) = delete;

    /// As always in MPI programs: calls that block.
    void blocking(mpi_session&) {
        const int mine = next();
        int total = 0;
        MPI_Allreduce(&mine, &total, 1, MPI_INT, MPI_SUM, comm_);
        int token = mine;
        if (size_ > 1) {  // even ranks send first
            if (rank_ % 2 == 0) MPI_Send(&mine, 1, MPI_INT, right(), 5, comm_);
            MPI_Recv(&token, 1, MPI_INT, left(), 5, comm_, MPI_STATUS_IGNORE);
            if (rank_ % 2 == 1) MPI_Send(&mine, 1, MPI_INT, right(), 5, comm_);
        }
        judge(total, token);
    }
    /// Where nothing may block: the session goes on in between.
    void in_turns(mpi_session& session) {
        const int mine = next();
        int total = 0, token = mine;
        MPI_Request requests[3];
        MPI_Iallreduce(&mine, &total, 1, MPI_INT, MPI_SUM, comm_, &requests[0]);
        MPI_Irecv(&token, 1, MPI_INT, left(), 5, comm_, &requests[1]);
        MPI_Isend(&mine, 1, MPI_INT, right(), 5, comm_, &requests[2]);
        for (int done = 0; done == 0; session.progress()) MPI_Testall(3, requests, &done, MPI_STATUSES_IGNORE);
        judge(total, token);
    }
    /// Where the application promised to make no MPI calls: through the session.
    void through_the_session(mpi_session& session) {
        const int mine = next();
        int token = mine;
        if (size_ > 1) {
            const auto to = static_cast<std::size_t>(right()), from = static_cast<std::size_t>(left());
            if (rank_ % 2 == 0) session.send(std::span(&mine, 1), to, 5);
            session.receive(std::span(&token, 1), from, 5);
            if (rank_ % 2 == 1) session.send(std::span(&mine, 1), to, 5);
        }
        judge(expected_total(), token);  // no sum here: the session has messages only
    }

    int calls() const { return calls_; }
    int wrong() const { return wrong_; }

private:
    int left() const { return (rank_ + size_ - 1) % size_; }
    int right() const { return (rank_ + 1) % size_; }
    int next() { return ++calls_ * 100 + rank_; }
    int expected_total() const { return size_ * calls_ * 100 + size_ * (size_ - 1) / 2; }
    void judge(int total, int token) {
        wrong_ += total != expected_total();
        wrong_ += token != calls_ * 100 + left();
    }

    MPI_Comm comm_ = MPI_COMM_NULL;
    int rank_ = 0, size_ = 1, calls_ = 0, wrong_ = 0;
};

/// Losses of plain loops: whole numbers, so that every order of summation gives the same bits.
std::vector<double> losses_by_hand(const oracle::net& net, std::size_t steps) {
    oracle::trainer<float> plain(net);
    std::vector<double> out;
    for (std::size_t s = 0; s < steps; ++s) {
        out.push_back(plain.run(s, 0, net.batch, 1));
        plain.sgd({});
    }
    return out;
}

bool same(const reshard::traffic& measured, reshard::operation_count predicted) {
    return measured.calls == predicted.calls && measured.bytes == predicted.bytes;
}

/// All that was counted, of the whole group.
std::size_t counted_bytes(const counter& counts) {
    std::size_t bytes = 0;
    for (const auto& each : counts.groups[0].by_operation) bytes += each.bytes;
    return bytes;
}

struct small_net : oracle::net {
    small_net() {
        widths = {5, 4, 3, 4};
        whole = true;
        batch = 48;
    }
};

constexpr std::size_t steps = 2, microbatches = 2;

using messages = void (application::*)(mpi_session&);

/// Trains under one policy, with the application's messages at every point of the steps; returns this rank's losses.
std::vector<double> train_beside(mpi_session& session, application& own, const policy_type& policy, messages send) {
    const mpi_communicator world = session.world();
    counter counts;
    trainer_options options;
    options.sgd = true;
    options.averaged = false;
    const std::size_t sent_before = world.sent_bytes();
    const int calls_before = own.calls();
    trainer_type one(small_net(), {world, counts}, policy, options);
    one.at_point = [&](const char*) { (own.*send)(session); };
    for (std::size_t s = 0; s < steps; ++s) one.train(microbatches);
    world.barrier(world.device().caller());  // refreshes behind the last step are through too
    // 4 points around the step, 3 in a forward and in a backward of each of three units
    CHECK(own.calls() - calls_before == static_cast<int>(steps * (4 + microbatches * 3 * 6)));

    const reshard::model_report report = one.model.report();
    reshard::operation_count gathers = report.predicted_setup.sum().all_gather;
    gathers += report.predicted_steps.sum().all_gather;
    CHECK(same(counts.of("whole", operation::all_gather), gathers));
    CHECK(same(counts.of("whole", operation::reduce_scatter), report.predicted_steps.sum().reduce_scatter));
    CHECK(same(counts.of("whole", operation::all_reduce), report.predicted_steps.sum().all_reduce));
    CHECK(world.sent_bytes() - sent_before == counted_bytes(counts));
    CHECK((world.size() == 1) == (counted_bytes(counts) == 0));
    return {one.losses.begin(), one.losses.begin() + steps};
}

void train_beside_under_every_strategy(const mpi_options& options, messages send) {
    application own;
    std::vector<std::vector<double>> losses;
    {
        mpi_session session = mpi_session::adopt(MPI_COMM_WORLD, options);
        for (const char* strategy : strategies) {
            for (const char* reshard : {"reshard_always", "keep_last:1"}) {
                CAPTURE(named(strategy, reshard, false, session.size(), microbatches));
                losses.push_back(train_beside(session, own, parse_policy(strategy, reshard), send));
            }
        }
    }
    CHECK(own.wrong() == 0);
    const auto right = losses_by_hand(small_net(), steps);
    for (const auto& each : losses) {
        std::vector<double> total(steps);
        MPI_Allreduce(each.data(), total.data(), static_cast<int>(steps), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        CHECK(total == right);
    }
}

/// Bytes that this rank really handed to sends, for each group of a model, since the group was made.
struct sent_by_group {
    std::size_t sets[4] = {};
    std::size_t& operator[](rank_set which) { return sets[static_cast<std::size_t>(which)]; }
};

/// Trains under a policy with smaller groups, compares what each group sent with the plan, and returns this rank's
/// losses.
std::vector<double> train_in_groups(mpi_session& session, const grouped& how, bool once, std::size_t m) {
    const mpi_communicator world = session.world();
    std::size_t before = world.sent_bytes();
    static_cast<void>(world.split(world.rank() / 2, world.rank()));
    const std::size_t by_a_split = world.sent_bytes() - before;  // what colours cost, of which the plan knows nothing
    before = world.sent_bytes();
    counter counts;
    trainer_options options;
    options.sgd = true;
    options.averaged = false;
    trainer_type one(small_net(), {world, counts}, how.policy(once), options);
    for (std::size_t s = 0; s < steps; ++s) one.train(m);
    one.model.outcome();
    world.barrier(world.device().caller());  // refreshes behind the last step are through too

    auto& state = one.model.internals();
    sent_by_group sent;
    std::size_t splits = 0;
    const auto look = [&](rank_set which, const reshard::detail::unit_record& unit) {
        if (sent[which] != 0) return;
        const auto& group = state.group(which, unit).inner();
        group.barrier(group.device().caller());
        sent[which] = group.sent_bytes();
        ++splits;
    };
    for (const auto* unit : state.units) {
        if (rests_inner(state.plan.units[unit->index])) {
            look(rank_set::inner, *unit);
            look(rank_set::outer, *unit);
        }
        if (unit->group > 1) look(rank_set::secondary, *unit);
    }
    sent[rank_set::whole] = world.sent_bytes() - before - splits * by_a_split;

    const reshard::model_report report = one.model.report();
    for (const rank_set which : {rank_set::whole, rank_set::inner, rank_set::outer, rank_set::secondary}) {
        CAPTURE(name_of(which));
        reshard::collective_counts predicted = report.predicted_setup[which];
        predicted += report.predicted_steps[which];
        CHECK(sent[which] == predicted.total().bytes);
        CHECK(same(counts.of(name_of(which), operation::all_gather), predicted.all_gather));
        CHECK(same(counts.of(name_of(which), operation::reduce_scatter), predicted.reduce_scatter));
        CHECK(same(counts.of(name_of(which), operation::all_reduce), predicted.all_reduce));
    }
    return {one.losses.begin(), one.losses.begin() + steps};
}

int thread_level() {
    int level = 0;
    MPI_Query_thread(&level);
    return level;
}

/// What `body` throws, in words.
template <class Body>
std::string thrown_by(Body body) {
    try {
        body();
    } catch (const reshard::error& known) {
        return known.what();
    }
    return "no error";
}

}  // namespace

TEST_CASE("mpi engine: the application's own blocking messages in every phase of a step") {
    train_beside_under_every_strategy({}, &application::blocking);
    const mpi_session session = mpi_session::adopt(MPI_COMM_WORLD);
    CHECK(session.mode() == (thread_level() == MPI_THREAD_MULTIPLE ? worker_mode::threaded : worker_mode::at_issue));
}

TEST_CASE("mpi engine: progress inside waits, the application in turns with it") {
    mpi_options options;
    options.pumped = true;
    train_beside_under_every_strategy(options, &application::in_turns);
}

TEST_CASE("mpi engine: no MPI calls but through the session") {
    mpi_options options;
    options.no_mpi_calls_meanwhile = true;
    train_beside_under_every_strategy(options, &application::through_the_session);
}

TEST_SUITE("at least 2 ranks") {
    TEST_CASE("mpi engine: what differs on one rank is an error on all, and the session goes on") {
        mpi_session session = mpi_session::adopt(MPI_COMM_WORLD);
        const mpi_communicator world = session.world();
        const bool odd = world.rank() == 1;
        const auto policy = parse_policy("full_shard", "reshard_always");

        reshard::model_options options;
        options.slots.prefetch_depth = odd ? 2 : 1;
        hand::model_type other(world, options, policy);
        other.add_unit("unit", {{"w", {5}}});
        std::string words = thrown_by([&] { other.begin_step(); });
        CAPTURE(words);
        CHECK(words.find("[E-AGREE-3]") != std::string::npos);
        CHECK(words.find("rank 1") != std::string::npos);

        hand one(world, policy, {5});
        words = thrown_by([&] { one.model.begin_step({.microbatches = odd ? 3u : 2u}); });
        CHECK(words.find("[E-AGREE-1]") != std::string::npos);
        CHECK(words.find("3 on rank 1") != std::string::npos);

        one.microbatch(1);
        one.optimizer.step();
        CHECK(one.model.outcome().applied == 1);
        for (const float weight : one.weights()) CHECK((std::isnan(weight) || weight == -1.0f));
    }

    TEST_CASE("mpi engine: reset() says that the job has to end") {
        mpi_session session = mpi_session::adopt(MPI_COMM_WORLD);
        hand one(session.world(), parse_policy("full_shard", "reshard_always"), {5});
        one.microbatch(1);
        one.optimizer.step();
        const std::string words = thrown_by([&] { one.model.reset(); });
        CHECK(words.find("[E-RESET-1]") != std::string::npos);
        CHECK(words.find("mpi: ") != std::string::npos);
    }
}

TEST_SUITE("at least 4 ranks") {
    TEST_CASE("mpi engine: hybrid strategies and secondary groups: losses, and bytes handed to sends by every group") {
        const grouped all[] = {
            {"hybrid_shard", "reshard_always", "mesh:2x2", 4},
            {"hybrid_full_shard", "reshard_always", "mesh:2x2", 4},
            {"hybrid_full_shard", "keep_until_step", "mesh:2x2", 4},
            {"sharding:inner,whole,whole", "reshard_always", "mesh:2x2", 4},
            {"full_shard", "reshard_to_group:2", "flat", 4},
            {"full_shard", "reshard_to_group:2,until_step", "flat", 4},
        };
        std::vector<std::vector<double>> losses;
        {
            mpi_session session = mpi_session::adopt(MPI_COMM_WORLD);
            if (session.size() != 4) return;
            for (const grouped& how : all) {
                for (const bool once : {false, true}) {
                    for (const std::size_t m : {1u, 4u}) {
                        CAPTURE(how.words(once));
                        CAPTURE(m);
                        losses.push_back(train_in_groups(session, how, once, m));
                    }
                }
            }
        }
        const auto right = losses_by_hand(small_net(), steps);
        for (const auto& each : losses) {
            std::vector<double> total(steps);
            MPI_Allreduce(each.data(), total.data(), static_cast<int>(steps), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            CHECK(total == right);
        }
    }
}

TEST_CASE("mpi engine: MPI is the application's own before and after") {
    {
        mpi_session session = mpi_session::adopt(MPI_COMM_WORLD);
    }
    int ended = 1;
    MPI_Finalized(&ended);
    CHECK(ended == 0);
}
