// AdamW on the owned slices: one pass over the arena, behind the commit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "arena_optimizer.hpp"

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
class adamw : public detail::arena_optimizer<adamw<Model>, Model, adamw_range, adamw_options, adamw_step> {
    using base = detail::arena_optimizer<adamw<Model>, Model, adamw_range, adamw_options, adamw_step>;
    using State = typename Model::state_type;
    friend base;

public:
    explicit adamw(Model& model, adamw_options options = {})
        : base(model, std::move(options)), first_(model.add_state("moment1")), second_(model.add_state("moment2")) {}

private:
    static constexpr const char* name = "adamw";

    static commit_options terms_of(const adamw_step& now) { return {now.gradient_scale, now.clip_norm, now.count, 1}; }
    static adamw_range numbers_of(const adamw_options& options, const adamw_step& now, const adamw_group& group) {
        return {0,
                0,
                now.learning_rate.or_else(options.learning_rate) * group.learning_rate_scale.or_else(1),
                group.beta1.or_else(now.beta1.or_else(options.beta1)),
                group.beta2.or_else(now.beta2.or_else(options.beta2)),
                group.epsilon.or_else(now.epsilon.or_else(options.epsilon)),
                group.weight_decay.or_else(now.weight_decay.or_else(options.weight_decay))};
    }
    static void check(const adamw_options& /*options*/, const adamw_range& numbers) {
        constexpr double any = 1e308;
        detail::require_number("adamw", "learning_rate", numbers.learning_rate, 0, any);
        detail::require_number("adamw", "beta1", numbers.beta1, 0, 1);
        detail::require_number("adamw", "beta2", numbers.beta2, 0, 1);
        detail::require_number("adamw", "epsilon", numbers.epsilon, 0, any);
        detail::require_number("adamw", "weight_decay", numbers.weight_decay, 0, any);
    }
    static std::uint64_t mix(std::uint64_t hash, const adamw_range& numbers) {
        for (const double number :
             {numbers.learning_rate, numbers.beta1, numbers.beta2, numbers.epsilon, numbers.weight_decay}) {
            hash = detail::mixed(hash, number);
        }
        return hash;
    }
    void enqueue(State& state, const adamw_range* table, std::size_t size) {
        using moment_type = typename State::moment_type;
        state.device.adamw(table, size, state.outcome(),
                           reinterpret_cast<typename State::master_type*>(state.masters.data()),
                           reinterpret_cast<const typename State::accumulate_type*>(state.gradients.data()),
                           reinterpret_cast<moment_type*>(state.moments[first_.index].data()),
                           reinterpret_cast<moment_type*>(state.moments[second_.index].data()), state.compute);
    }

    state_handle first_, second_;
};

}  // namespace v0
}  // namespace reshard
