// Counts, bytes and owned memory of every placement and reshard policy against tables of formulas, group by group.
#include <doctest/doctest.h>

#include <reshard/layout/unit_layout.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "toy.hpp"

namespace {

using reshard::afterwards;
using reshard::dtype;
using reshard::group_counts;
using reshard::model_plan;
using reshard::placement;
using reshard::rank_set;

using numbers = std::vector<std::size_t>;

/// How often a step has a reduce-scatter over the whole, the inner and the outer group, an all-reduce over the whole
/// and the outer one, and a refresh gather over the whole, the inner and the outer one. 'r': once, or once a
/// microbatch. Over the outer group go sums of a block's slice, and its parameters.
struct row {
    const char* name;  // parameters, gradients, optimizer state
    char scatter_whole, scatter_inner, scatter_outer, reduce_whole, reduce_outer;
    char refresh_whole, refresh_inner, refresh_outer;
};
constexpr row rows[] = {
    {"RRR", '0', '0', '0', '1', '0', '0', '0', '0'}, {"RRI", '0', '1', '0', '0', '1', '0', '1', '0'},
    {"RRW", '1', '0', '0', '0', '0', '1', '0', '0'}, {"RII", '0', 'r', '0', '0', '1', '0', '1', '0'},
    {"RIW", '0', 'r', '1', '0', '0', '0', '1', '1'}, {"RWW", 'r', '0', '0', '0', '0', '1', '0', '0'},
    {"III", '0', 'r', '0', '0', '1', '0', '0', '0'}, {"IIW", '0', 'r', '1', '0', '0', '0', '0', '1'},
    {"IWW", '0', 'r', 'r', '0', '0', '0', '0', '1'}, {"WWW", 'r', '0', '0', '0', '0', '0', '0', '0'},
};

placement placed(char letter) {
    return letter == 'R' ? placement::replicated : letter == 'I' ? placement::inner : placement::whole;
}

struct policy {
    const char* name;
    afterwards after_forward, after_backward;
    std::size_t group = 1;
    std::size_t last = 1000;  // only the last units keep, the others are freed
};
constexpr policy always{"always", afterwards::free, afterwards::free};
constexpr policy never{"never", afterwards::keep, afterwards::free};
constexpr policy until_step{"until_step", afterwards::keep, afterwards::keep};
constexpr policy keep_last(std::size_t n) { return {"keep_last", afterwards::keep, afterwards::free, 1, n}; }
constexpr policy group(std::size_t k) { return {"group", afterwards::group, afterwards::free, k}; }
constexpr policy group_until_step(std::size_t k) {
    return {"group until step", afterwards::group, afterwards::group, k};
}

/// Ranks, microbatches, types and sizes of a table.
struct world {
    std::size_t ranks, inner, microbatches;
    bool once;
    numbers elements;
    dtype compute = dtype::f32, gradient = dtype::f32;

