// How a policy says what it does: facts, known to the compiler or only at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace reshard {
inline namespace v0 {

/// What a fact function returns where the answer is known at compile time: a value with its own type.
template <auto Value>
using constant = std::integral_constant<decltype(Value), Value>;
template <auto Value>
inline constexpr constant<Value> fact{};

/// Whether a fact of type Fact can have this value; false only where the compiler knows that it has another. The
/// engine decides with a plain `if`; this only leaves out members and capabilities that are never used.
///
///     using after = decltype(policy.reshard.after_forward(unit_place{}));
///     if constexpr (may_be<after, afterwards::keep>) ...
template <class Fact, auto Value>
inline constexpr bool may_be = true;
template <class Type, Type Known, auto Value>
inline constexpr bool may_be<std::integral_constant<Type, Known>, Value> = Known == Value;

/// Whether the compiler knows the fact.
template <class Fact>
inline constexpr bool is_known = false;
template <class Type, Type Known>
inline constexpr bool is_known<std::integral_constant<Type, Known>> = true;

/// Where a state rests between uses: whole on every rank, or in equal slices over the inner or the whole group.
/// Ascending: each is at least as sharded as the one before it.
enum class placement : std::uint8_t { replicated, inner, whole };

/// What becomes of gathered parameters: freed, left in slices of a smaller group that can gather them again, or kept
/// whole. Ascending: each takes at least as much memory as the one before it.
enum class afterwards : std::uint8_t { free, group, keep };

/// Which unit a fact is asked for: number `index` of `count` in the order of add_unit.
struct unit_place {
    std::size_t index = 0;
    std::size_t count = 1;
};

/// The facts of one unit as a plan chose them; `group` is the number of ranks of the smaller group, 1 for none.
struct unit_choice {
    afterwards after_forward = afterwards::free;
    afterwards after_backward = afterwards::free;
    std::size_t group = 1;
    bool operator==(const unit_choice&) const = default;
};

constexpr const char* name_of(placement where) {
    return where == placement::replicated ? "replicated" : where == placement::inner ? "inner" : "whole";
}
constexpr const char* name_of(afterwards what) {
    return what == afterwards::free ? "free" : what == afterwards::group ? "group" : "keep";
}

}  // namespace v0
}  // namespace reshard
