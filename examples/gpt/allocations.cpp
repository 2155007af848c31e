// Counts allocations: every one of the program passes here. Apart from what allocates, so that no compiler sees
// through.
#include "allocations.hpp"

#include <cstdlib>
#include <new>

namespace {
thread_local std::size_t allocated = 0;
}

std::size_t gpt::allocations() { return allocated; }

void* operator new(std::size_t bytes) {
    ++allocated;
    if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
        return memory;
    }
    throw std::bad_alloc();
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    ++allocated;
    const auto unit = static_cast<std::size_t>(alignment);
    if (void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) {
        return memory;
    }
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
