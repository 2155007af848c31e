// Builds error texts and reports from words and numbers, without streams.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace reshard {
inline namespace v0 {

/// A word or number as text; bool reads "yes" or "no".
template <class Value>
std::string to_text(const Value& value) {
    if constexpr (std::is_same_v<Value, bool>) {
        return value ? "yes" : "no";
    } else if constexpr (std::is_floating_point_v<Value>) {
        char digits[32];  // std::to_string would show 1e-7 as 0.000000
        return std::string(digits, static_cast<std::size_t>(
                                       __builtin_snprintf(digits, sizeof(digits), "%g", static_cast<double>(value))));
    } else if constexpr (std::is_arithmetic_v<Value>) {
        return std::to_string(value);
    } else {
        return std::string(std::string_view(value));
    }
}

/// The pieces behind one another: text("rank ", 3, " of ", 4).
template <class... Pieces>
std::string text(const Pieces&... pieces) {
    std::string out;
    (out.append(to_text(pieces)), ...);
    return out;
}

/// "1, 2, 4" of a range of words or numbers.
template <class Range>
std::string joined(const Range& items, std::string_view between = ", ") {
    std::string out;
    for (const auto& item : items) {
        if (!out.empty()) out.append(between);
        out.append(to_text(item));
    }
    return out;
}

/// "512 B", "1.5 MiB": to one digit behind the point.
inline std::string bytes_text(std::size_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    std::size_t scaled = bytes * 10, unit = 0;
    while (scaled >= 10240 && unit < 5) {
        scaled = (scaled + 512) / 1024;
        ++unit;
    }
    return unit == 0 ? text(bytes, " B") : text(scaled / 10, ".", scaled % 10, " ", units[unit]);
}

}  // namespace v0
}  // namespace reshard
