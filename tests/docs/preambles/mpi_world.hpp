#include <reshard/reshard.hpp>
#include <reshard/comm/mpi.hpp>

void example() {
    auto session = mpi_session::adopt(MPI_COMM_WORLD);
    auto world = session.world();
    // snippet
}
