"""The GPU check also runs on the processor, finds errors, and continues after them."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpu_check
from autobatch.cli.gpu import correctness, products
from autobatch.cli.gpu.check import Check, Result
from checkout import ROOT
from gpu import bandwidth, policies, torch_modules
from gpu.tests import LINE
from gpu.torch_idioms import IDIOMS
from harness import read_words
from helpers.runs.tensors_on_device import holding_tensors
from host_device import HostDevice

SCRIPT = Path(gpu_check.__file__)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, which builds kernels here")


@pytest.fixture
def check() -> Check:
    return Check(HostDevice(), quick=True, seed=0, deadline=math.inf)


@pytest.mark.long
@needs_compiler
def test_all_sections_run_on_the_processor(tmp_path: Path) -> None:
    environment = {**os.environ, "AUTOBATCH_CUDA": "host", "AUTOBATCH_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("times are meaningless") == len(gpu_check.SECTIONS)
    for name in gpu_check.SECTIONS:
        figures = json.loads((tmp_path / f"gpu_check-host-{name}.json").read_text())["figures"]
        assert figures["device"] == HostDevice.name
        assert not figures["times_mean_something"]
        assert figures["rows"], name
        assert not figures["failures"], name


@pytest.mark.slow
@needs_compiler
def test_products_launches_and_kernels_are_timed(check: Check) -> None:
    found_and_rows = (
        (products.time_products(check), 8), (products.time_launches(check), 9), (bandwidth.time_kernels(check), 4),
    )  # fmt: skip
    for found, n_rows in found_and_rows:
        assert len(found.rows) == n_rows
        assert not found.failures
        assert all(math.isfinite(value) for *_, value in found.rows)


@pytest.mark.slow
@needs_compiler
def test_a_wrong_product_is_found(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDevice, "multiply", lambda self, product: None)
    found = products.time_products(check)
    assert len(found.failures) == len(found.rows) == 8
    assert all("the library's product" in failure for failure in found.failures)


@pytest.mark.slow
@needs_compiler
def test_wrong_gradients_are_found(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(model: Any, instances: list[Any], policy: str, backend: Any) -> dict[str, Any]:
        if policy == "depth":
            raise ValueError("broken")
        wrong = {"sufficient": 2.0, "critical": np.nan}.get(policy, 1.0)
        return {"losses": np.ones(3), "weight": np.array([1.0, wrong])}

    monkeypatch.setattr(correctness, "answer", answer)
    monkeypatch.setattr(correctness, "MODELS", ("lattice-lstm",))
    found = correctness.check_correctness(check)
    assert found.failures == [
        "('lattice-lstm', 'depth', 'float64', 'reference'): ValueError: broken",
        *(
            f"lattice-lstm, {policy}, float64, {place}: gradients of weight differ from reference by {error}"
            for policy, error in (("sufficient", "1"), ("critical", "inf"))
            for place in ("cpu", "cuda")
        ),
    ]


@pytest.mark.slow
@needs_compiler
def test_all_idioms_of_torch_give_what_torch_gives(check: Check) -> None:
    result = Result("idioms", ("part", "case", "way", "difference"))
    with holding_tensors(check.device) as tensors:
        for name in IDIOMS:
            torch_modules.compare_idiom(result, tensors, name)
    assert len(result.rows) == 10
    assert not result.failures


def test_tensors_that_differ_are_found() -> None:
    result, x = Result("idioms", ("part", "case", "way", "difference")), torch.ones(3)
    for y in (x + 0.25, x * torch.nan, x):
        torch_modules.judge(result, "idiom", "AdamW", [(x, 2 * x - x), (y, x)], 0.1)
    assert result.failures == [
        f"idiom, AdamW: tensors differ by {apart} of the largest number" for apart in ("0.25", "nan")
    ]


def test_policies_are_judged_by_the_order_of_times() -> None:
    """The correlation is over policies, for each mini-batch; equal numbers share a rank."""
    found = policies.rank_correlation(np.array([3.0, 1.0, 2.0, 2.0]), np.array([9.0, 1.0, 4.0, 5.0]))
    assert found == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    rising = np.arange(1.0, 5.0)
    assert policies.rank_correlation(rising, -rising) == -1.0
    took = np.array([rising, rising[::-1]]).T
    assert policies.judge(10 * took, took) == "rank correlation of batches and measured times 1.00 over policies"
    assert "measured times 0.00 over" in policies.judge(np.array([rising, rising]).T, took)
    assert policies.judge(np.full((4, 2), 2), took) == "all schedules have equally many batches"


@needs_compiler
def test_what_there_is_no_time_for_is_noted() -> None:
    result = Result("counts", ("number",))
    done: list[int] = []
    Check(HostDevice(), quick=True, seed=0, deadline=0.0).measure_each(result, [(1,), (2,), (3,)], done.append)
    assert done == [1]
    assert result.notes == ["no time left for [(2,), (3,)]"]


def test_a_section_that_fails_ends_no_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", "import sys; sys.exit(sys.argv[1] == 'section=traffic')"])
    monkeypatch.setattr(gpu_check, "SECTIONS", {name: gpu_check.SECTIONS[name] for name in ("traffic", "race")})
    assert gpu_check.run_all(gpu_check.Config()) == 1
    lines = [line.rstrip("0123456789").split() for line in capfd.readouterr().out.splitlines()[-2:]]
    assert lines == [["traffic", "FAILED,", "exit", "status", "1"], ["race", "ok"]]


def test_a_section_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(gpu_check, "seconds_until_killed", lambda minutes: 0.2)
    assert gpu_check.run_section("race", 1.0) == "FAILED, did not end"


def test_the_page_says_of_every_section_what_has_been_checked() -> None:
    page = (ROOT / "docs/howto/gpu.md").read_text(encoding="utf-8").split("## Test coverage")[1]
    told = {
        name for line in page.splitlines() if line.startswith("| `") for name in line.split("|")[1].split("`")[1::2]
    }
    assert told == set(gpu_check.SECTIONS)


def test_settings_are_read_as_options_too() -> None:
    assert read_words(["dim=128", "--section", "race", "--quick", "out=/tmp"]) == {
        "dim": "128", "section": "race", "quick": "True", "out": "/tmp",
    }  # fmt: skip
    assert read_words(["--quick", "--out=/tmp"]) == {"quick": "True", "out": "/tmp"}
    assert read_words(["wide"]) == {"wide": ""}


def test_tests_are_counted_by_their_whole_names() -> None:
    said = """
[gw6] [ 80%] PASSED tests/a.py::t[x, 1 layers]
[gw6] [ 80%] PASSED tests/a.py::t[x, 2 layers]
tests/b.py::u[a, b] SKIPPED                     [  3%]
FAILED tests/b.py::v[a, b] - AssertionError: x
[gw0] [100%] FAILED tests/b.py::v[a, b]
"""
    assert {one or other: how for one, how, other in LINE.findall(said)} == {
        "tests/a.py::t[x, 1 layers]": "PASSED",
        "tests/a.py::t[x, 2 layers]": "PASSED",
        "tests/b.py::u[a, b]": "SKIPPED",
        "tests/b.py::v[a, b]": "FAILED",
    }
