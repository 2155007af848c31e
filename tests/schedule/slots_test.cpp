// Slot maps: how many buffers, how large, whose, and schedules that would gather over a kept copy.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "toy.hpp"

namespace {

using reshard::map_slots;
using reshard::no_buffer;
using reshard::slot_map;
using reshard::slot_need;
using reshard::slot_options;

std::vector<slot_need> equal_units(std::size_t units, std::size_t kept) {
    std::vector<slot_need> needs(units, slot_need{1, 10, 10, false, false});
    for (std::size_t u = units - kept; u < units; ++u) needs[u].kept_after_forward = true;
    return needs;
}

std::string refusal(const reshard::order_list& order, const std::vector<slot_need>& needs) {
    try {
        reshard::check_slots(order, needs, map_slots(order, needs, {}));
    } catch (const reshard::order_error& error) {
        CHECK(std::string(error.id()) == "E-ORDER-3");
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("keep_last<n> needs max(n, depth + 1) buffers, since the list is a stack") {
    for (std::size_t depth = 0; depth <= 2; ++depth) {
        for (std::size_t kept = 0; kept <= 8; ++kept) {
            CAPTURE(depth);
            CAPTURE(kept);
            const auto needs = equal_units(8, kept);
            const auto order = toy::plain(toy::in_order(8), 3);
            const slot_map map = map_slots(order, needs, {depth, 1, 1});
            CHECK(map.gather_bytes.size() == std::max(kept, depth + 1));
            CHECK_NOTHROW(reshard::check_slots(order, needs, map));
        }
    }
}

TEST_CASE("rotating buffers: depth and the larger of open scopes and recomputed units, as large as their largest") {
    std::vector<slot_need> needs;
    for (const std::size_t bytes : {40u, 10u, 20u, 30u, 10u}) needs.push_back({1, bytes, bytes * 2, false, false});
    const auto order = toy::plain(toy::in_order(5), 1);
    const slot_map two = map_slots(order, needs, {1, 1, 1});
    CHECK(two.gather_of == std::vector<std::uint32_t>{0, 1, 0, 1, 0});
    CHECK(two.gather_bytes == std::vector<std::size_t>{40, 30});
    CHECK(two.gradient_of == std::vector<std::uint32_t>{0, 1, 0, 1, 0});
    CHECK(two.gradient_bytes == std::vector<std::size_t>{80, 60});
    CHECK(map_slots(order, needs, {0, 1, 1}).gather_bytes == std::vector<std::size_t>{40});
    const std::vector<std::size_t> three = {40, 10, 20};  // units 0 and 3, 1 and 4, 2
    CHECK(map_slots(order, needs, {1, 2, 1}).gather_bytes == three);
    CHECK(map_slots(order, needs, {1, 1, 2}).gather_bytes == three);
    CHECK(map_slots(order, needs, {2, 1, 1}).gather_bytes == three);
}

TEST_CASE("the order counts, not the number of a unit") {
    const std::vector<slot_need> needs = {{1, 40, 0, false, false}, {1, 10, 0, false, false}, {1, 30, 0, false, false}};
    const slot_map map = map_slots(toy::plain({2, 0, 1}, 1), needs, {});
    CHECK(map.gather_of == std::vector<std::uint32_t>{1, 0, 0});
    CHECK(map.gather_bytes == std::vector<std::size_t>{30, 40});
}

TEST_CASE("a unit with several uses owns its buffers; a unit without needs has none") {
    const std::vector<slot_need> needs = {
        {2, 50, 60, false, false}, {1, 10, 10, false, false}, {1, 0, 0, false, false}, {1, 20, 20, false, false}};
    const slot_map map = map_slots(toy::plain({0, 1, 2, 3, 0}, 1), needs, {});
    CHECK(map.gather_of == std::vector<std::uint32_t>{2, 0, no_buffer, 1});
    CHECK(map.gather_bytes == std::vector<std::size_t>{10, 20, 50});
    CHECK(map.gradient_of == std::vector<std::uint32_t>{2, 0, no_buffer, 1});
    CHECK(map.gradient_bytes == std::vector<std::size_t>{10, 20, 60});
}

TEST_CASE("a copy that lives until the step shares its buffer only if all do") {
    auto needs = equal_units(4, 4);
    for (slot_need& unit : needs) unit.kept_after_backward = true;
    const auto order = toy::plain(toy::in_order(4), 2);
    CHECK(map_slots(order, needs, {}).gather_bytes.size() == 4);

    auto one = equal_units(4, 0);
    one[3].kept_after_forward = one[3].kept_after_backward = true;
    const slot_map map = map_slots(order, one, {});
    CHECK(map.gather_bytes.size() == 3);
    CHECK(std::count(map.gather_of.begin(), map.gather_of.end(), map.gather_of[3]) == 1);
    CHECK_NOTHROW(reshard::check_slots(order, one, map));
}

TEST_CASE("forwards that overlap clash with a copy kept in a rotating buffer, and the refusal names both units") {
    const auto order = toy::scheduled(toy::in_order(4), toy::gpipe(2), 2);
    const std::string words = refusal(order, equal_units(4, 1));
    CAPTURE(words);
    CHECK(words.find("gathers unit 1 in microbatch 1 into the buffer in which unit 3 is kept") != std::string::npos);
    CHECK(words.find("keep_until_step") != std::string::npos);

    CHECK(refusal(order, equal_units(4, 0)).empty());
    CHECK(refusal(order, equal_units(4, 4)).empty());
    auto kept = equal_units(4, 4);
    for (slot_need& unit : kept) unit.kept_after_backward = true;
    CHECK(refusal(order, kept).empty());

    for (const std::size_t last : {1u, 2u, 3u}) {
        const auto first_stage = toy::scheduled(toy::in_order(4), toy::one_forward_one_backward(4, 0, 2), 4);
        const auto last_stage = toy::scheduled(toy::in_order(4), toy::one_forward_one_backward(4, 1, 2), 4);
        CHECK_FALSE(refusal(first_stage, equal_units(4, last)).empty());
        CHECK(refusal(last_stage, equal_units(4, last)).empty());
    }
}
