// A communicator of any size that does nothing: for plans, and for measuring what the library itself costs.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "../core/error.hpp"
#include "../core/shared.hpp"
#include "../device/immediate.hpp"
#include "checks.hpp"
#include "concept.hpp"
#include "self.hpp"

namespace reshard {
inline namespace v0 {

/// Rank `rank` of `size` whose operations return at once and send nothing: sums and gathered weights are meaningless,
/// calls, buffers and events are those of a real group. Only the records by which ranks agree (all-gathers in place of
/// at most record_bytes a rank) are answered, as if every rank had said the same.
class idle_communicator {
public:
    using device_type = immediate_device;
    using stream_ref = device_type::stream_ref;
    static constexpr std::size_t record_bytes = 128;
    struct owner {
        bool empty() const { return true; }
        void close() {}
    };

    explicit idle_communicator(std::size_t size, std::size_t rank = 0) : size_(size), rank_(rank) {
        if (rank >= size) {
            throw argument_error("E-COMM-2", text("idle communicator: rank ", rank, " of ", size,
                                                  "; ranks are numbered from 0 and there is at least one"));
        }
    }

    std::size_t rank() const { return rank_; }
    std::size_t size() const { return size_; }
    const device_type& device() const { return device_; }
    self_control& control() const { return *control_; }
    /// All ranks are on one node.
    std::vector<std::size_t> nodes() const { return std::vector<std::size_t>(size_); }
    std::string describe() const { return text("idle: ", size_, " ranks that send nothing"); }
    void prepare(std::size_t /*bytes*/) const {}

    template <Transferable Type>
    void all_gather(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref /*stream*/,
                    label name = {}) const {
        checks::blocks(operation::all_gather, name, in.size(), out.size(), size_);
    }
    template <Transferable Type>
    void all_gather_in_place(std::span<Type> all, stream_ref /*stream*/, label name = {}) const {
        checks::in_place(operation::all_gather, name, all.size(), size_);
        const std::size_t block = all.size_bytes() / size_;
        if (block > record_bytes) return;
        std::byte* bytes = std::as_writable_bytes(all).data();
        for (std::size_t peer = 0; peer < size_; ++peer) {
            if (peer != rank_) __builtin_memcpy(bytes + peer * block, bytes + rank_ * block, block);
        }
    }
    template <Element Type>
    void reduce_scatter(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref /*stream*/,
                        label name = {}) const {
        checks::blocks(operation::reduce_scatter, name, out.size(), in.size(), size_);
    }
    template <Element Type>
    void reduce_scatter_in_place(std::span<Type> all, stream_ref /*stream*/, label name = {}) const {
        checks::in_place(operation::reduce_scatter, name, all.size(), size_);
    }
    template <Element Type>
    void all_reduce(std::type_identity_t<std::span<const Type>> in, std::span<Type> out, stream_ref /*stream*/,
                    label name = {}) const {
        checks::equal(operation::all_reduce, name, in.size(), out.size());
    }
    template <Element Type>
    void all_reduce_in_place(std::span<Type> /*all*/, stream_ref /*stream*/, label /*name*/ = {}) const {}
    template <Transferable Type>
    void broadcast(std::span<Type> /*all*/, std::size_t root, stream_ref /*stream*/, label name = {}) const {
        checks::root(name, root, size_);
    }
    void barrier(stream_ref /*stream*/, label /*name*/ = {}) const {}

private:
    device_type device_;
    shared<self_control> control_;
    std::size_t size_, rank_;
};
static_assert(KnowsNodes<idle_communicator>);

}  // namespace v0
}  // namespace reshard