    std::size_t outer() const { return ranks / inner; }
    std::size_t degree(char letter) const { return letter == 'R' ? 1 : letter == 'I' ? inner : ranks; }
    std::size_t compute_size() const { return compute == dtype::f32 ? 4 : 2; }
    std::size_t gradient_size() const { return gradient == dtype::f32 ? 4 : 2; }
};

toy::prediction predicted(const world& on, const char* letters, const policy& keep) {
    model_plan plan;
    plan.ranks = on.ranks;
    plan.outer = on.outer();
    plan.reduce_once = on.once;
    plan.gradient = on.gradient;
    for (std::size_t u = 0; u < on.elements.size(); ++u) {
        const bool keeps = u + keep.last >= on.elements.size();
        plan.units.push_back(reshard::settled(plan, {"unit",
                                                     1,
                                                     placed(letters[0]),
                                                     placed(letters[1]),
                                                     placed(letters[2]),
                                                     keeps ? keep.after_forward : afterwards::free,
                                                     keeps ? keep.after_backward : afterwards::free,
                                                     {{on.compute, true, on.elements[u]}},
                                                     keep.group}));
    }
    return toy::predict(plan, toy::plain(toy::in_order(on.elements.size()), on.microbatches));
}

/// Without what begin_step and commit exchange.
group_counts sent(const world& on, const char* letters, const policy& keep) {
    group_counts groups = predicted(on, letters, keep).step.groups;
    groups[rank_set::whole].all_gather.calls -= 2;
    groups[rank_set::whole].all_gather.bytes -= 96 * (on.ranks - 1);
    return groups;
}

std::size_t over_ring(std::size_t bytes, std::size_t ranks) { return bytes * (ranks - 1) / ranks; }

/// F1: gathers over the shard group and within k, of unit u of n in M microbatches.
struct gathers {
    std::size_t shard, within;
};
gathers gathers_of(const policy& keep, std::size_t unit, std::size_t units, std::size_t microbatches,
                   std::size_t shards) {
    const std::size_t twice = 2 * microbatches;
    if (keep.after_forward == afterwards::free || unit + keep.last < units) return {twice, 0};
    const bool until = keep.after_backward != afterwards::free;
    if (keep.after_forward == afterwards::keep || keep.group == 1) return {until ? 1 : microbatches, 0};
    if (keep.group == shards) return {twice, 0};
    return until ? gathers{1, twice - 1} : gathers{microbatches, twice - microbatches};
}

group_counts expected(const world& on, const row& how, const policy& keep) {
    group_counts sum;
    const auto times = [&on](char mark) {
        return mark == '0' ? std::size_t{0} : mark == '1' || on.once ? 1 : on.microbatches;
    };
    const auto add = [](reshard::operation_count& to, std::size_t calls, std::size_t bytes) {
        to += {calls, calls * bytes};
    };
    const std::size_t n_ranks = on.ranks, s = on.inner, r = on.outer();
    for (std::size_t u = 0; u < on.elements.size(); ++u) {
        const std::size_t p = on.elements[u] * on.compute_size(), g = on.elements[u] * on.gradient_size();
        const std::size_t a = on.elements[u] * 4;
        auto& whole = sum[rank_set::whole];
        auto& inner = sum[rank_set::inner];
        auto& outer = sum[rank_set::outer];
        add(whole.reduce_scatter, times(how.scatter_whole), over_ring(g, n_ranks));
        add(inner.reduce_scatter, times(how.scatter_inner), over_ring(g, s));
        add(outer.reduce_scatter, times(how.scatter_outer), over_ring(a / s, r));
        add(whole.all_reduce, times(how.reduce_whole), 2 * over_ring(g, n_ranks));
        add(outer.all_reduce, times(how.reduce_outer), 2 * over_ring(a / s, r));
        add(whole.all_gather, times(how.refresh_whole), over_ring(p, n_ranks));
        add(inner.all_gather, times(how.refresh_inner), over_ring(p, s));
        add(outer.all_gather, times(how.refresh_outer), over_ring(p / s, r));
        if (how.name[0] == 'R') continue;
        const std::size_t shards = on.degree(how.name[0]);
        const gathers count = gathers_of(keep, u, on.elements.size(), on.microbatches, shards);
        add((how.name[0] == 'I' ? inner : whole).all_gather, count.shard, over_ring(p, shards));
        add(sum[rank_set::secondary].all_gather, count.within, over_ring(p, keep.group));
    }
    return sum;
}

/// F5, the gather buffers of two that rotate; whether unit u owns one instead.
bool owns_buffer(const policy& keep, std::size_t unit, std::size_t units) {
    const bool keeps = (keep.after_forward == afterwards::keep || keep.group == 1) &&
                       keep.after_forward != afterwards::free && unit + keep.last >= units;
    return keeps && (keep.after_backward != afterwards::free || unit + 2 < units);
}
std::size_t gather_buffers(const world& on, const policy& keep, std::size_t size) {
    std::size_t own = 0, rotating[2] = {0, 0};
    for (std::size_t u = 0; u < on.elements.size(); ++u) {
        const std::size_t bytes = on.elements[u] * size;
        if (owns_buffer(keep, u, on.elements.size())) {
            own += bytes;
        } else {
            rotating[u % 2] = std::max(rotating[u % 2], bytes);
        }
    }
    return own + rotating[0] + rotating[1];
}

std::size_t owned_expected(const world& on, const row& how, const policy& keep) {
    const char p = how.name[0], g = how.name[1], o = how.name[2];
    const std::size_t bc = on.compute_size(), bg = on.gradient_size();
    const bool full = g == 'R' || on.once;
    std::size_t sum = 0, largest = 0;
    for (const std::size_t n : on.elements) {
        largest = std::max(largest, n);
        sum += 3 * 4 * n / on.degree(o);                                    // masters and two moments
        sum += 4 * n / on.degree(o);                                        // sums that the update reads
        if (g != o && !full) sum += 4 * n / on.degree(g);                   // sums over the block before them
        if (p != o || (p == 'R' && bc != 4)) sum += bc * n / on.degree(p);  // resting copies
        if (full && !(o == 'R' && bg == 4)) sum += bg * n;                  // full gradients, unless they are the sums
        const bool secondary =
            p != 'R' && keep.after_forward == afterwards::group && keep.group > 1 && keep.group < on.degree(p);
        if (secondary) sum += bc * n / keep.group;
    }
    if (p != 'R') sum += gather_buffers(on, keep, bc);
    if (!full) sum += gather_buffers(on, always, bg);  // gradients rotate as parameters that are freed do
    // Sums over a block in another type than gradients wait where no arena has room for them.
    const bool two_stages_at_once = o == 'W' && ((p == 'I' && g == 'W') || (g == 'I' && on.once));
    if (bg != 4 && two_stages_at_once) sum += 4 * largest / on.inner;
    return sum;
}

void check_table(const world& on, const std::vector<policy>& policies) {
    CAPTURE(on.ranks);
    CAPTURE(on.inner);
    CAPTURE(on.microbatches);
    CAPTURE(on.once);
    for (const row& how : rows) {
        for (const policy& keep : policies) {
            const std::string what = std::string(how.name) + " " + keep.name + " " + std::to_string(keep.group);
            CAPTURE(what);
            if (how.name[0] != 'R' && on.degree(how.name[0]) % keep.group != 0) continue;  // refused by the policy
            const group_counts found = sent(on, how.name, keep), right = expected(on, how, keep);
            for (std::size_t k = 0; k < reshard::rank_sets; ++k) {
                const rank_set set = static_cast<rank_set>(k);
                CAPTURE(std::string(reshard::name_of(set)));
                CHECK(found[set].all_gather.calls == right[set].all_gather.calls);
                CHECK(found[set].all_gather.bytes == right[set].all_gather.bytes);
                CHECK(found[set].reduce_scatter.calls == right[set].reduce_scatter.calls);
                CHECK(found[set].reduce_scatter.bytes == right[set].reduce_scatter.bytes);
                CHECK(found[set].all_reduce.calls == right[set].all_reduce.calls);
                CHECK(found[set].all_reduce.bytes == right[set].all_reduce.bytes);
            }
            CHECK(predicted(on, how.name, keep).owned.total() == owned_expected(on, how, keep));
        }
    }
}

std::size_t toy_sent(const char* letters, const policy& keep, bool once, const numbers& elements) {
    return sent({4, 2, 2, once, elements}, letters, keep).sum().total().bytes;
}
std::size_t toy_owned(const char* letters, const policy& keep, bool once = false) {
    return predicted({4, 2, 2, once, {16, 16, 16, 16}}, letters, keep).owned.total();
}

/// Elements of a unit of 16 on 4 ranks, with this alignment of slices.
std::size_t padded(std::size_t alignment) {
    const reshard::layout_options options{.parameter_alignment = alignment, .slice_alignment = alignment};
    return reshard::unit_layout::build(0, {{"w", {4, 4}}}, 4, options, dtype::f32).segments()[0].elements;
}

}  // namespace

