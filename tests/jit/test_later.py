"""A helper process compiles: what is asked of it, in which order, and what happens when it cannot."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autobatch.errors import BackendError
from autobatch.jit import later
from autobatch.jit.later import LATER, NEVER, NOW, Helper, Task, compile_mode

ENOUGH_S = 60.0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make(path: Path) -> Task:
    """A task that makes a folder, and fails if that is there."""
    return Task("os", "mkdir", (str(path),))


def run_program(text: str) -> Task:
    """A task that takes as long as a program in Python."""
    return Task("subprocess", "run", ((sys.executable, "-c", text),))


def wait(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + ENOUGH_S
    while not is_so():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def test_the_mode_is_later_unless_there_is_no_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOBATCH_COMPILE")
    assert compile_mode() == LATER
    monkeypatch.setenv("AUTOBATCH_CACHE", "off")
    assert compile_mode() == NOW
    for mode in (NOW, NEVER):
        monkeypatch.setenv("AUTOBATCH_COMPILE", mode)
        assert compile_mode() == mode
    monkeypatch.setenv("AUTOBATCH_COMPILE", "soon")
    with pytest.raises(BackendError, match="AUTOBATCH_COMPILE='soon' is none of later, now, never"):
        compile_mode()


def test_tasks_are_done_once_and_failures_are_answered(cache: Path, tmp_path: Path) -> None:
    helper, first, second = Helper(), make(tmp_path / "first"), make(tmp_path)
    assert helper.waits_for(first)
    assert helper.waits_for(second)
    wait(lambda: helper.n_waiting == 0)
    assert (tmp_path / "first").is_dir()
    assert not helper.waits_for(first)
    assert not helper.waits_for(second)


def test_measurements_wait_for_the_helper(cache: Path, tmp_path: Path) -> None:
    helper = Helper()
    helper.waits_for(make(tmp_path / "made"))
    helper.wait()
    assert (tmp_path / "made").is_dir()
    helper.waits_for(Task("os", "_exit", (3,)))
    helper.wait()
    assert helper._failure, "it waits no longer"


def test_a_helper_that_dies_is_told_and_its_tasks_are_done_here(cache: Path, tmp_path: Path) -> None:
    helper, task = Helper(), make(tmp_path / "made")
    helper.waits_for(Task("os", "_exit", (3,)))
    wait(lambda: helper._failure)
    with pytest.warns(UserWarning, match="the process that compiles ended with status 3"):
        assert not helper.waits_for(Task("os", "_exit", (3,)))
    assert helper.n_waiting == 0
    assert helper.waits_for(task)
    wait((tmp_path / "made").is_dir)


def test_the_last_words_of_a_helper_are_told(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('no such numbers')")
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = Helper()
    helper.waits_for(make(tmp_path))
    wait(lambda: helper._failure)
    with pytest.warns(UserWarning, match=r"ended with status 1 \(ImportError: no such numbers\)"):
        helper.waits_for(make(tmp_path))


def test_what_a_task_prints_is_no_answer(cache: Path, tmp_path: Path) -> None:
    helper, task = Helper(), make(tmp_path / "made")
    helper.waits_for(Task("os", "system", ("echo hello",)))
    helper.waits_for(task)
    wait(lambda: helper.n_waiting == 0)
    assert (tmp_path / "made").is_dir()
    assert not helper._failure


def test_where_no_process_can_be_started_tasks_are_done_here(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    helper, task = Helper(), Task("os", "getpid", ())
    helper.waits_for(task)
    wait(lambda: helper._failure)
    with pytest.warns(UserWarning, match=r"no process can be started \(No such file or directory\)"):
        assert not helper.waits_for(task)


@pytest.fixture
def started(cache: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """The helper process itself."""
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "autobatch.jit.helper"]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        with process:
            pass


def ask(process: subprocess.Popen[bytes], number: int, task: Task) -> None:
    assert process.stdin is not None
    pickle.dump((number, task), process.stdin)
    process.stdin.flush()


def answer(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return pickle.load(process.stdout)


def test_it_ends_with_its_parent_and_not_by_an_interrupt(started: Callable[[], subprocess.Popen[bytes]]) -> None:
    process = started()
    ask(process, 0, Task("os", "getpid", ()))
    assert answer(process) == 0
    process.send_signal(signal.SIGINT)
    ask(process, 1, Task("os", "getpid", ()))
    assert answer(process) == 1
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(ENOUGH_S) == 0


def test_only_one_compiles_at_a_time(started: Callable[[], subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """Two processes want something that takes a while: what they note does not overlap."""
    log = tmp_path / "log"
    program = f"import time; f = open({str(log)!r}, 'a'); f.write('('); f.flush(); time.sleep(0.3); f.write(')')"
    both = [started(), started()]
    for process in both:
        ask(process, 0, run_program(program))
    for process in both:
        assert answer(process) == 0
    assert log.read_text() == "()()"


def test_it_ends_with_its_parent_while_another_process_compiles(
    started: Callable[[], subprocess.Popen[bytes]], cache: Path
) -> None:
    cache.mkdir()
    process = started()
    ask(process, 0, Task("os", "getpid", ()))
    assert answer(process) == 0
    with (cache / "compiling.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ask(process, 1, Task("os", "getpid", ()))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(ENOUGH_S) == 0


def test_the_process_finds_modules_where_its_parent_does(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("import os\nmake = os.mkdir\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Helper().waits_for(Task("only_here", "make", (str(tmp_path / "made"),)))
    wait((tmp_path / "made").is_dir)


def test_an_executable_of_its_own_starts_no_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOBATCH_COMPILE")
    monkeypatch.setattr(later, "IS_FROZEN", True)
    assert compile_mode() == NOW


@pytest.mark.slow
def test_it_ends_when_there_is_nothing_to_do_and_is_started_again(cache: Path, tmp_path: Path) -> None:
    helper = Helper()
    for name in ("first", "second"):
        assert helper.waits_for(make(tmp_path / name))
        wait(lambda: helper.n_waiting == 0)
        wait(lambda: helper._messages is None)
        assert (tmp_path / name).is_dir()


def test_a_fork_has_a_helper_of_its_own(cache: Path, tmp_path: Path) -> None:
    later.waits_for(make(tmp_path / "parent"))
    child = os.fork()
    if child == 0:
        os._exit(later.n_waiting())
    assert os.waitpid(child, 0)[1] == 0
    wait((tmp_path / "parent").is_dir)


FIRST_STEPS = """
import json, sys, time
import numpy as np
import autobatch as ab
from autobatch.jit.later import n_waiting
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
while n_waiting():
    time.sleep(0.1)
step()
json.dump(found, sys.stdout)
"""


@pytest.mark.slow
def test_steps_run_before_and_after_what_they_need_is_compiled(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "loops"))
    monkeypatch.delenv("AUTOBATCH_COMPILE")
    runs = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", FIRST_STEPS], capture_output=True, text=True, check=True)
        runs.append((json.loads(done.stdout), done.stderr))
    (first, second), told = runs[0]
    assert first[3] > 0 == second[3], "the first step waits for nothing"
    assert first[:2] == pytest.approx(second[:2], rel=1e-10)
    assert first[2] > second[2], "the first step is interpreted"
    assert told.startswith("autobatch: compiling in the background, ")
    assert told.count("\n") == 1
    assert runs[1] == ([second, second], ""), "a later process finds all of it"
