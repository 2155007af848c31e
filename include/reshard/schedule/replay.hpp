// What a plan will send and hold live, found by replaying the order list of a whole step; nothing is communicated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace reshard {
inline namespace v0 {

/// Collectives of one kind, and the bytes this rank sends in them if they go round a ring.
struct operation_count {
    std::size_t calls = 0;
    std::size_t bytes = 0;

    operation_count& operator+=(const operation_count& more) {
        calls += more.calls;
        bytes += more.bytes;
        return *this;
    }
    bool operator==(const operation_count&) const = default;
};

struct collective_counts {
    operation_count all_gather, reduce_scatter, all_reduce;

    operation_count total() const {
        operation_count sum = all_gather;
        sum += reduce_scatter;
        sum += all_reduce;
        return sum;
    }
    bool operator==(const collective_counts&) const = default;
};

/// How often a unit as a whole is gathered, refreshed and reduced; each is one collective per segment that is not
/// empty (a reduction: per trainable one).
struct unit_counts {
    std::size_t gathers = 0;
    std::size_t refreshes = 0;
    std::size_t reductions = 0;

    bool operator==(const unit_counts&) const = default;
};

/// What is in use: gathered copies from the issue of their gather until they are dropped, rotating gradient buffers
/// from acquisition until the issue of their reduction. Resting copies and whole gradients are not counted: they are
/// always in use.
struct live_bytes {
    std::size_t gathered = 0;
    std::size_t gradients = 0;

    std::size_t total() const { return gathered + gradients; }
    bool operator==(const live_bytes&) const = default;
};

struct step_prediction {
    std::vector<unit_counts> units;
    collective_counts collectives;  // those of the whole model (begin_step, commit) included
    std::vector<live_bytes> live;   // two per entry of the list: while its scope is open, and after it was left
    live_bytes peak;                // the entry of `live` with the largest total
};

namespace detail {

/// A ring all-gather, and a ring reduce-scatter, of `bytes` in all passes on all blocks but one.
inline operation_count ring(std::size_t bytes, std::size_t ranks) { return {1, bytes / ranks * (ranks - 1)}; }

inline operation_count gather_of(const model_plan& plan, const unit_plan& unit) {
    operation_count sum;
    for (const segment_plan& part : unit.segments) {
        if (part.elements != 0) sum += ring(part.elements * size_of(part.type), plan.ranks);
    }
    return sum;
}

/// A reduce-scatter where the optimizer state is sharded; otherwise an all-reduce, which is one and a gather.
inline operation_count reduction_of(const model_plan& plan, const unit_plan& unit) {
    const std::size_t rounds = plan.divided_by(unit.optimizer) == 1 ? 2 : 1;
    operation_count sum;
    for (const segment_plan& part : unit.segments) {
        if (!part.trainable || part.elements == 0) continue;
        const operation_count once = ring(part.elements * size_of(plan.gradient), plan.ranks);
        sum += {once.calls, once.bytes * rounds};
    }
    return sum;
}

/// `bytes` from every rank to every rank.
inline operation_count exchange(const model_plan& plan, std::size_t bytes) {
    return plan.ranks == 1 ? operation_count{} : ring(bytes * plan.ranks, plan.ranks);
}

inline operation_count times(std::size_t count, const operation_count& one) {
    return {count * one.calls, count * one.bytes};
}

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
            if (needs_[unit].gather_bytes != 0 && needs_[unit].kept_after_backward) take(unit);
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
        bool here = false, accumulating = false;
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
        ++counts[unit].gathers;
        take(unit);
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
        if (reduces(plan_) && gradient_elements(plan_.units[index]) != 0) ++counts[index].reductions;
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
    collective_counts& sums = found.collectives;
    sums.all_gather = detail::exchange(plan, 64);                      // begin_step
    sums.all_gather += detail::exchange(plan, 32 + 8 * plan.metrics);  // commit
    for (std::size_t index = 0; index < plan.units.size(); ++index) {
        const unit_plan& unit = plan.units[index];
        unit_counts& counts = found.units[index];
        const bool sharded = plan.divided_by(unit.optimizer) > 1;
        const bool rests = source_of(plan, unit) == view_source::resting && parameter_bytes(unit) != 0;
        counts.refreshes = sharded && rests ? 1 : 0;
        sums.all_gather += detail::times(counts.gathers + counts.refreshes, detail::gather_of(plan, unit));
        (sharded ? sums.reduce_scatter : sums.all_reduce) +=
            detail::times(counts.reductions, detail::reduction_of(plan, unit));
    }
    return found;
}

/// `passes` forward passes over the whole order with one weight version, of which no copy is gathered yet.
inline collective_counts predict_evaluation(const model_plan& plan, std::size_t passes) {
    collective_counts sums;
    for (const unit_plan& unit : plan.units) {
        if (source_of(plan, unit) != view_source::gathered) continue;
        const std::size_t once = passes > 0 ? 1 : 0;
        const bool kept = unit.after_backward == afterwards::keep;
        sums.all_gather += detail::times(kept ? once : passes * unit.uses, detail::gather_of(plan, unit));
    }
    return sums;
}

/// One exchange of norm and metrics before step(), or of metrics between steps: what gradient_norm() and metric_sum()
/// cost when nothing has been exchanged since the last change.
inline collective_counts predict_exchange(const model_plan& plan) {
    collective_counts sums;
    sums.all_gather = detail::exchange(plan, 32 + 8 * plan.metrics);
    return sums;
}

/// The build: ranks compare how they were started.
inline collective_counts predict_setup(const model_plan& plan) {
    collective_counts sums;
    sums.all_gather = detail::exchange(plan, 64);
    return sums;
}

}  // namespace v0
}  // namespace reshard
