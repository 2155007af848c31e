// The state of a model on one rank: streams, arenas, buffers, units, the place in the step. The files beside this one
// hold what happens to it: walk (the order), gather, reduce, commit, build, recovery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "../comm/concept.hpp"
#include "../core/error.hpp"
#include "../core/owning_list.hpp"
#include "../device/concept.hpp"
#include "../schedule/order.hpp"
#include "../schedule/replay.hpp"
#include "groups.hpp"
#include "options.hpp"
#include "record.hpp"

namespace reshard {
inline namespace v0 {
namespace detail {

/// The memory of one kind for all units, and where it is named in reports.
template <class DeviceType>
struct arena {
    typename DeviceType::memory memory;
    std::size_t bytes = 0;
    std::byte* data() const { return memory.data(); }
};

inline constexpr std::size_t nobody_leads = static_cast<std::size_t>(-1);

/// Where a model stands between build and end.
enum class stage : std::uint8_t { declaring, between_steps, in_step };

/// How the update runs behind the vote; kept, so that reset() can finish a commit that a fault interrupted. It throws
/// only if it has enqueued nothing.
struct update_call {
    void (*run)(void* self) = nullptr;
    void* self = nullptr;
};

/// Three streams per rank. The compute stream is the trainer's; gathers and refreshes have one, reductions another.
/// Where ranks form blocks, what goes between blocks has a fourth, so that a slow link holds up nothing else.
/// Who waits for whom, and why (recorded on -> waited for by):
///   gathered        gathers -> compute     a scope reads what was gathered (buffer.filled)
///   buffer free     compute -> gathers     the next gather overwrites what scopes read (buffer.users)
///   written         compute -> reductions  a reduction sums what scopes wrote (buffer.users)
///   gradient free   reductions -> compute  the next scope overwrites what is being reduced (buffer.filled)
///   all reduced     reductions -> compute  norm and vote read the sums (reductions_idle)
///   gathers idle    gathers -> compute     the update overwrites masters that a gather still reads (gathers_idle)
///   weights written compute -> gathers     a gather casts from the masters the update wrote (weights_written)
///   step begins     compute -> gathers, reductions   a step is self-contained (step_begun)
///   block reduced   reductions -> outer    the sums over the block are complete (block_reduced)
///   outer reduced   outer -> compute       norm and vote read the sums (outer_idle); it is also how the update waits
///                                          for refreshes that still read the masters
///   gradient free   outer -> compute       where the outer stage works in the gradient buffer (buffer.filled)
///   weights written compute -> outer       a refresh casts from the masters the update wrote (weights_written)
///   refreshed       outer -> gathers       a gather sends the slice of the block (buffer.filled); the next refresh is
///                                          behind it by gathers idle and weights written
///   normed, voted   compute -> reductions -> compute  the commit's all-gather; on a queue, so that a fault which wakes
///                                          the trainer leaves it under way and reset() can finish the commit
template <class Policy, class World>
struct model_state {
    using policy_type = Policy;
    using device_type = typename World::device_type;
    using stream_ref = typename device_type::stream_ref;
    using precision_type = typename Policy::precision_type;
    using reshard_type = typename Policy::reshard_type;
    using strategy_type = typename Policy::strategy_type;
    using compute_type = typename precision_type::compute;
    using gradient_type = typename precision_type::gradient;
    using accumulate_type = typename precision_type::accumulate;
    using master_type = typename precision_type::master;
    using moment_type = typename precision_type::moments;
    using buffer = shared_buffer<device_type>;
    static constexpr bool may_have_blocks = may_rest_inner<strategy_type>;
    static_assert(std::is_same_v<gradient_type, typename precision_type::reduce>,
                  "reshard: gradients are sent in the type they are written in; give gradient<> and reduce<> one type");
    static_assert(std::is_same_v<accumulate_type, arithmetic<accumulate_type>>,
                  "reshard: sums are kept in float or double; give accumulate<> one of them");

    model_state(World communicator, Policy chosen, model_options wanted, stream_ref stream)
        : policy(chosen),
          world(communicator),
          groups(communicator),
          device(world.device()),
          options(wanted),
          compute(stream),
          gathers(device.make_stream("gathers")),
          reductions(device.make_stream("reductions")) {
        options.layout.smallest_element = precision_type::smallest_element();
    }
    /// The trainer's streams may still run an update or a kernel that reads parameters.
    ~model_state() {
        device.settle(compute);
        for (const stream_ref stream : user_streams) device.settle(stream);
    }
    model_state(const model_state&) = delete;
    model_state& operator=(const model_state&) = delete;

    Policy policy;
    World world;
    rank_groups<World> groups;
    group_shape shape;
    device_type device;
    model_options options;
    stage at = stage::declaring;

    stream_ref compute;
    std::vector<stream_ref> user_streams;  // declared by use_on(); number k + 1 in buffers' users
    typename device_type::event weights_written = device.make_event(), step_begun = device.make_event(),
                                gathers_idle = device.make_event(), reductions_idle = device.make_event(),
                                agreed = device.make_event(), joined = device.make_event(),
                                block_reduced = device.make_event(), outer_idle = device.make_event(),
                                normed = device.make_event(), voted = device.make_event();

    owning_list<typed_layout<compute_type>> layouts;
    std::vector<unit_record*> units;  // owned by the public units
    std::vector<std::uint32_t> forward_order;
    std::vector<std::string> states;   // names of the optimizer's moments
    std::vector<std::string> metrics;  // names of the trainer's scalars
    model_plan plan;
    std::vector<slot_need> needs;  // of the units, and the buffers they were given
    slot_map slots;

    typename device_type::memory scratch;  // of build and reset; a member, so that no failed call frees it in use
    arena<device_type> masters, gradients, partial_sums, whole_gradients, resting, secondaries, gather_memory,
        gradient_memory, control;
    std::size_t outer_scratch = 0;  // where it begins in the arena of partial sums, in elements
    std::vector<arena<device_type>> moments;
    std::vector<buffer> gather_buffers, gradient_buffers;  // resting copies and whole gradients have one each too
    bool gathers_units = false;                            // some unit's parameters rest sharded
    std::size_t trainable = 0, owned = 0;                  // elements of this rank's slices; trainable ones come first
    std::vector<arena_range> norm_ranges;                  // this rank's 1/N of every unit, in unit order

    std::uint64_t version = 0;    // of the weights: raised by every write
    std::uint64_t step = 0;       // steps begun
    std::uint64_t committed = 0;  // steps ended by step() or discard_step()
    std::size_t microbatches = 1;
    order_list order;
    order_cursor cursor;
    std::uint32_t open_scopes = 0;
    bool evaluating = false;
    bool all_gathered = false;          // the evaluation keeps every unit to its end
    std::size_t leader = nobody_leads;  // the rank whose gathers the others serve
    std::size_t evaluation_use = 0;     // the next use of the forward order
    bool writing = false;               // a write_weights() scope is open
    bool agreement_pending = false;
    std::vector<agreement_record> agreements;  // host copies of the control memory
    std::vector<std::byte> vote_copies, use_copies;
    bool committing = false;  // between vote and update
    bool decided = false;     // in between: the decision is enqueued, the update is not
    update_call pending_update;
    commit_terms pending_terms;
    std::vector<double> metric_values;
    bool torn = false;           // a write_weights() scope was left by an exception on some rank
    bool votes_current = false;  // norm and metrics of this step were exchanged and nothing changed since

    struct {
        step_prediction step;  // of a step with this list
        std::size_t microbatches = 0, live = 0;
        std::uint64_t schedule = 0;
        group_counts sum, setup;
    } predicted;
    issue_log log;
    unit_record* outer_due = nullptr;  // its sums over the block wait to be summed between blocks
    bool outer_adds = false;           // to sums of earlier microbatches
    std::uint64_t missed_prefetches = 0;
    std::size_t live_bytes = 0, peak_live_bytes = 0;

    bool poisoned = false;
    std::string poison_text;
    std::exception_ptr kept_error;  // from leaving a scope, thrown by the next call

    // Streams end first: what is queued on them uses the memory above.
    typename device_type::stream gathers, reductions;
    std::vector<typename device_type::stream> outer_streams;  // one where ranks form blocks

    std::size_t ranks() const { return world.size(); }
    std::size_t rank() const { return world.rank(); }
    bool alone() const { return world.size() == 1; }
    stream_ref gather_stream() { return gathers; }
    stream_ref reduce_stream() { return reductions; }
    stream_ref outer_stream() { return outer_streams.front(); }

    /// The group that a unit's collectives of this kind run over.
    const World& group(rank_set which, const unit_record& unit) const {
        return groups[unit.groups[static_cast<std::size_t>(which)]];
    }

    bool keeps_after_forward(const unit_record& unit) const {
        return holds<afterwards::keep>(policy.reshard.after_forward(unit.place), unit.after_forward);
    }
    bool keeps_after_backward(const unit_record& unit) const {
        return holds<afterwards::keep>(policy.reshard.after_backward(unit.place), unit.after_backward);
    }
    /// Whether a gather leaves a secondary shard behind, and whether that lives until the weights change.
    bool has_secondary(const unit_record& unit) const {
        if constexpr (may_use_groups<typename Policy::reshard_type>) return unit.group > 1;
        return false;
    }
    bool keeps_secondary(const unit_record& unit) const {
        return has_secondary(unit) && unit.after_backward == afterwards::group;
    }
    /// Whether the block's slice rests in the compute type.
    bool rests_in_slice(const unit_record& unit) const { return may_have_blocks && unit.slice_buffer != no_buffer; }
    bool reduces_once(const unit_record& unit) const {
        return whole_gradients_of(policy.strategy.gradients(unit.place), unit);
    }
    bool valid(const unit_record& unit) const { return unit.here && unit.copy_version == version; }
    bool slice_valid(const unit_record& unit) const { return unit.slice_here && unit.slice_version == version; }
    bool secondary_valid(const unit_record& unit) const {
        return unit.secondary_here && unit.secondary_version == version;
    }

    stream_ref user_stream(std::size_t number) { return number == 0 ? compute : user_streams[number - 1]; }

    void grow_live(std::size_t bytes) {
        live_bytes += bytes;
        if (live_bytes > peak_live_bytes) peak_live_bytes = live_bytes;
    }

    commit_outcome* outcome() { return reinterpret_cast<commit_outcome*>(control.data()); }

private:
    /// Whether a unit's fact has this value: from the compiler where it knows, else from the plan, which also knows
    /// what a secondary group of one rank, or of all, comes to.
    template <afterwards Value, class Fact>
    static bool holds(Fact fact, afterwards planned) {
        if constexpr (is_known<Fact> && !may_be<Fact, afterwards::group>) return fact == Value;
        return planned == Value;
    }
    template <class Fact>
    bool whole_gradients_of(Fact fact, const unit_record& unit) const {
        if constexpr (is_known<Fact> && !may_be<Fact, placement::inner>)
            return policy.reshard.reduce_once() || fact == placement::replicated;
        return v0::whole_gradients(plan, plan.units[unit.index]);
    }
};

/// Every call begins here: throws what went wrong since the last one.
template <class State>
void require_usable(State& state) {
    if (state.kept_error) {
        const std::exception_ptr error = state.kept_error;
        state.kept_error = nullptr;
        std::rethrow_exception(error);
    }
    if (const fault_report* fault = state.world.control().raised()) [[unlikely]] {
        state.poisoned = true;
        // Its rank is one of the whole team, which a group that was split off numbers otherwise.
        if (fault->text != state.poison_text) throw peer_error(fault->rank, fault->text);
    }
    if (state.poisoned) [[unlikely]] {
        throw state_error("E-STATE-1",
                          text("the model is unusable after an error", state.poison_text.empty() ? "" : " (",
                               state.poison_text, state.poison_text.empty() ? "" : ")",
                               "; call reset() on all ranks, or end"));
    }
}

/// A write that was left by an exception may have changed some of the weights: they must be written again first.
template <class State>
void require_whole_weights(const State& state) {
    if (!state.torn) return;
    throw state_error("E-STATE-18",
                      "the weights are half written: a write_weights() scope (or initialize()) was left by an "
                      "exception on some rank. Write all of them again, on all ranks, before the next step "
                      "or evaluation");
}

/// Marks the model and tells the peers.
template <class State>
void poison(State& state, const std::string& why) {
    state.poisoned = true;
    if (state.poison_text.empty()) state.poison_text = why;
    if (!state.alone()) state.world.control().raise(why);
}

/// The same where nothing may be thrown.
template <class State>
void poison_quietly(State& state, const std::string& why) noexcept {
    try {
        poison(state, why);
    } catch (...) {
        state.poisoned = true;
    }
}

inline constexpr std::uint32_t layouts_of_a_model = 1u << 16;

/// Number of the next layout, and above it what tells this model's handles from another's.
template <class State>
std::uint32_t layout_id(const State& state) {
    if (state.layouts.size() == layouts_of_a_model) {
        throw argument_error("E-ARGUMENT-12", text("a model has at most ", layouts_of_a_model,
                                                   " layouts; units of equal shape share one by layout()"));
    }
    const auto model = static_cast<std::uint32_t>((reinterpret_cast<std::uintptr_t>(&state) >> 4) * 0x9e3779b1u);
    return (model & ~(layouts_of_a_model - 1)) | static_cast<std::uint32_t>(state.layouts.size());
}

[[noreturn]] inline void throw_foreign_handle(const unit_record& unit, std::uint32_t layout) {
    const std::string origin = layout == no_layout ? "was never set"
                               : (layout ^ unit.layout_id) / layouts_of_a_model != 0
                                   ? "is of another model"
                                   : text("is of layout ", layout % layouts_of_a_model);
    throw argument_error("E-ARGUMENT-3", text("\"", unit.name, "\" has layout ", unit.layout_id % layouts_of_a_model,
                                              ", the handle ", origin, "; take handles from the unit's own layout()"));
}

}  // namespace detail
}  // namespace v0
}  // namespace reshard
