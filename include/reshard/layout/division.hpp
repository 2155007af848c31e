// Which group sizes fit each other. One constexpr function serves the compiler's refusals and the errors at build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "extent.hpp"

namespace reshard {
inline namespace v0 {

/// Sizes in ranks; `dynamic` stands for a size that is not known yet or not asked for.
/// The world is `outer` blocks of `inner` ranks. The shard group is the block; `secondary` is a part of it.
struct group_sizes {
    std::size_t world = dynamic;
    std::size_t outer = dynamic;
    std::size_t inner = dynamic;
    std::size_t secondary = dynamic;
};

/// The first thing wrong with the sizes of groups.
enum class misfit : std::uint8_t {
    none,
    group_of_no_ranks,                      // some size is 0
    world_is_not_the_product,               // outer x inner ranks asked for, the world has others
    shard_group_does_not_divide_the_world,  // world known, outer not
    outer_group_does_not_divide_the_world,  // world known, inner not
    secondary_group_does_not_divide_the_shard_group
};

/// Judges what is known; unknown sizes are taken to fit.
constexpr misfit first_misfit(group_sizes sizes) {
    if (sizes.world == 0 || sizes.outer == 0 || sizes.inner == 0 || sizes.secondary == 0)
        return misfit::group_of_no_ranks;
    const bool world = sizes.world != dynamic, outer = sizes.outer != dynamic, inner = sizes.inner != dynamic;
    if (world && outer && inner) {
        // by division, so that no product can overflow
        if (sizes.world / sizes.inner != sizes.outer || sizes.world % sizes.inner != 0)
            return misfit::world_is_not_the_product;
    } else if (world && inner && sizes.world % sizes.inner != 0) {
        return misfit::shard_group_does_not_divide_the_world;
    } else if (world && outer && sizes.world % sizes.outer != 0) {
        return misfit::outer_group_does_not_divide_the_world;
    }
    if (sizes.secondary == dynamic) return misfit::none;
    const std::size_t shard_group = inner ? sizes.inner : world && outer ? sizes.world / sizes.outer : dynamic;
    if (shard_group != dynamic && shard_group % sizes.secondary != 0)
        return misfit::secondary_group_does_not_divide_the_shard_group;
    return misfit::none;
}

/// "1, 2, 4 or 8": all divisors of a size above 0, ascending.
inline std::string divisors_text(std::size_t size) {
    std::string out;
    for (std::size_t divisor = 1; divisor <= size; ++divisor) {
        if (size % divisor != 0) continue;
        if (!out.empty()) out.append(divisor == size ? " or " : ", ");
        out.append(to_text(divisor));
    }
    return out;
}

/// What is wrong, the numbers and the ways out. `reason` is what first_misfit(sizes) gave, not none.
inline std::string misfit_text(misfit reason, group_sizes sizes) {
    switch (reason) {
    case misfit::group_of_no_ranks:
        return text("a group has no ranks (world ", extent_text(sizes.world), ", outer ", extent_text(sizes.outer),
                    ", inner ", extent_text(sizes.inner), ", secondary ", extent_text(sizes.secondary),
                    "); every size is at least 1");
    case misfit::world_is_not_the_product:
        if (sizes.outer == 1)
            return text("the topology is made for ", sizes.inner, " ranks, the communicator has ", sizes.world,
                        "; start ", sizes.inner, " ranks, or write flat<", sizes.world, "> or flat<dynamic>");
        return text("outer ", sizes.outer, " x inner ", sizes.inner, " does not equal the world of ", sizes.world,
                    " ranks; leave one of the two dynamic or start ", sizes.outer, " x ", sizes.inner, " ranks");
    case misfit::shard_group_does_not_divide_the_world:
        return text("shard group of ", sizes.inner, " does not divide the world of ", sizes.world, " ranks; use ",
                    divisors_text(sizes.world));
    case misfit::outer_group_does_not_divide_the_world:
        return text("outer group of ", sizes.outer, " does not divide the world of ", sizes.world, " ranks; use ",
                    divisors_text(sizes.world));
    case misfit::secondary_group_does_not_divide_the_shard_group:
        break;
    case misfit::none:
        return "the group sizes fit";
    }
    const std::size_t shard_group = sizes.inner != dynamic ? sizes.inner : sizes.world / sizes.outer;
    const std::string world = sizes.world == dynamic ? std::string()
                                                     : text(" (world ", sizes.world, " = ", sizes.world / shard_group,
                                                            " x ", shard_group, ")");
    return text("secondary group of ", sizes.secondary, " does not divide the shard group of ", shard_group, world,
                "; use ", divisors_text(shard_group));
}

/// Throws topology_error (E-TOPOLOGY-1) with the text if the sizes do not fit.
inline void require_fit(group_sizes sizes) {
    const misfit reason = first_misfit(sizes);
    if (reason != misfit::none) throw topology_error("E-TOPOLOGY-1", misfit_text(reason, sizes));
}

}  // namespace v0
}  // namespace reshard
