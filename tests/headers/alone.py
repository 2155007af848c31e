"""Each header by itself, twice, among hostile macros; and all of them together with the sizes as literals.

A compiler's front end is slow under nvcc, which gets the last check only.
"""
import pathlib
import sys
import tempfile

import tap

HERE = pathlib.Path(__file__).resolve().parent
compiler = tap.Compiler(sys.argv[1])
mpi = tap.mpi_include_flags()
report = tap.Report()
scratch_root = tempfile.TemporaryDirectory()


def needs_mpi(header):
    return "mpi.h" in tap.closure(header)[1]


def accepted(name, text):
    folder = pathlib.Path(scratch_root.name) / name.replace("/", "_")
    folder.mkdir()
    source = folder / ("unit.cu" if compiler.is_nvcc else "unit.cpp")
    source.write_text(text, encoding="utf-8")
    good, output = compiler.compile(source, folder, compiler.warnings() + (mpi or []))
    return "" if good else output or "rejected without a word"


def include(names):
    return "".join(f"#include <{name}>\n" for name in names)


every = tap.headers()
usable = [name for name in every if mpi is not None or not needs_mpi(name)]
hostile = f'#include "{HERE / "hostile.hpp"}"\n'
jobs = []
if not compiler.is_nvcc:
    for name in usable:
        jobs.append((f"{name} alone, twice, hostile ({compiler.name})",
                     lambda name=name: accepted(name, hostile + include([name, name]))))
    # libstdc++ undefines min and max itself, so here its headers come first.
    outside = list(dict.fromkeys(other for name in usable for other in tap.closure(name)[1]))
    skip_bindings = "#define OMPI_SKIP_MPICXX\n#define MPICH_SKIP_MPICXX\n" if "mpi.h" in outside else ""
    jobs.append((f"all headers, min and max hostile ({compiler.name})",
                 lambda: accepted("minmax", skip_bindings + include(outside) + hostile + include(usable))))
jobs.append((f"all headers and the sizes of their types ({compiler.name})",
             lambda: accepted("all", include(usable) + f'#include "{HERE / "sizes.hpp"}"\n')))
report.run(jobs)
for name in every:
    if name not in usable:
        report.skipped(f"{name} ({compiler.name})", "no mpi.h")
report.end()
