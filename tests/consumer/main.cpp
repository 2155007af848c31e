// A program of somebody else's that uses the library without MPI.
#include <reshard/reshard.hpp>

int main() { return reshard::version_major == 0 ? 0 : 1; }
