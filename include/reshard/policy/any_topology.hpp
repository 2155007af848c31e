// A group topology as a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "option_text.hpp"
#include "topology.hpp"

namespace reshard {
inline namespace v0 {

/// A group topology found at run time. By default flat, of any number of ranks.
class any_topology {
public:
    constexpr any_topology() = default;
    template <std::size_t Ranks>
        requires(Ranks > 0)
    constexpr any_topology(flat<Ranks>) : inner_(Ranks) {}
    template <std::size_t Outer, std::size_t Inner>
        requires(Outer > 0 && Inner > 0 && (Outer != dynamic || Inner != dynamic))
    constexpr any_topology(mesh<Outer, Inner>) : kind_(kind::mesh), outer_(Outer), inner_(Inner) {}
    constexpr any_topology(by_node) : kind_(kind::by_node) {}

    /// "flat", "flat:4", "mesh:2x4", "mesh:*x4" (* for dynamic), "by_node"; throws argument_error (E-POLICY-7) that
    /// lists names(), or topology_error (E-TOPOLOGY-4) for "mesh:*x*".
    static any_topology parse(std::string_view given) {
        const detail::option_text option(given);
        any_topology out;
        if (given == "by_node") return by_node{};
        if (option.name == "mesh") {
            const detail::option_text extents(option.rest, 'x');
            out.kind_ = kind::mesh;
            out.outer_ = extent_in(extents.name, given);
            out.inner_ = extent_in(extents.rest, given);
            detail::require_one_known(out.outer_, out.inner_);
            return out;
        }
        if (option.name != "flat") detail::unknown_name("group topology", given, names());
        if (given != "flat") out.inner_ = detail::positive_number(option.rest, given, "flat:4");
        return out;
    }
    static std::span<const char* const> names() {
        static constexpr const char* list[] = {"flat", "flat:<n>", "mesh:<outer>x<inner>", "by_node"};
        return list;
    }

    constexpr std::size_t levels() const { return kind_ == kind::flat ? 1 : 2; }
    constexpr bool by_nodes() const { return kind_ == kind::by_node; }
    /// by_node cannot tell from a number alone: E-TOPOLOGY-3.
    group_shape resolve(std::size_t world) const {
        if (kind_ == kind::by_node)
            throw topology_error("E-TOPOLOGY-3", text("by_node needs the machine of each of the ", world,
                                                      " ranks, not their number alone; call "
                                                      "resolve(node_of_rank)"));
        if (kind_ == kind::mesh) return detail::mesh_shape(outer_, inner_, world);
        require_fit({.world = world, .outer = 1, .inner = inner_});
        return {1, world};
    }
    group_shape resolve(std::span<const std::size_t> node_of_rank) const {
        return by_nodes() ? by_node::resolve(node_of_rank) : resolve(node_of_rank.size());
    }
    bool operator==(const any_topology&) const = default;
    std::string describe() const {
        if (kind_ == kind::by_node) return by_node::describe();
        if (kind_ == kind::mesh) return text("mesh<", extent_text(outer_), ", ", extent_text(inner_), ">");
        return text("flat<", extent_text(inner_), ">");
    }

private:
    enum class kind : std::uint8_t { flat, mesh, by_node };

    static std::size_t extent_in(std::string_view given, std::string_view whole) {
        if (given == "*") return dynamic;
        const std::size_t extent = detail::number_of(given);
        if (extent == 0 || extent == dynamic)
            throw argument_error("E-POLICY-7", text("\"", whole,
                                                    "\" needs two whole numbers above 0, or a * for one of "
                                                    "them, as in mesh:2x4 or mesh:*x4"));
        return extent;
    }

    kind kind_ = kind::flat;
    std::size_t outer_ = 1;
    std::size_t inner_ = dynamic;
};

}  // namespace v0
}  // namespace reshard
