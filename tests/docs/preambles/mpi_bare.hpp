#include <reshard/comm/mpi.hpp>

void example() {
    // snippet
}
