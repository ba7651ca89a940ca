"""`autobatch warm`: what it compiles, later processes find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autobatch.jit.later import LATER, NEVER, VARIABLE
from helpers.runs.commands import Command

STEP = """
import autobatch as ab
from autobatch.cli.workload import load_workload
from autobatch.jit.compiling import watch_compilation
from autobatch.jit.later import n_waiting

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


def test_it_says_where_there_is_no_cache(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_JIT", "0")
    monkeypatch.setattr("autobatch.cli.warming.compile_fixed", lambda *arguments: None)
    status, out, _ = command("warm", "--dim", 4)
    assert (status, out) == (0, "tree-lstm: compiled\nThere is no cache: AUTOBATCH_CACHE is off.\n")


@pytest.mark.slow
def test_later_processes_compile_nothing(tmp_path: Path) -> None:
    """Even where the variable says that nothing is compiled, this command compiles."""
    cache = {"AUTOBATCH_CACHE": str(tmp_path / "cells"), "NUMBA_CACHE_DIR": str(tmp_path / "loops")}
    environment = {**os.environ, **cache, VARIABLE: NEVER}

    def run(*arguments: str) -> str:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, env=environment)
        assert not done.stderr
        return done.stdout

    told = run("-m", "autobatch", "warm", "--dim", "16", "--threads", "1")
    assert told.endswith(f"tree-lstm: compiled\nIt lies in {tmp_path / 'cells'}.\n")
    environment[VARIABLE] = LATER
    assert run("-c", STEP) == "0 []\n"
