#include <reshard/comm/mpi.hpp>
#include <reshard/reshard.hpp>

void example() {
    auto session = mpi_session::adopt(MPI_COMM_WORLD);
    auto world = session.world();
    // snippet
}
