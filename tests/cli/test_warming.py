"""`autobatch warm` compiles cells for later processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import autobatch as ab
from autobatch.system.background import VARIABLE
from helpers.runs.commands import Command

STEP = """
import autobatch as ab
from autobatch.cli.workload import load_workload
from autobatch.system.background import watch_compilation
from autobatch.system.background import n_waiting

workload = load_workload("tree-lstm", "listops", 16, seed=1).with_threads(1)
compiled = []
with watch_compilation(compiled.append):
    _, grads = workload.batched("loss", "auto", "cpu").value_and_grad(workload.first(4))
    ab.optim.Adam(workload.model).step(grads)
print(n_waiting(), compiled)
"""


def test_a_model_that_there_is_not_ends_it_in_a_sentence(command: Command) -> None:
    status, out, err = command("warm", "tree-lstm", "tree-lstn")
    assert (status, out) == (2, "")
    assert err.startswith("autobatch: ")
    assert "'tree-lstn'" in err
    assert err.count("\n") == 1


def test_it_says_where_there_is_no_cache(command: Command) -> None:
    status, out, _ = command("warm", "--dim", 4)
    assert (status, out) == (0, "tree-lstm: compiled\nThe cache is off (AUTOBATCH_CACHE).\n")


def test_of_a_file_its_predictions_are_run(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[int]()
    monkeypatch.setattr("autobatch.cli.warming.run_a_step", lambda workload: ran.append(0))
    export(command, tmp_path)
    monkeypatch.setattr(ab.Batched, "__call__", lambda self, instances: ran.append(len(instances)))
    status, out, err = command("warm", "--model", tmp_path / "trees.ab")
    assert (status, err, ran) == (0, "", [8])
    assert out.startswith(f"{tmp_path / 'trees.ab'}: compiled\n")
    assert command("warm", "--model", tmp_path / "none.ab")[2].startswith("autobatch: cannot load ")


def export(command: Command, folder: Path) -> None:
    """Train a model and export it to trees.ab."""
    given = "--dim", 4, "--epochs", 1, "--backend", "reference", "--data", "listops", "--checkpoint", folder / "run"
    assert command("train", "tree-lstm", *given)[0] == 0
    assert command("export", "tree-lstm", "--checkpoint", folder / "run", "--out", folder / "trees.ab")[0] == 0


def run(environment: dict[str, str], *arguments: str) -> str:
    """Run Python in a process; return its output. There must be no errors."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, env=environment)
    assert not done.stderr
    return done.stdout


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of processes with their own cache that do not wait for compilation."""
    return {**os.environ, "AUTOBATCH_CACHE": str(tmp_path / "cache"), "AUTOBATCH_BACKEND": "cpu", VARIABLE: "0"}


@pytest.mark.slow
def test_later_processes_compile_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    """The command waits even if the variable says not to."""
    told = run(environment, "-m", "autobatch", "warm", "--dim", "16", "--threads", "1")
    assert told.endswith(f"tree-lstm: compiled\nThe cache is {tmp_path / 'cache'}.\n")
    assert run(environment, "-c", STEP) == "0 []\n"


PREDICTION = """
import sys
import autobatch as ab
from autobatch.system.background import watch_compilation
from autobatch.system.background import n_waiting

model, compiled = ab.load(sys.argv[1]), []
with watch_compilation(compiled.append):
    run = ab.batched(lambda word: model.merge(model.leaf(word), model.leaf(word))[0], module=model)
    run([1, 2])
print(n_waiting(), compiled)
"""


@pytest.mark.slow
def test_code_for_a_named_processor_lies_beside_other_code(
    command: Command, environment: dict[str, str], tmp_path: Path
) -> None:
    export(command, tmp_path)
    named = {**environment, "AUTOBATCH_CPU": "generic"}
    counts = list[int]()
    for one in (environment, named):
        run(one, "-m", "autobatch", "warm", "--model", str(tmp_path / "trees.ab"), "--threads", "1")
        counts.append(sum(1 for _ in (tmp_path / "cache").rglob("*")))
    assert counts[1] > counts[0] > 0
    for one in (environment, named):
        assert run(one, "-c", PREDICTION, str(tmp_path / "trees.ab")) == "0 []\n"
