"""The checking scripts themselves: each finds the fault it is there for."""
import os
import pathlib
import subprocess
import sys
import tempfile

import tap

TESTS = tap.SOURCE / "tests"
GOOD = "// A header.\n#pragma once\n"
report = tap.Report()


def run(script, *arguments, **environment):
    done = subprocess.run([sys.executable, str(TESTS / script), *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, env={**os.environ, **environment})
    return done.returncode, done.stdout


def tree(folder, **files):
    """A small library with one header a keyword: room__name=text."""
    for key, text in {"reshard": GOOD, **files}.items():
        path = pathlib.Path(folder) / "include" / "reshard" / (key.replace("__", "/") + ".hpp")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return pathlib.Path(folder)


ARROW_CASES = [
    ("a good tree", "", {"core__a": GOOD, "layout__b": GOOD + "#include <reshard/core/a.hpp>\n"}),
    ("an arrow that points up", "layout may include core", {"engine__a": GOOD, "layout__b": GOOD + "#include <reshard/engine/a.hpp>\n"}),
    ("an arrow that points up, written short", "layout may include core", {"engine__a": GOOD, "layout__b": GOOD + '#include "../engine/a.hpp"\n'}),
    ("an engine that names a backend", "engine may include", {"comm__self": GOOD, "engine__b": GOOD + "#include <reshard/comm/self.hpp>\n"}),
    ("comm's concept on a device", "comm/concept.hpp may include core", {"device__a": GOOD, "comm__concept": GOOD + "#include <reshard/device/a.hpp>\n"}),
    ("a dear standard header", "includes <memory>", {"core__a": GOOD + "#include <memory>\n"}),
    ("an umbrella with threads", "<atomic>", {"reshard": GOOD + "#include <reshard/comm/a.hpp>\n", "comm__a": GOOD + "#include <atomic>\n"}),
    ("an umbrella with a backend", "comm/threads.hpp", {"reshard": GOOD + "#include <reshard/comm/threads.hpp>\n", "comm__threads": GOOD}),
    ("a long header", "351 lines", {"core__a": GOOD + "//\n" * 349}),
    ("an unknown room", "no room of this name", {"extra__a": GOOD}),
    ("a header without a comment", "core/a.hpp", {"core__a": "#pragma once\n"}),
]
for title, text, files in ARROW_CASES:
    with tempfile.TemporaryDirectory() as folder:
        code, output = run("arrows/arrows.py", tree(folder, **files) / "include")
    report.check((code == 0) == (not text) and text in output, f"arrows: {title}", output)

HEADER_CASES = [
    ("a good header", True, GOOD + "struct fine {};\n"),
    ("a header that needs another", False, GOOD + "inline std::size_t count = 0;\n"),
    ("a header without a guard", False, "// A header.\nstruct twice {};\n"),
    ("a name that is a macro", False, GOOD + "template <class T> struct box {};\n"),
    ("max without parentheses", False, GOOD + "#include <string>\ninline auto most() { return std::string{}.max (); }\n"),
]
SIZES = "namespace reshard { inline constexpr int version_major = 0; }\n"
for title, good, text in HEADER_CASES:
    with tempfile.TemporaryDirectory() as folder:
        source = tree(folder, core__a=text, core__version=GOOD + SIZES)
        code, output = run("headers/alone.py", os.environ["RESHARD_CXX"], RESHARD_SOURCE=str(source))
    # The sizes of the real library cannot hold in a made-up one: only the other checks count.
    bad = [line for line in output.splitlines() if line.startswith("not ok") and "sizes" not in line]
    report.check(bool(bad) != good, f"headers: {title}", output)

REFUSAL_CASES = [
    ("refused with its sentence", True, '#if defined(SECTION_a)\n// expect: the sentence\nstatic_assert(false, "the sentence");\n#endif\n'),
    ("compiles", False, "#if defined(SECTION_a)\n// expect: the sentence\n#endif\n"),
    ("refused for another reason", False, '#if defined(SECTION_a)\n// expect: the sentence\nstatic_assert(false, "other");\n#endif\n'),
    ("two errors", False, '#if defined(SECTION_a)\n// expect: one\nstatic_assert(false, "one");\nstatic_assert(false, "two");\n#endif\n'),
    ("no text", False, '#if defined(SECTION_a)\nstatic_assert(false, "one");\n#endif\n'),
    ("broken without a section", False, 'static_assert(false, "x");\n#if defined(SECTION_a)\n// expect: x\n#endif\n'),
    ("no sections", False, "int x;\n"),
]
for title, good, text in REFUSAL_CASES:
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "case.cpp"
        source.write_text(text, encoding="utf-8")
        code, output = run("compile_fail/runner.py", os.environ["RESHARD_CXX"], source)
    report.check((code == 0) == good, f"refusals: {title}", output)
report.end()
