// A size that is fixed in the program or found at run time, as in std::span.
#pragma once

#include <cstddef>
#include <string>

#include "../core/text.hpp"

namespace reshard {
inline namespace v0 {

/// An extent that is found at run time.
inline constexpr std::size_t dynamic = static_cast<std::size_t>(-1);

/// "8", or "dynamic", as a user writes it between the angle brackets.
inline std::string extent_text(std::size_t extent) { return extent == dynamic ? "dynamic" : to_text(extent); }

}  // namespace v0
}  // namespace reshard
