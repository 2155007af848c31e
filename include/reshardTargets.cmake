# The targets, for the installed package and for add_subdirectory alike. Reads RESHARD_INCLUDE_DIR.
#   reshard::reshard   the headers (C++20) and threads
#   reshard::mpi       the same and MPI; exists where MPI is found
include_guard(GLOBAL)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
add_library(reshard INTERFACE)
add_library(reshard::reshard ALIAS reshard)
target_include_directories(reshard INTERFACE "${RESHARD_INCLUDE_DIR}")
target_compile_features(reshard INTERFACE cxx_std_20)
target_link_libraries(reshard INTERFACE Threads::Threads)

if(NOT TARGET MPI::MPI_CXX)
    find_package(MPI QUIET COMPONENTS CXX)
endif()
if(TARGET MPI::MPI_CXX)
    add_library(reshard_mpi INTERFACE)
    add_library(reshard::mpi ALIAS reshard_mpi)
    target_link_libraries(reshard_mpi INTERFACE reshard MPI::MPI_CXX)
endif()
