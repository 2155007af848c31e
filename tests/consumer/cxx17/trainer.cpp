// The one C++20 file of a C++17 program.
#include "trainer.hpp"

#include <reshard/reshard.hpp>

int library_major() { return reshard::version_major; }
