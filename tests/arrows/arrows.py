"""Arrows between rooms go one way, rooms of the core use few standard headers, and no header grows without end."""
import pathlib
import re
import sys

import tap

CONCEPTS = ["comm/concept.hpp", "device/concept.hpp"]
# room (or one header of it): what it may include besides itself
ARROWS = {
    "core": [],
    "layout": ["core"],
    "policy": ["core", "layout"],
    "schedule": ["core", "layout", "policy"],
    "plan": ["core", "layout", "policy", "schedule"],
    "engine": ["core", "layout", "policy", "schedule"] + CONCEPTS,
    "optim": ["core", "layout", "policy", "schedule", "engine"] + CONCEPTS,
    "checkpoint": ["core", "layout", "policy", "schedule", "engine", "optim"] + CONCEPTS,
    "device": ["core"],
    "comm/concept.hpp": ["core"],
    "comm": ["core", "device"],
    "adapters": ["core", "layout", "policy", "schedule", "engine", "optim", "comm", "device"],
}
# Nothing of these may be reached from the umbrella.
BACKENDS = r"reshard/(comm/(threads|mpi|nccl)|device/(host_stream|host_thread|cuda)|checkpoint|adapters)"
STANDARD = ("span vector string exception stdexcept type_traits utility cstdint cstddef new initializer_list bit "
            "concepts limits string_view array cstring compare").split()
CORE_ROOMS = "core layout policy schedule engine optim plan".split()
CORE_HEADERS = ["comm/self.hpp", "comm/concept.hpp", "device/concept.hpp", "device/immediate.hpp"]
THREADING = ["atomic", "thread", "mutex", "condition_variable", "pthread.h"]
MOST_LINES = 350

root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else tap.INCLUDE
tap.INCLUDE = root
report = tap.Report()


def room_of(inside):
    return inside if inside in ARROWS else inside.split("/")[0]


def arrow_faults(name):
    inside = name.removeprefix("reshard/")
    if "/" not in inside:
        return []
    room = inside.split("/")[0]
    allowed = ARROWS.get(room_of(inside))
    if allowed is None:
        return [f"{name}: no room of this name is known"]
    faults = []
    for each in tap.includes_of(name):
        if not each.startswith("reshard/"):
            continue
        target = each.removeprefix("reshard/")
        own = target.split("/")[0] == room and room_of(inside) == room
        if not own and target not in allowed and target.split("/")[0] not in allowed:
            faults.append(f"{name} includes <{each}>: {room_of(inside)} may include {', '.join(allowed) or 'nothing'}")
    return faults


def standard_faults(name):
    inside = name.removeprefix("reshard/")
    if inside.split("/")[0] not in CORE_ROOMS and inside not in CORE_HEADERS:
        return []
    return [f"{name} includes <{each}>" for each in tap.includes_of(name)
            if not each.startswith("reshard/") and each not in STANDARD]


names = tap.headers((".hpp", ".cuh"))
lines = {name: len((root / name).read_text(encoding="utf-8").splitlines()) for name in names}


def show(title, faults):
    report.check(not faults, title, "\n".join(faults))


show(f"{len(names)} headers include along the arrows only", [fault for name in names for fault in arrow_faults(name)])
show("core rooms use the short list of standard headers", [fault for name in names for fault in standard_faults(name)])
umbrella, paid_for = tap.closure("reshard/reshard.hpp")
show("the umbrella reaches no backend and no threads",
     [name for name in umbrella if re.match(BACKENDS, name)] + [f"<{each}>" for each in paid_for if each in THREADING])
show(f"no header has more than {MOST_LINES} lines",
     [f"{name}: {count} lines" for name, count in lines.items() if count > MOST_LINES])
show("every header starts with a comment and has #pragma once",
     [name for name in names if not (root / name).read_text(encoding="utf-8").startswith("//")
      or "#pragma once" not in (root / name).read_text(encoding="utf-8")])
report.end()
