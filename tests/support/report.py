"""Counts what `meson test` ran: report.py add FILE GROUP SECONDS LOG  |  report.py add-failure FILE GROUP TEXT
|  report.py end FILE [SKIPPED_FILE]

`add` reads one of Meson's JSON logs, prints the group's line and the output of failing tests, and remembers the counts
in FILE. Cases of doctest and lines of TAP count one each; a test of another kind counts one.
"""
import json
import pathlib
import re
import sys

DOCTEST = re.compile(r"^\[doctest\] test cases: +(\d+) \| +(\d+) passed \| +(\d+) failed", re.MULTILINE)
TAP = re.compile(r"^(ok|not ok) \d+(?: - (.*?))?(?: # SKIP ?(.*))?$", re.MULTILINE)
GOOD = ("OK", "EXPECTEDFAIL", "SKIP")


def counts(test):
    """(passed, failed, [skipped]) of one test."""
    text = test.get("stdout") or ""
    passed, failed, skipped = 0, 0, []
    for _, good, bad in DOCTEST.findall(text):
        passed, failed = passed + int(good), failed + int(bad)
    if not passed + failed:
        for word, name, why in TAP.findall(text):
            if why:
                skipped.append(f"{name}: {why}")
            elif word == "ok":
                passed += 1
            else:
                failed += 1
    if test["result"] == "SKIP" and not skipped:
        skipped.append(f"{test['name']}: {(text.strip().splitlines() or ['says so itself'])[-1]}")
    if test["result"] not in GOOD and not failed:
        failed = 1
    if not passed + failed + len(skipped):
        passed = 1
    return passed, failed, skipped


def show_failure(test):
    print(f"--- {test['name']}: {test['result']}, command: {' '.join(test.get('command', []))}")
    lines = ((test.get("stdout") or "") + (test.get("stderr") or "")).splitlines()
    lines = [line for line in lines if not line.startswith("ok ")]
    print("\n".join(lines if len(lines) <= 200 else lines[:100] + ["..."] + lines[-100:]))


def add(path, group, seconds, log):
    tests = []
    if pathlib.Path(log).is_file():
        tests = [json.loads(line) for line in pathlib.Path(log).read_text(encoding="utf-8").splitlines()]
    passed, failed, skipped = 0, 0, []
    for test in tests:
        good, bad, left_out = counts(test)
        passed, failed, skipped = passed + good, failed + bad, skipped + left_out
    print(f"{group:<12}{passed:>6} passed{failed:>6} failed{len(skipped):>6} skipped{int(seconds):>6} s", flush=True)
    for test in tests:
        if test["result"] not in GOOD:
            show_failure(test)
    remember(path, passed, failed, skipped)


def remember(path, passed, failed, skipped):
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps([passed, failed, skipped]) + "\n")


def end(path, skipped_path):
    passed, failed, skipped = 0, 0, []
    if pathlib.Path(path).is_file():
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            good, bad, left_out = json.loads(line)
            passed, failed, skipped = passed + good, failed + bad, skipped + left_out
    if skipped_path and pathlib.Path(skipped_path).is_file():
        lines = pathlib.Path(skipped_path).read_text(encoding="utf-8").splitlines()
        skipped += [line for line in lines if line.strip()]
    for line in skipped:
        print(f"skipped: {line}")
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if sys.argv[1] == "add":
    add(*sys.argv[2:])
elif sys.argv[1] == "add-failure":
    print(f"{sys.argv[3]}: {sys.argv[4]}")
    remember(sys.argv[2], 0, 1, [])
else:
    sys.exit(end(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None))