TEST_CASE("ten placements, all reshard policies: counts and bytes by group, and owned bytes, as the formulas") {
    const std::vector<policy> policies = {always,
                                          keep_last(1),
                                          keep_last(3),
                                          never,
                                          until_step,
                                          group(2),
                                          group_until_step(2),
                                          group(4),
                                          group(1),
                                          group_until_step(1),
                                          group_until_step(4),
                                          group(12),
                                          keep_last(2),
                                          group_until_step(12)};
    for (const std::size_t microbatches : {1u, 2u, 4u}) {
        for (const bool once : {false, true}) {
            check_table({12, 4, microbatches, once, {48, 96, 24, 144}}, policies);
            check_table({12, 4, microbatches, once, {48, 96, 24, 144}, dtype::bf16, dtype::bf16}, policies);
            check_table({12, 4, microbatches, once, {144, 24, 48}, dtype::bf16, dtype::f32}, policies);
            check_table({8, 4, microbatches, once, {32}}, {always, never, until_step, group(2), group_until_step(2)});
            check_table({6, 3, microbatches, once, {24, 6, 12}}, {always, keep_last(1), never, until_step});
            check_table({6, 2, microbatches, once, {24, 6, 12}}, {always, group(2), group_until_step(2)});
        }
    }
}

TEST_CASE("a block of all ranks is the whole, a block of one replicates") {
    const auto same = [](const world& on, const char* one, const char* other) {
        CHECK(sent(on, one, group_until_step(2)) == sent(on, other, group_until_step(2)));
        CHECK(predicted(on, one, always).owned == predicted(on, other, always).owned);
    };
    const world one_block{4, 4, 2, false, {16, 32}}, blocks_of_one{4, 1, 2, false, {16, 32}};
    same(one_block, "III", "WWW");
    same(one_block, "RIW", "RWW");
    same(one_block, "RRI", "RRW");
    same(blocks_of_one, "III", "RRR");
    same(blocks_of_one, "IIW", "RRW");
    same(blocks_of_one, "IWW", "RWW");
}

