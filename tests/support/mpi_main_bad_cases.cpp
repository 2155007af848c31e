// Cases that must fail, each run by itself: mpi_main_test.py checks that the job ends and says why.
#include <doctest/doctest.h>
#include <mpi.h>

#include <stdexcept>

namespace {

int rank() {
    int own = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &own);
    return own;
}

}  // namespace

TEST_CASE("passes") { CHECK(rank() >= 0); }

TEST_CASE("check fails on rank 1") { CHECK(rank() != 1); }

TEST_CASE("require fails on rank 1 while the others wait") {
    REQUIRE(rank() != 1);
    MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("exception leaves rank 1 while the others wait") {
    if (rank() == 1) throw std::runtime_error("thrown on purpose");
    MPI_Barrier(MPI_COMM_WORLD);
}

TEST_SUITE("at least 8 ranks") {
    TEST_CASE("too few ranks") { CHECK(true); }
}
