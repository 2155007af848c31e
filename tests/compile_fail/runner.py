"""Compiles sources whose sections must be refused: runner.py COMPILER SOURCE...

A section is `#if defined(SECTION_name)` (or #elif, #ifdef) followed by one or more lines `// expect: text`. Without a
section the source compiles; with one it fails with exactly one error, and the output holds every text. Spaces between
closing angle brackets and suffixes of literals, in which compilers differ, do not count.
"""
import pathlib
import re
import sys
import tempfile

import tap

SECTION = re.compile(r"#\s*(?:el)?if(?:def)?\s*(?:defined\s*\(?\s*)?SECTION_(\w+)")
EXPECT = re.compile(r"//\s*expect:\s*(.*\S)")


def sections(text):
    """{name: [expected texts]} of a source."""
    found, current = {}, None
    for line in text.splitlines():
        start = SECTION.search(line)
        if start:
            current = found.setdefault(start.group(1), [])
        elif re.match(r"\s*#\s*(endif|else)", line):
            current = None
        wanted = EXPECT.search(line)
        if wanted and current is None:
            raise SystemExit(f"an expect line outside a section: {line.strip()}")
        if wanted:
            current.append(wanted.group(1))
    return found


def plain(text):
    """The text without what compilers write differently."""
    text = re.sub(r"(?<=\d)(?:ULL|UL|LL|U|L)\b", "", text, flags=re.IGNORECASE)
    return re.sub(r"\s+", " ", re.sub(r">\s+(?=>)", ">", text))


def verdict(compiler, source, name, expected):
    """"" or what is wrong with one section; without a name, with the source itself."""
    if name and not expected:
        return "the section expects no text"
    with tempfile.TemporaryDirectory() as scratch:
        good, output = compiler.compile(source, scratch, [f"-DSECTION_{name}"] if name else [])
    if not name:
        return "" if good else output
    if good:
        return "it compiles"
    missing = [text for text in expected if plain(text) not in plain(output)]
    if missing:
        return f"not said: {missing[0]}\n{output}"
    count = len(tap.errors(output))
    return "" if count == 1 else f"{count} errors instead of one\n{output}"


def main():
    compiler = tap.Compiler(sys.argv[1])
    report = tap.Report()
    jobs = []
    for source in map(pathlib.Path, sys.argv[2:]):
        found = sections(source.read_text(encoding="utf-8"))
        if not found:
            report.failed(f"{source.name} has sections")
        for name, expected in [("", []), *found.items()]:
            jobs.append((f"{source.stem}: {name or 'compiles without a section'} ({compiler.name})",
                         lambda source=source, name=name, expected=expected:
                         verdict(compiler, source, name, expected)))
    report.run(jobs)
    report.end()


if __name__ == "__main__":
    main()
