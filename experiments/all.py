"""Measure every claim, and collect them in one page: `report.html`, which needs no network and no other file.

    autobatch experiment all --out DIR
    autobatch experiment all --quick

The claims run one after the other, each in its own process. An interrupted run resumes: a part is skipped if it has a
record with the same settings and the same code. `--quick` takes less than five minutes; its figures only show that
everything works. With `--ray`, timings mean as little: see `claims.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from autobatch.cli.ending import run_process
from autobatch.errors import AutobatchError
from claims import NAMES, load_claim, require
from harness import read_words
from records import QUICK, RESULTS
from report import write_report

FOLDER = Path(__file__).resolve().parent


def measure_all(words: list[str]) -> int:
    """Run every claim with the command line's words, then write the report. Return the exit status."""
    given = read_words(words)
    out = Path(given.get("out", QUICK if given.get("quick") == "True" else RESULTS))
    if unknown := sorted(given.keys() - {"out", "quick", "again", "ray"}):
        raise AutobatchError(
            f"all does not take the setting {unknown[0]!r}; give it to one claim: autobatch experiment {NAMES[0]} ..."
        )
    require(sorted({"matplotlib", *(package for name in NAMES for package in load_claim(name).needs)}), "measuring all")
    for name in NAMES:
        began = time.perf_counter()
        print(f"== {name}\n", flush=True)
        if status := subprocess.run([sys.executable, FOLDER / f"{name}.py", *words], check=False).returncode:
            return status
        print(f"{name} took {time.perf_counter() - began:.0f} s\n", flush=True)
    print(f"{os.path.relpath(write_report(out))} gathers all")
    return 0


if __name__ == "__main__":
    run_process(lambda: measure_all(sys.argv[1:]))
