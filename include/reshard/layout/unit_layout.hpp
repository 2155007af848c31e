// Where the parameters of a unit lie in its flat buffers: the only place that divides a unit by ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "../core/types.hpp"
#include "parameter.hpp"

namespace reshard {
inline namespace v0 {

/// Alignments are in elements, so that an element has the same offset in every arena whatever its type.
struct layout_options {
    /// Every parameter starts at a multiple of this; 0 means 256 bytes of the smallest element type in use.
    std::size_t parameter_alignment = 0;
    /// Every rank's slice is a multiple of this.
    std::size_t slice_alignment = 64;
    /// Bytes of the smallest element in any other arena of the unit (gradients, masters, moments).
    std::size_t smallest_element = 4;
};

/// The parameters of one (type, trainable) pair: padded, sliced and gathered by itself. Padding is zero.
struct segment {
    dtype type;
    bool trainable;
    std::size_t elements;         // with padding: a multiple of ranks x slice alignment; 0 if all parameters are empty
    std::size_t slice;            // elements / ranks
    std::size_t byte_offset;      // in the gather buffer
    std::size_t gradient_offset;  // in the gradient buffer, elements; no_gradient unless trainable
};

struct parameter_place {
    std::string name;
    std::vector<std::size_t> shape;
    std::string group;
    std::size_t segment;  // in unit_layout::segments()
    std::size_t offset;   // in the segment, elements
    std::size_t count;    // elements
    gradient_write write;
};

/// Segments lie behind one another in the order in which their first parameter was named; inside a segment,
/// parameters keep their order. The same on all ranks.
class unit_layout {
public:
    /// Throws argument_error: no or two equal or empty names, a shape without extents, numbers that overflow
    /// (E-LAYOUT-1 to 4), ranks or slice alignment 0 (E-LAYOUT-5).
    static unit_layout build(std::uint32_t id, const std::vector<parameter_spec>& specs, std::size_t ranks,
                             layout_options options, dtype model_type);

    std::uint32_t id() const { return id_; }
    std::size_t ranks() const { return ranks_; }
    std::span<const parameter_place> parameters() const { return parameters_; }
    std::span<const segment> segments() const { return segments_; }
    /// Sum of all parameters' elements, without padding.
    std::size_t elements() const { return elements_; }
    /// Of the gather buffer, padding included.
    std::size_t bytes() const { return bytes_; }
    /// Of the gradient buffer, padding included; non-trainable segments have no part in it.
    std::size_t gradient_elements() const { return gradient_elements_; }

    /// Throws argument_error (E-LAYOUT-6) that names the known ones.
    std::uint32_t index_of(std::string_view name) const;
    dtype type_of(std::uint32_t index) const { return segments_[parameters_[index].segment].type; }
    /// In the gather buffer.
    std::size_t byte_offset_of(std::uint32_t index) const;
    /// In the gradient buffer, elements; no_gradient if the parameter is not trainable.
    std::size_t gradient_offset_of(std::uint32_t index) const;

private:
    void place(const parameter_spec& spec, std::size_t alignment, dtype model_type);
    void finish(layout_options options, std::size_t alignment, std::size_t smallest);

    std::uint32_t id_ = 0;
    std::size_t ranks_ = 1, elements_ = 0, bytes_ = 0, gradient_elements_ = 0;
    std::vector<parameter_place> parameters_;
    std::vector<segment> segments_;
};

/// A layout of a model with this compute type: gives typed handles.
template <Element Compute>
class typed_layout : public unit_layout {
public:
    explicit typed_layout(unit_layout&& layout) : unit_layout(std::move(layout)) {}

    /// Throws argument_error: an unknown name (E-LAYOUT-6), another type (E-LAYOUT-7, with both types).
    v0::parameter<Compute> parameter(std::string_view name) const { return parameter(name, as<Compute>); }
    template <Element Type>
    v0::parameter<Type> parameter(std::string_view name, as_type<Type>) const {
        const std::uint32_t index = index_of(name);
        if (type_of(index) != dtype_of<Type>)
            throw argument_error("E-LAYOUT-7", text("parameter \"", name, "\" is ", name_of(type_of(index)),
                                                    ", asked for as ", name_of(dtype_of<Type>), "; write parameter(\"",
                                                    name, "\", as<", name_of(type_of(index)), ">)"));
        return {id(), index, byte_offset_of(index), gradient_offset_of(index), parameters()[index].count};
    }
};

namespace detail {

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

constexpr std::size_t least_common_multiple(std::size_t left, std::size_t right) {
    std::size_t larger = left, smaller = right;
    while (smaller != 0) {
        const std::size_t rest = larger % smaller;
        larger = smaller;
        smaller = rest;
    }
    return left / larger * right;
}

/// Far below what could overflow when offsets, padding and bytes are computed from it.
inline constexpr std::size_t most_elements = std::size_t{1} << 56;

inline std::size_t elements_of(const parameter_spec& spec) {
    if (spec.shape.empty())
        throw argument_error("E-LAYOUT-3",
                             text("parameter \"", spec.name, "\" has a shape without extents; a single number is {1}"));
    std::size_t count = 1;
    for (const std::size_t extent : spec.shape) {
        if (__builtin_mul_overflow(count, extent, &count) || count > most_elements)
            throw argument_error("E-LAYOUT-4", text("parameter \"", spec.name, "\" of shape {", joined(spec.shape),
                                                    "} is too large; was an extent negative before it was converted?"));
    }
    return count;
}

}  // namespace detail

inline unit_layout unit_layout::build(std::uint32_t id, const std::vector<parameter_spec>& specs, std::size_t ranks,
                                      layout_options options, dtype model_type) {
    if (specs.empty()) throw argument_error("E-LAYOUT-1", "a unit needs at least one parameter, 0 were given");
    if (ranks == 0 || options.slice_alignment == 0)
        throw argument_error("E-LAYOUT-5", text("ranks (", ranks, ") and slice alignment (", options.slice_alignment,
                                                ") of a layout are at least 1"));
    std::size_t smallest = options.smallest_element;
    for (const parameter_spec& spec : specs) {
        const std::size_t bytes = size_of(spec.options.type.or_else(model_type));
        if (bytes < smallest) smallest = bytes;
    }
    const std::size_t alignment = options.parameter_alignment != 0 ? options.parameter_alignment : 256 / smallest;
    unit_layout layout;
    layout.id_ = id;
    layout.ranks_ = ranks;
    for (const parameter_spec& spec : specs) layout.place(spec, alignment, model_type);
    layout.finish(options, alignment, smallest);
    return layout;
}

inline void unit_layout::place(const parameter_spec& spec, std::size_t alignment, dtype model_type) {
    if (spec.name.empty())
        throw argument_error("E-LAYOUT-2", text("parameter ", parameters_.size(), " of the unit has an empty name"));
    for (const parameter_place& known : parameters_) {
        if (known.name == spec.name)
            throw argument_error("E-LAYOUT-2", text("two parameters of the unit are called \"", spec.name, "\""));
    }
    const std::size_t count = detail::elements_of(spec);
    const dtype type = spec.options.type.or_else(model_type);
    std::size_t index = 0;
    while (index < segments_.size() &&
           !(segments_[index].type == type && segments_[index].trainable == spec.options.trainable))
        ++index;
    if (index == segments_.size()) segments_.push_back({type, spec.options.trainable, 0, 0, 0, no_gradient});
    const std::size_t offset = detail::round_up(segments_[index].elements, alignment);
    if (offset + count > detail::most_elements)
        throw argument_error("E-LAYOUT-4", text("a unit with parameter \"", spec.name, "\" of shape {",
                                                joined(spec.shape), "} is too large"));
    segments_[index].elements = offset + count;
    elements_ += count;
    parameters_.push_back({spec.name, spec.shape, spec.options.group, index, offset, count, spec.options.write});
}

inline void unit_layout::finish(layout_options options, std::size_t alignment, std::size_t smallest) {
    for (segment& part : segments_) {
        // also whole alignments, so that segments leave no gap between them
        part.elements =
            detail::round_up(part.elements, detail::least_common_multiple(ranks_ * options.slice_alignment, alignment));
        part.slice = part.elements / ranks_;
        // bytes of a parameter's alignment, and whole elements of the segment's type
        part.byte_offset =
            detail::round_up(bytes_, detail::least_common_multiple(alignment * smallest, size_of(part.type)));
        bytes_ = part.byte_offset + part.elements * size_of(part.type);
        if (!part.trainable) continue;
        part.gradient_offset = detail::round_up(gradient_elements_, alignment);
        gradient_elements_ = part.gradient_offset + part.elements;
    }
}

inline std::uint32_t unit_layout::index_of(std::string_view name) const {
    std::vector<std::string> known;
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
        if (parameters_[index].name == name) return static_cast<std::uint32_t>(index);
        known.push_back(parameters_[index].name);
    }
    throw argument_error("E-LAYOUT-6", text("no parameter \"", name, "\" in this unit; it has ", joined(known)));
}

inline std::size_t unit_layout::byte_offset_of(std::uint32_t index) const {
    const parameter_place& place = parameters_[index];
    const segment& part = segments_[place.segment];
    return part.byte_offset + place.offset * size_of(part.type);
}

inline std::size_t unit_layout::gradient_offset_of(std::uint32_t index) const {
    const parameter_place& place = parameters_[index];
    const segment& part = segments_[place.segment];
    return part.trainable ? part.gradient_offset + place.offset : no_gradient;
}

}  // namespace v0
}  // namespace reshard
