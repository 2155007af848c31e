// Which elements of which parameters a rank's slice holds.
#pragma once

#include <cstddef>
#include <vector>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "unit_layout.hpp"

namespace reshard {
inline namespace v0 {

/// A run of elements of one parameter inside one slice; offsets and count in elements.
struct slice_piece {
    std::size_t parameter;  // in unit_layout::parameters()
    std::size_t offset_in_parameter;
    std::size_t offset_in_slice;
    std::size_t count;  // above 0
};

/// The slice that `rank` owns, of inner x outer slices; ranks are numbered o * inner + i (i in its block, o the block).
/// `split`: some state rests over the inner group and another over the whole, which transfers in two stages; the
/// slice is then number i * outer + o, so that it lies inside the block's own slice i. Otherwise it is number `rank`.
constexpr std::size_t slice_number(std::size_t rank, std::size_t inner, std::size_t outer, bool split) {
    return split ? rank % inner * outer + rank / inner : rank;
}

/// The pieces of slice `number` of `shards` equal slices of a segment, in ascending order; gaps and padding are left
/// out. Throws argument_error (E-LAYOUT-8) if `shards` does not divide the layout's ranks or `number` is too large.
inline std::vector<slice_piece> pieces_of_slice(const unit_layout& layout, std::size_t segment_index,
                                                std::size_t shards, std::size_t number) {
    if (shards == 0 || layout.ranks() % shards != 0 || number >= shards)
        throw argument_error("E-LAYOUT-8",
                             text("slice ", number, " of ", shards, " asked for; a layout of ", layout.ranks(),
                                  " ranks has slices 0 to n - 1 of n, n dividing ", layout.ranks()));
    const std::size_t slice = layout.segments()[segment_index].elements / shards;
    const std::size_t begin = number * slice, end = begin + slice;
    std::vector<slice_piece> pieces;
    for (std::size_t index = 0; index < layout.parameters().size(); ++index) {
        const parameter_place& place = layout.parameters()[index];
        if (place.segment != segment_index) continue;
        const std::size_t first = place.offset > begin ? place.offset : begin;
        const std::size_t last = place.offset + place.count < end ? place.offset + place.count : end;
        if (first < last) pieces.push_back({index, first - place.offset, first - begin, last - first});
    }
    return pieces;
}

}  // namespace v0
}  // namespace reshard