TEST_CASE("the toy numbers: bytes sent by a rank for 16 fp32 elements, 4 ranks, 2 microbatches, each and once") {
    struct number {
        const char* letters;
        policy keep;
        std::size_t each, once;
    };
    const number table[] = {
        {"RRR", always, 96, 96},     {"RRI", always, 96, 96},
        {"RRW", always, 96, 96},     {"RII", always, 128, 96},
        {"RIW", always, 128, 96},    {"RWW", always, 144, 96},
        {"III", always, 224, 192},   {"IIW", always, 224, 192},
        {"IWW", always, 240, 192},   {"WWW", always, 288, 240},
        {"WWW", never, 192, 144},    {"WWW", until_step, 144, 96},
        {"WWW", group(2), 256, 208}, {"WWW", group_until_step(2), 240, 192},
    };
    // Alignment 1, and slices of 256 bytes: 16 times as much.
    for (const std::size_t alignment : {1u, 64u}) {
        const std::size_t elements = padded(alignment), times = elements / 16;
        CHECK(times == (alignment == 1 ? 1 : 16));
        for (const number& one : table) {
            CAPTURE(std::string(one.letters) + " " + one.keep.name);
            CHECK(toy_sent(one.letters, one.keep, false, {elements}) == times * one.each);
            CHECK(toy_sent(one.letters, one.keep, true, {elements}) == times * one.once);
        }
    }
    CHECK(toy_sent("WWW", keep_last(1), false, {4, 4, 4, 4}) == 264);
    CHECK(toy_sent("WWW", keep_last(1), true, {4, 4, 4, 4}) == 216);
}

TEST_CASE("the toy numbers: owned bytes of 4 units of 16 fp32 elements on 2 x 2 ranks") {
    CHECK(toy_owned("RRR", always) == 1024);
    CHECK(toy_owned("RRW", always) == 768);
    CHECK(toy_owned("RWW", always) == 640);
    CHECK(toy_owned("WWW", always) == 512);
    CHECK(toy_owned("WWW", always, true) == 640);
    CHECK(toy_owned("WWW", keep_last(1)) == 512);
    CHECK(toy_owned("WWW", keep_last(3)) == 576);
    CHECK(toy_owned("WWW", never) == 640);
    CHECK(toy_owned("WWW", until_step) == 640);
    CHECK(toy_owned("WWW", group(2)) == 640);
    CHECK(toy_owned("WWW", group_until_step(2)) == 640);
    CHECK(toy_owned("III", always) == 768);
    CHECK(toy_owned("III", always, true) == 896);
    CHECK(toy_owned("IIW", always) == 768);
    CHECK(toy_owned("IIW", always, true) == 768);
}

TEST_CASE("a secondary shard takes its part of the unit, padding included, and lives as long as its policy says") {
    for (const std::size_t k : {2u, 3u, 4u, 6u}) {
        const world on{12, 12, 2, false, {48, 96, 24, 144}, dtype::bf16, dtype::bf16};
        const auto freed = predicted(on, "WWW", always), kept = predicted(on, "WWW", group_until_step(k));
        CHECK(kept.owned.secondary_shards == 2 * (48 + 96 + 24 + 144) / k);
        CHECK(kept.owned.total() == freed.owned.total() + kept.owned.secondary_shards);
        CHECK(kept.step.live.back().secondary == kept.owned.secondary_shards);
        CHECK(predicted(on, "WWW", group(k)).step.live.back().secondary == 0);
        CHECK(kept.step.peak.gathered <= kept.owned.gather_buffers);
    }
}
