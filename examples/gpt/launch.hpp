// Starts a trainer on the ranks that the options ask for: the only place that knows backends by name.
#pragma once

#include "options.hpp"

#include <reshard/comm/threads.hpp>
#include <reshard/policy/runtime.hpp>
#include <reshard/reshard.hpp>
#ifdef EXAMPLES_HAVE_MPI
#include <reshard/comm/mpi.hpp>
#endif

#include <Eigen/Core>

#include <string>

namespace gpt {

/// The policy that --strategy, --reshard, --topology and --accumulate name.
template <class Real>
auto chosen_policy(const options& o) {
    using namespace reshard;
    any_reshard when = any_reshard::parse(o.reshard);
    if (o.accumulate == "once") {
        when = when.accumulated();
    }
    return runtime_policy<precision<Real>>{any_sharding::parse(o.strategy), when, any_topology::parse(o.topology)};
}

/// Calls train(session) on every rank that mpirun started.
template <class Train>
void launch_mpi([[maybe_unused]] options& o, [[maybe_unused]] int argc, [[maybe_unused]] char** argv,
                [[maybe_unused]] Train train) {
#ifdef EXAMPLES_HAVE_MPI
    auto session = reshard::mpi_session::adopt_or_init(argc, argv);
    const auto size = static_cast<integer>(session.size());
    if (o.ranks != 0 && o.ranks != size) {
        throw early_end("--ranks " + std::to_string(o.ranks) + ", but mpirun started " + std::to_string(size), 2);
    }
    o.ranks = size;
    check_division(o, size);
    train(session);
#else
    throw early_end("--backend mpi: this program was built without MPI", 2);
#endif
}

/// Calls train(communicator) on every rank. Each rank computes on one thread.
template <class Train>
void launch(options& o, int argc, char** argv, Train train) {
    Eigen::setNbThreads(1);
    if (o.backend == "self") {
        train(reshard::self_communicator{});
    } else if (o.backend == "threads") {
        reshard::run_threads(static_cast<std::size_t>(o.ranks), train);
    } else {
        launch_mpi(o, argc, argv, [&](auto& session) { train(session.world()); });
    }
}

}  // namespace gpt
