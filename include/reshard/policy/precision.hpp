// The element types of a model, by name: precision<bf16, gradient<float>, master<float>>.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "../core/text.hpp"
#include "../core/types.hpp"

namespace reshard {
inline namespace v0 {

/// Slots of precision, in any order, each at most once. All default to float (double where compute is double).
template <class Type>
struct gradient {};  // the trainer writes gradients in it
template <class Type>
struct reduce {};  // gradients are sent in it
template <class Type>
struct accumulate {};  // the sums of a step
template <class Type>
struct master {};  // the weights that the update changes
template <class Type>
struct moments {};  // the optimizer's states

namespace detail {

template <class Type>
struct is_precision_slot : std::false_type {};
template <class Type>
struct is_precision_slot<gradient<Type>> : std::bool_constant<Element<Type>> {};
template <class Type>
struct is_precision_slot<reduce<Type>> : std::bool_constant<Element<Type>> {};
template <class Type>
struct is_precision_slot<accumulate<Type>> : std::bool_constant<Element<Type>> {};
template <class Type>
struct is_precision_slot<master<Type>> : std::bool_constant<Element<Type>> {};
template <class Type>
struct is_precision_slot<moments<Type>> : std::bool_constant<Element<Type>> {};

/// The type in the first slot of this name, or Default. A type that is no Element was refused: Default too.
template <template <class> class Slot, class Default, class... Given>
struct chosen {
    using type = Default;
};
template <template <class> class Slot, class Default, class Type, class... Others>
struct chosen<Slot, Default, Slot<Type>, Others...> {
    using type = std::conditional_t<Element<Type>, Type, Default>;
};
template <template <class> class Slot, class Default, class Other, class... Others>
struct chosen<Slot, Default, Other, Others...> : chosen<Slot, Default, Others...> {};

template <template <class> class Slot, class Given>
inline constexpr std::size_t is_slot = 0;
template <template <class> class Slot, class Type>
inline constexpr std::size_t is_slot<Slot, Slot<Type>> = 1;

template <template <class> class Slot, class... Given>
inline constexpr bool at_most_once = (is_slot<Slot, Given> + ... + 0) <= 1;

}  // namespace detail

namespace refused {
/// Always false; the compilers print its arguments beside the sentence.
template <class... Facts>
inline constexpr bool nothing_wrong_with = false;

template <class... Facts>
struct compute_type_is_no_element_type {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-8]: precision<> takes the compute type first: double, float, "
                  "bf16 or fp16");
};
template <class... Facts>
struct unknown_precision_slot {
    static_assert(nothing_wrong_with<Facts...>,
                  "reshard [E-POLICY-8]: after the compute type, precision<> takes gradient<>, "
                  "reduce<>, accumulate<>, master<> and moments<> of double, float, bf16 or fp16");
};
template <class... Facts>
struct precision_slot_given_twice {
    static_assert(nothing_wrong_with<Facts...>, "reshard [E-POLICY-8]: precision<> takes each slot at most once");
};
}  // namespace refused

/// What a verdict is if nothing is wrong.
struct accepted {};

namespace detail {

template <class Compute, class... Slots>
constexpr auto judge_precision() {
    if constexpr (!Element<Compute>) {
        return std::type_identity<refused::compute_type_is_no_element_type<Compute>>{};
    } else if constexpr (!(is_precision_slot<Slots>::value && ...)) {
        return std::type_identity<refused::unknown_precision_slot<Slots...>>{};
    } else if constexpr (!(at_most_once<gradient, Slots...> && at_most_once<reduce, Slots...> &&
                           at_most_once<accumulate, Slots...> && at_most_once<master, Slots...> &&
                           at_most_once<moments, Slots...>)) {
        return std::type_identity<refused::precision_slot_given_twice<Slots...>>{};
    } else {
        return std::type_identity<accepted>{};
    }
}

}  // namespace detail

/// Element types, always compile-time. Reduction and sums are in float unless asked otherwise by name.
template <class Compute, class... Slots>
struct precision : decltype(detail::judge_precision<Compute, Slots...>())::type {
private:
    using usual = std::conditional_t<std::is_same_v<Compute, double>, double, float>;

public:
    using compute = std::conditional_t<Element<Compute>, Compute, float>;
    using gradient = typename detail::chosen<v0::gradient, usual, Slots...>::type;
    using reduce = typename detail::chosen<v0::reduce, usual, Slots...>::type;
    using accumulate = typename detail::chosen<v0::accumulate, usual, Slots...>::type;
    using master = typename detail::chosen<v0::master, usual, Slots...>::type;
    using moments = typename detail::chosen<v0::moments, usual, Slots...>::type;

    /// Bytes of the smallest of them, for layout_options.
    static constexpr std::size_t smallest_element() {
        std::size_t smallest = size_of(dtype_of<compute>);
        for (const dtype other :
             {dtype_of<gradient>, dtype_of<reduce>, dtype_of<accumulate>, dtype_of<master>, dtype_of<moments>})
            smallest = size_of(other) < smallest ? size_of(other) : smallest;
        return smallest;
    }

    /// "bf16", or with the slots that are not as usual: "bf16, gradient bf16".
    static std::string describe() {
        std::string out = name_of(dtype_of<compute>);
        const auto add = [&out](const char* slot, dtype type) {
            if (type != dtype_of<usual>) out.append(text(", ", slot, " ", name_of(type)));
        };
        add("gradient", dtype_of<gradient>);
        add("reduce", dtype_of<reduce>);
        add("accumulate", dtype_of<accumulate>);
        add("master", dtype_of<master>);
        add("moments", dtype_of<moments>);
        return out;
    }
};

}  // namespace v0
}  // namespace reshard
