// What a plan will send and hold live, found by replaying the order list of a whole step; nothing is communicated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "counts.hpp"

namespace reshard {
inline namespace v0 {

/// What is in use: gathered copies from the issue of their gather until they are dropped, secondary shards while they
/// are valid, rotating gradient buffers from acquisition until the issue of their reduction. Resting copies and whole
/// gradients are not counted: they are always in use.
struct live_bytes {
    std::size_t gathered = 0;
    std::size_t gradients = 0;
    std::size_t secondary = 0;

    std::size_t total() const { return gathered + gradients + secondary; }
    bool operator==(const live_bytes&) const = default;
};

struct step_prediction {
    std::vector<unit_counts> units;
    group_counts groups;           // those of the whole model (begin_step, commit) included, in the whole group
    std::vector<live_bytes> live;  // two per entry of the list: while its scope is open, and after it was left
    live_bytes peak;               // the entry of `live` with the largest total
};

namespace detail {

/// The engine's rules for copies and gradient buffers, without the engine.
class step_replay {
public:
    step_replay(const order_list& order, const model_plan& plan, std::span<const slot_need> needs, const slot_map& map)
        : order_(order),
          plan_(plan),
          needs_(needs),
          map_(map),
          copies_(plan.units.size()),
          holder_(map.gather_bytes.size(), no_buffer) {
        counts.resize(plan.units.size());
    }

    std::vector<unit_counts> counts;
    live_bytes live;

    void hold_kept_copies() {
        for (std::uint32_t unit = 0; unit < needs_.size(); ++unit) {
            if (needs_[unit].gather_bytes == 0) continue;
            if (needs_[unit].kept_after_backward) take(unit);
            if (plan_.units[unit].after_backward == afterwards::group) keep_secondary(unit);
        }
    }
    void enter(order_cursor at) {
        const order_entry now = order_.at(at);
        if (reads_gathered(now) && !copies_[now.unit].here) gather(now.unit);
        look_ahead(order_.next(at));
        copy& unit = copies_[now.unit];
        if (!writes_gradients(now) || unit.accumulating) return;
        unit.accumulating = true;
        live.gradients += needs_[now.unit].gradient_bytes;
    }
    void leave(order_cursor at) {
        const order_entry now = order_.at(at);
        if (now.what != phase::backward_weight) leave_parameters(now);
        if (writes_gradients(now)) leave_gradients(now.unit);
        look_ahead(order_.next(at));
    }

private:
    struct copy {
        bool here = false, secondary = false, accumulating = false;
        std::size_t open = 0;  // forwards whose backward is to come
        std::size_t backward_uses = 0;
    };

    static bool writes_gradients(const order_entry& entry) {
        return entry.what == phase::backward || entry.what == phase::backward_weight;
    }
    bool reads_gathered(const order_entry& entry) const {
        return needs_[entry.unit].gather_bytes != 0 && entry.what != phase::backward_weight;
    }

    void take(std::uint32_t unit) {
        copies_[unit].here = true;
        holder_[map_.gather_of[unit]] = unit;
        live.gathered += needs_[unit].gather_bytes;
    }
    void gather(std::uint32_t unit) {
        if (copies_[unit].secondary) {
            ++counts[unit].secondary_gathers;
        } else {
            ++counts[unit].gathers;
            if (plan_.units[unit].group > 1) keep_secondary(unit);
        }
        take(unit);
    }
    void keep_secondary(std::uint32_t unit) {
        copies_[unit].secondary = true;
        live.secondary += secondary_bytes(plan_.units[unit]);
    }
    void drop_secondary(std::uint32_t unit) {
        if (!copies_[unit].secondary) return;
        copies_[unit].secondary = false;
        live.secondary -= secondary_bytes(plan_.units[unit]);
    }
    void look_ahead(order_cursor at) {
        std::size_t ahead = 0, looked_at = 0;
        for (; ahead < plan_.slots.prefetch_depth && looked_at <= needs_.size() && !order_.at_end(at);
             at = order_.next(at), ++looked_at) {
            const order_entry next = order_.at(at);
            if (!reads_gathered(next)) continue;
            if (!copies_[next.unit].here) {
                if (holder_[map_.gather_of[next.unit]] != no_buffer) return;
                gather(next.unit);
            }
            ++ahead;
        }
    }
    void leave_parameters(const order_entry& now) {
        const slot_need& need = needs_[now.unit];
        copy& unit = copies_[now.unit];
        unit.open = now.what == phase::forward ? unit.open + 1 : unit.open - 1;
        const bool kept = now.what == phase::forward
                              ? need.kept_after_forward
                              : need.kept_after_backward || (need.kept_after_forward && unit.open > 0);
        if (now.what != phase::forward && unit.open == 0 && plan_.units[now.unit].after_backward != afterwards::group) {
            drop_secondary(now.unit);
        }
        if (kept || need.gather_bytes == 0) return;
        unit.here = false;
        holder_[map_.gather_of[now.unit]] = no_buffer;
        live.gathered -= need.gather_bytes;
    }
    void leave_gradients(std::uint32_t index) {
        copy& unit = copies_[index];
        if (++unit.backward_uses % plan_.units[index].uses != 0) return;
        const bool last = unit.backward_uses == plan_.units[index].uses * order_.microbatches();
        if (!last && whole_gradients(plan_, plan_.units[index])) return;
        unit.accumulating = false;
        live.gradients -= needs_[index].gradient_bytes;
        if (!reduces(plan_) || gradient_elements(plan_.units[index]) == 0) return;
        ++counts[index].reductions;
        if (reduces_outer(plan_, plan_.units[index], last)) ++counts[index].outer_reductions;
    }

    const order_list& order_;
    const model_plan& plan_;
    std::span<const slot_need> needs_;
    const slot_map& map_;
    std::vector<copy> copies_;
    std::vector<std::uint32_t> holder_;
};

}  // namespace detail

/// One training step that ends in step(), its update applied or skipped. `map` is map_slots(order, needs, ...) and
/// passed check_slots(). `evaluated`: an evaluation of the whole order came before, at the same weights, so that
/// copies which the policy keeps until the weights change are here already.
inline step_prediction replay_step(const order_list& order, const model_plan& plan, std::span<const slot_need> needs,
                                   const slot_map& map, bool evaluated = false) {
    detail::step_replay replay(order, plan, needs, map);
    step_prediction found;
    if (evaluated) replay.hold_kept_copies();
    const auto note = [&] {
        found.live.push_back(replay.live);
        if (replay.live.total() > found.peak.total()) found.peak = replay.live;
    };
    for (order_cursor at = order.first(); !order.at_end(at); at = order.next(at)) {
        replay.enter(at);
        note();
        replay.leave(at);
        note();
    }
    found.units = std::move(replay.counts);
    group_counts& sums = found.groups;
    sums[rank_set::whole].all_gather = detail::exchange(plan, 64);                      // begin_step
    sums[rank_set::whole].all_gather += detail::exchange(plan, 32 + 8 * plan.metrics);  // commit
    for (std::size_t index = 0; index < plan.units.size(); ++index) {
        const unit_plan& unit = plan.units[index];
        unit_counts& counts = found.units[index];
        counts.refreshes = detail::refreshes_by_gather(plan, unit) ? 1 : 0;
        detail::add_unit_gathers(sums, plan, unit, counts.gathers);
        detail::add_secondary_gathers(sums, plan, unit, counts.secondary_gathers);
        detail::add_refreshes(sums, plan, unit, counts.refreshes);
        detail::add_reductions(sums, plan, unit, counts.reductions);
        detail::add_outer_reductions(sums, plan, unit, counts.outer_reductions);
    }
    return found;
}

/// `passes` forward passes over the whole order with one weight version, of which no copy is gathered yet.
inline group_counts predict_evaluation(const model_plan& plan, std::size_t passes) {
    group_counts sums;
    for (const unit_plan& unit : plan.units) {
        if (source_of(plan, unit) != view_source::gathered || passes == 0) continue;
        const std::size_t all = passes * unit.uses;
        const bool once = unit.after_backward != afterwards::free;
        detail::add_unit_gathers(sums, plan, unit, once ? 1 : all);
        if (unit.after_backward == afterwards::group) detail::add_secondary_gathers(sums, plan, unit, all - 1);
    }
    return sums;
}

/// One exchange of norm and metrics before step(), or of metrics between steps: what gradient_norm() and metric_sum()
/// cost when nothing has been exchanged since the last change.
inline group_counts predict_exchange(const model_plan& plan) {
    group_counts sums;
    sums[rank_set::whole].all_gather = detail::exchange(plan, 32 + 8 * plan.metrics);
    return sums;
}

/// The build: ranks compare how they were started.
inline group_counts predict_setup(const model_plan& plan) {
    group_counts sums;
    sums[rank_set::whole].all_gather = detail::exchange(plan, 64);
    return sums;
}

}  // namespace v0
}  // namespace reshard
