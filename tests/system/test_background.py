"""Test the compiling thread: its order, errors, the time others wait for it, forks, and the end of the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from math import inf
from pathlib import Path
from typing import Any

import pytest

from autobatch.errors import BackendError
from autobatch.system import background
from autobatch.system.background import (
    PATIENCE_S,
    VARIABLE,
    Compilation,
    Job,
    compiling,
    n_waiting,
    patience,
    submit,
    unreported,
    wait_for_all,
    waiting_for_code,
    watch_compilation,
)
from helpers.runs.ways import each

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")


@pytest.fixture
def gate() -> threading.Event:
    """Submit a job that waits for an event, so that later jobs wait too; return the event."""
    opened = threading.Event()
    submit(Job(opened.wait))
    return opened


def asked(run: Any) -> Job[Any]:
    job = Job(run)
    submit(job)
    return job


def test_jobs_are_done_one_after_the_other(gate: threading.Event) -> None:
    done = list[int]()
    jobs = [asked(lambda n=n: done.append(n)) for n in range(20)]
    assert n_waiting() == 21
    assert not jobs[0].wait(0.0)
    gate.set()
    assert jobs[-1].wait(inf)
    assert done == list(range(20))
    wait_for_all()
    assert n_waiting() == 0


def test_an_error_is_raised_where_the_result_is_asked_for() -> None:
    job, after = asked(lambda: 1 // 0), asked(lambda: 7)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            job.result()
    assert after.result() == 7


def test_a_wait_ends_some_time_after_the_job_was_asked_for(gate: threading.Event) -> None:
    job = asked(lambda: None)
    assert not job.wait(0.05)
    job.asked -= 10.0  # no call starts the waiting time again
    assert not job.wait(9.0)
    gate.set()
    assert job.wait(inf)


@each("text, seconds", [("", PATIENCE_S), ("0", 0.0), ("2.5", 2.5), ("inf", inf)])
def test_the_variable_says_how_long(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert patience() == seconds
    with waiting_for_code():
        assert patience() == inf
    assert patience() == seconds


@each("text", ["soon", "-1", "nan"])
def test_another_value_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(BackendError, match=f"{VARIABLE} must be a number of seconds, such as 0.3 or inf, got '{text}'"):
        patience()


@each("is_quiet", [False, True])
def test_a_line_tells_of_long_compiling(
    is_quiet: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_all()
    monkeypatch.setattr(background, "SECONDS_BEFORE_REPORT", 0.05)
    monkeypatch.setenv(VARIABLE, "0.3")
    gate = threading.Event()
    with unreported() if is_quiet else watch_compilation(print):
        jobs = [asked(lambda: gate.wait(0.5)), asked(lambda: None)]
        jobs[-1].wait(inf)
    line = (
        "autobatch: compiling cells, 0 of 2 parts done; until then, mini-batches are interpreted, with equal "
        f"results up to rounding ({VARIABLE}=inf waits).\n"
    )
    assert capsys.readouterr().err == ("" if is_quiet else line)


def test_watchers_are_told_what_is_compiled_by_any_thread() -> None:
    begun, done = list[Compilation](), list[Compilation]()

    def compile_something() -> None:
        with compiling("something"):
            pass

    with watch_compilation(begun.append, done.append):
        asked(compile_something).result()
    compile_something()
    assert begun == [Compilation("something")]
    assert [one.what for one in done] == ["something"]
    assert done[0].seconds > 0.0


def test_the_end_of_a_failed_compilation_is_told_too() -> None:
    done = list[Compilation]()
    with watch_compilation(lambda _: None, done.append), pytest.raises(KeyboardInterrupt), compiling("something"):
        raise KeyboardInterrupt
    assert len(done) == 1


@needs_fork
def test_a_fork_does_what_is_left_by_itself() -> None:
    """The fork waits for the running job, and the child runs the others."""
    began, opened = threading.Event(), threading.Event()

    def first() -> int:
        began.set()
        opened.wait()
        return os.getpid()

    jobs = [asked(first), asked(os.getpid)]
    began.wait()
    threading.Timer(0.2, opened.set).start()
    child = os.fork()
    if child == 0:
        os._exit(0 if (jobs[0].result(), jobs[1].result()) == (os.getppid(), os.getpid()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert jobs[1].result() == os.getpid()


MANY_CELLS = """
import numpy as np
import autobatch as ab

def cell(number):
    return ab.cell(lambda x: ab.tanh(x * float(number)) + ab.exp(x) * number)

cells = [cell(number) for number in range(2, 40)]
run = ab.batched(lambda x: [one(x) for one in cells], backend="cpu")
print(len(run([np.ones(3)])[0]))
"""


@each("wait", ["0", "0.05"])
def test_a_process_may_end_while_it_compiles(wait: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_CELLS], capture_output=True, text=True, env={**os.environ, VARIABLE: wait}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "38\n", "")


FIRST_STEPS = """
import json, sys
import numpy as np
from autobatch.system.background import n_waiting, wait_for_all
from autobatch.cli.workload import load_workload

workload = load_workload("tree-lstm", "listops", 8, seed=0)
workload.model.astype("float64")
trees, found = workload.first(8), []
loss = workload.batched("loss", "auto", "cpu")

def step():
    values, grads = loss.value_and_grad(trees)
    found.append([float(np.mean(values)), float(sum(np.sum(np.asarray(g) ** 2) for g in grads.values())),
                  loss.last.launches, n_waiting()])

step()
wait_for_all()
step()
json.dump(found, sys.stdout)
"""


def test_steps_run_before_and_after_what_they_need_is_compiled(tmp_path: Path) -> None:
    runs = []
    environment = {**os.environ, VARIABLE: "0", "AUTOBATCH_CACHE": str(tmp_path / "cache")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", FIRST_STEPS], capture_output=True, text=True, check=True, env=environment
        )
        runs.append(json.loads(done.stdout))
    first, second = runs[0]
    assert first[3] > 0 == second[3], "the first step waits for nothing"
    assert first[:2] == pytest.approx(second[:2], rel=1e-10)
    assert first[2] > second[2], "the first step is interpreted"
    assert runs[1] == [second, second], "a later process finds all of it"
