"""pipeline_gpt against plain_gpt: equal losses and norms under every schedule, policy and backend; gathers and
reductions of every unit as the schedule's list predicts them, no missed prefetch; equal copies of the tied table.
Argument: the folder of the programs."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import tap  # noqa: E402

PROGRAMS = pathlib.Path(sys.argv[1])
WORK = pathlib.Path(tempfile.mkdtemp(prefix="reshard_pipeline_"))
TEXT = WORK / "text.txt"
STEPS, LAYERS, MICROBATCHES = 12, 4, 4
SHAPE = f"--layers {LAYERS} --width 16 --heads 2 --context 16 --batch 24 --steps {STEPS} --eval-every 5".split()
SCHEDULES = ["gpipe", "1f1b", "interleaved", "split"]
POLICIES = ["reshard_always", "reshard_never", "keep_until_step"]
TOLERANCE = {"double": 1e-9, "float": 1e-4}
LAUNCH = {"threads": [], "mpi": ["mpirun", "-np", "4", "--oversubscribe", "--bind-to", "none"]}

report = tap.Report()


def run(program, *options, launch=()):
    command = [*launch, str(PROGRAMS / program), *options]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)


def trained(program, name, *options, launch=()):
    """The report of a run, or a sentence."""
    out = WORK / (name.replace(" ", "_") + ".json")
    ended = run(program, "--text", str(TEXT), *SHAPE, "--report", str(out), *options, launch=launch)
    if ended.returncode != 0:
        return None, f"exit {ended.returncode}: {ended.stderr[-800:]}"
    return json.loads(out.read_text()), ""


def curve_differs(plain, seen, tolerance):
    if [len(run["steps"]) for run in (plain, seen)] != [STEPS, STEPS]:
        return f"{len(plain['steps'])} and {len(seen['steps'])} steps instead of {STEPS}"
    for key, number in (("steps", "loss"), ("steps", "norm"), ("validations", "loss")):
        for place, (one, other) in enumerate(zip(plain[key], seen[key], strict=True)):
            if not abs(one[number] - other[number]) <= tolerance * abs(one[number]):
                return f"{key} {place}: {number} {other[number]!r}, without a pipeline {one[number]!r}"
    return ""


def layers_differ(seen):
    """The units of both stages, by hand: two neighbours' chunks where stages take turns, else halves."""
    first, last = (["h.0", "h.2"], ["h.1", "h.3"]) if seen["schedule"] == "interleaved" else (["h.0", "h.1"],
                                                                                             ["h.2", "h.3"])
    names = [[unit["name"] for unit in stage["units"]] for stage in seen["stages"]]
    return "" if names == [["wte", "wpe", *first], [*last, "ln_f", "wte"]] else f"units {names}"


def expected_counts(strategy, policy, once):
    """Gathers, refreshes and reductions of a unit in a step behind no evaluation; None: not the same for all units."""
    gathers = {"reshard_always": 2 * MICROBATCHES, "reshard_never": None}.get(policy, 1)
    once = once or policy == "pipeline_default"
    if strategy != "full_shard":
        gathers = 0
    refreshes = int(strategy in ("shard_optimizer", "shard_gradients"))
    return gathers, refreshes, 1 if once or strategy in ("no_shard", "shard_optimizer") else MICROBATCHES


def figures_differ(seen, strategy, policy, once):
    if len(seen["stages"]) != 2:
        return f"{len(seen['stages'])} stages"
    gathers, refreshes, reductions = expected_counts(strategy, policy, once)
    warm = sum(step % 5 == 0 for step in range(STEPS)) if gathers == 1 else 0  # gathered by validations
    for stage in seen["stages"]:
        for unit in stage["units"]:
            measured = unit["measured"]
            if measured != unit["predicted"]:
                return f"stage {stage['stage']}: {unit}"
            if gathers is not None and measured["gathers"] != gathers * (STEPS - warm):
                return f"{unit}, by hand {gathers} gathers a step, none in {warm} of them"
            if [measured["refreshes"], measured["reductions"]] != [refreshes * STEPS, reductions * STEPS]:
                return f"{unit}, by hand {refreshes} refreshes and {reductions} reductions a step"
        memory = stage["memory"]
        if stage["collectives"] != stage["predicted"]:
            return f"measured {stage['collectives']}\npredicted {stage['predicted']}"
        if memory["predicted_owned_bytes"] != memory["measured_owned_bytes"]:
            return f"memory {memory}"
        if memory["measured_live_bytes"] > memory["planned_live_bytes"]:
            return f"memory {memory}"
        if stage["missed_prefetches"] or stage["allocations_after_first_step"]:
            return f"missed {stage['missed_prefetches']}, allocations {stage['allocations_after_first_step']}"
    if len({stage["embedding_xxh3"] for stage in seen["stages"]}) != 1:
        return "the stages' copies of the embedding differ"
    return ""


