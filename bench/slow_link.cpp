// What the policies save on a slow link between machines; bench/slow_link.sh starts it on pretend hosts.
//   slow_link ring           one rank a host: all-gather and reduce-scatter of 16 MB beside a plain MPI_Send of the
//                            bytes that a rank cannot but send, (ranks-1)/ranks of them
//   slow_link steps RATE     a training step of a small multilayer perceptron under every policy; RATE is only printed.
//                            Blocks of ranks are the machines (by_node). Time: the slowest rank's, until the last byte
//                            of the step has come, best of the rounds. Bytes: what leaves a host a step, from the
//                            interface's own counter and from the plan, group by group
// A number behind that is the rounds. Lines for bench/slow_link.py, which draws them.
#include <reshard/comm/mpi.hpp>
#include <reshard/optim/adamw.hpp>
#include <reshard/policy/runtime.hpp>

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/ranks.hpp"

using namespace reshard;

namespace {

/// Bytes that this host has sent over its link, from the table of its own network namespace.
std::size_t bytes_sent() {
    std::ifstream table("/proc/self/net/dev");
    for (std::string line; std::getline(table, line);) {
        const std::size_t colon = line.find(':');
        if (colon == std::string::npos || line.find("eth0") > colon) continue;
        const char* at = line.c_str() + colon + 1;
        char* next = nullptr;
        unsigned long long value = 0;
        for (int column = 0; column < 9; ++column, at = next) value = std::strtoull(at, &next, 10);  // the ninth
        return static_cast<std::size_t>(value);
    }
    throw std::runtime_error("no eth0 in /proc/self/net/dev: start this with slow_link.sh");
}

constexpr double megabyte = 1e6;

// ---------------------------------------------------------------------------------------------------------- ring
/// Rank 0 sends, rank 1 receives, and rank 0 hears when all is there.
void plain_send(std::size_t rank, std::span<std::byte> bytes) {
    const int count = static_cast<int>(bytes.size());
    if (rank == 0) {
        MPI_Send(bytes.data(), count, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(nullptr, 0, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(bytes.data(), count, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(nullptr, 0, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

void ring(const mpi_communicator& world, std::size_t rounds) {
    std::vector<float> all(4000000, 1.0f);  // 16 MB
    const auto bytes = std::as_writable_bytes(std::span(all));
    const std::size_t floor = bytes.size() / world.size() * (world.size() - 1);
    double send = 1e300, gather = 1e300, scatter = 1e300;
    const auto better = [](double& best, double now) { best = now < best ? now : best; };
    for (std::size_t round = 0; round <= rounds; ++round) {  // in turn, so that all see the same machine
        const double now[3] = {
            bench::best_of(world, 1, [&] { plain_send(world.rank(), bytes.first(floor)); }),
            bench::best_of(world, 1, [&] { world.all_gather_in_place(std::span(all), world.device().caller(), {}); }),
            bench::best_of(world, 1,
                           [&] { world.reduce_scatter_in_place(std::span(all), world.device().caller(), {}); })};
        if (round == 0) continue;
        better(send, now[0]);
        better(gather, now[1]);
        better(scatter, now[2]);
    }
    if (world.rank() != 0) return;
    std::printf("ring %zu %.3f send %.2f all_gather %.2f reduce_scatter %.2f\n", world.size(),
                static_cast<double>(floor) / megabyte, send, gather, scatter);
}

// --------------------------------------------------------------------------------------------------------- steps
constexpr Eigen::Index width = 768, rows = 2;
constexpr std::size_t layers = 4, count = static_cast<std::size_t>(width) * width;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using weights_view = Eigen::Map<const matrix>;
using gradient_view = Eigen::Map<matrix>;

class trained {
    using model_type = sharded_model<runtime_policy<>, mpi_communicator>;

public:
    trained(mpi_communicator world, const char* strategy, const char* reshard)
        : world_(world),
          model_(world, {},
                 {any_sharding::parse(strategy), any_reshard::parse(reshard), any_topology::parse("by_node")}),
          values_(layers + 1, matrix::Constant(rows, width, 0.5f)) {
        const auto& shape = model_.layout({{"weight", {count}}});
        weight_.push_back(shape.parameter("weight"));
        for (std::size_t l = 0; l < layers; ++l)
            units_.push_back(&model_.add_unit("layer." + std::to_string(l), shape));
        optimizer_ = std::make_unique<adamw<model_type>>(model_);
        model_.initialize([](const parameter_info&, std::size_t offset, auto values) {
            for (std::size_t i = 0; i < values.size(); ++i)
                values[i] = 0.05f * (static_cast<float>((offset + i) * 2654435761u % 2048) / 1024.0f - 1.0f);
        });
    }

    void step(std::size_t microbatches) {
        model_.begin_step({.microbatches = microbatches});
        for (std::size_t m = 0; m < microbatches; ++m) {
            forward();
            backward();
        }
        optimizer_->step();
        await_refresh();
    }

    /// What leaves this rank's host by this rank since the last call, from the plan: in a ring a rank sends to the next
    /// one of its group, and only where that one is on another machine do the bytes use the link.
    std::size_t predicted_over_link() {
        const auto now = model_.report().predicted_steps;
        auto since = now;
        since -= counted_;
        counted_ = now;
        std::size_t bytes = 0;
        for (const rank_set which : {rank_set::whole, rank_set::inner, rank_set::outer, rank_set::secondary}) {
            const std::size_t sent = since[which].total().bytes;
            if (sent != 0 && next_is_elsewhere(which)) bytes += sent;
        }
        return bytes;
    }
    std::size_t missed() { return static_cast<std::size_t>(model_.report().missed_prefetches); }

private:
    void forward() {
        for (std::size_t l = 0; l < layers; ++l) {
            const auto scope = units_[l]->forward();
            const weights_view weights(scope[weight_[0]].data(), width, width);
            values_[l + 1].noalias() = values_[l] * weights.transpose();
            values_[l + 1] = values_[l + 1].cwiseMax(0.0f);
        }
    }
    void backward() {
        matrix slope = values_[layers], below;  // of half the sum of squares
        for (std::size_t l = layers; l-- > 0;) {
            auto scope = units_[l]->backward();
            slope = (values_[l + 1].array() > 0).select(slope, 0.0f);
            gradient_view(scope.gradient(weight_[0]).data(), width, width).noalias() += slope.transpose() * values_[l];
            below.noalias() = slope * weights_view(scope[weight_[0]].data(), width, width);
            slope.swap(below);
        }
    }
    /// A sharded update leaves the refresh of the blocks' slices under way; the step is not over before it is.
    void await_refresh() {
        auto& state = model_.internals();
        if (state.outer_streams.empty()) return;
        auto through = state.device.make_event();
        state.device.record(through, state.outer_stream());
        state.device.synchronize(through);
    }
    bool next_is_elsewhere(rank_set which) {
        auto& state = model_.internals();
        const std::vector<std::size_t> nodes = world_.nodes();
        const std::size_t size = detail::size_of_set(state.plan, state.plan.units[0], which);
        const std::size_t stride = which == rank_set::outer ? state.plan.inner() : 1;  // contiguous, but the outer ones
        const std::size_t rank = state.rank(), place = rank / stride % size, first = rank - place * stride;
        return nodes[first + (place + 1) % size * stride] != nodes[rank];
    }

    mpi_communicator world_;
    model_type model_;
    std::vector<model_type::unit*> units_;
    std::vector<parameter<float>> weight_;
    std::unique_ptr<adamw<model_type>> optimizer_;
    std::vector<matrix> values_;
    group_counts counted_;
};

/// The sum of the values of this rank's machine, the largest over all machines.
double most_of_a_node(const mpi_communicator& world, double value) {
    const std::vector<std::size_t> nodes = world.nodes();
    auto memory = world.device().allocate(world.size() * sizeof(double));
    auto* all = reinterpret_cast<double*>(memory.data());
    all[world.rank()] = value;
    world.all_gather_in_place(std::span(memory.data(), world.size() * sizeof(double)), world.device().caller(), {});
    double sum = 0;
    for (std::size_t r = 0; r < world.size(); ++r) sum += nodes[r] == nodes[world.rank()] ? all[r] : 0;
    return bench::maximum(world, sum);
}

struct setting {
    const char *strategy, *reshard;
};
constexpr setting settings[] = {{"full_shard", "reshard_always"},
                                {"full_shard", "reshard_to_group:2"},
                                {"full_shard", "reshard_to_group:2,until_step"},
                                {"hybrid_shard", "reshard_always"},
                                {"hybrid_full_shard", "reshard_always"}};
constexpr std::size_t microbatches[] = {1, 4};

struct figures {
    double milliseconds = 1e300, measured = 1e300, predicted = 0;
};

figures one_step(const mpi_communicator& world, trained& model, std::size_t m) {
    figures now;
    const auto caller = world.device().caller();
    model.predicted_over_link();
    world.barrier(caller, {});
    const std::size_t before = bytes_sent();
    now.milliseconds = bench::best_of(world, 1, [&] { model.step(m); });
    world.barrier(caller, {});
    now.measured = bench::maximum(world, static_cast<double>(bytes_sent() - before));
    now.predicted = most_of_a_node(world, static_cast<double>(model.predicted_over_link()));
    return now;
}

void steps(const mpi_communicator& world, const char* rate, std::size_t rounds) {
    constexpr std::size_t policies = std::size(settings), passes = std::size(microbatches);
    std::vector<std::unique_ptr<trained>> models;
    for (const setting& one : settings) models.push_back(std::make_unique<trained>(world, one.strategy, one.reshard));
    figures best[policies][passes];
    for (std::size_t round = 0; round <= rounds; ++round) {  // round 0 warms up; in turn, so that all see the same
        for (std::size_t p = 0; p < policies; ++p) {
            for (std::size_t k = 0; k < passes; ++k) {
                const figures now = one_step(world, *models[p], microbatches[k]);
                if (round > 0 && now.milliseconds < best[p][k].milliseconds) best[p][k] = now;
            }
        }
    }
    for (std::size_t p = 0; p < policies; ++p) {
        const double missed = bench::maximum(world, static_cast<double>(models[p]->missed()));
        for (std::size_t k = 0; world.rank() == 0 && k < passes; ++k) {
            std::printf("step %s %s %s %zu %.2f %.0f %.0f %.0f\n", rate, settings[p].strategy, settings[p].reshard,
                        microbatches[k], best[p][k].milliseconds, best[p][k].predicted, best[p][k].measured, missed);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    mpi_session session = mpi_session::adopt_or_init(argc, argv, {.deadline = 120});
    const mpi_communicator world = session.world();
    const auto number = [&](int at) { return argc > at ? static_cast<std::size_t>(std::atoi(argv[at])) : 5; };
    if (what == "ring" && world.size() > 1) {
        ring(world, number(2));
    } else if (what == "steps" && argc > 2) {
        steps(world, argv[2], number(3));
    } else {
        if (world.rank() == 0) std::fprintf(stderr, "usage: slow_link ring [ROUNDS] | steps RATE [ROUNDS]\n");
        return 2;
    }
    return 0;
}
