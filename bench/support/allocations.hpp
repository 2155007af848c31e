// Counts calls of the global operator new. Included by one source of a program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

inline std::atomic<std::size_t>& allocation_counter() {
    static std::atomic<std::size_t> counter{0};
    return counter;
}
inline std::size_t allocations() { return allocation_counter().load(); }

__attribute__((noinline)) void* operator new(std::size_t bytes) {
    ++allocation_counter();
    if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t bytes, std::align_val_t alignment) {
    ++allocation_counter();
    const std::size_t unit = static_cast<std::size_t>(alignment);
    if (void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return memory;
    throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}
