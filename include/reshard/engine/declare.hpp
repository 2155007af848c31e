// The part of a model that is declared before it is built: layouts, units, their order, states, scalars.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "scope.hpp"

namespace reshard {
inline namespace v0 {

/// Names one of the trainer's scalars (loss, tokens): summed over ranks with the commit of a step.
struct metric {
    std::size_t index = static_cast<std::size_t>(-1);
};
/// Names one optimizer state: a number per trainable element that a rank owns.
struct state_handle {
    std::size_t index = static_cast<std::size_t>(-1);
};

/// Declarations of a sharded_model; after the build they throw.
template <class Policy, class World>
class model_declarations {
protected:
    using State = detail::model_state<Policy, World>;

public:
    using unit = model_unit<State>;
    using layout_type = typed_layout<typename State::compute_type>;

    /// A layout that several units share: handles are found once and serve all of them.
    const layout_type& layout(const std::vector<parameter_spec>& parameters) {
        require_declaring("add_unit()");
        return state_.layouts.emplace(unit_layout::build(detail::layout_id(state_), parameters, state_.ranks(),
                                                         state_.options.layout,
                                                         dtype_of<typename State::compute_type>));
    }

    unit& add_unit(std::string name, const layout_type& shape, unit_options options = {}) {
        require_declaring("add_unit()");
        for (const detail::unit_record* other : state_.units) {
            if (other->name == name)
                throw argument_error("E-ARGUMENT-6",
                                     text("two units are named \"", name, "\"; reports and errors name units"));
        }
        const std::uint32_t number = shape.id() % detail::layouts_of_a_model;
        if (number >= state_.layouts.size() || &state_.layouts[number] != &shape) {
            throw argument_error("E-ARGUMENT-7", text("add_unit(\"", name,
                                                      "\"): the layout is of another model; take "
                                                      "one that layout() of this model returned"));
        }
        if (options.uses == 0)
            throw argument_error("E-ARGUMENT-8",
                                 text("add_unit(\"", name, "\"): uses = 0; a forward uses a unit at least once"));
        unit& added = units_.emplace(state_);
        detail::unit_record& record = added.record();
        record.name = std::move(name);
        record.index = static_cast<std::uint32_t>(state_.units.size());
        record.layout = &shape;
        record.layout_id = shape.id();
        record.uses = options.uses;
        set_own(record, std::move(options));
        state_.units.push_back(&record);
        return added;
    }
    unit& add_unit(std::string name, const std::vector<parameter_spec>& parameters, unit_options options = {}) {
        require_declaring("add_unit()");
        return add_unit(std::move(name), layout(parameters), options);
    }

    /// The forward order of uses: every unit as often as its `uses`. Backward visits it in reverse.
    void set_order(const std::vector<unit*>& order) {
        require_declaring("set_order()");
        std::vector<std::uint32_t> uses;
        std::vector<std::size_t> seen(state_.units.size(), 0);
        for (unit* one : order) {
            require_own_unit(*one, "set_order()");
            uses.push_back(one->record().index);
            ++seen[uses.back()];
        }
        for (const detail::unit_record* one : state_.units) {
            if (seen[one->index] != one->uses) {
                throw order_error("E-ORDER-10", text("set_order(): \"", one->name, "\" stands in it ", seen[one->index],
                                                     " times, but was added with uses = ", one->uses));
            }
        }
        state_.forward_order = std::move(uses);
    }

    state_handle add_state(std::string name) {
        require_declaring("add_state()");
        state_.states.push_back(std::move(name));
        return {state_.states.size() - 1};
    }
    metric add_metric(std::string name) {
        require_declaring("add_metric()");
        state_.metrics.push_back(std::move(name));
        return {state_.metrics.size() - 1};
    }

protected:
    model_declarations(World world, const Policy& policy, const model_options& options,
                       typename State::stream_ref compute)
        : state_(world, policy, options, compute) {}
    ~model_declarations() = default;

    void require_declaring(const char* call) const {
        if (state_.at == detail::stage::declaring) return;
        throw state_error("E-STATE-17", text(call, " after the model was built; the first initialize(), begin_step(), "
                                                   "evaluate() or scope builds it. Declare before that (an optimizer "
                                                   "declares its states: make it before initialize())"));
    }

    void require_own_unit(unit& one, const char* call) const {
        const detail::unit_record& record = one.record();
        if (record.index < state_.units.size() && state_.units[record.index] == &record) return;
        throw argument_error("E-ARGUMENT-13", text(call, ": \"", record.name,
                                                   "\" is a unit of another model; add_unit() of this model "
                                                   "returned others"));
    }

private:
    /// E-POLICY-12 where the policy's slot is not a value.
    void set_own(detail::unit_record& record, unit_options options) {
        const bool strategy = std::is_same_v<typename State::strategy_type, any_sharding>,
                   reshard = std::is_same_v<typename State::reshard_type, any_reshard>;
        if ((options.strategy.is_set && !strategy) || (options.reshard.is_set && !reshard)) {
            throw argument_error("E-POLICY-12",
                                 text("add_unit(\"", record.name, "\"): a ",
                                      options.strategy.is_set && !strategy ? "strategy" : "reshard policy",
                                      " of its own needs a policy whose slot is a value (any_sharding, any_reshard, or "
                                      "runtime_policy<>); this model has ",
                                      state_.policy.describe()));
        }
        record.strategy = std::move(options.strategy);
        record.reshard = std::move(options.reshard);
    }

    owning_list<unit> units_;  // ends behind the streams in state_, whose work names units

protected:
    State state_;
};

}  // namespace v0
}  // namespace reshard
