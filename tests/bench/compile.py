"""Every benchmark compiles without a warning. None is run: times are for people to read."""
import shutil
import subprocess
import sys
import tempfile

import tap

compiler = tap.Compiler(sys.argv[1])
mpi = tap.mpi_include_flags()
report = tap.Report()
scratch = tempfile.TemporaryDirectory()


def eigen_flags():
    """-isystem flags for <Eigen/Core>, or None where there is no Eigen."""
    if shutil.which("pkg-config") is None:
        return None
    shown = subprocess.run(["pkg-config", "--cflags", "eigen3"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                           text=True, check=False)
    if shown.returncode != 0:
        return None
    return [flag for word in shown.stdout.split() if word.startswith("-I") for flag in ("-isystem", word[2:])]


eigen = eigen_flags()


def accepted(source):
    good, output = compiler.compile(source, scratch.name, compiler.warnings() + (mpi or []) + (eigen or []))
    return "" if good else output or "rejected without a word"


jobs = []
for source in sorted((tap.SOURCE / "bench").glob("*.cpp")):
    text = source.read_text(encoding="utf-8")
    lacking = [what for what, mark, found in (("MPI", "comm/mpi.hpp", mpi), ("Eigen", "<Eigen/", eigen))
               if mark in text and found is None]
    if lacking:
        report.skipped(source.name, f"no {' and no '.join(lacking)}")
    else:
        jobs.append((source.name, lambda source=source: accepted(source)))
report.run(jobs)
report.end()
