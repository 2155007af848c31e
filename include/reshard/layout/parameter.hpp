// What a trainer says about a parameter, and the typed handle it gets back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../core/types.hpp"

namespace reshard {
inline namespace v0 {

/// What the first write of a gradient in a backward does: it adds (the engine zeroes the buffer before), or it
/// overwrites (a matrix product with beta 0; nothing is zeroed).
enum class gradient_write : std::uint8_t { adds, overwrites };

/// A named element type, or by default that of the model (precision's compute type).
class dtype_choice {
public:
    constexpr dtype_choice() = default;
    constexpr dtype_choice(dtype type) : type_(type), chosen_(true) {}  // implicit: {.type = dtype::f32}

    constexpr dtype or_else(dtype of_the_model) const { return chosen_ ? type_ : of_the_model; }

private:
    dtype type_ = dtype::f32;
    bool chosen_ = false;
};

/// `group` names the optimizer's parameter group ("" is the default one). Parameters that are not trainable have
/// no gradients, masters or moments.
struct parameter_options {
    std::string group = {};
    bool trainable = true;
    gradient_write write = gradient_write::adds;
    dtype_choice type = {};
};

/// `shape` has at least one extent; an extent may be 0. {"qkv", {3 * width, width}}.
struct parameter_spec {
    std::string name;
    std::vector<std::size_t> shape;
    parameter_options options = {};
};

/// gradient_offset of a parameter without gradients.
inline constexpr std::size_t no_gradient = static_cast<std::size_t>(-1);
/// layout of a handle that was never set: no unit takes it.
inline constexpr std::uint32_t no_layout = static_cast<std::uint32_t>(-1);

/// Where a parameter lies in every unit of one layout. Made by typed_layout::parameter(), which checks name and type
/// once; copy it freely.
template <Element Type>
struct parameter {
    std::uint32_t layout = no_layout;           // unit_layout::id()
    std::uint32_t index = 0;                    // in unit_layout::parameters()
    std::size_t byte_offset = 0;                // in the unit's gather buffer, bytes
    std::size_t gradient_offset = no_gradient;  // in the unit's gradient buffer, elements; no_gradient if it has none
    std::size_t count = 0;                      // elements
};

/// Says which type a handle has, where it is not the model's: layout.parameter("norm", as<float>).
template <Element Type>
struct as_type {};
template <Element Type>
inline constexpr as_type<Type> as{};

}  // namespace v0
}  // namespace reshard
