// A growing list whose items keep their addresses.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace reshard {
inline namespace v0 {

/// Owns its items; a reference to one stays valid while the list lives. Not copyable, not movable.
template <class Item>
class owning_list {
public:
    owning_list() = default;
    owning_list(const owning_list&) = delete;
    owning_list& operator=(const owning_list&) = delete;
    ~owning_list() {
        while (!items_.empty()) {  // last made, first ended
            delete items_.back();
            items_.pop_back();
        }
    }

    template <class... Arguments>
    Item& emplace(Arguments&&... arguments) {
        items_.reserve(items_.size() + 1);  // so that push_back cannot throw and lose the item
        items_.push_back(new Item(std::forward<Arguments>(arguments)...));
        return *items_.back();
    }

    std::size_t size() const { return items_.size(); }
    Item& operator[](std::size_t index) { return *items_[index]; }
    const Item& operator[](std::size_t index) const { return *items_[index]; }

    class iterator {
    public:
        explicit iterator(Item* const* at) : at_(at) {}
        Item& operator*() const { return **at_; }
        iterator& operator++() {
            ++at_;
            return *this;
        }
        bool operator!=(const iterator& other) const { return at_ != other.at_; }

    private:
        Item* const* at_;
    };
    iterator begin() const { return iterator(items_.data()); }
    iterator end() const { return iterator(items_.data() + items_.size()); }

private:
    std::vector<Item*> items_;
};

}  // namespace v0
}  // namespace reshard
