// The communicator of one rank alone: nothing is sent, and all happens inside the call.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/shared.hpp"
#include "../device/immediate.hpp"
#include "checks.hpp"
#include "concept.hpp"

namespace reshard {
inline namespace v0 {

/// The control channel of a group of one: a raised fault is kept until cleared, there is nobody else to tell.
class self_control {
public:
    void raise(const std::string& why) {
        if (raised_) return;
        report_ = {0, why};
        raised_ = true;
    }
    const fault_report* raised() const { return raised_ ? &report_ : nullptr; }
    std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> mine) {
        return {std::vector<std::byte>(mine.begin(), mine.end())};
    }
    void clear() { raised_ = false; }

private:
    bool raised_ = false;
    fault_report report_;
};

/// A group of one: operations in place do nothing, out of place they copy. Copies share device and control channel.
class self_communicator {
public:
    using device_type = immediate_device;
    using stream_ref = device_type::stream_ref;

    /// Owns a split-off group; empty for a rank without colour.
    class owner {
    public:
        owner() = default;
        owner(owner&& other) noexcept : held_(std::move(other.held_)) { other.held_.clear(); }
        owner& operator=(owner&& other) noexcept {
            std::swap(held_, other.held_);
            return *this;
        }

        bool empty() const { return held_.empty(); }
        /// The group, while it is not empty.
        self_communicator view() const {
            if (empty()) throw state_error("E-COMM-3", "this rank passed no_colour to split(): it has no group here");
            return held_.front();
        }
        void close() { held_.clear(); }

    private:
        friend class self_communicator;
        explicit owner(const self_communicator& group) : held_{group} {}
        std::vector<self_communicator> held_;
    };

    std::size_t rank() const { return 0; }
    std::size_t size() const { return 1; }
    const device_type& device() const { return device_; }
    self_control& control() const { return *control_; }
    /// The one rank is on the one node.
    std::vector<std::size_t> nodes() const { return {0}; }
    std::string describe() const { return "self: one rank, everything inside the call"; }
    void prepare(std::size_t /*bytes*/) const {}
    owner split(std::size_t colour, std::size_t /*key*/) const { return colour == no_colour ? owner() : owner(*this); }

    template <Transferable Type>
    void all_gather(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                    label name = {}) const {
        checks::blocks(operation::all_gather, name, in.size(), out.size(), 1);
        copy(in, out, stream);
    }
    template <Transferable Type>
    void all_gather_in_place(std::span<Type> /*all*/, stream_ref /*stream*/, label /*name*/ = {}) const {}

    template <Element Type>
    void reduce_scatter(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                        label name = {}) const {
        checks::blocks(operation::reduce_scatter, name, out.size(), in.size(), 1);
        copy(in, out, stream);
    }
    template <Element Type>
    void reduce_scatter_in_place(std::span<Type> /*all*/, stream_ref /*stream*/, label /*name*/ = {}) const {}

    template <Element Type>
    void all_reduce(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref stream,
                    label name = {}) const {
        checks::equal(operation::all_reduce, name, in.size(), out.size());
        copy(in, out, stream);
    }
    template <Element Type>
    void all_reduce_in_place(std::span<Type> /*all*/, stream_ref /*stream*/, label /*name*/ = {}) const {}

    template <Transferable Type>
    void broadcast(std::span<Type> /*all*/, std::size_t root, stream_ref /*stream*/, label name = {}) const {
        checks::root(name, root, 1);
    }
    void barrier(stream_ref /*stream*/, label /*name*/ = {}) const {}

private:
    template <class Type>
    void copy(std::span<const Type> in, std::span<Type> out, stream_ref stream) const {
        if (in.empty() || in.data() == out.data()) return;
        device_.launch(stream, [in, out] { __builtin_memcpy(out.data(), in.data(), in.size_bytes()); });
    }

    device_type device_;
    shared<self_control> control_;
};
static_assert(Splittable<self_communicator> && KnowsNodes<self_communicator> && RecoverableChannel<self_control>);

}  // namespace v0
}  // namespace reshard
