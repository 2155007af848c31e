"""Every C++ block of README.md and docs/ compiles; whole programs run, end well and print what the page shows."""
import os
import pathlib
import re
import shutil
import tempfile

import blocks
import tap

COMPILER = os.environ.get("RESHARD_CXX", "c++")


def compiles(source, scratch, flags):
    good, output = blocks.run([COMPILER, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-unused", "-I",
                               tap.INCLUDE, *flags, source], cwd=scratch)
    return "" if good and "warning:" not in output else output


def output_of(source, program):
    """(whether it compiles and ends well, what it prints)."""
    command = [COMPILER, "-std=c++20", "-pthread", "-I", tap.INCLUDE, source, "-o", program]
    good, output = blocks.run(command)
    return blocks.run([program]) if good else (False, output)


def runs(block, scratch):
    source = scratch / f"program_{block.page.stem}_{block.line}.cpp"
    source.write_text(block.code)
    good, output = output_of(source, source.with_suffix(""))
    if good and block.text and output != block.text:
        return f"the page does not show what it prints:\n{output}"
    return "" if good else output


def dead_links():
    """Links to files of this tree that are not there."""
    dead = []
    for page in blocks.PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                dead.append(f"{page.name}: {target}")
    return dead


def memory_table(scratch):
    """The rows that memory_table.cpp prints stand in README.md."""
    good, output = output_of(blocks.HERE / "memory_table.cpp", scratch / "memory_table")
    page = (tap.SOURCE / "README.md").read_text(encoding="utf-8").splitlines()
    return "\n".join(row for row in output.splitlines() if row not in page) if good else output


def invented_lines():
    """Lines of README.md's ```diff blocks that no example has: removed ones stand in plain_gpt.cpp, added ones in
    train_gpt.cpp, others in both."""
    def lines_of(name):
        return {line.strip() for line in (tap.SOURCE / "examples" / name).read_text(encoding="utf-8").splitlines()}
    before, after = lines_of("plain_gpt.cpp"), lines_of("train_gpt.cpp")
    places = {"-": [before], "+": [after], " ": [before, after]}
    page = (tap.SOURCE / "README.md").read_text(encoding="utf-8")
    diffs = re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line for diff in diffs for line in diff.splitlines()]
    return [line for line in lines if any(line[1:].strip() not in place for place in places[line[0]])]


def main():
    report = tap.Report()
    found = [block for page in blocks.PAGES for block in blocks.blocks_of(page)]
    unmarked = [block.place for block in found if block.how is None]
    report.check(not unmarked, "every C++ block says how it is tried", "\n".join(unmarked))
    dead = dead_links()
    report.check(not dead, "links lead to files", "\n".join(dead))
    strange = invented_lines()
    report.check(not strange, "lines of the edits stand in the examples", "\n".join(strange))
    scratch = pathlib.Path(tempfile.mkdtemp())
    mpi_flags = tap.mpi_include_flags()
    jobs = [("the table of memory in README.md is computed", lambda: memory_table(scratch))]
    try:
        for page in blocks.PAGES:
            wrapped = [block for block in found if block.page == page and block.how == "compile"]
            over_mpi = [block for block in wrapped if "mpi" in block.preamble]
            plain = [block for block in wrapped if block not in over_mpi]
            for kind, group, flags in [("", plain, []), (" over MPI", over_mpi, mpi_flags)]:
                name = f"{len(group)} blocks of {page.name}{kind} compile"
                if group and flags is None:
                    report.skipped(name, "no MPI here")
                elif group:
                    source = scratch / f"{page.stem}{'_mpi' if kind else ''}.cpp"
                    source.write_text(blocks.unit(group))
                    jobs.append((name, lambda source=source, flags=flags: compiles(source, scratch, flags)))
            for block in [block for block in found if block.page == page and block.how == "run"]:
                jobs.append((f"the program at {block.place} runs", lambda block=block: runs(block, scratch)))
        report.run(jobs)
    finally:
        shutil.rmtree(scratch)
    report.end()


if __name__ == "__main__":
    main()
