"""The main of the MPI tests itself: bad cases end the job, quickly, with a reason; a failure on any rank is seen."""
import subprocess
import sys

import tap

program, launch = sys.argv[1], sys.argv[2:]

# case, exit status 0?, text that must be in the output
EXPECTED = [
    ("passes", True, "[doctest] test cases: 1 | 1 passed | 0 failed"),
    ("check fails on rank 1", False, "[doctest] test cases: 1 | 0 passed | 1 failed"),
    ("check fails on rank 1", False, "rank 1 of 2:\n"),
    ("require fails on rank 1 while the others wait", False, "rank 1 of 2: a REQUIRE failed"),
    ("exception leaves rank 1 while the others wait", False, "thrown on purpose"),
    ("too few ranks", False, "needs at least 8 ranks"),
    ("no such case", False, "[doctest] test cases: 0"),
]

report = tap.Report()
for case, good, text in EXPECTED:
    name = f"{case}: {text.strip()}"
    try:
        done = subprocess.run(launch + ["-np", "2", program, "-tc=" + case], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        report.failed(name, "the job did not end within 30 s")
        continue
    report.check((done.returncode == 0) == good and text in done.stdout, name,
                 f"exit status {done.returncode}\n{done.stdout}")
    if case == "check fails on rank 1" and "rank 0 of 2:" in done.stdout:
        report.failed("a passing rank stays silent", done.stdout)
report.end()
