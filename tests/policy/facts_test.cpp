// The facts of all policies against a table written by hand, at compile time and as values.
#include <doctest/doctest.h>
#include <reshard/policy/runtime.hpp>

#include <string>
#include <type_traits>
#include <vector>

using namespace reshard;

namespace {

constexpr placement replicated = placement::replicated, whole = placement::whole;

template <class Strategy>
void has_placements(const Strategy& strategy, std::vector<placement> expected) {
    for (std::size_t index = 0; index < 5; ++index) {
        const unit_place unit{index, 5};
        CHECK(std::vector<placement>{strategy.parameters(unit), strategy.gradients(unit),
                                     strategy.optimizer_state(unit)} == expected);
    }
}

// Per unit of five: "f" free or "k" keep after forward, then the same after backward.
template <class Reshard>
std::string table_of(const Reshard& reshard) {
    std::string forward, backward;
    for (std::size_t index = 0; index < 5; ++index) {
        const afterwards after_forward = reshard.after_forward({index, 5});
        const afterwards after_backward = reshard.after_backward({index, 5});
        forward += after_forward == afterwards::free ? "f" : "k";
        backward += after_backward == afterwards::free ? "f" : "k";
    }
    const bool once = reshard.reduce_once();
    return forward + " " + backward + (once ? " once" : " each");
}

template <class Static>
void both_worlds(const Static& known, const char* option, const char* table, const char* name) {
    CAPTURE(option);
    CHECK(table_of(known) == table);
    CHECK(known.describe() == name);
    const any_reshard converted = known, parsed = any_reshard::parse(option);
    CHECK(table_of(parsed) == table);
    CHECK(parsed.describe() == name);
    CHECK(converted == parsed);
}

template <class Static>
void both_worlds(const Static& known, const char* name, std::vector<placement> expected) {
    CAPTURE(name);
    has_placements(known, expected);
    CHECK(known.describe() == name);
    const any_sharding converted = known, parsed = any_sharding::parse(name);
    has_placements(parsed, expected);
    CHECK(parsed.describe() == name);
    CHECK(converted == parsed);
}

}  // namespace

TEST_CASE("where states rest") {
    both_worlds(no_shard{}, "no_shard", {replicated, replicated, replicated});
    both_worlds(shard_optimizer{}, "shard_optimizer", {replicated, replicated, whole});
    both_worlds(shard_gradients{}, "shard_gradients", {replicated, whole, whole});
    both_worlds(full_shard{}, "full_shard", {whole, whole, whole});
}

TEST_CASE("what becomes of gathered parameters, and how often gradients are reduced") {
    both_worlds(reshard_always{}, "reshard_always", "fffff fffff each", "reshard_always");
    both_worlds(reshard_never{}, "reshard_never", "kkkkk fffff each", "reshard_never");
    both_worlds(keep_until_step{}, "keep_until_step", "kkkkk kkkkk each", "keep_until_step");
    both_worlds(keep_last<1>{}, "keep_last:1", "ffffk fffff each", "keep_last<1>");
    both_worlds(keep_last<3>{}, "keep_last:3", "ffkkk fffff each", "keep_last<3>");
    both_worlds(keep_last<5>{}, "keep_last:5", "kkkkk fffff each", "keep_last<5>");
    both_worlds(accumulate_unsharded<reshard_always>{}, "accumulate_unsharded:reshard_always", "fffff fffff once",
                "accumulate_unsharded<reshard_always>");
    both_worlds(accumulate_unsharded<reshard_never>{}, "accumulate_unsharded:reshard_never", "kkkkk fffff once",
                "accumulate_unsharded<reshard_never>");
    both_worlds(accumulate_unsharded<keep_until_step>{}, "accumulate_unsharded:keep_until_step", "kkkkk kkkkk once",
                "accumulate_unsharded<keep_until_step>");
    both_worlds(accumulate_unsharded<keep_last<2>>{}, "accumulate_unsharded:keep_last:2", "fffkk fffff once",
                "accumulate_unsharded<keep_last<2>>");
    CHECK(any_reshard::parse("keep_last:2").accumulated() == any_reshard::parse("accumulate_unsharded:keep_last:2"));
    CHECK(table_of(accumulate_unsharded<any_reshard>{any_reshard::parse("keep_last:2")}) == "fffkk fffff once");
}

