// Counts calls of the global operator new in the whole program, all threads together.
#pragma once

namespace test_support {

/// Calls of any form of `operator new` since the program started.
[[nodiscard]] long allocation_count() noexcept;

}  // namespace test_support
