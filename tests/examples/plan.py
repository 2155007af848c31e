"""plan against formulas written here: owned bytes kind by kind, bytes sent by a rank and over the link between nodes,
collectives; both naming schemes of config.json; the advice; refusals. Argument: the folder of the programs."""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import tap  # noqa: E402

PROGRAM = pathlib.Path(sys.argv[1]) / "plan"
WORK = pathlib.Path(tempfile.mkdtemp(prefix="reshard_plan_"))
SIZES = dict(layers=5, width=48, heads=4, vocabulary=1000, context=32)
OPTIONS = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]
NO_SHARD, OPTIMIZER, GRADIENTS = ("no_shard", "-"), ("shard_optimizer", "-"), ("shard_gradients", "-")
# where parameters, gradients and optimizer state rest: over no (1), the node's (S) or all (N) ranks
PLACES = {"no_shard": "111", "shard_optimizer": "11N", "shard_gradients": "1NN", "full_shard": "NNN",
          "hybrid_shard": "SSS", "hybrid_full_shard": "SSN"}

report = tap.Report()


def run(*options):
    return subprocess.run([str(PROGRAM), *map(str, options)], capture_output=True, text=True, timeout=60)


def planned(*options):
    out = WORK / "report.json"
    ended = run(*options, "--report", out)
    if ended.returncode != 0:
        raise SystemExit(f"Bail out! {options}: {ended.stderr}")
    return json.loads(out.read_text()), ended.stdout


def config(name, **entries):
    path = WORK / name
    path.write_text(json.dumps(entries))
    return path


def gpt2_units(layers, width, vocabulary, context, ffn=None, **_):
    ffn = ffn or 4 * width
    block = [width, width, 3 * width * width, 3 * width, width * width, width, width, width, ffn * width, ffn,
             width * ffn, width]
    return [(2, [vocabulary * width, context * width]), *[(1, block)] * layers, (1, [width, width])]


