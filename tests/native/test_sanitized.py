"""The native core, built with AddressSanitizer and UndefinedBehaviorSanitizer, passes the tests that run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from build_native import build_sanitized
from checkout import ROOT

RUN = """
import importlib.util, sys
import pytest
spec = importlib.util.spec_from_file_location("autobatch._native", sys.argv[1])
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.exit(pytest.main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def runtime() -> str:
    """The library that has to be loaded before all others."""
    found = ""
    if shutil.which("g++"):
        command = ("g++", "-print-file-name=libasan.so")
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("needs g++ with libasan")
    return found


@pytest.fixture(scope="module")
def module(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sanitized(tmp_path_factory.mktemp("sanitized"))


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "malloc"), [("graph", "pymalloc"), ("native", "malloc"), ("trace", "pymalloc")])
def test_the_quick_tests_pass_with_sanitizers(folder: str, malloc: str, runtime: str, module: Path) -> None:
    """With Python's objects under guard, too, where that does not take too long."""
    options = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": malloc}
    command = (sys.executable, "-c", RUN, module, "-q", "-p", "no:cacheprovider", ROOT / "tests" / folder)
    done = subprocess.run(command, cwd=ROOT, env=os.environ | options, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-5000:]}{done.stderr[-5000:]}"
    assert " passed" in done.stdout
