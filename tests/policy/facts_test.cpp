// The facts of all policies against a table written by hand, at compile time and as values.
#include <doctest/doctest.h>
#include <reshard/policy/runtime.hpp>

#include <string>
#include <type_traits>
#include <vector>

using namespace reshard;

namespace {

constexpr placement replicated = placement::replicated, inner = placement::inner, whole = placement::whole;

template <class Strategy>
void has_placements(const Strategy& strategy, std::vector<placement> expected) {
    for (std::size_t index = 0; index < 5; ++index) {
        const unit_place unit{index, 5};
        CHECK(std::vector<placement>{strategy.parameters(unit), strategy.gradients(unit),
                                     strategy.optimizer_state(unit)} == expected);
    }
}

// Per unit of five: "f" free, "g" group or "k" keep after forward, then the same after backward.
template <class Reshard>
std::string table_of(const Reshard& reshard) {
    std::string forward, backward;
    for (std::size_t index = 0; index < 5; ++index) {
        const afterwards after_forward = reshard.after_forward({index, 5});
        const afterwards after_backward = reshard.after_backward({index, 5});
        forward += name_of(after_forward)[0];
        backward += name_of(after_backward)[0];
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
    for (std::size_t index = 0; index < 5; ++index)
        CHECK(secondary_ranks(known, {index, 5}) == secondary_ranks(parsed, {index, 5}));
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
    both_worlds(hybrid_shard{}, "hybrid_shard", {inner, inner, inner});
    both_worlds(hybrid_full_shard{}, "hybrid_full_shard", {inner, inner, whole});
}

TEST_CASE("any three placements, at compile time, as values and as text") {
    using spread = sharding<replicated, inner, whole>;
    has_placements(spread{}, {replicated, inner, whole});
    CHECK(spread::describe() == "sharding<replicated, inner, whole>");
    CHECK(any_sharding(spread{}) == any_sharding::parse("sharding:replicated,inner,whole"));
    CHECK(any_sharding(spread{}).describe() == spread::describe());
    CHECK(any_sharding::parse("sharding:inner,inner,whole") == hybrid_full_shard{});
    CHECK(any_sharding::parse("sharding:inner,inner,whole").describe() == "hybrid_full_shard");
    for (const placement parameters : {replicated, inner, whole}) {
        for (const placement gradients : {replicated, inner, whole}) {
            for (const placement state : {replicated, inner, whole}) {
                const std::string option =
                    std::string("sharding:") + name_of(parameters) + "," + name_of(gradients) + "," + name_of(state);
                has_placements(any_sharding::parse(option), {parameters, gradients, state});
            }
        }
    }
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
    both_worlds(reshard_to_group<2>{}, "reshard_to_group:2", "ggggg fffff each", "reshard_to_group<2>");
    both_worlds(reshard_to_group<1>{}, "reshard_to_group:1", "ggggg fffff each", "reshard_to_group<1>");
    both_worlds(reshard_to_group<4, until_step>{}, "reshard_to_group:4,until_step", "ggggg ggggg each",
                "reshard_to_group<4, until_step>");
    both_worlds(accumulate_unsharded<reshard_to_group<8, until_step>>{},
                "accumulate_unsharded:reshard_to_group:8,until_step", "ggggg ggggg once",
                "accumulate_unsharded<reshard_to_group<8, until_step>>");
    CHECK(any_reshard::parse("keep_last:2").accumulated() == any_reshard::parse("accumulate_unsharded:keep_last:2"));
    CHECK(table_of(accumulate_unsharded<any_reshard>{any_reshard::parse("keep_last:2")}) == "fffkk fffff once");
}

TEST_CASE("the ranks of the smaller group") {
    const unit_place unit{};
    CHECK(secondary_ranks(reshard_to_group<6>{}, unit) == 6);
    CHECK(secondary_ranks(accumulate_unsharded<reshard_to_group<6, until_step>>{}, unit) == 6);
    CHECK(secondary_ranks(any_reshard::parse("accumulate_unsharded:reshard_to_group:6"), unit) == 6);
    CHECK(secondary_ranks(reshard_never{}, unit) == 1);
    CHECK(secondary_ranks(accumulate_unsharded<keep_last<1>>{}, unit) == 1);
    CHECK(secondary_ranks(any_reshard{}, unit) == 1);
    CHECK(may_use_groups<reshard_to_group<6>>);
    CHECK(may_use_groups<accumulate_unsharded<reshard_to_group<6>>>);
    CHECK(may_use_groups<any_reshard>);
    CHECK(may_use_groups<reshard_within>);
    CHECK_FALSE(may_use_groups<pipeline_default>);
    CHECK_FALSE(may_use_groups<keep_last<2>>);
    CHECK_FALSE(may_use_groups<accumulate_unsharded<reshard_always>>);
}

TEST_CASE("a planned policy: what needs least until the choice, then the choice") {
    reshard_within known(std::size_t{512} << 20, 4);
    any_reshard parsed = any_reshard::parse("reshard_within:512MiB,4"), converted = known;
    CHECK(converted == parsed);
    const auto chosen = [](auto& policy, bool once) {
        CHECK(policy.chosen_at_build());
        CHECK(policy.chooses_units());
        CHECK(policy.cap() == 512 * 1024 * 1024);
        CHECK(policy.microbatches() == 4);
        CHECK(policy.why().empty());
        CHECK(table_of(policy) == "fffff fffff each");
        policy.accept({{afterwards::keep, afterwards::keep, 1},
                       {afterwards::group, afterwards::group, 4},
                       {afterwards::keep, afterwards::free, 1},
                       {afterwards::group, afterwards::free, 2},
                       {afterwards::free, afterwards::free, 1}},
                      once, "fits");
        CHECK(table_of(policy) == (once ? "kgkgf kgfff once" : "kgkgf kgfff each"));
        std::string groups;
        for (std::size_t index = 0; index < 5; ++index) groups += to_text(secondary_ranks(policy, {index, 5}));
        CHECK(groups == "14121");
        CHECK(policy.why() == "fits");
        CHECK(policy.describe() == "reshard_within(512 MiB, 4 microbatches)");
    };
    chosen(known, true);
    chosen(parsed, true);
    chosen(converted, false);
}

TEST_CASE("pipeline_default keeps until the step and decides how often to reduce alone") {
    pipeline_default known;
    any_reshard parsed = any_reshard::parse("pipeline_default");
    CHECK(parsed == any_reshard(known));
    const auto chosen = [](auto& policy, std::size_t cap) {
        CHECK(policy.chosen_at_build());
        CHECK_FALSE(policy.chooses_units());
        CHECK(policy.cap() == cap);
        CHECK(table_of(policy) == "kkkkk kkkkk each");
        policy.accept({}, true, "full gradients fit");
        CHECK(table_of(policy) == "kkkkk kkkkk once");
        CHECK(policy.why() == "full gradients fit");
        CHECK(secondary_ranks(policy, {0, 5}) == 1);
    };
    chosen(known, dynamic);
    chosen(parsed, dynamic);
    CHECK(known.describe() == "pipeline_default");
    CHECK(parsed.describe() == "pipeline_default");
    pipeline_default capped(3000);
    any_reshard parsed_cap = any_reshard::parse("pipeline_default:3000");
    chosen(capped, 3000);
    chosen(parsed_cap, 3000);
    CHECK(capped.describe() == "pipeline_default(3000 bytes)");
    CHECK(parsed_cap.describe() == "pipeline_default(3000 bytes)");
    CHECK_FALSE(any_reshard{}.chosen_at_build());
    CHECK_FALSE(any_reshard::parse("reshard_to_group:2").chosen_at_build());
}

TEST_CASE("amounts of memory as text") {
    const auto cap = [](const char* amount) { return any_reshard::parse(text("reshard_within:", amount)).cap(); };
    CHECK(cap("1") == 1);
    CHECK(cap("1000000") == 1000000);
    CHECK(cap("3KiB") == 3072);
    CHECK(cap("3MiB") == 3145728);
    CHECK(cap("80GiB") == 85899345920);
    CHECK(cap("17179869183GiB") == 18446744072635809792u);
    const auto said = [](const char* option) { return any_reshard::parse(option).describe(); };
    CHECK(said("reshard_within:80GiB") == "reshard_within(80 GiB, 1 microbatch)");
    CHECK(said("reshard_within:1536MiB,16") == "reshard_within(1536 MiB, 16 microbatches)");
    CHECK(said("reshard_within:4096") == "reshard_within(4 KiB, 1 microbatch)");
    CHECK(said("reshard_within:4097") == "reshard_within(4097 bytes, 1 microbatch)");
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
    CHECK_FALSE(may_be<decltype(mesh<2, 4>::levels()), std::size_t{1}>);
    CHECK_FALSE(may_be<decltype(by_node::levels()), std::size_t{1}>);
    using to_group = decltype(reshard_to_group<2>{}.after_forward(unit_place{}));
    CHECK(may_be<to_group, afterwards::group>);
    CHECK_FALSE(may_be<to_group, afterwards::keep>);
    CHECK_FALSE(may_be<decltype(reshard_to_group<2>{}.after_backward(unit_place{})), afterwards::group>);
    CHECK_FALSE(may_be<decltype(reshard_to_group<2, until_step>{}.after_backward(unit_place{})), afterwards::free>);
    CHECK_FALSE(may_be<decltype(pipeline_default{}.after_forward(unit_place{})), afterwards::free>);
    CHECK_FALSE(may_be<decltype(hybrid_full_shard{}.parameters(unit_place{})), placement::whole>);
    CHECK(ChosenReshard<pipeline_default>);
    CHECK_FALSE(ChosenReshard<reshard_to_group<2>>);
}

TEST_CASE("a constant converts to its value") {
    constexpr placement where = fact<placement::whole>;
    CHECK(where == whole);
    CHECK(std::is_same_v<constant<3u>, std::integral_constant<unsigned, 3u>>);
    CHECK(std::string(name_of(placement::inner)) + name_of(afterwards::group) == "innergroup");
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
