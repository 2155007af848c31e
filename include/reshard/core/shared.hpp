// A counted reference to one object, for handles that are copied: <memory> costs too much to include.
#pragma once

#include <concepts>
#include <cstddef>
#include <utility>

namespace reshard {
inline namespace v0 {

/// Copies share one object, which ends with the last of them. Counting is safe between threads. Empty only after a
/// move or when made with `nothing`.
template <class Item>
class shared {
public:
    struct nothing {};

    template <class... Arguments>
        requires std::constructible_from<Item, Arguments...>
    explicit shared(Arguments&&... arguments) : held_(new counted_item(std::forward<Arguments>(arguments)...)) {}
    explicit shared(nothing) {}
    shared(const shared& other) noexcept : held_(other.held_) {
        if (held_ != nullptr) __atomic_fetch_add(&held_->handles, std::size_t{1}, __ATOMIC_RELAXED);
    }
    shared(shared& other) noexcept : shared(std::as_const(other)) {}
    shared(shared&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
    shared& operator=(shared other) noexcept {
        std::swap(held_, other.held_);
        return *this;
    }
    ~shared() {
        if (held_ != nullptr && __atomic_fetch_sub(&held_->handles, std::size_t{1}, __ATOMIC_ACQ_REL) == 1) {
            delete held_;
        }
    }

    Item& operator*() const { return held_->item; }
    Item* operator->() const { return &held_->item; }
    explicit operator bool() const { return held_ != nullptr; }

private:
    struct counted_item {
        template <class... Arguments>
        explicit counted_item(Arguments&&... arguments) : item(std::forward<Arguments>(arguments)...) {}
        Item item;
        std::size_t handles = 1;
    };
    counted_item* held_ = nullptr;
};

}  // namespace v0
}  // namespace reshard
