"""Run the tests that need a GPU, several at a time if pytest-xdist is installed, and name those that fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from autobatch.cli.gpu.check import Check, Result

ROOT = Path(__file__).resolve().parents[2]
PATHS = (
    "tests/params",
    "tests/devices",
    "tests/optim/test_optim_on_device.py",
    "tests/backends/cuda",
    "tests/distributed",
    "tests/in_torch",
)
"""Folders and files with tests that need a GPU."""
MOST_WORKERS = 8  # kernels compile on as many cores
LINE = re.compile(  # sequential and parallel output; names may have spaces
    r"(?:^(\S+::.*?) )?(PASSED|FAILED|ERROR|SKIPPED)\b(?: (\S+::.*?))?(?= - |\s*$|\s+\[)", re.MULTILINE
)


def run_tests(check: Check) -> Result:
    """Run them until the time is up."""
    result = Result("tests that need a GPU", ("passed", "failed", "skipped"))
    if find_spec("pytest") is None:
        result.note("pytest is not installed")
        return result
    options = ["-v", "--tb=short", "-m", "gpu", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    if find_spec("xdist") is not None:
        options += ["-n", str(min(os.cpu_count() or 1, check.choose(MOST_WORKERS, 1)))]
    command = [sys.executable, "-m", "pytest", *options, *check.choose(PATHS, PATHS[:1])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tests:
        try:
            said, _ = tests.communicate(timeout=max(check.deadline - time.perf_counter(), 1))
        except subprocess.TimeoutExpired:
            tests.kill()
            said, _ = tests.communicate()
            result.note("no time left for all of them")
    print(said, file=sys.stderr)
    ended = {one or other: how for one, how, other in LINE.findall(said) if one or other}
    counts = Counter(ended.values())
    result.add(counts["PASSED"], counts["FAILED"] + counts["ERROR"], counts["SKIPPED"])
    result.failures += [f"{name} fails" for name, how in ended.items() if how in ("FAILED", "ERROR")]
    if tests.returncode > 1 and not ended:
        result.failures.append(f"pytest ends with {tests.returncode}")
    return result
