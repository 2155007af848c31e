"""What an include costs: the preprocessed lines that come from outside the library (lines, since time is noisy)."""
import os
import subprocess

import tap

# header, most lines of `g++ -E -P` from outside include/reshard
BUDGET = [
    ("reshard/reshard.hpp", 25500),
    ("reshard/comm/threads.hpp", 41000),
    ("reshard/comm/mpi.hpp", 41000),
]

report = tap.Report()
compiler = os.environ["RESHARD_CXX"]
mpi = tap.mpi_include_flags()
for header, most in BUDGET:
    name = f"{header}: at most {most} lines from outside"
    if not (tap.INCLUDE / header).is_file():
        report.failed(name, "no such header")
        continue
    outside = tap.closure(header)[1]
    if "mpi.h" in outside and mpi is None:
        report.skipped(name, "no mpi.h")
        continue
    text = "".join(f"#include <{each}>\n" for each in outside)
    done = subprocess.run([compiler, "-std=c++20", "-E", "-P", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX", "-x", "c++",
                           "-"] + (mpi or []), input=text, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.count("\n")
    report.check(lines <= most, f"{name} ({lines})", f"{lines} lines from {' '.join(outside)}")
report.end()