def compare(plain, backend, schedule, strategy, policy, accumulate="each", kind="double"):
    name = f"{backend} {schedule} {strategy} {policy} {accumulate} {kind}"
    if backend == "mpi" and (not shutil.which("mpirun") or "EXAMPLES_WITHOUT_MPI" in os.environ):
        report.skipped(name, "no mpirun")
        return
    seen, why = trained("pipeline_gpt", name, "--backend", backend, "--type", kind, "--schedule", schedule,
                        "--strategy", strategy, "--reshard", policy, "--accumulate", accumulate,
                        "--microbatches", str(MICROBATCHES), launch=LAUNCH[backend])
    if not why:
        why = (curve_differs(plain[kind], seen, TOLERANCE[kind]) or layers_differ(seen) or
               figures_differ(seen, strategy, policy, accumulate == "once"))
    report.check(not why, name, why)


def grid(plain):
    for schedule in SCHEDULES:
        for policy in POLICIES:
            compare(plain, "threads", schedule, "full_shard", policy)
        compare(plain, "threads", schedule, "full_shard", "keep_until_step", "once")
        compare(plain, "threads", schedule, "full_shard", "pipeline_default")
        compare(plain, "threads", schedule, "shard_gradients", "reshard_always", kind="float")
        compare(plain, "mpi", schedule, "full_shard", "reshard_always")
    for strategy in ("no_shard", "shard_optimizer"):
        compare(plain, "threads", "1f1b", strategy, "reshard_always")
    compare(plain, "mpi", "split", "full_shard", "keep_until_step", "once")
    compare(plain, "mpi", "1f1b", "full_shard", "pipeline_default")
    compare(plain, "mpi", "interleaved", "shard_optimizer", "reshard_always")


def shapes():
    """Other counts of ranks, microbatches and layers: one rank a stage, layers and slices that do not come out even."""
    for ranks, layers, microbatches in ((2, 2, 2), (4, 5, 6), (6, 7, 2), (8, 3, 1)):
        size = ["--layers", str(layers), "--microbatches", str(microbatches), "--type", "double"]
        plain, why = trained("plain_gpt", f"plain {layers} {microbatches}", *size)
        for schedule in SCHEDULES:
            if why or (schedule == "interleaved" and (microbatches % 2 or layers < 4)):
                continue
            name = f"{ranks} ranks, {layers} layers, {microbatches} microbatches, {schedule}"
            seen, ended = trained("pipeline_gpt", name, *size, "--ranks", str(ranks), "--schedule", schedule)
            ended = ended or curve_differs(plain, seen, TOLERANCE["double"])
            for stage in seen["stages"] if seen else []:
                counted = [unit["predicted"] == unit["measured"] for unit in stage["units"]]
                ended = ended or ("" if all(counted) and not stage["missed_prefetches"] else f"{stage}")
            report.check(not ended, name, ended)
        report.check(not why, f"plain_gpt, {layers} layers, {microbatches} microbatches", why)


def groups():
    """Stages of four ranks: smaller groups and blocks inside each stage."""
    size = ["--type", "double", "--microbatches", "2"]
    plain, why = trained("plain_gpt", "plain of groups", *size)
    for strategy, policy, topology in (("full_shard", "reshard_to_group:2", "flat"),
                                       ("full_shard", "reshard_to_group:2,until_step", "flat"),
                                       ("hybrid_shard", "reshard_always", "mesh:2x2"),
                                       ("hybrid_full_shard", "pipeline_default", "mesh:2x2")):
        for schedule in SCHEDULES:
            name = f"8 ranks, {strategy} {policy} {topology}, {schedule}"
            seen, ended = (None, why) if why else trained(
                "pipeline_gpt", name, *size, "--ranks", "8", "--schedule", schedule, "--strategy", strategy,
                "--reshard", policy, "--topology", topology)
            ended = ended or curve_differs(plain, seen, TOLERANCE["double"])
            for stage in seen["stages"] if seen else []:
                counted = [unit["predicted"] == unit["measured"] for unit in stage["units"]]
                same = all(counted) and stage["collectives"] == stage["predicted"] and not stage["missed_prefetches"]
                ended = ended or ("" if same else f"{stage}")
            report.check(not ended, name, ended)


def refusals():
    cases = [
        ("ranks that two stages cannot share", ["--ranks", "3"], "2 stages"),
        ("interleaved microbatches that form no groups", ["--schedule", "interleaved", "--microbatches", "3"], "3"),
        ("a batch that does not divide", ["--batch", "10"], "ranks of a stage x microbatches = 2 x 4 = 8"),
        ("fewer layers than chunks", ["--schedule", "interleaved", "--layers", "3"], "4 chunks"),
        ("an unknown schedule", ["--schedule", "zigzag"], "interleaved"),
        ("kept units in the way of the schedule", ["--reshard", "keep_last:1", "--schedule", "gpipe"], "E-ORDER-3"),
    ]
    for name, options, word in cases:
        ended = run("pipeline_gpt", "--text", str(TEXT), "--steps", "1", *options)
        tap.check_one_line(report, name, ended, word)


def main():
    TEXT.write_text(tap.text_to_learn())
    plain = {}
    for kind in TOLERANCE:
        plain[kind], why = trained("plain_gpt", f"plain {kind}", "--type", kind)
        report.check(not why, f"plain_gpt in {kind}", why)
        if why:
            report.end()
    grid(plain)
    shapes()
    groups()
    refusals()
    shutil.rmtree(WORK)
    report.end()


main()
