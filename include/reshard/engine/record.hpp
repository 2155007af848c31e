// What the engine remembers: buffers with the events of the streams that use them, units, issued collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../device/concept.hpp"
#include "../layout/unit_layout.hpp"
#include "../policy/facts.hpp"
#include "../schedule/memory.hpp"
#include "options.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// How many streams of the trainer may use one buffer: the compute stream and those declared by use_on().
inline constexpr std::size_t max_user_streams = 8;
inline constexpr std::uint32_t nobody = static_cast<std::uint32_t>(-1);

/// Memory that streams take turns on. One event per user stream: recording an event again replaces what it stood
/// for, so two producers must not share one.
template <class DeviceType>
struct shared_buffer {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::uint32_t holder = nobody;                  // the unit whose numbers lie here
    typename DeviceType::event filled;              // gather buffers: gathered; gradient buffers: free to write again
    std::vector<typename DeviceType::event> users;  // per user stream: it has read or written
    std::uint32_t used = 0;                         // bit k: users[k] was recorded since the last fill

    void make_events(const DeviceType& device) {
        filled = device.make_event();
        users.reserve(max_user_streams);
        for (std::size_t k = 0; k < max_user_streams; ++k) users.push_back(device.make_event());
    }
    void wait_for_users(const DeviceType& device, typename DeviceType::stream_ref stream) {
        for (std::uint32_t k = 0; used >> k != 0; ++k) {
            if (used >> k & 1u) device.wait(stream, users[k]);
        }
        used = 0;
    }
};

/// A unit's state: not one word, since a copy, its version, open scopes and open forwards vary independently.
struct unit_record {
    std::string name;
    std::uint32_t index = 0;
    const unit_layout* layout = nullptr;
    std::uint32_t layout_id = 0;
    std::size_t uses = 1;
    unit_override<any_sharding> strategy;  // in place of the policy's
    unit_override<any_reshard> reshard;

    // Fixed by the build.
    unit_place place{};
    view_source source = view_source::gathered;
    owned_part part;  // of masters, moments, owned gradients
    reduction how = reduction::scatter;
    afterwards after_forward = afterwards::free, after_backward = afterwards::free;
    std::uint32_t gather_buffer = no_buffer;  // of gathered and resting copies
    std::uint32_t gradient_buffer = no_buffer;
    std::uint32_t slice_buffer = no_buffer;  // a slice of the block in the compute type, gathered from within the block
    std::byte* secondary = nullptr;          // a slice of the secondary group
    std::size_t group = 1;                   // ranks of that group; 1: none
    std::uint32_t groups[rank_sets] = {};    // their numbers among the groups of the model
    sliced_bytes slices, secondary_slices;   // where segments begin in the two
    std::vector<std::size_t> partial;        // per segment: where sums over the block begin in their arena
    std::byte* parameters = nullptr;         // what scopes show
    std::byte* gradients = nullptr;
    std::vector<std::size_t> owned;          // per segment: where this rank's slice begins in the arenas
    std::vector<std::uint32_t> overwritten;  // parameters whose first gradient write overwrites
    std::vector<arena_range> zeroed;         // everything else in the gradient buffer, gaps and padding included
    bool direct = false;                     // gradients are written straight into the owned arena
    bool rotating_gradients = false;         // the gradient buffer is shared with other units

    // The copy of the parameters in the gather or resting buffer.
    bool here = false;
    std::uint64_t copy_version = 0;
    bool entered = false;         // a scope has used it since it was gathered
    bool for_evaluation = false;  // gathered by an evaluation: dropped behind it unless the policy keeps it
    bool recomputing = false;     // kept by recompute() until its backward is left
    bool slice_here = false, secondary_here = false;
    std::uint64_t slice_version = 0, secondary_version = 0;

    // The step.
    std::uint32_t open_scopes = 0;
    std::uint32_t open_forwards = 0;
    std::uint32_t open_inputs = 0;     // input parts whose weight part is to come
    std::size_t backward_uses = 0;     // gradient-writing scopes left in this step
    bool accumulating = false;         // the gradient buffer is acquired and holds unreduced gradients
    bool reduced = false;              // the owned gradients hold a sum of this step
    std::vector<bool> written;         // per parameter: asked for in this accumulation
    std::vector<bool> written_before;  // the same, when the present scope was entered
};

enum class collective : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast };

constexpr const char* name_of(collective what) {
    constexpr const char* names[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast"};
    return names[static_cast<std::size_t>(what)];
}

/// Enough to issue a collective again with empty data.
struct issue {
    std::uint32_t unit = nobody;  // nobody: the whole model
    collective what = collective::all_gather;
    dtype type = dtype::f32;
    std::uint8_t raw = 0;  // 1: counted in bytes
    rank_set set = rank_set::whole;
    std::uint64_t count = 0;  // elements (bytes if raw) of the full buffer
    std::uint64_t root = 0;

    bool operator==(const issue&) const = default;
};

/// What begin_step() compares between ranks; 64 bytes.
struct agreement_record {
    std::uint64_t step = 0, microbatches = 0, version = 0, committed = 0, schedule = 0, spare[3] = {};
};
static_assert(sizeof(agreement_record) == 64);

/// The last collectives this rank issued, by number; what reset() compares between ranks.
class issue_log {
public:
    static constexpr std::size_t capacity = 4096;

    void add(const issue& entry) {
        if (entries_.empty()) entries_.resize(capacity);
        entries_[count_ % capacity] = entry;
        ++count_;
    }
    std::uint64_t count() const { return count_; }
    const issue& at(std::uint64_t number) const { return entries_[number % capacity]; }

private:
    std::vector<issue> entries_;
    std::uint64_t count_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace reshard
