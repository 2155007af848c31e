// A sharding strategy as a value.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "option_text.hpp"
#include "strategy.hpp"

namespace reshard {
inline namespace v0 {

/// A sharding strategy found at run time, the same for all units. By default full_shard.
class any_sharding {
public:
    constexpr any_sharding() : any_sharding(full_shard{}) {}
    constexpr any_sharding(no_shard strategy) : any_sharding(strategy, unit_place{}) {}
    constexpr any_sharding(shard_optimizer strategy) : any_sharding(strategy, unit_place{}) {}
    constexpr any_sharding(shard_gradients strategy) : any_sharding(strategy, unit_place{}) {}
    constexpr any_sharding(full_shard strategy) : any_sharding(strategy, unit_place{}) {}
    constexpr any_sharding(hybrid_shard strategy) : any_sharding(strategy, unit_place{}) {}
    constexpr any_sharding(hybrid_full_shard strategy) : any_sharding(strategy, unit_place{}) {}
    template <placement Parameters, placement Gradients, placement OptimizerState>
    constexpr any_sharding(sharding<Parameters, Gradients, OptimizerState>)
        : any_sharding(Parameters, Gradients, OptimizerState) {}
    /// Any three placements; policy::check() refuses what does not go together.
    constexpr any_sharding(placement of_parameters, placement of_gradients, placement of_optimizer_state)
        : parameters_(of_parameters), gradients_(of_gradients), optimizer_state_(of_optimizer_state) {}

    /// "full_shard", "sharding:inner,inner,whole"; throws argument_error (E-POLICY-7) that lists names().
    static any_sharding parse(std::string_view name) {
        if (name == "no_shard") return no_shard{};
        if (name == "shard_optimizer") return shard_optimizer{};
        if (name == "shard_gradients") return shard_gradients{};
        if (name == "full_shard") return full_shard{};
        if (name == "hybrid_shard") return hybrid_shard{};
        if (name == "hybrid_full_shard") return hybrid_full_shard{};
        if (const detail::option_text option(name); option.name == "sharding") return placements_in(option.rest, name);
        detail::unknown_name("sharding strategy", name, names());
    }
    static std::span<const char* const> names() {
        static constexpr const char* list[] = {"no_shard",
                                               "shard_optimizer",
                                               "shard_gradients",
                                               "full_shard",
                                               "hybrid_shard",
                                               "hybrid_full_shard",
                                               "sharding:<parameters>,<gradients>,<optimizer state>"};
        return list;
    }

    constexpr placement parameters(unit_place) const { return parameters_; }
    constexpr placement gradients(unit_place) const { return gradients_; }
    constexpr placement optimizer_state(unit_place) const { return optimizer_state_; }
    bool operator==(const any_sharding&) const = default;

    std::string describe() const {
        for (const char* name : names().first(6)) {
            if (*this == parse(name)) return name;
        }
        return text("sharding<", name_of(parameters_), ", ", name_of(gradients_), ", ", name_of(optimizer_state_), ">");
    }

private:
    template <class Strategy>
    constexpr any_sharding(Strategy strategy, unit_place unit)
        : any_sharding(strategy.parameters(unit), strategy.gradients(unit), strategy.optimizer_state(unit)) {}

    static any_sharding placements_in(std::string_view rest, std::string_view whole_text) {
        const detail::option_text first(rest, ','), second(first.rest, ',');
        placement found[3] = {};
        const std::string_view given[] = {first.name, second.name, second.rest};
        for (std::size_t state = 0; state < 3; ++state) {
            bool known = false;
            for (const placement where : {placement::replicated, placement::inner, placement::whole}) {
                if (given[state] != name_of(where)) continue;
                found[state] = where;
                known = true;
            }
            if (!known)
                throw argument_error("E-POLICY-7", text("\"", whole_text,
                                                        "\" needs three of replicated, inner and whole "
                                                        "behind the colon, for parameters, gradients and optimizer "
                                                        "state, as in sharding:inner,inner,whole"));
        }
        return {found[0], found[1], found[2]};
    }

    placement parameters_, gradients_, optimizer_state_;
};

}  // namespace v0
}  // namespace reshard
