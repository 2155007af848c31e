// AdamW on the owned slices: one pass over the arena, behind the commit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../engine/model.hpp"
#include "settings.hpp"

namespace reshard {
inline namespace v0 {

/// What differs in a group of parameters from the optimizer's own numbers.
struct adamw_group {
    setting weight_decay = {};
    setting learning_rate_scale = {};  // multiplies the step's learning rate
    setting beta1 = {}, beta2 = {}, epsilon = {};
};

/// A group's name, as in parameter_options.group, and its numbers.
struct named_adamw_group {
    std::string name;
    adamw_group numbers = {};
};

/// Defaults are PyTorch's.
struct adamw_options {
    double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
    std::vector<named_adamw_group> groups = {};
};

/// Numbers of one step; what is left out is as in the options. The same on all ranks.
struct adamw_step {
    setting learning_rate = {}, beta1 = {}, beta2 = {}, epsilon = {}, weight_decay = {};
    double gradient_scale = 1;  // a late factor of the gradients, before clipping
    double clip_norm = 0;       // 0: no clipping
    std::uint64_t count = 0;    // step count for the bias correction; 0: one more than the last applied step
};

/// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), bias
/// corrected by the number of applied steps. Two states per element, in the moments' type. Make it before the model is
/// built; it must live as long as the model takes steps.
template <class Model>
class adamw {
    using State = typename Model::state_type;

public:
    explicit adamw(Model& model, adamw_options options = {})
        : model_(model),
          options_(std::move(options)),
          first_(model.add_state("moment1")),
          second_(model.add_state("moment2")) {
        for (const named_adamw_group& group : options_.groups) names_.push_back(group.name);
        check(numbers_of(options_, {}, {}));
        for (const named_adamw_group& group : options_.groups) check(numbers_of(options_, {}, group.numbers));
    }
    ~adamw() { device_.settle(compute_); }  // which may still read the tables
    adamw(const adamw&) = delete;
    adamw& operator=(const adamw&) = delete;

    /// Ends the step: one commit, then the update if all ranks voted for it and every gradient is finite; model.outcome()
    /// tells. Throws argument_error before anything is sent.
    void step(const adamw_step& now = {}) {
        State& state = model_.internals();
        detail::require_step_through(state, "step()");
        if (tables_.empty()) {
            ranges_ = detail::group_ranges(state, names_, "adamw");
            tables_.fill(ranges_, state.device);
        }
        groups_.clear();
        groups_.push_back(numbers_of(options_, now, {}));
        for (const named_adamw_group& group : options_.groups) groups_.push_back(numbers_of(options_, now, group.numbers));
        for (const adamw_range& group : groups_) check(group);
        std::vector<adamw_range>& table = tables_.next(state.device);
        for (std::size_t r = 0; r < ranges_.size(); ++r) {
            adamw_range row = groups_[ranges_[r].group];
            row.begin = ranges_[r].begin;
            row.count = ranges_[r].count;
            table[r] = row;
        }
        model_.step({now.gradient_scale, now.clip_norm, now.count}, {&adamw::update, this});
    }

private:
    static adamw_range numbers_of(const adamw_options& options, const adamw_step& now, const adamw_group& group) {
        return {0, 0,
                now.learning_rate.or_else(options.learning_rate) * group.learning_rate_scale.or_else(1),
                group.beta1.or_else(now.beta1.or_else(options.beta1)),
                group.beta2.or_else(now.beta2.or_else(options.beta2)),
                group.epsilon.or_else(now.epsilon.or_else(options.epsilon)),
                group.weight_decay.or_else(now.weight_decay.or_else(options.weight_decay))};
    }
    static void check(const adamw_range& numbers) {
        constexpr double any = 1e308;
        detail::require_number("adamw", "learning_rate", numbers.learning_rate, 0, any);
        detail::require_number("adamw", "beta1", numbers.beta1, 0, 1);
        detail::require_number("adamw", "beta2", numbers.beta2, 0, 1);
        detail::require_number("adamw", "epsilon", numbers.epsilon, 0, any);
        detail::require_number("adamw", "weight_decay", numbers.weight_decay, 0, any);
    }

    /// Runs between vote and the next use of the weights. One kernel: it is enqueued, or this throws.
    static void update(void* self) { static_cast<adamw*>(self)->enqueue_update(); }
    void enqueue_update() {
        using moment_type = typename State::moment_type;
        State& state = model_.internals();
        const auto& table = tables_.now();
        state.device.adamw(table.data(), table.size(), state.outcome(),
                           reinterpret_cast<typename State::master_type*>(state.masters.data()),
                           reinterpret_cast<const typename State::accumulate_type*>(state.gradients.data()),
                           reinterpret_cast<moment_type*>(state.moments[first_.index].data()),
                           reinterpret_cast<moment_type*>(state.moments[second_.index].data()), state.compute);
        tables_.mark_read(state.device, state.compute);
    }

    Model& model_;
    typename State::device_type device_ = model_.internals().device;
    typename State::stream_ref compute_ = model_.internals().compute;
    adamw_options options_;
    state_handle first_, second_;
    std::vector<std::string> names_;
    std::vector<detail::group_range> ranges_;
    std::vector<adamw_range> groups_;
    detail::range_tables<adamw_range, typename State::device_type> tables_;
};

}  // namespace v0
}  // namespace reshard
