// SGD on the owned slices: one pass over the arena, behind the commit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "arena_optimizer.hpp"

namespace reshard {
inline namespace v0 {

/// What differs in a group of parameters from the optimizer's own numbers.
struct sgd_group {
    setting weight_decay = {};
    setting learning_rate_scale = {};  // multiplies the step's learning rate
};

/// A group's name, as in parameter_options.group, and its numbers.
struct named_sgd_group {
    std::string name;
    sgd_group numbers = {};
};

/// Defaults are PyTorch's. A momentum of 0 needs no state.
struct sgd_options {
    double learning_rate = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
    bool nesterov = false;
    std::vector<named_sgd_group> groups = {};
};

/// Numbers of one step; what is left out is as in the options. The same on all ranks.
struct sgd_step {
    setting learning_rate = {}, momentum = {}, dampening = {}, weight_decay = {};
    double gradient_scale = 1;  // a late factor of the gradients, before clipping
    double clip_norm = 0;       // 0: no clipping
};

/// Stochastic gradient descent as in PyTorch: decay is added to the gradient, momentum starts as the first gradient.
/// Make it before the model is built; it must live as long as the model takes steps.
template <class Model>
class sgd : public detail::arena_optimizer<sgd<Model>, Model, sgd_range, sgd_options, sgd_step> {
    using base = detail::arena_optimizer<sgd<Model>, Model, sgd_range, sgd_options, sgd_step>;
    using State = typename Model::state_type;
    friend base;

public:
    explicit sgd(Model& model, sgd_options options = {}) : base(model, std::move(options)) {
        if (base::options().momentum != 0) momentum_ = model.add_state("momentum");
    }

private:
    static constexpr const char* name = "sgd";

    static commit_options terms_of(const sgd_step& now) { return {now.gradient_scale, now.clip_norm, 0, 2}; }
    static sgd_range numbers_of(const sgd_options& options, const sgd_step& now, const sgd_group& group) {
        return {0,
                0,
                now.learning_rate.or_else(options.learning_rate) * group.learning_rate_scale.or_else(1),
                now.momentum.or_else(options.momentum),
                now.dampening.or_else(options.dampening),
                group.weight_decay.or_else(now.weight_decay.or_else(options.weight_decay)),
                options.nesterov};
    }
    static void check(const sgd_options& options, const sgd_range& numbers) {
        constexpr double any = 1e308;
        detail::require_number("sgd", "learning_rate", numbers.learning_rate, 0, any);
        detail::require_number("sgd", "momentum", numbers.momentum, 0, any);
        detail::require_number("sgd", "dampening", numbers.dampening, 0, any);
        detail::require_number("sgd", "weight_decay", numbers.weight_decay, 0, any);
        if (numbers.momentum != 0 && options.momentum == 0) {
            throw argument_error("E-OPTIM-4",
                                 text("sgd: momentum ", numbers.momentum,
                                      " in a step, but the optimizer was made "
                                      "with momentum 0 and has no state for it; give sgd_options a momentum"));
        }
    }
    static std::uint64_t mix(std::uint64_t hash, const sgd_range& numbers) {
        for (const double number : {numbers.learning_rate, numbers.momentum, numbers.dampening, numbers.weight_decay}) {
            hash = detail::mixed(hash, number);
        }
        return hash;
    }
    void enqueue(State& state, const sgd_range* table, std::size_t size) {
        using moment_type = typename State::moment_type;
        moment_type* momentum = nullptr;
        if (base::options().momentum != 0)
            momentum = reinterpret_cast<moment_type*>(state.moments[momentum_.index].data());
        state.device.sgd(
            table, size, state.outcome(), reinterpret_cast<typename State::master_type*>(state.masters.data()),
            reinterpret_cast<const typename State::accumulate_type*>(state.gradients.data()), momentum, state.compute);
    }

    state_handle momentum_;
};

}  // namespace v0
}  // namespace reshard
