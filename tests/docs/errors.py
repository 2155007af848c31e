"""docs/errors.md has every identifier of the library, in order, and every example fails with the text that is shown."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import blocks
import tap

PAGE = tap.SOURCE / "docs/errors.md"
HEADING = re.compile(r"^### (E-[A-Z]+-[0-9]+)$", re.MULTILINE)
MAIN = """
#include <cstdio>
#include <cstdlib>
#include <exception>
namespace {{
int report(int number, void (*example)()) {{
    try {{
        example();
        std::printf("%d\\tnothing was thrown\\n", number);
    }} catch (const std::exception& thrown) {{
        std::printf("%d\\t%s\\n", number, thrown.what());
    }}
    std::fflush(stdout);
    return 0;
}}
}}
int main(int argc, char** argv) {{
    const int only = argc > 1 ? std::atoi(argv[1]) : -1;
{start}
    void (*const examples[])() = {{{names}}};
    for (int number = 0; number < {count}; ++number) {{
        if (only < 0 || only == number) report(number, examples[number]);
    }}
{end}
}}
"""
# A rank that has failed leaves without a word to MPI, after the others had time to print.
MPI_START = "    if (argc < 3) MPI_Init(&argc, &argv);"
MPI_END = "    timespec pause{0, 300000000};\n    nanosleep(&pause, nullptr);\n    std::_Exit(0);"


def words(text):
    return " ".join(text.split())


def matches(shown, printed):
    """Whether the text of the page, in which <number> stands for any, is the printed one."""
    pattern = re.escape(words(shown)).replace(re.escape("<number>"), "[0-9]+")
    return re.fullmatch(pattern, words(printed)) is not None


def identifiers():
    found = set()
    for name in tap.headers((".hpp", ".cuh")):
        text = (tap.INCLUDE / name).read_text(encoding="utf-8")
        found |= set(re.findall(r'["\[](E-[A-Z]+-[0-9]+)["\]]', text))
    return found


def key(identifier):
    _, room, number = identifier.split("-")
    return room, int(number)


def build(name, examples, scratch, flags, start="", end="    return 0;"):
    source, program = scratch / f"{name}.cpp", scratch / name
    names = ", ".join(f"block_{k}::example" for k in range(len(examples)))
    source.write_text(blocks.unit(examples) + MAIN.format(start=start, end=end, names=names, count=len(examples)))
    good, output = blocks.run([os.environ.get("RESHARD_CXX", "c++"), "-std=c++20", "-O0", "-pthread", "-I", tap.INCLUDE,
                               source, "-o", program, *flags])
    return program, "" if good else output


def printed_by(command, timeout):
    """{number: [texts]} of a program of examples."""
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    try:
        output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=timeout,
                                env=environment, check=False).stdout
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode()
    found = {}
    for line in output.splitlines():
        number, tab, text = line.partition("\t")
        if tab and number.isdigit():
            found.setdefault(int(number), []).append(text)
    return found


def verdict(block, texts):
    if any(f"[{block.section}]" in text and matches(block.text, text) for text in texts):
        return ""
    return f"shown: {words(block.text)}\n" + "\n".join(f"printed: {text}" for text in texts or ["nothing"])


def try_thrown(report, examples, scratch):
    program, why = build("examples", examples, scratch, [])
    if why:
        return report.failed("the examples compile", why)
    texts = printed_by([str(program)], 120)
    for number, block in enumerate(examples):
        report.check(not (bad := verdict(block, texts.get(number, []))), f"{block.section} ({block.place})", bad)


def try_mpi(report, examples, scratch):
    flags = tap.mpi_include_flags()
    if flags is None or os.environ.get("RESHARD_MPI") == "no":
        return report.skipped(f"{len(examples)} examples over MPI", "no MPI here")
    linked = subprocess.run(["mpicxx", "-showme:link"], stdout=subprocess.PIPE, text=True, check=False)
    if linked.returncode != 0:
        linked = subprocess.run(["mpicxx", "-show"], stdout=subprocess.PIPE, text=True, check=True)
    libraries = [word for word in linked.stdout.split() if word.startswith(("-L", "-l", "-Wl"))]
    program, why = build("examples_mpi", examples, scratch, flags + libraries, MPI_START, MPI_END)
    if why:
        return report.failed("the examples over MPI compile", why)
    for number, block in enumerate(examples):
        bare = ["bare"] if block.preamble == "mpi_bare" else []
        texts = printed_by(["mpirun", "-np", "2", str(program), str(number), *bare], 60)
        report.check(not (bad := verdict(block, texts.get(number, []))), f"{block.section} ({block.place})", bad)


def try_refused(block, compiler, scratch):
    source = scratch / f"refused_{block.line}.cpp"
    source.write_text(f"#include <reshard/policy/runtime.hpp>\nusing namespace reshard;\n{block.code}")
    good, output = compiler.compile(source, scratch)
    if good:
        return "it compiles"
    if f"[{block.section}]" not in output or words(block.text) not in words(output):
        return f"shown: {words(block.text)}\n{output}"
    return ""


def main():
    report = tap.Report()
    headings = HEADING.findall(PAGE.read_text(encoding="utf-8"))
    known = identifiers()
    report.check(set(headings) == known and len(headings) == len(known), "the page has every identifier, once",
                 f"only in the page: {sorted(set(headings) - known)}\n"
                 f"only in the library: {sorted(known - set(headings))}")
    report.check(headings == sorted(headings, key=key), "the identifiers are in order")
    found = blocks.blocks_of(PAGE)
    lacking = sorted(set(headings) - {block.section for block in found})
    report.check(not lacking, "every identifier has an example", "\n".join(lacking))
    scratch = pathlib.Path(tempfile.mkdtemp())
    try:
        try_thrown(report, [block for block in found if block.how == "throws"], scratch)
        try_mpi(report, [block for block in found if block.how == "mpi"], scratch)
        compiler = tap.Compiler(os.environ.get("RESHARD_CXX", "c++"))
        report.run([(f"{block.section} ({block.place})", lambda block=block: try_refused(block, compiler, scratch))
                    for block in found if block.how == "refused"])
    finally:
        shutil.rmtree(scratch)
    report.end()


if __name__ == "__main__":
    main()
