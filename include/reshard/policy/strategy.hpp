// Sharding strategies: where parameters, gradients and optimizer state rest between uses.
#pragma once

#include <concepts>
#include <string>

#include "../core/text.hpp"
#include "facts.hpp"

namespace reshard {
inline namespace v0 {

namespace detail {
template <class Model>
concept tells_parameters = requires(const Model& model, unit_place unit) {
    { model.parameters(unit) } -> std::convertible_to<placement>;
};
template <class Model>
concept tells_gradients = requires(const Model& model, unit_place unit) {
    { model.gradients(unit) } -> std::convertible_to<placement>;
};
template <class Model>
concept tells_optimizer_state = requires(const Model& model, unit_place unit) {
    { model.optimizer_state(unit) } -> std::convertible_to<placement>;
};
}  // namespace detail

/// Three facts for each unit, none less sharded than the one before it:
/// * parameters(unit): the resting copy in the compute type;
/// * gradients(unit): the sums that the update reads;
/// * optimizer_state(unit): moments and masters.
/// Write your own as a struct with these functions (and `describe()`, for reports); return `fact<placement::whole>`
/// where the answer is the same for all units.
template <class Model>
concept ShardingStrategy =
    detail::tells_parameters<Model> && detail::tells_gradients<Model> && detail::tells_optimizer_state<Model>;

/// Everything whole on every rank: plain data parallelism (DDP). One all-reduce of a unit's gradients a step.
struct no_shard {
    static constexpr auto parameters(unit_place) { return fact<placement::replicated>; }
    static constexpr auto gradients(unit_place) { return fact<placement::replicated>; }
    static constexpr auto optimizer_state(unit_place) { return fact<placement::replicated>; }
    static std::string describe() { return "no_shard"; }
};

/// ZeRO-1: every rank updates its own slice; parameters are gathered once after the update.
struct shard_optimizer {
    static constexpr auto parameters(unit_place) { return fact<placement::replicated>; }
    static constexpr auto gradients(unit_place) { return fact<placement::replicated>; }
    static constexpr auto optimizer_state(unit_place) { return fact<placement::whole>; }
    static std::string describe() { return "shard_optimizer"; }
};

/// ZeRO-2: as ZeRO-1, and every rank keeps the sums of its own slice of the gradients alone.
struct shard_gradients {
    static constexpr auto parameters(unit_place) { return fact<placement::replicated>; }
    static constexpr auto gradients(unit_place) { return fact<placement::whole>; }
    static constexpr auto optimizer_state(unit_place) { return fact<placement::whole>; }
    static std::string describe() { return "shard_gradients"; }
};

/// ZeRO-3: parameters too rest in slices and are gathered for use, as the reshard policy says.
struct full_shard {
    static constexpr auto parameters(unit_place) { return fact<placement::whole>; }
    static constexpr auto gradients(unit_place) { return fact<placement::whole>; }
    static constexpr auto optimizer_state(unit_place) { return fact<placement::whole>; }
    static std::string describe() { return "full_shard"; }
};

/// HSDP: all three in slices of the inner group (of a mesh or a node), replicated over the outer one. Gathers stay in
/// the inner group; the sums of gradients are added up over the outer one once a step.
struct hybrid_shard {
    static constexpr auto parameters(unit_place) { return fact<placement::inner>; }
    static constexpr auto gradients(unit_place) { return fact<placement::inner>; }
    static constexpr auto optimizer_state(unit_place) { return fact<placement::inner>; }
    static std::string describe() { return "hybrid_shard"; }
};

/// HFSDP: as hybrid_shard, and the optimizer state rests in slices of the whole group; new parameters are exchanged
/// over the outer group once a step.
struct hybrid_full_shard {
    static constexpr auto parameters(unit_place) { return fact<placement::inner>; }
    static constexpr auto gradients(unit_place) { return fact<placement::inner>; }
    static constexpr auto optimizer_state(unit_place) { return fact<placement::whole>; }
    static std::string describe() { return "hybrid_full_shard"; }
};

/// Any placements, none less sharded than the one before it: sharding<placement::inner, placement::inner,
/// placement::whole> is hybrid_full_shard.
template <placement Parameters, placement Gradients, placement OptimizerState>
struct sharding {
    static constexpr auto parameters(unit_place) { return fact<Parameters>; }
    static constexpr auto gradients(unit_place) { return fact<Gradients>; }
    static constexpr auto optimizer_state(unit_place) { return fact<OptimizerState>; }
    static std::string describe() {
        return text("sharding<", name_of(Parameters), ", ", name_of(Gradients), ", ", name_of(OptimizerState), ">");
    }
};

/// "parameters whole, gradients whole, optimizer state whole": the facts in words.
template <ShardingStrategy Strategy>
std::string placements_text(const Strategy& strategy, unit_place unit) {
    const placement parameters = strategy.parameters(unit), gradients = strategy.gradients(unit),
                    optimizer_state = strategy.optimizer_state(unit);
    return text("parameters ", name_of(parameters), ", gradients ", name_of(gradients), ", optimizer state ",
                name_of(optimizer_state));
}

}  // namespace v0
}  // namespace reshard
