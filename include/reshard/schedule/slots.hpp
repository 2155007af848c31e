// Which buffer serves which unit: fixed when the model is built, so addresses are the same in every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../core/error.hpp"
#include "order.hpp"

namespace reshard {
inline namespace v0 {

inline constexpr std::uint32_t no_buffer = static_cast<std::uint32_t>(-1);

/// What the slot map has to know of a unit.
struct slot_need {
    std::size_t uses = 1;
    std::size_t gather_bytes = 0;      // 0: parameters rest where the kernels read them
    std::size_t gradient_bytes = 0;    // 0: gradients have a place of their own for the whole step
    bool kept_after_forward = false;   // until its backward
    bool kept_after_backward = false;  // until the weights change
};

struct slot_options {
    std::size_t prefetch_depth = 1;     // how many gathers run ahead
    std::size_t max_open = 1;           // how many scopes may be open at once
    std::size_t recompute_segment = 1;  // how many units recompute() may hold

    /// Gather buffers that units take in turn.
    std::size_t rotating() const {
        return prefetch_depth + (max_open > recompute_segment ? max_open : recompute_segment);
    }
};

/// A buffer index per unit (no_buffer where none is needed) and the bytes of each buffer.
struct slot_map {
    std::vector<std::uint32_t> gather_of, gradient_of;
    std::vector<std::size_t> gather_bytes, gradient_bytes;
};

namespace detail {

/// Gives unit after unit of `rotating` the buffers 0..count-1 in turn, each as large as the largest unit in it.
inline void rotate(const std::vector<std::uint32_t>& rotating, std::size_t count, std::span<const std::size_t> need,
                   const std::vector<bool>& owns, std::vector<std::uint32_t>& buffer_of,
                   std::vector<std::size_t>& bytes) {
    std::vector<std::uint32_t> index(count, no_buffer);
    for (std::size_t j = 0; j < rotating.size(); ++j) {
        const std::uint32_t unit = rotating[j];
        if (owns[unit]) continue;
        std::uint32_t& at = index[j % count];
        if (at == no_buffer) {
            at = static_cast<std::uint32_t>(bytes.size());
            bytes.push_back(0);
        }
        buffer_of[unit] = at;
        if (need[unit] > bytes[at]) bytes[at] = need[unit];
    }
}

inline void give_own(std::uint32_t unit, std::size_t need, std::vector<std::uint32_t>& buffer_of,
                     std::vector<std::size_t>& bytes) {
    buffer_of[unit] = static_cast<std::uint32_t>(bytes.size());
    bytes.push_back(need);
}

/// The units that take turns in rotating buffers, in forward order.
inline std::vector<std::uint32_t> single_use_units(const order_list& order, std::span<const slot_need> units,
                                                   bool gathers) {
    std::vector<std::uint32_t> found;
    for (const std::uint32_t unit : order.forward_order()) {
        const slot_need& need = units[unit];
        if (need.uses == 1 && (gathers ? need.gather_bytes : need.gradient_bytes) != 0) found.push_back(unit);
    }
    return found;
}

}  // namespace detail

/// The j-th single-use unit of the order has rotating gather buffer j mod b, b = prefetch_depth + max(max_open,
/// recompute_segment); kept units beyond the last b, and units with several uses, own one. Gradient buffers: two
/// rotating, units with several uses own one.
inline slot_map map_slots(const order_list& order, std::span<const slot_need> units, const slot_options& options) {
    slot_map map;
    map.gather_of.assign(units.size(), no_buffer);
    map.gradient_of.assign(units.size(), no_buffer);
    const std::size_t rotating = options.rotating();
    std::vector<std::size_t> gather_need, gradient_need;
    for (const slot_need& unit : units) {
        gather_need.push_back(unit.gather_bytes);
        gradient_need.push_back(unit.gradient_bytes);
    }
    std::vector<bool> owns(units.size(), false);

    const auto gathered = detail::single_use_units(order, units, true);
    bool all_until_step = true;
    for (const std::uint32_t unit : gathered) all_until_step = all_until_step && units[unit].kept_after_backward;
    for (std::size_t j = 0; j < gathered.size(); ++j) {
        const slot_need& unit = units[gathered[j]];
        const bool among_last = j + rotating >= gathered.size();
        owns[gathered[j]] =
            unit.kept_after_backward ? !(among_last && all_until_step) : unit.kept_after_forward && !among_last;
    }
    detail::rotate(gathered, rotating, gather_need, owns, map.gather_of, map.gather_bytes);
    for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
        if (units[unit].gather_bytes != 0 && map.gather_of[unit] == no_buffer) {
            detail::give_own(unit, units[unit].gather_bytes, map.gather_of, map.gather_bytes);
        }
    }

    const std::vector<bool> none(units.size(), false);
    detail::rotate(detail::single_use_units(order, units, false), 2, gradient_need, none, map.gradient_of,
                   map.gradient_bytes);
    for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
        if (units[unit].gradient_bytes != 0 && map.gradient_of[unit] == no_buffer) {
            detail::give_own(unit, units[unit].gradient_bytes, map.gradient_of, map.gradient_bytes);
        }
    }
    return map;
}

/// Replays the list and refuses a gather into a buffer whose unit is still in use (open forwards, or kept until the
/// weights change). Throws order_error (E-ORDER-3) with both units' indices.
inline void check_slots(const order_list& order, std::span<const slot_need> units, const slot_map& map) {
    std::vector<std::uint32_t> holder(map.gather_bytes.size(), no_buffer);
    std::vector<std::size_t> open(units.size(), 0);
    for (order_cursor at = order.first(); !order.at_end(at); at = order.next(at)) {
        const order_entry now = order.at(at);
        const slot_need& unit = units[now.unit];
        if (unit.gather_bytes == 0 || now.what == phase::backward_weight) continue;
        std::uint32_t& held = holder[map.gather_of[now.unit]];
        if (held != no_buffer && held != now.unit) {
            throw order_error("E-ORDER-3", text("the schedule gathers unit ", now.unit, " in microbatch ",
                                                now.microbatch, " into the buffer in which unit ", held,
                                                " is kept; let the policy keep fewer units, or use keep_until_step"));
        }
        const bool forward = now.what == phase::forward;
        if (forward) {
            ++open[now.unit];
        } else {
            --open[now.unit];
        }
        const bool kept = forward ? unit.kept_after_forward
                                  : unit.kept_after_backward || (unit.kept_after_forward && open[now.unit] > 0);
        held = kept ? now.unit : no_buffer;
    }
}

}  // namespace v0
}  // namespace reshard
