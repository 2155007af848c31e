"""Every source is as clang-format would write it."""
import subprocess
import sys

import tap

report = tap.Report()
sources = sorted(path for folder in ("include", "tests", "examples", "bench", "docs")
                 for path in (tap.SOURCE / folder).rglob("*") if path.suffix in (".hpp", ".cpp", ".cuh", ".cu"))
done = subprocess.run([sys.argv[1], "--dry-run", "--Werror"] + [str(path) for path in sources], stdout=subprocess.PIPE,
                      stderr=subprocess.STDOUT, text=True, check=False)
wrong = sorted({line.split(":")[0] for line in done.stdout.splitlines() if ": error: " in line})
report.check(done.returncode == 0 and not wrong, f"{len(sources)} sources are formatted",
             "\n".join(wrong) or done.stdout)
report.end()
