#include <reshard/comm/mpi.hpp>
#include <reshard/reshard.hpp>

void example() {
    [[maybe_unused]] int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    // snippet
}
