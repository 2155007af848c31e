#include <reshard/reshard.hpp>
#include <reshard/comm/mpi.hpp>

void example() {
    [[maybe_unused]] int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    // snippet
}
