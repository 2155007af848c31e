// A program of somebody else's that uses the library over MPI.
#include <reshard/comm/mpi.hpp>
#include <reshard/reshard.hpp>

int main() { return reshard::version_major == 0 ? 0 : 1; }
