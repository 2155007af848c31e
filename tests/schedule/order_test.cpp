// Order lists: the plain loop, pipeline schedules, and schedules that are refused.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "toy.hpp"

namespace {

using reshard::order_list;
using toy::pass;
using toy::phase;

/// "F0.1" is forward of unit 1 in microbatch 0; B whole backward, I input part, W weight part.
std::string spelled(const order_list& order) {
    std::string out;
    for (auto at = order.first(); !order.at_end(at); at = order.next(at)) {
        const reshard::order_entry entry = order.at(at);
        out += "FBIW"[static_cast<std::size_t>(entry.what)];
        out += std::to_string(entry.microbatch) + "." + std::to_string(entry.unit) + " ";
    }
    return out;
}

void check_refused(const std::vector<pass>& passes, std::size_t microbatches, const std::string& words) {
    CAPTURE(words);
    const order_list order = toy::scheduled({0, 1}, passes, microbatches);
    try {
        reshard::check_schedule(order);
        FAIL_CHECK("not refused");
    } catch (const reshard::order_error& error) {
        CHECK(std::string(error.id()) == "E-ORDER-2");
        CAPTURE(std::string(error.what()));
        CHECK(std::string(error.what()).find(words) != std::string::npos);
    }
}

}  // namespace

TEST_CASE("the plain loop goes forward and back, microbatch after microbatch") {
    CHECK(spelled(toy::plain({0, 1, 2}, 1)) == "F0.0 F0.1 F0.2 B0.2 B0.1 B0.0 ");
    CHECK(spelled(toy::plain({0, 1}, 2)) == "F0.0 F0.1 B0.1 B0.0 F1.0 F1.1 B1.1 B1.0 ");
    CHECK(spelled(toy::plain({0, 1, 0}, 1)) == "F0.0 F0.1 F0.0 B0.0 B0.1 B0.0 ");
    CHECK(spelled(toy::plain({}, 3)).empty());
}

TEST_CASE("a schedule is read pass by pass, backward phases in reverse") {
    CHECK(spelled(toy::scheduled({0, 1}, toy::gpipe(2), 2)) == "F0.0 F0.1 F1.0 F1.1 B0.1 B0.0 B1.1 B1.0 ");
    CHECK(spelled(toy::scheduled({0}, toy::one_forward_one_backward(3, 0, 2), 3)) == "F0.0 F1.0 B0.0 F2.0 B1.0 B2.0 ");
    CHECK(spelled(toy::scheduled({0}, toy::one_forward_one_backward(2, 1, 2), 2)) == "F0.0 B0.0 F1.0 B1.0 ");
    CHECK(spelled(toy::scheduled({0, 1}, toy::split_backward(1), 1)) == "F0.0 F0.1 I0.1 I0.0 W0.1 W0.0 ");
    CHECK(spelled(toy::scheduled({0, 1}, toy::interleaved(1, 1), 4)) ==
          "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0 ");
}

TEST_CASE("empty passes are passed over") {
    const std::vector<pass> passes = {{phase::forward, 0, 0, 0},
                                      {phase::forward, 0},
                                      {phase::forward, 0, 1, 0},
                                      {phase::backward, 0},
                                      {phase::backward, 0, 0, 0}};
    const order_list order = toy::scheduled({0, 1}, passes, 1);
    CHECK(spelled(order) == "F0.0 F0.1 B0.1 B0.0 ");
    CHECK_NOTHROW(reshard::check_schedule(order));
}

TEST_CASE("real schedules are accepted") {
    for (std::size_t microbatches = 1; microbatches <= 5; ++microbatches) {
        for (const std::vector<std::uint32_t>& uses : {std::vector<std::uint32_t>{0, 1, 2}, {0, 1, 0}}) {
            CHECK_NOTHROW(reshard::check_schedule(toy::plain(uses, microbatches)));
            CHECK_NOTHROW(reshard::check_schedule(toy::scheduled(uses, toy::gpipe(microbatches), microbatches)));
            CHECK_NOTHROW(
                reshard::check_schedule(toy::scheduled(uses, toy::split_backward(microbatches), microbatches)));
            for (std::size_t stage = 0; stage < 3; ++stage) {
                const auto passes = toy::one_forward_one_backward(microbatches, stage, 3);
                CHECK_NOTHROW(reshard::check_schedule(toy::scheduled(uses, passes, microbatches)));
            }
        }
    }
    CHECK_NOTHROW(reshard::check_schedule(toy::scheduled({0, 1, 2, 3}, toy::interleaved(0, 2), 4)));
    CHECK_NOTHROW(reshard::check_schedule(toy::scheduled({0, 1, 2, 3}, toy::interleaved(1, 2), 4)));
}

TEST_CASE("schedules that are no step are refused and named") {
    const pass forward{phase::forward}, backward{phase::backward};
    check_refused({forward, backward, {phase::forward, 1}, {phase::backward, 1}}, 1,
                  "pass 2 (forward, microbatch 1, uses 0 to 2) is outside 1 microbatches of 2 uses");
    check_refused({{phase::forward, 0, 1, 2}, backward}, 1, "pass 0 (forward, microbatch 0, uses 1 to 3) is outside");
    check_refused({{phase::forward, 0, 3}, backward}, 1, "pass 0 (forward, microbatch 0, uses 3 to");
    check_refused({backward, forward}, 1, "pass 0 asks for backward of use 0 in microbatch 0 out of turn");
    check_refused({forward, forward, backward}, 1, "pass 1 asks for forward of use 0");
    check_refused({forward, backward, backward}, 1, "pass 2 asks for backward of use 0");
    check_refused({forward, {phase::backward_weight}}, 1, "pass 1 asks for backward_weight of use 0");
    check_refused({forward, {phase::backward_input}, backward}, 1, "pass 2 asks for backward of use 0");
    check_refused({forward, {phase::backward_input}}, 1, "use 0 of microbatch 0 has no complete backward");
    check_refused({forward, {phase::backward, 0, 1}}, 1, "use 0 of microbatch 0 has no complete backward");
    check_refused({forward, backward, {phase::forward, 1}}, 2, "use 0 of microbatch 1 has no complete backward");
}

TEST_CASE("the uses of a unit finish one microbatch before the next") {
    const std::vector<pass> mixed = {{phase::forward, 0},        {phase::forward, 1},
                                     {phase::backward, 0, 2, 1}, {phase::backward, 1, 2, 1},
                                     {phase::backward, 0, 0, 2}, {phase::backward, 1, 0, 2}};
    CHECK_NOTHROW(reshard::check_schedule(toy::scheduled({0, 1, 2}, mixed, 2)));
    try {
        reshard::check_schedule(toy::scheduled({0, 1, 0}, mixed, 2));
        FAIL_CHECK("not refused");
    } catch (const reshard::order_error& error) {
        CHECK(std::string(error.what())
                  .find("unit 0 has 2 uses and goes to microbatch 1 before the backward of "
                        "microbatch 0 is complete") != std::string::npos);
    }
}
