// What a device is: memory, streams, events and the element kernels the engine and the optimizers need.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "../core/types.hpp"

namespace reshard {
inline namespace v0 {

enum class write_mode : std::uint8_t { overwrite, add };

/// What one rank says at the end of a step; 32 bytes, gathered from all ranks. A cleared record is a "no".
struct vote_record {
    double square_norm = 0;        // of the rank's 1/N slice of the gradients
    std::uint32_t non_finite = 0;  // how many of them are infinite or NaN
    std::uint32_t says = 0;        // one of the values below
    std::uint64_t step = 0;        // the step this is about, from 1
    std::uint64_t numbers = 0;     // a hash of what the trainer gave step(): the same on all ranks
};
static_assert(sizeof(vote_record) == 32);
inline constexpr std::uint32_t vote_apply = 1, vote_discard = 2, vote_fault = 3;

enum class verdict : std::uint32_t { pending, applied, overflow, discarded, fault };

/// What all ranks make of the votes; lies in device memory, read by the update.
struct commit_outcome {
    verdict result = verdict::pending;
    std::uint32_t non_finite = 0;
    double norm = 0;              // of the whole gradient, times gradient_scale
    double factor = 0;            // what the update multiplies gradients by: gradient_scale and clipping
    std::uint64_t applied = 0;    // how many updates were applied so far, this one included: Adam's step count
    std::uint64_t skipped = 0;    // how many steps were skipped for overflow
    std::uint64_t committed = 0;  // how many steps ended with the ranks' agreement: applied, skipped or discarded
};

/// What the trainer decides for one commit.
struct commit_terms {
    double gradient_scale = 1;
    double clip_norm = 0;     // 0: no clipping
    std::uint64_t count = 0;  // Adam's step count to use; 0: one more than the last
};

/// A few bytes that are handed over by value.
struct packet {
    std::byte bytes[64];
    std::size_t size = 0;
};

/// A range of an arena, in elements.
struct arena_range {
    std::size_t begin = 0;
    std::size_t count = 0;
};

/// One range of the owned arena with one set of hyper-parameters.
struct adamw_range {
    std::size_t begin, count;
    double learning_rate, beta1, beta2, epsilon, weight_decay;
};
struct sgd_range {
    std::size_t begin, count;
    double learning_rate, momentum, dampening, weight_decay;
    bool nesterov;
};

/// A device is a copyable handle. `stream`, `event` and `memory` own; `stream_ref` is what calls take.
/// An event that was never recorded counts as reached. wait() makes a stream wait, synchronize() the host.
/// allocate() gives zeroed memory at a multiple of 256 bytes; allocated() is the sum of what is held now.
/// caller() is the stream that trainers compute on unless they name another: on the host their own thread.
/// Kernels are enqueued like every other operation and never wait on the host (except on caller()).
/// blocks(stream) tells whether operations on it are through when their call returns (caller() on the host).
/// settle() waits until all that was put on a stream has ended (or was dropped, after a fault); it throws nothing.
/// put() writes a packet in stream order; upload() and download() copy between host and device memory at once and
/// wait for nothing: synchronize first.
template <class Type>
concept Device = std::copyable<Type> &&
                 requires(const Type device, typename Type::event& event, const typename Type::event& seen,
                          typename Type::stream_ref stream, std::size_t number, std::span<std::byte> bytes,
                          const float* in, float* out, std::byte* to, const std::byte* from, const packet& few) {
                     typename Type::stream;
                     typename Type::memory;
                     { device.caller() } -> std::same_as<typename Type::stream_ref>;
                     { device.make_stream("name") } -> std::same_as<typename Type::stream>;
                     { device.make_event() } -> std::same_as<typename Type::event>;
                     { device.allocate(number) } -> std::same_as<typename Type::memory>;
                     { device.allocated() } -> std::same_as<std::size_t>;
                     device.record(event, stream);
                     device.wait(stream, seen);
                     device.synchronize(seen);
                     { device.done(seen) } -> std::same_as<bool>;
                     { device.blocks(stream) } -> std::same_as<bool>;
                     device.settle(stream);
                     device.put(to, few, stream);
                     device.upload(to, from, number);
                     device.download(to, from, number);
                     device.zero(bytes, stream);
                     device.cast(in, out, number, stream);
                     device.accumulate(in, out, number, write_mode::add, number, stream);
                 };

}  // namespace v0
}  // namespace reshard