def padded(counts, ranks, alignment):
    """Each parameter begins at a multiple of `alignment`; the unit is a multiple of 64 a rank."""
    end = 0
    for count in counts:
        end = -(-end // alignment) * alignment + count
    whole = math.lcm(64 * ranks, alignment)
    return -(-end // whole) * whole


def policy_facts(reshard):
    """(what is kept, ranks of the small group, reduced once)"""
    once = reshard.startswith("accumulate_unsharded:")
    name = reshard.removeprefix("accumulate_unsharded:").split(":")
    if name[0] == "pipeline_default":
        return "keep_until_step", 1, True
    if name[0] == "reshard_to_group":
        ranks, _, until = name[1].partition(",")
        return "group_until_step" if until else "group", int(ranks), once
    return name[0], 1, once


def gathers_of(what, uses, microbatches, among_last):
    """(over the ranks of the shards, within the small group), of a unit in a plain loop."""
    every = 2 * uses * microbatches
    if what == "keep_last":
        what = "reshard_never" if among_last else "reshard_always"
    shards = {"reshard_always": every, "reshard_never": microbatches, "group": microbatches}.get(what, 1)
    return shards, every - shards if what.startswith("group") else 0


def expected(units, nodes, node_ranks, microbatches, bf16, strategy, reshard):
    """The figures of one policy: formulas of docs/policies.md, summed over padded units."""
    ranks = nodes * node_ranks
    size = 2 if bf16 else 4
    places = [{"1": 1, "S": node_ranks, "N": ranks}[mark] for mark in PLACES[strategy]]
    hybrid = "S" in PLACES[strategy]
    what, group, once = policy_facts(reshard)
    once = once or places[1] == 1
    kinds = dict.fromkeys(["masters", "moments", "owned gradients", "partial sums", "resting copies",
                           "whole gradients", "secondary shards", "gather buffers", "gradient buffers"], 0)
    kinds["control"] = 256 + 96 * ranks + ranks * -(-len(units) // 8)
    sent = {"whole": 96 * (ranks - 1), "inner": 0, "outer": 0, "small": 0}
    calls = 2 if ranks > 1 else 0
    turns = {"gather": [0, 0], "gradient": [0, 0]}
    turn = 0

    def ring(which, size_of_ring, total, times):
        nonlocal calls
        if size_of_ring == 1:
            return
        sent[which] += times * (size_of_ring - 1) * total // size_of_ring
        calls += times

    for number, (uses, counts) in enumerate(units):
        elements = padded(counts, ranks, 256 // size)
        P, G = elements * size, elements * 4
        kinds["masters"] += G // places[2]
        kinds["moments"] += 2 * G // places[2]
        kinds["owned gradients"] += G // places[2]
        if places[0] == 1 and (bf16 or places[2] > 1):
            kinds["resting copies"] += P
        if strategy == "hybrid_full_shard":
            kinds["resting copies"] += P // node_ranks
            if not once:
                kinds["partial sums"] += G // node_ranks
        direct = places[2] == 1
        if once and not direct:
            kinds["whole gradients"] += G
        alone = uses > 1
        if not once and not direct:
            if alone:
                kinds["gradient buffers"] += G
            else:
                turns["gradient"][turn % 2] = max(turns["gradient"][turn % 2], G)
        if places[0] > 1:
            kinds["secondary shards"] += P // group if group > 1 else 0
            if alone or what in ("reshard_never", "keep_until_step"):
                kinds["gather buffers"] += P  # the last two take the rotating ones, which are as large as they
            else:
                turns["gather"][turn % 2] = max(turns["gather"][turn % 2], P)
            shards, small = gathers_of(what, uses, microbatches, number >= len(units) - 2)
            ring("inner" if hybrid else "whole", places[0], P, shards)
            ring("small", group, P, small)
        turn += not alone
        if places[0] == 1 and places[2] > 1:
            ring("whole", ranks, P, 1)  # the refresh after the update
        if strategy == "hybrid_full_shard":
            ring("outer", nodes, P // node_ranks, 1)
        times = 1 if once else microbatches
        if strategy == "no_shard":
            ring("whole", ranks, 2 * G, 1)
        elif not hybrid:
            ring("whole", ranks, G, times)
        else:
            ring("inner", node_ranks, G, times)
            ring("outer", nodes, (2 if strategy == "hybrid_shard" else 1) * G // node_ranks, 1)
    kinds["gather buffers"] += sum(turns["gather"])
    kinds["gradient buffers"] += sum(turns["gradient"])
    link = sent["whole"] + node_ranks * sent["outer"] if nodes > 1 else 0
    return {"kinds": kinds, "owned": sum(kinds.values()), "sent": sum(sent.values()), "link": link,
            "collectives": calls}


def names_expected(nodes, node_ranks, microbatches):
    policies = ["reshard_always", "keep_last:2", "reshard_never", "keep_until_step"]
    grouped = [f"reshard_to_group:{node_ranks}", f"reshard_to_group:{node_ranks},until_step"] if nodes > 1 else []
    names = [NO_SHARD, OPTIMIZER, GRADIENTS]
    for strategy in ["full_shard", "hybrid_shard", "hybrid_full_shard"] if nodes > 1 else ["full_shard"]:
        by_hand = policies + (grouped if strategy == "full_shard" else [])
        again = [f"accumulate_unsharded:{name}" for name in by_hand] if microbatches > 1 else []
        names += [(strategy, name) for name in [*by_hand, "pipeline_default", *again]]
    return names


def figures_differ(nodes, node_ranks, microbatches, bf16):
    seen, table = planned(*OPTIONS, "--nodes", nodes, "--ranks-per-node", node_ranks, "--microbatches", microbatches,
                          "--compute", "bf16" if bf16 else "float")
    names = [(row["strategy"], row["reshard"]) for row in seen["policies"]]
    if names != names_expected(nodes, node_ranks, microbatches):
        return f"policies {names}"
    for row in seen["policies"]:
        right = expected(gpt2_units(**SIZES), nodes, node_ranks, microbatches, bf16, row["strategy"], row["reshard"])
        wrong = {key: (row[key], value) for key, value in right.items() if row[key] != value}
        if wrong:
            return f"{row['strategy']} + {row['reshard']}: (seen, by hand) {wrong}"
        if not any(line[2:].split()[:2] == [row["strategy"], row["reshard"]] for line in table.splitlines()):
            return f"{row['strategy']} + {row['reshard']} is not in the table"
    return advice_differs(seen, table)


def advice_differs(seen, table):
    """The first of the best that fit, marked and named."""
    fitting = [row for row in seen["policies"] if row["fits"]]
    best = min(fitting, key=lambda row: (row["link"], row["sent"], row["owned"], row["collectives"]))
    if seen["take"] != {key: best[key] for key in ("strategy", "reshard")}:
        return f"takes {seen['take']}, best is {best}"
    marked = [line.split()[1:3] for line in table.splitlines() if line.startswith("*")]
    if marked != [[best["strategy"], best["reshard"]]]:
        return f"marked {marked}"
    name = best["strategy"] + (" + " + best["reshard"] if best["reshard"] != "-" else "")
    return "" if f"\nTake {name}. " in table else "no line says what to take"


def cap_differs(cluster):
    """At every cap where something more fits: what does, that reshard_within is no worse, and the advice."""
    seen, _ = planned(*OPTIONS, *cluster)
    owned = sorted({row["owned"] for row in seen["policies"]})
    ended = run(*OPTIONS, *cluster, "--memory", owned[0] - 1)
    if ended.returncode != 2 or f"{owned[0]} bytes a rank" not in ended.stderr or ended.stderr.count("\n") != 1:
        return f"below the least: {ended.returncode} {ended.stderr}"
    for cap in owned:
        seen, table = planned(*OPTIONS, *cluster, "--memory", cap)
        for row in seen["policies"]:
            if row["fits"] != (row["owned"] <= cap):
                return f"cap {cap}: {row}"
        for row in seen["policies"]:
            if not row["reshard"].startswith("reshard_within") or not row["fits"]:
                continue
            others = [other for other in seen["policies"] if other["fits"] and other["strategy"] == row["strategy"] and
                      not other["reshard"].startswith(("accumulate", "pipeline", "reshard_within"))]
            if any(other["link"] < row["link"] for other in others):
                return f"cap {cap}: {row} sends more than another that fits: {others}"
        why = advice_differs(seen, table)
        if why:
            return f"cap {cap}: {why}"
    return ""


def config_differs(path, options, units):
    """Equal to the same sizes given by hand, or to the units listed here."""
    seen, _ = planned("--config", path)
    if options is not None:
        by_hand, _ = planned(*options)
        if seen != by_hand:
            return f"{seen}\n{by_hand}"
    found = [(unit["name"], unit["uses"], unit["alike"], unit["parameters"]) for unit in seen["units"]]
    return "" if found == units else f"units {found}"


def refusal_differs(words, *options):
    ended = run(*options)
    good = ended.returncode == 2 and not ended.stdout and ended.stderr.count("\n") == 1
    missing = [word for word in words if word not in ended.stderr]
    return "" if good and not missing else f"exit {ended.returncode}, lacks {missing}: {ended.stdout}{ended.stderr}"


for shape in [(1, 1), (1, 4), (2, 2), (2, 3), (3, 2)]:
    for microbatches in (1, 3):
        for bf16 in (False, True):
            name = f"{shape[0]} x {shape[1]} ranks, {microbatches} microbatches, {'bf16' if bf16 else 'float'}"
            why = figures_differ(*shape, microbatches, bf16)
            report.check(not why, f"figures of every policy: {name}", why)
for cluster in ["--ranks-per-node 4 --microbatches 2", "--nodes 2 --ranks-per-node 4 --microbatches 4"]:
    why = cap_differs(cluster.split())
    report.check(not why, f"caps and advice: {cluster}", why)

GPT2 = dict(n_embd=48, n_layer=5, n_head=4, n_positions=32, vocab_size=1000)
LLAMA = dict(hidden_size=64, num_hidden_layers=3, intermediate_size=160, vocab_size=500, num_attention_heads=8,
             num_key_value_heads=2, tie_word_embeddings=False)
LLAMA_BLOCK = 64 + 64 * 64 + 16 * 64 + 16 * 64 + 64 * 64 + 64 + 3 * 160 * 64
GPT2_BLOCK = 12 * 48 * 48 + 13 * 48
for name, path, options, units in [
        ("GPT-2 names", config("gpt2.json", **GPT2), OPTIONS,
         [("embedding", 2, 1, 1032 * 48), ("block", 1, 5, GPT2_BLOCK), ("norm", 1, 1, 96)]),
        ("GPT-2 with n_inner, not tied", config("inner.json", **GPT2, n_inner=100, tie_word_embeddings=False), None,
         [("embedding", 1, 1, 1032 * 48), ("block", 1, 5, 4 * 48 * 48 + 2 * 48 * 100 + 9 * 48 + 100),
          ("norm and head", 1, 1, 96 + 48000)]),
        ("Llama names", config("llama.json", **LLAMA), None,
         [("embedding", 1, 1, 32000), ("block", 1, 3, LLAMA_BLOCK), ("norm and head", 1, 1, 64 + 32000)]),
        ("Llama names, tied, head_dim and biases",
         config("tied.json", **{**LLAMA, "tie_word_embeddings": True, "head_dim": 16, "attention_bias": True}), None,
         [("embedding", 2, 1, 32000),
          ("block", 1, 3, LLAMA_BLOCK + 64 * 64 + 2 * 16 * 64 + 64 * 64 + 128 + 2 * 32 + 64), ("norm", 1, 1, 64)])]:
    why = config_differs(path, options, units)
    report.check(not why, f"config.json: {name}", why)

seen, table = planned(*OPTIONS, "--tokens", 7, "--memory", "1GiB")
activations = 7 * (5 * (4 * 48 + 2 * 48 + 2 * 48 + 2 * 192) + 48 + 2000) * 4
left = f"memory    {2**30 - activations} bytes"
report.check(seen["activations"] == activations and "estimate" in table and left in table,
             "activations are estimated and marked so", table)

without_layers = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}
for words, *options in [
        (["--layers is missing", "--config"],),
        (["--heads is missing"], *OPTIONS[:4]),
        (["--width", "contradict"], "--config", config("gpt2.json", **GPT2), "--width", 8),
        (["cannot read", "nowhere.json"], "--config", WORK / "nowhere.json"),
        (["no \"num_hidden_layers\""], "--config", config("short.json", **without_layers)),
        (["\"hidden_size\"", "1.5"], "--config", config("half.json", **{**LLAMA, "hidden_size": 1.5})),
        (["\"tie_word_embeddings\"", "true or false"], "--config",
         config("word.json", **{**LLAMA, "tie_word_embeddings": "no"})),
        (["num_local_experts", "dense"], "--config", config("experts.json", **LLAMA, num_local_experts=8)),
        (["48", "5 heads"], *OPTIONS, "--heads", 5),
        (["8 heads", "3 heads"], "--config", config("share.json", **{**LLAMA, "num_key_value_heads": 3})),
        (["--memory", "80GiB", "much"], *OPTIONS, "--memory", "much"),
        (["--memory", "1GiB,4"], *OPTIONS, "--memory", "1GiB,4"),
        (["activations", "--tokens"], *OPTIONS, "--memory", "1KiB", "--tokens", 100),
        (["--nodes"], *OPTIONS, "--nodes", 0),
        (["--compute"], *OPTIONS, "--compute", "int"),
        (["--colour"], *OPTIONS, "--colour", "red")]:
    why = refusal_differs(words, *options)
    report.check(not why, f"one line: {words[0]} ({' '.join(map(str, options[-2:]))})".replace(str(WORK), ""), why)
(WORK / "list.json").write_text("[1]")
why = refusal_differs(["no JSON object"], "--config", WORK / "list.json")
report.check(not why, "one line: no JSON object", why)
report.end()
