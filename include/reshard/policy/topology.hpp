// Group topologies: how the ranks of the data-parallel communicator are grouped.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "../core/error.hpp"
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
concept resolves_count = requires(const Model& model, std::size_t world) {
    { model.resolve(world) } -> std::same_as<group_shape>;
};
template <class Model>
concept resolves_nodes = requires(const Model& model, std::span<const std::size_t> node_of_rank) {
    { model.resolve(node_of_rank) } -> std::same_as<group_shape>;
};
template <class Model>
concept tells_resolve = resolves_count<Model> || resolves_nodes<Model>;

/// Whether the shape is found from the machines: the topology's by_nodes() where it has one.
template <class Topology>
constexpr auto asks_for_nodes(const Topology& topology) {
    if constexpr (requires { topology.by_nodes(); })
        return topology.by_nodes();
    else
        return fact<!resolves_count<Topology>>;
}

/// E-TOPOLOGY-4 for a mesh of which nothing is known.
inline void require_one_known(std::size_t outer, std::size_t inner) {
    if (outer == dynamic && inner == dynamic)
        throw topology_error("E-TOPOLOGY-4", "mesh<dynamic, dynamic>: one of the two must be known; use by_node to "
                                             "take it from the machines");
}

/// The shape of a mesh, one of whose sizes may be dynamic; throws E-TOPOLOGY-1, and E-TOPOLOGY-4 if both are.
inline group_shape mesh_shape(std::size_t outer, std::size_t inner, std::size_t world) {
    require_one_known(outer, inner);
    require_fit({.world = world, .outer = outer, .inner = inner});
    return {outer == dynamic ? world / inner : outer, inner == dynamic ? world / outer : inner};
}

/// The lengths of the runs of equal numbers.
inline std::vector<std::size_t> run_lengths(std::span<const std::size_t> numbers) {
    std::vector<std::size_t> out;
    for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
        if (rank == 0 || numbers[rank] != numbers[rank - 1]) out.push_back(0);
        ++out.back();
    }
    return out;
}

/// Machines as equal contiguous blocks of ranks; E-TOPOLOGY-3 otherwise.
inline group_shape shape_of_nodes(std::span<const std::size_t> node_of_rank) {
    if (node_of_rank.empty()) require_fit({.world = 0});
    for (std::size_t rank = 1; rank < node_of_rank.size(); ++rank) {
        if (node_of_rank[rank] == node_of_rank[rank - 1]) continue;
        for (std::size_t earlier = 0; earlier + 1 < rank; ++earlier) {
            if (node_of_rank[earlier] != node_of_rank[rank]) continue;
            throw topology_error("E-TOPOLOGY-3",
                                 text("by_node: rank ", rank, " runs on the machine of rank ", earlier, ", but rank ",
                                      rank - 1,
                                      " between them on another; number the ranks machine by machine (mpirun "
                                      "--map-by slot), or write mesh<outer, inner> or a flat topology"));
        }
    }
    const std::vector<std::size_t> sizes = run_lengths(node_of_rank);
    for (const std::size_t size : sizes) {
        if (size != sizes.front())
            throw topology_error("E-TOPOLOGY-3", text("by_node: the machines have ", joined(sizes),
                                                      " ranks, which must be equally many; start as many on each, or "
                                                      "write mesh<outer, inner> or a flat topology"));
    }
    return {sizes.size(), sizes.front()};
}
}  // namespace detail

/// * levels(): 1 (the whole group alone) or 2 (inner and outer groups);
/// * resolve(world): the shape for so many ranks; throws topology_error if they do not fit. Or, for shapes that follow
///   the machines, resolve(node_of_rank): for each rank a number that the ranks of one machine share.
/// Optional: `describe()`, for reports; `sizes()`, a fact of type group_sizes: what the compiler can judge;
/// `by_nodes()`, where a topology has both forms of resolve(): which of the two is to be called.
template <class Model>
concept GroupTopology = detail::tells_levels<Model> && detail::tells_resolve<Model>;

/// All ranks in one group: exactly Ranks of them, or any number (flat<dynamic>).
template <std::size_t Ranks>
struct flat {
    static constexpr auto levels() { return fact<std::size_t{1}>; }
    static constexpr group_sizes sizes() { return {.outer = 1, .inner = Ranks}; }
    static group_shape resolve(std::size_t world) {
        require_fit({.world = world, .outer = 1, .inner = Ranks});
        return {1, world};
    }
    static std::string describe() { return text("flat<", extent_text(Ranks), ">"); }
};

/// Outer blocks of Inner contiguous ranks, as Outer machines with Inner accelerators each. One of the two may be
/// dynamic: it follows from the number of ranks.
template <std::size_t Outer, std::size_t Inner>
struct mesh {
    static constexpr auto levels() { return fact<std::size_t{2}>; }
    static constexpr group_sizes sizes() { return {.outer = Outer, .inner = Inner}; }
    static group_shape resolve(std::size_t world) { return detail::mesh_shape(Outer, Inner, world); }
    static std::string describe() { return text("mesh<", extent_text(Outer), ", ", extent_text(Inner), ">"); }
};

/// The inner group is the ranks that share a machine. Ranks of one machine must be contiguous, and every machine must
/// have equally many (E-TOPOLOGY-3).
struct by_node {
    static constexpr auto levels() { return fact<std::size_t{2}>; }
    static constexpr auto by_nodes() { return fact<true>; }
    static group_shape resolve(std::span<const std::size_t> node_of_rank) {
        return detail::shape_of_nodes(node_of_rank);
    }
    static std::string describe() { return "by_node"; }
};

}  // namespace v0
}  // namespace reshard
