// Error texts, ids and classes; texts made of words and numbers.
#include <doctest/doctest.h>
#include <reshard/core/error.hpp>
#include <reshard/core/text.hpp>

#include <string>
#include <type_traits>
#include <vector>

using namespace reshard;

TEST_CASE("pieces of a text") {
    CHECK(text("rank ", 3, " of ", std::size_t{4}, ", ", std::string("late"), ": ", true, " and ", false) ==
          "rank 3 of 4, late: yes and no");
    CHECK(text() == "");
    CHECK(text(-7) == "-7");
}

TEST_CASE("lists in words") {
    CHECK(joined(std::vector<int>{1, 2, 4}) == "1, 2, 4");
    CHECK(joined(std::vector<std::string>{"a"}) == "a");
    CHECK(joined(std::vector<std::string>{}) == "");
    CHECK(joined(std::vector<const char*>{"a", "b"}, " then ") == "a then b");
}

TEST_CASE("an error carries its id in front") {
    const order_error thrown("E-ORDER-1", "unit \"a\" before unit \"b\"");
    CHECK(std::string(thrown.what()) == "reshard [E-ORDER-1] unit \"a\" before unit \"b\"");
    CHECK(std::string(thrown.id()) == "E-ORDER-1");
}

TEST_CASE("a peer's error names the rank that failed") {
    const peer_error thrown(3, "out of memory");
    CHECK(std::string(thrown.what()) == "reshard [E-PEER-1] rank 3 failed: out of memory");
    CHECK(thrown.rank() == 3);
}

TEST_CASE("classes of errors") {
    CHECK(std::is_base_of_v<std::runtime_error, error>);
    CHECK(std::is_base_of_v<argument_error, topology_error>);
    CHECK(std::is_base_of_v<state_error, order_error>);
    CHECK(std::is_base_of_v<communication_error, timeout_error>);
    CHECK(std::is_base_of_v<communication_error, peer_error>);
    CHECK_FALSE(std::is_base_of_v<communication_error, disagreement_error>);
}
