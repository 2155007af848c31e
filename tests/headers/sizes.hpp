// Sizes as literals. g++, clang and nvcc lay out empty members in different ways where a type is written carelessly;
// each of them checks the same numbers here. Included after all headers of the library.
#pragma once

namespace sizes {

using namespace reshard;

static_assert(sizeof(version_major) == 4);

}  // namespace sizes
