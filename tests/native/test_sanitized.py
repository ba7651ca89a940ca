"""Test the native core, built with sanitizers for memory, undefined behaviour and threads, by running its tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from build_native import build_sanitized
from checkout import ROOT

LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("autobatch._native", sys.argv[1])
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""
TESTS = """
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""
RACE = """
import threading
import numpy as np
data, constants = np.zeros(1 << 18, np.float32), np.zeros(9, np.float32)
def update():
    for _ in range(20):
        module.update_dense((1 << 15, 8, 8), data, None, None, data, 8, constants)
threads = [threading.Thread(target=update) for _ in range(2)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
"""
WITH_THREADS = (
    "native/test_steps.py", "native/test_planning_in_threads.py", "backends/test_team.py", "engine/test_threads.py",
    "trace/test_recording_beside.py",
)  # fmt: skip


def find_library(name: str) -> str:
    """Find the library of a sanitizer, which must be loaded before all others."""
    found = ""
    if shutil.which("g++"):
        command = ("g++", f"-print-file-name={name}.so")
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"needs g++ with {name}")
    return found


def run(library: str, module: Path, program: str, arguments: Sequence[Any], **options: str) -> Any:
    """Run a program with a module in place of the native core."""
    command, env = (sys.executable, "-c", LOAD + program, module, *arguments), {"LD_PRELOAD": library, **options}
    return subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False)


def pass_tests(library: str, module: Path, paths: Sequence[str], **options: str) -> None:
    """Run tests and check that they pass without findings."""
    arguments = ["-q", "-p", "no:cacheprovider", *(ROOT / "tests" / path for path in paths)]
    done = run(library, module, TESTS, arguments, **options)
    assert done.returncode == 0, f"{done.stdout[-5000:]}{done.stderr[-5000:]}"
    assert " passed" in done.stdout


@pytest.fixture(scope="module")
def checked_memory(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the library of AddressSanitizer, and a module built with it and UndefinedBehaviorSanitizer."""
    return find_library("libasan"), build_sanitized(tmp_path_factory.mktemp("memory"), "address,undefined")


@pytest.fixture(scope="module")
def checked_threads(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the library of ThreadSanitizer, and a module built with it."""
    return find_library("libtsan"), build_sanitized(tmp_path_factory.mktemp("threads"), "thread")


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "malloc"), [("graph", "pymalloc"), ("native", "malloc"), ("trace", "pymalloc")])
def test_the_quick_tests_pass_with_sanitizers(folder: str, malloc: str, checked_memory: tuple[str, Path]) -> None:
    """Python's objects are also guarded (malloc), where that is not too slow."""
    pass_tests(*checked_memory, [folder], ASAN_OPTIONS="detect_leaks=0", PYTHONMALLOC=malloc)


@pytest.mark.slow
def test_threads_do_not_race(checked_threads: tuple[str, Path]) -> None:
    """OpenBLAS runs on one thread, because the sanitizer does not know its locks. A forked child starts threads."""
    pass_tests(*checked_threads, WITH_THREADS, OPENBLAS_NUM_THREADS="1", TSAN_OPTIONS="die_after_fork=0")


@pytest.mark.slow
def test_a_race_is_found(checked_threads: tuple[str, Path]) -> None:
    """Two threads change the same parameter."""
    done = run(*checked_threads, RACE, [], OPENBLAS_NUM_THREADS="1")
    assert done.returncode == 66, done.stderr[-5000:]
    assert "data race" in done.stderr
    assert "update_plainly" in done.stderr
