"""What a policy costs a program that does not use it: nothing. A program with a policy of the library has the symbols
of one with a policy written by hand, and nothing of smaller groups, blocks or run-time policies; and a communicator
without split() is enough for it."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import tap

compiler = sys.argv[1]
report = tap.Report()
scratch = tempfile.TemporaryDirectory()

BEFORE = """
#include <reshard/comm/idle.hpp>
#include <reshard/reshard.hpp>
using namespace reshard;
"""
AFTER = """
static_assert(!Splittable<idle_communicator>);
void train(std::size_t ranks, float* values) {
    sharded_model<chosen, idle_communicator> model{idle_communicator(ranks)};
    auto& first = model.add_unit("first", {{"weight", {8}}});
    auto& second = model.add_unit("second", {{"weight", {8}}});
    adamw optimizer{model};
    model.initialize([](const parameter_info&, std::size_t, std::span<float> all) {
        for (float& one : all) one = 1;
    });
    const auto a = first.layout().parameter("weight"), b = second.layout().parameter("weight");
    model.begin_step({.microbatches = 1});
    {
        auto w = first.forward();
        values[0] = w[a][0];
    }
    {
        auto w = second.forward();
        values[1] = w[b][0];
    }
    {
        auto w = second.backward();
        w.gradient(b)[0] += values[1];
    }
    {
        auto w = first.backward();
        w.gradient(a)[0] += values[0];
    }
    optimizer.step({.clip_norm = 1});
}
"""
LIBRARY = "using chosen = policy<full_shard, keep_last<2>>;"
# The facts of the same policy, without policy<> and its slots.
BY_HAND = """
struct by_hand {
    struct strategy_type {
        static constexpr auto parameters(unit_place) { return fact<placement::whole>; }
        static constexpr auto gradients(unit_place) { return fact<placement::whole>; }
        static constexpr auto optimizer_state(unit_place) { return fact<placement::whole>; }
    };
    struct reshard_type {
        static constexpr afterwards after_forward(unit_place unit) {
            return unit.index + 2 >= unit.count ? afterwards::keep : afterwards::free;
        }
        static constexpr auto after_backward(unit_place) { return fact<afterwards::free>; }
        static constexpr auto reduce_once() { return fact<false>; }
    };
    using topology_type = flat<dynamic>;
    using precision_type = precision<float>;
    [[no_unique_address]] strategy_type strategy;
    [[no_unique_address]] reshard_type reshard;
    [[no_unique_address]] topology_type topology;

    static constexpr auto by_nodes() { return fact<false>; }
    static group_shape resolve(std::size_t world) { return topology_type::resolve(world); }
    static void check(std::size_t units) {
        if (units < 2) throw argument_error("E-POLICY-3", "too few units");
    }
    static void check_groups(group_shape, std::size_t) {}
    static std::string describe() { return "by hand"; }
};
using chosen = by_hand;
"""
AT_RUN_TIME = "using chosen = runtime_policy<>;"
# Of other policies: what a program with a run-time policy has, and one that knows its policy must not.
OTHERS = ["choose_within", "choose_pipeline", "front_walk", "make_groups", "keep_secondary", "any_sharding::parse",
          "any_reshard::describe", "any_topology::resolve"]


def symbols(name, policy):
    """(undefined, defined) symbols of the program, or a Bail out."""
    source = pathlib.Path(scratch.name) / f"{name}.cpp"
    source.write_text(BEFORE + policy + AFTER, encoding="utf-8")
    done = subprocess.run([compiler, "-std=c++20", "-O1", "-I", str(tap.INCLUDE), "-c", str(source), "-o",
                           str(source.with_suffix(".o"))], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        return None, done.stderr[-3000:]
    listed = [subprocess.run(["nm", which, "-C", str(source.with_suffix(".o"))], capture_output=True, text=True,
                             check=True).stdout.splitlines() for which in ("-u", "--defined-only")]
    return ({line.split(maxsplit=1)[1] for line in listed[0]}, {line.split(maxsplit=2)[2] for line in listed[1]})


if shutil.which("nm") is None:
    report.skipped("symbols of compile-time policies", "no nm")
    report.end()

programs = {}
for name, policy in (("library", LIBRARY), ("by_hand", BY_HAND), ("at_run_time", AT_RUN_TIME)):
    undefined, defined = symbols(name, policy)
    report.check(undefined is not None, f"{name}: compiles over a communicator without split()", defined)
    if undefined is None:
        report.end()
    programs[name] = undefined, defined

undefined, defined = programs["library"]
by_hand = programs["by_hand"][0]
report.check(undefined == by_hand, "undefined symbols are those of a policy written by hand",
             f"only the library's: {sorted(undefined - by_hand)}\nonly by hand: {sorted(by_hand - undefined)}")
own = sorted(name for name in undefined if "reshard::" in name)
report.check(not own, "no undefined symbol is the library's", own)


def functions(of):
    """The library's functions by name, without types."""
    found = set()
    for name in of:
        while (plain := re.sub(r"<[^<>]*>", "", name)) != name:
            name = plain
        words = name.split("(")[0].split()
        if words and "reshard::v0::" in words[-1]:
            found.add(words[-1].replace("reshard::v0::", ""))
    return found


OWN = ("policy", "full_shard", "keep_last", "flat", "detail::described")  # which of them stay calls, compilers decide
more = sorted(name for name in functions(defined) - functions(programs["by_hand"][1]) if not name.startswith(OWN))
report.check(not more, "the library's policy adds no function but its own and those that name it", more)
for other in OTHERS:
    here = sorted(name for name in defined if other in name)
    report.check(not here, f"no {other} in a program that knows its policy", here)
    report.check(any(other in name for name in programs["at_run_time"][1]),
                 f"but {other} where it is found at run time", "no such symbol: renamed?")
report.end()
