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
    std::size_t bytes = 0;
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

/// Bytes that one rank owns, by kind. Masters, moments and owned gradients are this rank's slices; resting copies
/// and whole gradients are whole units.
struct owned_bytes {
    std::size_t masters = 0;
    std::size_t moments = 0;
    std::size_t owned_gradients = 0;  // sums in the accumulate type
    std::size_t resting_copies = 0;   // parameters where the kernels read them, if masters cannot serve
    std::size_t whole_gradients = 0;  // where gradients wait for the last microbatch
    std::size_t gather_buffers = 0;
    std::size_t gradient_buffers = 0;
    std::size_t control = 0;  // outcome, agreement and votes

    std::size_t total() const {
        return masters + moments + owned_gradients + resting_copies + whole_gradients + gather_buffers +
               gradient_buffers + control;
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
            {"resting copies", owned.resting_copies},
            {"whole gradients", owned.whole_gradients},
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
        if (source_of(plan, unit) == view_source::resting) owned.resting_copies += parameter_bytes(unit);
        if (whole_gradients(plan, unit) && !direct_gradients(plan, unit)) {
            owned.whole_gradients += trainable * size_of(plan.gradient);
        }
    }
    for (const std::size_t bytes : map.gather_bytes) owned.gather_buffers += bytes;
    for (const std::size_t bytes : map.gradient_bytes) owned.gradient_buffers += bytes;
    return owned;
}

}  // namespace v0
}  // namespace reshard
