// How the text of an option becomes a number or a name: keep_last:2, reshard_within:512MiB,4.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "../core/error.hpp"
#include "../core/text.hpp"
#include "../layout/extent.hpp"

namespace reshard {
inline namespace v0 {

namespace detail {

/// "name:rest" taken apart at the first colon, or mark; `rest` is empty without one.
struct option_text {
    std::string_view name, rest;
    explicit option_text(std::string_view whole, char mark = ':')
        : name(whole.substr(0, whole.find(mark))),
          rest(name.size() == whole.size() ? std::string_view() : whole.substr(name.size() + 1)) {}
};

/// The number that digits stand for, 0 where they stand for none or for one that is too large.
constexpr std::size_t number_of(std::string_view digits) {
    constexpr std::size_t largest = static_cast<std::size_t>(-1);
    std::size_t value = 0;
    for (const char digit : digits) {
        if (digit < '0' || digit > '9') return 0;
        const auto worth = static_cast<std::size_t>(digit - '0');
        if (value > (largest - worth) / 10) return 0;
        value = value * 10 + worth;
    }
    return value;
}

/// A whole number above 0 in digits; E-POLICY-7 with the whole option otherwise.
inline std::size_t positive_number(std::string_view digits, std::string_view whole, const char* example) {
    const std::size_t value = number_of(digits);
    if (value == 0 || value == dynamic)
        throw argument_error("E-POLICY-7",
                             text("\"", whole, "\" needs a whole number above 0 behind the colon, as in ", example));
    return value;
}

/// "512MiB", "2GiB", "64KiB" or "1000000" in bytes; E-POLICY-7 with the whole option otherwise.
inline std::size_t positive_bytes(std::string_view amount, std::string_view whole, const char* example) {
    std::size_t unit = 1;
    std::string_view digits = amount;
    for (const std::string_view suffix : {"KiB", "MiB", "GiB"}) {
        unit <<= 10;
        if (!amount.ends_with(suffix)) continue;
        digits.remove_suffix(suffix.size());
        break;
    }
    if (digits.size() == amount.size()) unit = 1;
    const std::size_t value = number_of(digits);
    if (value == 0 || value > (dynamic - 1) / unit)
        throw argument_error("E-POLICY-7", text("\"", whole,
                                                "\" needs a number of bytes above 0 behind the colon, "
                                                "plain or with KiB, MiB or GiB, as in ",
                                                example));
    return value * unit;
}

[[noreturn]] inline void unknown_name(const char* what, std::string_view given, std::span<const char* const> known) {
    throw argument_error("E-POLICY-7", text("unknown ", what, " \"", given, "\"; known: ", joined(known)));
}

}  // namespace detail

}  // namespace v0
}  // namespace reshard
