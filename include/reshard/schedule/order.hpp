// The order list: which (phase, unit) follows which in a whole step. Everything is planned from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "../core/error.hpp"

namespace reshard {
inline namespace v0 {

/// What a scope does. `backward_input` reads parameters and writes no gradients, `backward_weight` the reverse;
/// `backward` does both.
enum class phase : std::uint8_t { forward, backward, backward_input, backward_weight };

constexpr const char* name_of(phase what) {
    constexpr const char* names[] = {"forward", "backward", "backward_input", "backward_weight"};
    return names[static_cast<std::size_t>(what)];
}

/// One stretch of a step: `what` for one microbatch over uses [first, first + count) of the forward order;
/// backward phases visit them in reverse. `count` all_uses means the whole order.
struct pass {
    phase what = phase::forward;
    std::size_t microbatch = 0;
    std::size_t first = 0;
    std::size_t count = static_cast<std::size_t>(-1);
};
inline constexpr std::size_t all_uses = static_cast<std::size_t>(-1);

/// One place of the list.
struct order_entry {
    phase what = phase::forward;
    std::uint32_t unit = 0;
    std::uint32_t microbatch = 0;
};

/// Where in a step a list stands.
struct order_cursor {
    std::size_t pass = 0;
    std::size_t use = 0;  // within the pass
};

/// A step as passes over a fixed forward order of uses. The plain loop (microbatches, each a forward and a backward
/// pass over everything) is computed, not stored; a pipeline stores its passes.
class order_list {
public:
    order_list() = default;
    /// `forward_order` names units by index; a unit with several uses stands in it several times.
    explicit order_list(std::vector<std::uint32_t> forward_order) : uses_(std::move(forward_order)) {}

    /// The plain loop.
    void plan(std::size_t microbatches) {
        passes_.clear();
        microbatches_ = microbatches;
    }
    /// A schedule; `microbatches` is the number of different ones in it.
    void plan(std::span<const pass> passes, std::size_t microbatches) {
        passes_.assign(passes.begin(), passes.end());
        for (pass& one : passes_) {
            if (one.count == all_uses) one.count = uses_.size() - one.first;
        }
        microbatches_ = microbatches;
    }

    /// Whether plan(passes, microbatches) would change nothing.
    bool is_planned_as(std::span<const pass> passes, std::size_t microbatches) const {
        if (passes.size() != passes_.size() || microbatches != microbatches_) return false;
        for (std::size_t p = 0; p < passes.size(); ++p) {
            const std::size_t count = passes[p].count == all_uses ? uses_.size() - passes[p].first : passes[p].count;
            if (passes[p].what != passes_[p].what || passes[p].microbatch != passes_[p].microbatch ||
                passes[p].first != passes_[p].first || count != passes_[p].count) {
                return false;
            }
        }
        return true;
    }

    std::span<const std::uint32_t> forward_order() const { return uses_; }
    std::size_t microbatches() const { return microbatches_; }
    bool scheduled() const { return !passes_.empty(); }
    std::size_t passes() const { return scheduled() ? passes_.size() : 2 * microbatches_; }
    pass pass_at(std::size_t index) const {
        if (scheduled()) return passes_[index];
        return {index % 2 == 0 ? phase::forward : phase::backward, index / 2, 0, uses_.size()};
    }

    bool at_end(order_cursor cursor) const { return cursor.pass >= passes(); }

    /// Precondition: not at_end(cursor).
    order_entry at(order_cursor cursor) const {
        const pass now = pass_at(cursor.pass);
        const std::size_t use =
            now.what == phase::forward ? now.first + cursor.use : now.first + now.count - 1 - cursor.use;
        return {now.what, uses_[use], static_cast<std::uint32_t>(now.microbatch)};
    }

    /// The place behind `cursor`; empty passes are passed over.
    order_cursor next(order_cursor cursor) const {
        if (++cursor.use < pass_at(cursor.pass).count) return cursor;
        cursor.use = 0;
        do {
            ++cursor.pass;
        } while (!at_end(cursor) && pass_at(cursor.pass).count == 0);
        return cursor;
    }
    order_cursor first() const {
        order_cursor cursor;
        while (!at_end(cursor) && pass_at(cursor.pass).count == 0) ++cursor.pass;
        return cursor;
    }

private:
    std::vector<std::uint32_t> uses_;
    std::vector<pass> passes_;
    std::size_t microbatches_ = 0;
};

/// A unit with several uses gathers its gradients in one buffer, so one microbatch must be through before the next.
inline void check_uses_of_one_microbatch_together(const order_list& list) {
    struct progress {
        std::size_t uses = 0, done = 0, microbatch = 0;
    };
    std::vector<progress> units;
    for (const std::uint32_t unit : list.forward_order()) {
        if (unit >= units.size()) units.resize(unit + 1);
        ++units[unit].uses;
    }
    for (order_cursor at = list.first(); !list.at_end(at); at = list.next(at)) {
        const order_entry now = list.at(at);
        if (now.what != phase::backward && now.what != phase::backward_weight) continue;
        progress& unit = units[now.unit];
        if (unit.done != 0 && unit.microbatch != now.microbatch) {
            throw order_error("E-ORDER-2", text("schedule: unit ", now.unit, " has ", unit.uses, " uses and goes to ",
                                                "microbatch ", now.microbatch, " before the backward of microbatch ",
                                                unit.microbatch, " is complete"));
        }
        unit.microbatch = now.microbatch;
        unit.done = unit.done + 1 == unit.uses ? 0 : unit.done + 1;
    }
}

/// Refuses a schedule that is not a step: every use of every microbatch forward once and backward once (whole, or
/// an input and later a weight part), forward first, and the backward uses of a unit with several uses not mixed
/// between microbatches. Throws order_error (E-ORDER-2) naming pass, microbatch and use.
inline void check_schedule(const order_list& list) {
    const std::size_t uses = list.forward_order().size(), microbatches = list.microbatches();
    enum : std::uint8_t { untouched, forward_done, input_done, complete };
    std::vector<std::uint8_t> state(uses * microbatches, untouched);
    for (std::size_t p = 0; p < list.passes(); ++p) {
        const pass now = list.pass_at(p);
        if (now.first > uses || now.count > uses - now.first || now.microbatch >= microbatches) {
            throw order_error("E-ORDER-2", text("schedule: pass ", p, " (", name_of(now.what), ", microbatch ",
                                                now.microbatch, ", uses ", now.first, " to ", now.first + now.count,
                                                ") is outside ", microbatches, " microbatches of ", uses, " uses"));
        }
        for (std::size_t use = now.first; use < now.first + now.count; ++use) {
            std::uint8_t& at = state[now.microbatch * uses + use];
            const bool fits = now.what == phase::forward           ? at == untouched
                              : now.what == phase::backward_weight ? at == input_done
                                                                   : at == forward_done;
            if (!fits) {
                throw order_error("E-ORDER-2", text("schedule: pass ", p, " asks for ", name_of(now.what), " of use ",
                                                    use, " in microbatch ", now.microbatch,
                                                    " out of turn; each needs "
                                                    "one forward, then one backward or an input and a weight part"));
            }
            at = now.what == phase::forward ? forward_done : now.what == phase::backward_input ? input_done : complete;
        }
    }
    for (std::size_t at = 0; at < state.size(); ++at) {
        if (state[at] != complete) {
            throw order_error("E-ORDER-2", text("schedule: use ", at % uses, " of microbatch ", at / uses,
                                                " has no complete backward"));
        }
    }
    check_uses_of_one_microbatch_together(list);
}

}  // namespace v0
}  // namespace reshard
