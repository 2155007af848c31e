"""train_gpt against plain_gpt: equal losses under every strategy, policy, backend and rank count; figures predicted =
measured; the lines that sharding adds to the trainer; what wrong options get. Argument: the folder of the programs."""
import difflib
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
WORK = pathlib.Path(tempfile.mkdtemp(prefix="reshard_curves_"))
TEXT = WORK / "text.txt"
SHAPE = "--layers 3 --width 16 --heads 2 --context 16 --batch 24 --steps 20 --eval-every 7 --sample-bytes 10".split()
STRATEGIES = ["no_shard", "shard_optimizer", "shard_gradients", "full_shard"]
POLICIES = ["reshard_always", "reshard_never", "keep_until_step", "keep_last:1", "keep_last:2"]
# strategy, policy, topology
GROUPED = [
    ("hybrid_shard", "reshard_always", "mesh:2x2"),
    ("hybrid_full_shard", "keep_last:1", "mesh:2x2"),
    ("hybrid_full_shard", "pipeline_default", "mesh:*x2"),
    ("full_shard", "reshard_to_group:2", "flat"),
    ("full_shard", "reshard_to_group:2,until_step", "mesh:2x2"),
    ("full_shard", "reshard_within:4MiB,2", "by_node"),
    ("sharding:inner,whole,whole", "reshard_never", "mesh:2x2"),
]
TOLERANCE = {"double": 1e-9, "float": 1e-4}
MPIRUN = shutil.which("mpirun")

report = tap.Report()


def run(program, *options, ranks=None):
    command = [str(PROGRAMS / program), *options]
    if ranks is not None:
        command = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", *command]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)


def losses(program, name, kind, *options, ranks=None):
    """The report of a run, or a sentence."""
    out = WORK / (name.replace(" ", "_") + ".json")
    ended = run(program, "--text", str(TEXT), *SHAPE, "--type", kind, "--report", str(out), *options, ranks=ranks)
    if ended.returncode != 0:
        return None, f"exit {ended.returncode}: {ended.stderr[-800:]}"
    return json.loads(out.read_text()), ""


def curve_differs(plain, sharded, tolerance):
    if len(plain["steps"]) != 20 or len(sharded["steps"]) != 20:
        return f"{len(plain['steps'])} and {len(sharded['steps'])} steps instead of 20"
    for key in ("steps", "validations"):
        for number, (expected, seen) in enumerate(zip(plain[key], sharded[key])):
            if not abs(expected["loss"] - seen["loss"]) <= tolerance * abs(expected["loss"]):
                return f"{key} {number}: loss {seen['loss']!r}, without the library {expected['loss']!r}"
    return ""


def figures_differ(sharded):
    if sharded["collectives"] != sharded["predicted"]:
        return f"measured {sharded['collectives']}\npredicted {sharded['predicted']}"
    memory = sharded["memory"]
    if memory["predicted_owned_bytes"] != memory["measured_owned_bytes"]:
        return f"memory {memory}"
    if memory["measured_live_bytes"] > memory["planned_live_bytes"]:
        return f"memory {memory}"
    if sharded["missed_prefetches"] or sharded["allocations_after_first_step"]:
        return f"missed {sharded['missed_prefetches']}, allocations {sharded['allocations_after_first_step']}"
    return ""


def compare(plain, name, kind, *options, ranks=None):
    sharded, why = losses("train_gpt", name, kind, *options, ranks=ranks)
    if not why:
        why = curve_differs(plain[kind], sharded, TOLERANCE[kind]) or figures_differ(sharded)
    report.check(not why, name, why)


