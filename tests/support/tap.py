"""The kit of script tests: results in TAP, checks in parallel, and how each compiler is called."""
import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(os.environ.get("RESHARD_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
INCLUDE = SOURCE / "include"


class Report:
    """Prints one TAP line a check and exits non-zero where one failed or none was made."""

    def __init__(self):
        self.count = 0
        self.bad = 0

    def check(self, good, name, why=""):
        self.count += 1
        self.bad += not good
        print(f"{'ok' if good else 'not ok'} {self.count} - {name.replace('#', '')}")
        if not good:
            for line in str(why).splitlines()[:15]:
                print(f"# {line}")
        sys.stdout.flush()

    def passed(self, name):
        self.check(True, name)

    def failed(self, name, why=""):
        self.check(False, name, why)

    def skipped(self, name, why):
        self.count += 1
        print(f"ok {self.count} - {name} # SKIP {why}", flush=True)

    def run(self, jobs):
        """Runs [(name, function)] on all cores; a function returns "" or what is wrong."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = [(name, pool.submit(function)) for name, function in jobs]
            for name, result in results:
                why = result.result()
                self.check(not why, name, why)

    def end(self):
        print(f"1..{self.count}")
        sys.exit(1 if self.bad or not self.count else 0)


def mpi_include_flags():
    """-isystem flags for mpi.h, or None where there is no MPI."""
    wrapper = shutil.which("mpicxx")
    if os.environ.get("RESHARD_MPI") == "no" or wrapper is None:
        return None
    shown = subprocess.run([wrapper, "-show"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [flag for word in shlex.split(shown) if word.startswith("-I") for flag in ("-isystem", word[2:])]


class Compiler:
    """One of g++, clang++ and nvcc, asked only whether a source is accepted."""

    def __init__(self, path):
        self.path = path
        self.name = pathlib.Path(path).name
        self.is_nvcc = self.name.startswith("nvcc")

    def warnings(self):
        if self.is_nvcc:
            return ["-Werror", "all-warnings"]
        words = "all extra pedantic shadow conversion sign-conversion non-virtual-dtor overloaded-virtual old-style-cast undef"
        return ["-Werror"] + ["-W" + word for word in words.split()]

    def compile(self, source, scratch, flags=()):
        """(accepted, output) of the source file; scratch is a folder of this call alone."""
        command = [self.path, "-std=c++20", "-I", str(INCLUDE)]
        if self.is_nvcc:
            command += ["-x", "cu", "-c", "-o", str(pathlib.Path(scratch) / "nvcc.o"), "-arch=sm_90"]
        else:
            command += ["-fsyntax-only"]
        done = subprocess.run(command + list(flags) + [str(source)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=600, env={**os.environ, "LC_ALL": "C"}, check=False)
        return done.returncode == 0, done.stdout


def errors(output):
    """The different error lines of g++, clang++ or nvcc; one reported for host and device counts once."""
    return list(dict.fromkeys(re.findall(r"^\S.*?\berror(?: #\S+)?: .*$", output, re.MULTILINE)))


def headers(suffixes=(".hpp",)):
    """Every header of the library as it is written in an include, in a fixed order."""
    found = [path for path in (INCLUDE / "reshard").rglob("*") if path.suffix in suffixes]
    return sorted(str(path.relative_to(INCLUDE)) for path in found)


def includes_of(name):
    """What a header of the library includes, in order: its own as they are written from outside, others as they are."""
    text = (INCLUDE / name).read_text(encoding="utf-8")
    found = []
    for each in re.findall(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', text, re.MULTILINE):
        beside = pathlib.Path(os.path.normpath((INCLUDE / name).parent / each))
        found.append(str(beside.relative_to(INCLUDE)) if beside.is_file() else each)
    return found


def closure(header):
    """(ours, others): all headers of the library that a header reaches, and what those include from outside."""
    ours, others, queue = [], [], [header]
    while queue:
        name = queue.pop(0)
        if name in ours:
            continue
        ours.append(name)
        for each in includes_of(name):
            if (INCLUDE / each).is_file():
                queue.append(each)
            elif each not in others:
                others.append(each)
    return ours, others


def text_to_learn():
    """A short text for the example trainers."""
    return "".join(f"{n} bottles of beer on the wall, take {n % 7} down and pass them around.\n" for n in range(400))


def check_one_line(report, name, ended, word):
    """A program that was refused something: it ended with a status above 0 and one line that says `word`."""
    lines = ended.stderr.strip().splitlines()
    good = ended.returncode != 0 and len(lines) == 1 and word in lines[0]
    report.check(good, f"{name} ends with one line", f"exit {ended.returncode}: {ended.stderr[:500]}")
