// Memory of the host devices: aligned, zeroed, counted.
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <utility>

#include "../core/shared.hpp"

namespace reshard {
inline namespace v0 {

/// Bytes that one device holds now; its memories share it, so it may outlive the device.
struct host_account {
    std::size_t held = 0;
};

/// Owns zeroed bytes at a multiple of 256. Move only; empty after a move.
class host_memory {
public:
    static constexpr std::size_t alignment = 256;

    host_memory() : account_(shared<host_account>::nothing{}) {}
    host_memory(std::size_t bytes, const shared<host_account>& account) : account_(account), size_(bytes) {
        if (size_ == 0) return;
        data_ = static_cast<std::byte*>(::operator new(size_, std::align_val_t{alignment}));
        __builtin_memset(data_, 0, size_);
        __atomic_fetch_add(&account_->held, size_, __ATOMIC_RELAXED);
    }
    host_memory(host_memory&& other) noexcept
        : account_(std::move(other.account_)),
          data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)) {}
    host_memory& operator=(host_memory other) noexcept {
        std::swap(account_, other.account_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~host_memory() {
        if (data_ == nullptr) return;
        __atomic_fetch_sub(&account_->held, size_, __ATOMIC_RELAXED);
        ::operator delete(data_, std::align_val_t{alignment});
    }

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    std::span<std::byte> bytes() const { return {data_, size_}; }

private:
    shared<host_account> account_;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace v0
}  // namespace reshard
