// The version of the library. The build description carries the same numbers; a test compares the two.
#pragma once

#if __cplusplus < 202002L
#error "reshard needs C++20: compile with -std=c++20"
#endif

namespace reshard {
inline namespace v0 {

inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

}  // namespace v0
}  // namespace reshard
