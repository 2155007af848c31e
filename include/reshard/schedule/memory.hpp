// What a model owns on one rank, kind by kind: constant from the build to the end.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "plan.hpp"

namespace reshard {
inline namespace v0 {

/// Of a unit's gathered parameters.
inline std::size_t parameter_bytes(const unit_plan& unit) {
    std::size_t bytes = unit.gap_bytes;
    for (const segment_plan& part : unit.segments) bytes += part.elements * size_of(part.type);
    return bytes;
}

/// Frozen parameters have no gradients.
inline std::size_t gradient_elements(const unit_plan& unit) {
    std::size_t elements = 0;
    for (const segment_plan& part : unit.segments) elements += part.trainable ? part.elements : 0;
    return elements;
}

inline std::size_t all_elements(const unit_plan& unit) {
    std::size_t elements = 0;
    for (const segment_plan& part : unit.segments) elements += part.elements;
    return elements;
}

/// Slices of all segments, one behind the other: where each begins, in bytes, and how many there are in all. Each
/// begins at a multiple of its element.
struct sliced_bytes {
    std::vector<std::size_t> offsets;
    std::size_t total = 0;
};

inline sliced_bytes slices_of(const unit_plan& unit, std::size_t parts) {
    sliced_bytes found;
    for (const segment_plan& part : unit.segments) {
        const std::size_t size = size_of(part.type);
        found.offsets.push_back((found.total + size - 1) / size * size);
        found.total = found.offsets.back() + part.elements / parts * size;
    }
    return found;
}

/// Of a unit's secondary shard; 0 without one.
inline std::size_t secondary_bytes(const unit_plan& unit) {
    return unit.group == 1 ? 0 : slices_of(unit, unit.group).total;
}

/// Sums over the block that wait for the last microbatch, in the accumulate type.
inline std::size_t partial_sum_elements(const model_plan& plan, const unit_plan& unit) {
    return reduction_of(plan, unit) == reduction::inner_scatter ? gradient_elements(unit) / plan.inner() : 0;
}

/// Where gradients come in another type than sums, those of a block wait here for their sum over the outer group.
inline std::size_t outer_scratch_bytes(const model_plan& plan) {
    std::size_t largest = 0;
    for (const unit_plan& unit : plan.units) {
        if (reduction_of(plan, unit) != reduction::inner_and_outer || plan.gradient == plan.accumulate) continue;
        const std::size_t bytes = gradient_elements(unit) / plan.inner() * size_of(plan.accumulate);
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

/// Whether kernels write gradients straight into the owned arena: it holds whole units, in the kernels' type.
inline bool direct_gradients(const model_plan& plan, const unit_plan& unit) {
    return plan.divided_by(unit.optimizer) == 1 && plan.gradient == plan.accumulate;
}

/// What map_slots() asks of a planned unit.
inline slot_need need_of(const model_plan& plan, const unit_plan& unit) {
    const bool slot = !direct_gradients(plan, unit) && !whole_gradients(plan, unit);
    return {unit.uses, source_of(plan, unit) == view_source::gathered ? parameter_bytes(unit) : 0,
            slot ? gradient_elements(unit) * size_of(plan.gradient) : 0, unit.after_forward == afterwards::keep,
            unit.after_backward == afterwards::keep};
}

inline std::vector<slot_need> needs_of(const model_plan& plan) {
    std::vector<slot_need> needs;
    for (const unit_plan& unit : plan.units) needs.push_back(need_of(plan, unit));
    return needs;
}

/// Bytes that one rank owns, by kind. Masters, moments and owned gradients are this rank's slices; whole
/// gradients are whole units, resting copies whole units or slices of the block.
struct owned_bytes {
    std::size_t masters = 0;
    std::size_t moments = 0;
    std::size_t owned_gradients = 0;  // sums in the accumulate type
    std::size_t resting_copies = 0;   // parameters in the compute type, if masters cannot serve
    std::size_t whole_gradients = 0;  // where gradients wait for the last microbatch
    std::size_t gather_buffers = 0;
    std::size_t gradient_buffers = 0;
    std::size_t control = 0;       // outcome, agreement and votes
    std::size_t partial_sums = 0;  // sums over the block, where they wait for the outer group
    std::size_t secondary_shards = 0;

    std::size_t total() const {
        return masters + moments + owned_gradients + partial_sums + resting_copies + whole_gradients +
               secondary_shards + gather_buffers + gradient_buffers + control;
    }
    bool operator==(const owned_bytes&) const = default;
};

/// One line of a report.
struct owned_row {
    const char* kind;
    std::size_t bytes;
};

/// The kinds in the order of owned_bytes, empty ones included.
inline std::vector<owned_row> rows(const owned_bytes& owned) {
    return {{"masters", owned.masters},
            {"moments", owned.moments},
            {"owned gradients", owned.owned_gradients},
            {"partial sums", owned.partial_sums},
            {"resting copies", owned.resting_copies},
            {"whole gradients", owned.whole_gradients},
            {"secondary shards", owned.secondary_shards},
            {"gather buffers", owned.gather_buffers},
            {"gradient buffers", owned.gradient_buffers},
            {"control", owned.control}};
}

/// Predicted = allocated. `map` is map_slots() of this plan; `control` are the bytes of the engine's records.
inline owned_bytes predict_memory(const model_plan& plan, const slot_map& map, std::size_t control) {
    owned_bytes owned;
    owned.control = control;
    for (const unit_plan& unit : plan.units) {
        const std::size_t parts = plan.divided_by(unit.optimizer);
        const std::size_t trainable = gradient_elements(unit);
        owned.masters += all_elements(unit) / parts * size_of(plan.master);
        owned.moments += trainable / parts * plan.moments * size_of(plan.moment);
        owned.owned_gradients += trainable / parts * size_of(plan.accumulate);
        owned.partial_sums += partial_sum_elements(plan, unit) * size_of(plan.accumulate);
        owned.secondary_shards += secondary_bytes(unit);
        if (source_of(plan, unit) == view_source::resting) owned.resting_copies += parameter_bytes(unit);
        if (rests_sliced(unit)) owned.resting_copies += slices_of(unit, plan.inner()).total;
        if (whole_gradients(plan, unit) && !direct_gradients(plan, unit)) {
            owned.whole_gradients += trainable * size_of(plan.gradient);
        }
    }
    owned.partial_sums += outer_scratch_bytes(plan);
    for (const std::size_t bytes : map.gather_bytes) owned.gather_buffers += bytes;
    for (const std::size_t bytes : map.gradient_bytes) owned.gradient_buffers += bytes;
    return owned;
}

}  // namespace v0
}  // namespace reshard
