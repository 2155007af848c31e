// Replaces the global allocation functions: each call is counted, memory comes from malloc.
#include "count.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> calls{0};

void* counted(std::size_t bytes) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    return std::malloc(bytes == 0 ? 1 : bytes);
}

void* counted(std::size_t bytes, std::align_val_t alignment) noexcept {
    calls.fetch_add(1, std::memory_order_relaxed);
    const auto step = static_cast<std::size_t>(alignment);
    return std::aligned_alloc(step, (bytes + step - 1) / step * step + (bytes == 0 ? step : 0));
}

void* or_throw(void* memory) {
    if (memory == nullptr) throw std::bad_alloc{};
    return memory;
}

}  // namespace

namespace test_support {

long allocation_count() noexcept { return calls.load(std::memory_order_relaxed); }

}  // namespace test_support

void* operator new(std::size_t bytes) { return or_throw(counted(bytes)); }
void* operator new[](std::size_t bytes) { return or_throw(counted(bytes)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new(std::size_t bytes, std::align_val_t to) { return or_throw(counted(bytes, to)); }
void* operator new[](std::size_t bytes, std::align_val_t to) { return or_throw(counted(bytes, to)); }
void* operator new(std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
    return counted(bytes, to);
}
void* operator new[](std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
    return counted(bytes, to);
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept { std::free(memory); }
