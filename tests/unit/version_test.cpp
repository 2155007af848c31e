// The version in the headers and the version of the build description are the same.
#include <doctest/doctest.h>
#include <reshard/core/version.hpp>

#include <string>

TEST_CASE("the headers carry the version of the build description") {
    const std::string version = std::to_string(reshard::version_major) + "." + std::to_string(reshard::version_minor) +
                                "." + std::to_string(reshard::version_patch);
    CHECK(version == RESHARD_PROJECT_VERSION);
}
