"""`autobatch doctor --gpu` writes a file about a GPU's results, even if a kernel is wrong or kills the process."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autobatch.cli.gpu import short
from autobatch.cli.gpu.check import Result
from helpers.runs.commands import Command
from host_device import HostDevice

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, which builds kernels here")
FACTS = {"device": HostDevice.name}


@pytest.fixture
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")


def test_without_a_gpu_it_says_so_in_a_sentence(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOBATCH_CUDA", "none")
    path = tmp_path / "gpu.json"
    status, out, err = command("doctor", "--gpu", "--out", str(path))
    assert (status, out, err.count("\n")) == (69, "", 1)
    assert "AUTOBATCH_CUDA must be host" in err
    assert not path.exists()


@needs_compiler
@pytest.mark.usefixtures("_host")
def test_failures_are_in_the_file_and_in_the_exit_status(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    right = {"section": "products", "rows": [{"rows": 1}], "notes": [], "failures": [], "seconds": 1.0}
    wrong = {**right, "section": "training", "failures": ["differ by inf"]}
    partly = {**right, "notes": ["no time left for [8]"]}
    told = "All checks passed", "Attach", "All completed checks passed, but time ran out"
    for found, status, end in zip(
        ([FACTS, right], [FACTS, right, wrong], [FACTS, partly]), (0, 1, 0), told, strict=True
    ):
        monkeypatch.setattr(short, "run_apart", lambda seconds, found=found: iter(found))
        given, out, _ = command("doctor", "--gpu", "--out", str(path))
        assert given == status
        assert out.splitlines()[-1].startswith(end)
        content = json.loads(path.read_text())
        assert (content["device"], content["sections"]) == (HostDevice.name, found[1:])
        assert content["failures"] == ["training: differ by inf"] * status
    status, _, err = command("doctor", "--gpu", "--out", str(tmp_path / "nowhere" / "gpu.json"))
    assert (status, err.count("\n")) == (2, 1)
    assert "its folder does not exist" in err


@needs_compiler
@pytest.mark.usefixtures("_host")
def test_a_section_that_fails_ends_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(check: Any) -> Result:
        raise ValueError("broken")

    def find(check: Any) -> Result:
        result = Result("second", ("error",))
        result.add(float("inf"))
        return result

    monkeypatch.setattr(short, "SECTIONS", {"first": (fail, 0.5), "second": (find, 0.5)})
    facts, first, second = short.run_sections(1.0)
    assert facts["device"] == HostDevice.name
    assert first["failures"] == ["ValueError: broken"]
    assert second["rows"] == [{"error": "inf"}]


def test_a_section_that_ends_the_process_or_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    end: Any = os._exit
    (ended,) = short.run_apart(1, run=end)
    assert (ended["section"], ended["failures"]) == ("start", ["ended the process, exit status 1"])
    monkeypatch.setattr(short, "GRACE", 0.0)
    (hangs,) = short.run_apart(0)
    assert hangs["failures"] == ["did not end"]


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("_host")
def test_all_is_right_on_the_processor(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gpu.json"
    monkeypatch.setattr(short, "report", partial(short.report, seconds=60.0))
    status, out, _ = command("doctor", "--gpu", "--out", str(path))
    assert status == 0, out
    content = json.loads(path.read_text())
    assert [x["section"] for x in content["sections"]] == [*short.SECTIONS]
    assert all(x["rows"] and not x["failures"] for x in content["sections"])
    assert not content["times_mean_something"]
    assert {"numpy"} <= content["versions"].keys()