def grid(plain):
    for strategy in STRATEGIES:
        for policy in POLICIES if strategy == "full_shard" else POLICIES[:1]:
            for accumulate in ("each", "once"):
                chosen = ["--strategy", strategy, "--reshard", policy, "--accumulate", accumulate]
                kind = "double" if accumulate == "each" else "float"
                compare(plain, f"threads 4 {strategy} {policy} {accumulate} {kind}", kind, "--backend", "threads",
                        "--ranks", "4", "--microbatches", "2", *chosen)
    for strategy, policy, topology in GROUPED:
        for backend in ("threads", "mpi"):
            name = f"{backend} 4 {strategy} {policy} {topology}"
            if backend == "mpi" and not (MPIRUN and "EXAMPLES_WITHOUT_MPI" not in os.environ):
                report.skipped(name, "no mpirun")
                continue
            compare(plain, name, "double", "--backend", backend, "--microbatches", "2", "--strategy", strategy,
                    "--reshard", policy, "--topology", topology, ranks=4 if backend == "mpi" else None)
    for ranks in (1, 2, 3, 8):
        compare(plain, f"threads {ranks} double", "double", "--backend", "threads", "--ranks", str(ranks))
    compare(plain, "self double", "double", "--backend", "self", "--microbatches", "3")
    compare(plain, "self float", "float", "--backend", "self")
    for ranks in (1, 2, 3, 4):
        for strategy in STRATEGIES:
            name = f"mpi {ranks} {strategy} double"
            if MPIRUN and "EXAMPLES_WITHOUT_MPI" not in os.environ:
                compare(plain, name, "double", "--backend", "mpi", "--strategy", strategy, "--reshard", "keep_last:1",
                        "--microbatches", "2", ranks=ranks)
            else:
                report.skipped(name, "no mpirun")


def added_lines():
    """How much longer the trainer file is with the library, without its report section, comments and braces."""
    def code(path):
        text = (tap.SOURCE / "examples" / path).read_text()
        begin, end = text.find("    // ---"), text.find("    options options_;")
        text = text if begin < 0 else text[:begin] + text[end:]
        lines = [line.strip() for line in text.splitlines()]
        return [line for line in lines if line and not line.startswith(("//", "#include")) and line not in "{}};"]

    plain, sharded = code("plain_gpt.cpp"), code("train_gpt.cpp")
    differ = sum(line.startswith("+ ") for line in difflib.ndiff(plain, sharded))
    added = len(sharded) - len(plain)
    print(f"# the trainer has {len(plain)} lines, with the library {len(sharded)}: {added} more; {differ} differ")
    report.check(added < 60, "fewer than 60 lines added to the trainer", f"{added} lines")


def refusals():
    cases = [
        ("a batch that does not divide", ["--batch", "10", "--ranks", "4"], "10"),
        ("an unknown strategy", ["--strategy", "zero_9"], "full_shard"),
        ("an unknown policy", ["--reshard", "keep_lost:1"], "keep_last"),
        ("more kept units than there are", ["--reshard", "keep_last:99", "--layers", "1"], "99"),
        ("a group that does not divide", ["--reshard", "reshard_to_group:3", "--batch", "12"], "use 1, 2 or 4"),
        ("a mesh of other ranks", ["--topology", "mesh:3x2", "--batch", "12"], "3 x inner 2"),
        ("a cap that nothing fits under", ["--reshard", "reshard_within:1000", "--batch", "12"], "E-POLICY-11"),
        ("a text that is not there", ["--text", str(WORK / "absent")], "absent"),
        ("heads that do not divide the width", ["--width", "10", "--heads", "4"], "10"),
        ("self with ranks", ["--backend", "self", "--ranks", "2"], "self"),
    ]
    for name, options, word in cases:
        given = options if "--text" in options else ["--text", str(TEXT), *options]
        tap.check_one_line(report, name, run("train_gpt", *given), word)


def main():
    TEXT.write_text(tap.text_to_learn())
    plain = {}
    for kind in TOLERANCE:
        plain[kind], why = losses("plain_gpt", f"plain {kind}", kind)
        report.check(not why, f"plain_gpt in {kind}", why)
        if why:
            report.end()
    grid(plain)
    added_lines()
    refusals()
    shutil.rmtree(WORK)
    report.end()


main()