TEST_CASE("what the compiler knows") {
    using always_free = decltype(reshard_always{}.after_forward(unit_place{}));
    CHECK(may_be<always_free, afterwards::free>);
    CHECK_FALSE(may_be<always_free, afterwards::keep>);
    using by_place = decltype(keep_last<1>{}.after_forward(unit_place{}));
    CHECK(may_be<by_place, afterwards::free>);
    CHECK(may_be<by_place, afterwards::keep>);
    CHECK_FALSE(may_be<decltype(keep_last<1>{}.after_backward(unit_place{})), afterwards::keep>);
    using by_value = decltype(any_reshard{}.after_backward(unit_place{}));
    CHECK(may_be<by_value, afterwards::keep>);
    CHECK(is_known<always_free>);
    CHECK_FALSE(is_known<by_place>);
    CHECK_FALSE(is_known<by_value>);
    CHECK_FALSE(may_be<decltype(no_shard{}.parameters(unit_place{})), placement::whole>);
    CHECK_FALSE(may_be<decltype(full_shard{}.parameters(unit_place{})), placement::replicated>);
    CHECK_FALSE(may_be<decltype(reshard_always{}.reduce_once()), true>);
    CHECK_FALSE(may_be<decltype(accumulate_unsharded<any_reshard>{}.reduce_once()), false>);
    CHECK_FALSE(may_be<decltype(flat<4>::levels()), std::size_t{2}>);
}

TEST_CASE("a constant converts to its value") {
    constexpr placement where = fact<placement::whole>;
    CHECK(where == whole);
    CHECK(std::is_same_v<constant<3u>, std::integral_constant<unsigned, 3u>>);
    CHECK(std::string(name_of(placement::inner)) + name_of(afterwards::keep) == "innerkeep");
}

TEST_CASE("types: defaults and slots by name") {
    using usual = precision<float>;
    CHECK(std::is_same_v<usual::gradient, float>);
    using wide = precision<double>;
    CHECK(std::is_same_v<wide::compute, double>);
    CHECK(std::is_same_v<wide::gradient, double>);
    CHECK(std::is_same_v<wide::reduce, double>);
    CHECK(std::is_same_v<wide::accumulate, double>);
    CHECK(std::is_same_v<wide::master, double>);
    CHECK(std::is_same_v<wide::moments, double>);
    using narrow = precision<bf16>;
    CHECK(std::is_same_v<narrow::compute, bf16>);
    CHECK(std::is_same_v<narrow::gradient, float>);
    CHECK(std::is_same_v<narrow::reduce, float>);
    CHECK(std::is_same_v<narrow::accumulate, float>);
    CHECK(std::is_same_v<narrow::master, float>);
    CHECK(std::is_same_v<narrow::moments, float>);
    using mixed = precision<bf16, moments<fp16>, gradient<bf16>, master<double>, accumulate<double>, reduce<fp16>>;
    CHECK(std::is_same_v<mixed::gradient, bf16>);
    CHECK(std::is_same_v<mixed::reduce, fp16>);
    CHECK(std::is_same_v<mixed::accumulate, double>);
    CHECK(std::is_same_v<mixed::master, double>);
    CHECK(std::is_same_v<mixed::moments, fp16>);
    CHECK(wide::smallest_element() == 8);
    CHECK(usual::smallest_element() == 4);
    CHECK(narrow::smallest_element() == 2);
    CHECK(precision<double, moments<float>>::smallest_element() == 4);
    CHECK(usual::describe() == "float");
    CHECK(wide::describe() == "double");
    CHECK(narrow::describe() == "bf16");
    CHECK(mixed::describe() == "bf16, gradient bf16, reduce fp16, accumulate double, master double, moments fp16");
    CHECK(precision<double, moments<float>>::describe() == "double, moments float");
}
