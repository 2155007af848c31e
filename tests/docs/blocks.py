"""C++ blocks of the Markdown pages, and how they are tried.

A ```cpp block has a comment of its own before it that says how:
    <!-- compile: NAME -->   inside tests/docs/preambles/NAME.hpp, in the place of its line `// snippet`; it compiles
    <!-- run -->             it is a whole program; it ends with status 0 and prints the ```text block behind it, if any
    <!-- throws: NAME -->    in errors.md: inside that preamble, whose example() throws the error of the section
    <!-- mpi: NAME -->       the same, on two ranks under mpirun
    <!-- refused -->         the compiler refuses it with the section's identifier
"""
import pathlib
import re
import subprocess

import tap

HERE = pathlib.Path(__file__).resolve().parent
PAGES = [tap.SOURCE / "README.md", *sorted((tap.SOURCE / "docs").glob("*.md"))]
MARK = re.compile(r"<!--\s*(compile|run|throws|mpi|refused)(?::\s*(\w+))?\s*-->")


class Block:
    """One ```cpp block: `how` and `preamble` from its mark, the heading above it, the ```text block behind it."""

    def __init__(self, page, line, section, mark):
        self.page, self.line, self.section = page, line, section
        self.how, self.preamble = mark.groups() if mark else (None, None)
        self.code, self.text = "", ""
        self.place = f"{page.name}:{line}"

    def wrapped(self, number):
        """(includes, text of namespace block_N): the preamble around the code."""
        before, after = (HERE / "preambles" / f"{self.preamble}.hpp").read_text(encoding="utf-8").split("// snippet\n")
        lines = before.splitlines()
        includes = [line for line in lines if line.startswith("#include")]
        body = "\n".join(line for line in lines if not line.startswith("#"))
        code = f'#line {self.line + 1} "{self.page.name}"\n{self.code}'
        return includes, f"namespace block_{number} {{\n{body}\n{code}#line 1 \"{self.preamble}.hpp\"\n{after}}}\n"


def run(command, **options):
    """(whether the status is 0, output) of a command."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=600, check=False, **options)
    return done.returncode == 0, done.stdout or f"status {done.returncode}"


def blocks_of(page):
    """All ```cpp blocks of a page, in order."""
    found, section, mark, inside, language = [], "", None, False, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if inside and line.startswith("```"):
            inside = False
        elif inside and language == "cpp":
            found[-1].code += line + "\n"
        elif inside and language == "text" and found and found[-1].section == section:
            found[-1].text += line + "\n"
        elif inside:
            continue
        elif line.startswith("```"):
            inside, language = True, line[3:].strip()
            if language == "cpp":
                found.append(Block(page, number, section, mark))
                mark = None
        elif line.startswith("#"):
            section = line.lstrip("# ")
        elif line.strip():
            mark = MARK.match(line)
    return found


def unit(blocks):
    """One translation unit of wrapped blocks; block number k is namespace block_k."""
    includes, bodies = [], []
    for number, block in enumerate(blocks):
        needs, body = block.wrapped(number)
        includes += [line for line in needs if line not in includes]
        bodies.append(body)
    return "\n".join(includes) + "\nusing namespace reshard;\n" + "\n".join(bodies)
