"""`autobatch experiment` runs scripts of the checkout, or says in a sentence why it cannot."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from autobatch.cli import experiment
from autobatch.starting import INTERRUPTED
from helpers.runs.commands import Command

SCRIPT = """
import sys
if __name__ == "__main__":
    print("{name} was told", *sys.argv[1:])
    sys.exit({status})
"""


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, maybe as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write three experiments, of which the last one fails, and their shared module; return the folder."""
    (tmp_path / "harness.py").write_text("'''What every experiment shares.'''")
    for name, status in (("first", 0), ("second", 0), ("third", 3)):
        (tmp_path / f"{name}.py").write_text(SCRIPT.format(name=name, status=status))
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    return tmp_path


def test_an_experiment_is_told_settings_and_where_records_go(command: Command, folder: Path) -> None:
    out = folder / "records"
    assert command("experiment", "second", "seed=1", "--out", out) == (0, f"second was told seed=1 out={out}\n", "")


def test_a_quick_run_is_told_so(command: Command, folder: Path) -> None:
    assert command("experiment", "first", "--quick") == (0, "first was told quick=True\n", "")


def test_the_status_is_that_of_the_script(command: Command, folder: Path) -> None:
    assert command("experiment", "third")[0] == 3


def test_what_is_interrupted_ends_in_a_sentence(command: Command, folder: Path) -> None:
    """The script interrupts the command and then waits for a day, as does its child process; both must be ended."""
    waiting = "import os, signal, subprocess, sys, time\n" + 'if __name__ == "__main__":\n'
    start = "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(86400)'])\n"
    told = "    open(sys.argv[1], 'w').write(str(child.pid))\n    os.kill(os.getppid(), signal.SIGINT)\n"
    (folder / "second.py").write_text(waiting + start + told + "    time.sleep(86400)\n")
    status, _, err = command("experiment", "second", folder / "pid")
    assert status == INTERRUPTED
    assert err == "\nautobatch: interrupted; written records are complete, and claims will resume from there.\n"
    child_id = int((folder / "pid").read_text())
    while not has_ended(child_id):
        time.sleep(0.01)


def test_an_unknown_experiment_is_refused(command: Command, folder: Path) -> None:
    status, out, err = command("experiment", "fourth")
    assert (status, out) == (2, "")
    assert err == "autobatch: NAME must be one of first, second, third, got 'fourth'.\n"


def test_outside_a_checkout_nothing_runs(command: Command, folder: Path) -> None:
    (folder / "harness.py").unlink()
    status, out, err = command("experiment", "first")
    assert (status, out) == (2, "")
    assert "experiments are not part of the installed package" in err
    assert len(err.splitlines()) == 1


def test_the_experiments_of_this_checkout_are_found() -> None:
    found = experiment.list_experiments()
    assert {"all", "batches", "throughput", "latency", "report", "tables"} <= set(found)
    assert not {"harness", "workloads", "claims", "counted_plans"} & set(found)


@pytest.mark.slow
def test_the_experiment_on_latency_compares_with_pytorch(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="compares with it")
    settings = ("dim=8", "batch_sizes=1,2", "quick=True", "--out", str(tmp_path))
    status, out, err = command("experiment", "latency", *settings)
    assert (status, err) == (0, "")
    assert "training, dim 8; microseconds of the shortest call" in out
    figures = json.loads((tmp_path / "latency.json").read_text())["figures"]
    assert set(figures) == {f"{mode}, {size}" for mode in ("inference", "training") for size in (1, 2)}
    for found in figures.values():
        assert found["calls"]["plan found"] < found["calls"]["recorded"] < found["calls"]["instances"]


@pytest.mark.slow
def test_no_policy_is_counted_below_what_is_proven(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws with it")
    settings = ("only=random-dag-4", "sizes=8,", "held_out=2", "learning_seeds=2", "repeats=1")
    status, out, err = command("experiment", "batches", *settings, "--out", tmp_path)
    assert (status, err) == (0, "")
    assert "random-dag-4, 8" in out
    found = json.loads((tmp_path / "batches-random-dag-4.json").read_text())["figures"]["sizes"]["8"]
    assert found["nodes"][0] == 71
    reached = found["reached"]
    for chain, better, search, fewest in zip(
        *(reached[what] for what in ("chain bound", "better bound", "search", "fewest")), strict=True
    ):
        assert chain <= better <= fewest <= search
    assert len(found["policies"]) == 10
    for counted in found["policies"].values():
        raw, compacted = counted["held-out"][:3], counted["held-out"][3:]
        assert sum(reached["fewest"][1:]) / 2 <= compacted[2] <= min(compacted[:2]) <= min(raw[:2])
        assert counted["first"][5] >= reached["fewest"][0]
    assert (tmp_path / "batches.png").read_bytes().startswith(b"\x89PNG\r\n")
