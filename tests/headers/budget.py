"""What an include costs: the preprocessed lines that come from outside the library (lines, since time is noisy)."""
import os
import subprocess

import tap

# What everybody includes, 24,014 lines in libstdc++ 12, and how many more a header may bring from outside
# include/reshard: lines of `g++ -E -P`.
BASE = ["span", "vector", "string", "exception", "stdexcept"]
BUDGET = [
    ("reshard/reshard.hpp", 1500),
    ("reshard/comm/threads.hpp", 17000),
    ("reshard/comm/mpi.hpp", 17000),
]

report = tap.Report()
compiler = os.environ["RESHARD_CXX"]
mpi = tap.mpi_include_flags()


def lines_of(headers):
    text = "".join(f"#include <{each}>\n" for each in headers)
    done = subprocess.run([compiler, "-std=c++20", "-E", "-P", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX", "-x", "c++",
                           "-"] + (mpi or []), input=text, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.count("\n")


base = lines_of(BASE)
for header, more in BUDGET:
    name = f"{header}: at most {base} + {more} lines from outside"
    if not (tap.INCLUDE / header).is_file():
        report.failed(name, "no such header")
        continue
    outside = tap.closure(header)[1]
    if "mpi.h" in outside and mpi is None:
        report.skipped(name, "no mpi.h")
        continue
    lines = lines_of(outside)
    report.check(lines <= base + more, f"{name} ({lines})", f"{lines} lines from {' '.join(outside)}")
report.end()
