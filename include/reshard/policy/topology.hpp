// Group topologies: how the ranks of the data-parallel communicator are grouped.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>

#include "../core/text.hpp"
#include "../layout/division.hpp"
#include "../layout/extent.hpp"
#include "facts.hpp"

namespace reshard {
inline namespace v0 {

/// `outer` blocks of `inner` contiguous ranks; outer * inner is the world.
struct group_shape {
    std::size_t outer = 1;
    std::size_t inner = 1;
    bool operator==(const group_shape&) const = default;
};

namespace detail {
template <class Model>
concept tells_levels = requires(const Model& model) {
    { model.levels() } -> std::convertible_to<std::size_t>;
};
template <class Model>
concept tells_resolve = requires(const Model& model, std::size_t world) {
    { model.resolve(world) } -> std::same_as<group_shape>;
};
}  // namespace detail

/// * levels(): 1 (the whole group alone) or 2 (inner and outer groups);
/// * resolve(world): the shape for so many ranks; throws topology_error if they do not fit.
/// Optional: `describe()`, for reports; `fault()`, a fact of type misfit: what the compiler can already refuse.
template <class Model>
concept GroupTopology = detail::tells_levels<Model> && detail::tells_resolve<Model>;

/// All ranks in one group: exactly Ranks of them, or any number (flat<dynamic>).
template <std::size_t Ranks>
struct flat {
    static constexpr auto levels() { return fact<std::size_t{1}>; }
    static constexpr auto fault() { return fact<first_misfit({.outer = 1, .inner = Ranks})>; }
    static group_shape resolve(std::size_t world) {
        require_fit({.world = world, .outer = 1, .inner = Ranks});
        return {1, world};
    }
    static std::string describe() { return text("flat<", extent_text(Ranks), ">"); }
};

}  // namespace v0
}  // namespace reshard
