// How often this thread has called operator new.
#pragma once

#include <cstddef>

namespace gpt {

std::size_t allocations();

}  // namespace gpt
