"""Reads what bench/slow_link.sh wrote (the best of all runs in the file): prints the tables, and draws them.

usage: slow_link.py RESULTS [SVG]
"""
import pathlib
import sys
from html import escape

FRAME = 1514 / 1448  # on the wire to in the message: the headers of Ethernet, IP and TCP, which the cap counts
FIRST = ("full_shard", "reshard_always")  # what the others are compared with
COLOURS = ("#4c566a", "#c2571a", "#e0a52e", "#2f7f79", "#6fb7a8")


class Results:
    """ring: the shortest times of all runs. steps: {(rate, policy, microbatches): (ms, predicted, measured)}."""

    def __init__(self, lines):
        self.ring, self.steps = {}, {}
        for line in lines:
            words = line.split()
            if words[:1] == ["ring"]:
                self.hosts, self.megabytes = int(words[1]), float(words[2])
                for name, value in zip(words[3::2], words[4::2]):
                    self.ring[name] = min(float(value), self.ring.get(name, float("inf")))
            elif words[:1] == ["step"]:
                key = (words[1], (words[2], words[3]), int(words[4]))
                found = (float(words[5]), float(words[6]), float(words[7]))
                self.steps[key] = min(found, self.steps.get(key, found))
                if words[8] != "0":
                    sys.exit(f"a copy left before its use, so the prediction is not that of this run: {line}")
                if not 1 <= found[2] / found[1] < 1.02:
                    sys.exit(f"more or fewer bytes over the link than planned: {line}")
        self.rates = sorted({key[0] for key in self.steps}, key=bits)
        self.policies = list(dict.fromkeys(key[1] for key in self.steps))
        self.passes = sorted({key[2] for key in self.steps})

    def ratios(self, rate, policy, m):
        """Of times and of predicted bytes, to FIRST."""
        one, base = self.steps[rate, policy, m], self.steps[rate, FIRST, m]
        return one[0] / base[0], one[1] / base[1]


def bits(rate):
    """A second; without a cap as many as you like."""
    return float(rate.removesuffix("mbit")) * 1e6 if rate != "none" else float("inf")


def name(policy):
    strategy, reshard = policy
    if strategy != "full_shard":
        return strategy
    return reshard.replace(":2,until_step", "<2, until_step>").replace(":2", "<2>")


def spoken(rate):
    return "no cap" if rate == "none" else f"{rate.removesuffix('mbit')} Mbit/s"


def print_tables(results):
    if results.ring:
        send = results.ring.pop("send")
        print(f"| {results.hosts} hosts, 1 Gbit/s | ms | / plain send |\n|---|---|---|")
        print(f"| MPI_Send of {results.megabytes:.0f} MB | {send:.1f} | 1 |")
        for operation, took in results.ring.items():
            print(f"| {operation} of 16 MB | {took:.1f} | {took / send:.2f} |")
        print()
    for rate in results.rates:
        print(f"| {spoken(rate)} | M | MB planned | MB measured | ms | ms / link's own | time ratio | byte ratio | "
              "off by |")
        print("|---|---|---|---|---|---|---|---|---|")
        for m in results.passes:
            for policy in results.policies:
                took, planned, measured = results.steps[rate, policy, m]
                time, byte = results.ratios(rate, policy, m)
                own = planned * 8 * FRAME / bits(rate) * 1e3
                against_link = f"{took / own:.2f}" if own else "-"
                print(f"| `{name(policy)}` | {m} | {planned / 1e6:.2f} | {measured / 1e6:.2f} | {took:.0f} | "
                      f"{against_link} | {time:.3f} | {byte:.3f} | {100 * (time / byte - 1):+.0f} % |")
        print()


def drawing(results):
    """A panel for each number of microbatches; in it, for each rate, a bar a policy and a mark where bytes put it."""
    bar, gap, height, left, top = 17, 26, 190, 52, 62
    group = bar * len(results.policies) + gap
    width = max(left + group * len(results.rates) + 20, 570)
    panel = height + 74
    total = top + panel * len(results.passes) + 4
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" height="{total}" '
           'font-family="sans-serif" font-size="12" fill="#222">',
           '<title>Step time over a capped link, by policy, beside the bytes that cross it</title>',
           f'<rect width="{width}" height="{total}" fill="#fff"/>']
    at = left
    for k, policy in enumerate(results.policies):
        row, column = divmod(k, 3)
        at = left + column * 170
        out.append(f'<rect x="{at}" y="{10 + row * 18}" width="11" height="11" fill="{COLOURS[k]}"/>'
                   f'<text x="{at + 16}" y="{20 + row * 18}">{escape(name(policy))}</text>')
    out.append(f'<path d="M{left + 340} 34 h14" stroke="#000" stroke-width="2"/>'
               f'<text x="{left + 360}" y="38">bytes over the link</text>')
    for number, m in enumerate(results.passes):
        most = max(max(results.ratios(rate, policy, m)) for rate in results.rates for policy in results.policies)
        base = top + panel * number + height + 16
        up = lambda value: base - value / most * height
        out.append(f'<text x="{left}" y="{base - height - 6}" font-weight="bold">'
                   f'{m} microbatch{"es" if m > 1 else ""} a step: time, 1 = reshard_always</text>')
        for tick in (0, 0.25, 0.5, 0.75, 1):
            out.append(f'<path d="M{left} {up(tick):.1f} H{width - 14}" stroke="#ddd"/>'
                       f'<text x="{left - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for g, rate in enumerate(results.rates):
            start = left + gap / 2 + g * group
            for k, policy in enumerate(results.policies):
                time, byte = results.ratios(rate, policy, m)
                x = start + k * bar
                out.append(f'<rect x="{x + 1:.1f}" y="{up(time):.1f}" width="{bar - 2}" height="{base - up(time):.1f}" '
                           f'fill="{COLOURS[k]}"><title>{escape(name(policy))}, {spoken(rate)}: time {time:.2f}, '
                           f'bytes {byte:.2f}</title></rect>'
                           f'<path d="M{x - 1:.1f} {up(byte):.1f} h{bar + 2}" stroke="#000" stroke-width="2"/>')
            out.append(f'<text x="{start + (group - gap) / 2:.1f}" y="{base + 18}" text-anchor="middle">'
                       f'{spoken(rate)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    results = Results(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines())
    print_tables(results)
    if len(sys.argv) == 3:
        pathlib.Path(sys.argv[2]).write_text(drawing(results), encoding="utf-8")


main()
