"""Test Windows and macOS by simulation, because no test runs there; `docs/limits.md` lists these tests."""

from __future__ import annotations

import ast
import multiprocessing
import ntpath
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.blas import threads
from autobatch.cli import experiment
from autobatch.cli.serving.process import Reloading
from autobatch.cli.serving.workers import run_workers
from autobatch.cli.training.trained import Trained
from autobatch.errors import DataError
from autobatch.starting import INTERRUPTED
from autobatch.system.files import write_whole
from autobatch.trace.workers import can_fork, record_in_processes
from checkout import PACKAGE, ROOT
from helpers.runs.ways import each

SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
OPENING = re.compile(r"\b(?:read_text|write_text|open)\(")
BY_HAND = re.compile(r"\.(?:r?split|r?partition|removeprefix)\(\"(?:/|\\\\)")

# Functions that Windows lacks are removed before autobatch is imported, and neither NumPy's library nor Accelerate is
# found. Then a model is trained and saved as usual.
ELSEWHERE = """
import os, signal, sys
import numpy as np, llvmlite.binding, threadpoolctl

for module, names in (os, ("fork", "register_at_fork", "killpg", "sched_getaffinity")), (signal, ("SIGHUP", "SIGKILL")):
    for name in names:
        delattr(module, name)
sys.modules["fcntl"] = sys.modules["resource"] = sys.modules["scipy"] = sys.modules["mkl"] = None

class NoLibraries:
    lib_controllers = []

    def select(self, **chosen):
        return self

threadpoolctl.ThreadpoolController = NoLibraries

import autobatch as ab
from autobatch.blas.finding import get_provider
from autobatch.blas.threads import limit_threads

assert get_provider("numpy").addresses == {}
with limit_threads(2) as n_threads:
    assert n_threads >= 1
model = ab.LSTMCell(4, 4, rng=np.random.default_rng(0))

def loss(xs):
    state = None
    for x in xs:
        state = model(x, state)
    return ab.sum(state[0])

rng = np.random.default_rng(1)
instances = [list(rng.standard_normal((n, 4)).astype(np.float32)) for n in (1, 3, 2)]
batched = ab.batched(loss, module=model, backend="cpu")
expected = ab.batched(loss, module=model, backend="reference").value_and_grad(instances)
value, grads = batched.value_and_grad(instances)
assert np.allclose(value, expected[0], rtol=1e-5)
assert all(np.allclose(grads[name], g, rtol=1e-4, atol=1e-6) for name, g in expected[1].items())
ab.optim.Adam(model, lr=0.1).step(grads)
model.save("model.safetensors")
model.load("model.safetensors")
print("done")
"""


def test_a_model_trains_without_fork_locks_signals_and_a_library_that_is_known(tmp_path: Path) -> None:
    environment = {**os.environ, "AUTOBATCH_COMPILE_WAIT": "inf", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", ELSEWHERE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_text_file_is_read_and_written_as_utf_8_whatever_the_system_prefers() -> None:
    """On Windows, a text file uses the local code page unless its encoding is given."""
    unnamed = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, text in SOURCES.items()
        if OPENING.search(text)
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and opens_text(call) and "encoding" not in {word.arg for word in call.keywords}
    ]
    assert not unnamed


def opens_text(call: ast.Call) -> bool:
    """Return whether a call opens a text file: a method of paths, or a function whose mode has no `b`."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in ("read_text", "write_text"):
        return True
    modes = [x.value for x in (*call.args, *(word.value for word in call.keywords)) if isinstance(x, ast.Constant)]
    texts = [mode for mode in modes if isinstance(mode, str) and set(mode) <= set("rwaxt+b")]
    if name == "open" and isinstance(function, ast.Attribute):
        return any("b" not in mode for mode in texts)
    return name == "open" and not any("b" in mode for mode in texts)


def test_no_path_is_taken_apart_by_slashes() -> None:
    found = [str(path.relative_to(ROOT)) for path, text in SOURCES.items() if BY_HAND.search(text)]
    assert not found, "use pathlib or os.path"


@each("path", [r"C:\runs\tree.policy.json", r"\\server\runs\tree.policy.json", "runs\\tree.policy.json"])
def test_paths_of_windows_are_paths(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies are given by name or path. Here, the folders of such a path are part of the file's name."""
    monkeypatch.chdir(tmp_path)
    ab.policies.Score("both").save(path)
    assert ab.policies.get(path).name == ab.policies.get(f"{path} or depth").name == "score+both"
    assert ntpath.basename(path) in os.listdir(tmp_path)[0]
    for written in tmp_path.iterdir():
        written.unlink()


def test_a_file_is_written_whole_where_no_folder_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "open", refuse)
    write_whole(tmp_path / "file", b"first")
    write_whole(tmp_path / "file", b"second")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"second")]


def refuse(*given: Any) -> int:
    raise PermissionError(f"Windows does not open {given}")


@pytest.mark.parametrize(
    ("platform", "methods", "expected"),
    [
        ("linux", ["fork", "spawn"], "fork"),
        ("darwin", ["spawn", "fork"], "spawn"),
        ("win32", ["spawn"], "spawn"),
    ],
)
def test_workers_are_forks_on_linux_alone(
    platform: str, methods: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What spawned workers record is tested in `tests/trace/test_workers.py`."""

    class StartedError(Exception):
        """Carries the start method."""

    def start(method: str) -> None:
        raise StartedError(method)

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
    monkeypatch.setattr(multiprocessing, "get_context", start)
    double = ab.batched(ab.cell(lambda x: 2.0 * x), backend="reference")
    with pytest.raises(StartedError, match=expected):
        next(record_in_processes(double.recorder, [np.ones(2)] * 4, 2))
    assert can_fork() is (expected == "fork")


def test_a_library_without_a_pool_of_threads_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate chooses its threads itself. A block only says how many were granted."""
    monkeypatch.setattr(threads, "_all_pools", list)
    with threads.limit_threads(1) as one:
        assert one == 1
    assert threads.threads_in_force() == {}
    assert threads.most_threads() >= 1


def test_without_the_signal_a_server_looks_for_checkpoints_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(signal, "SIGHUP")
    (tmp_path / "last").touch()
    predictor: Any = types.SimpleNamespace(stored=types.SimpleNamespace(path=tmp_path / "last"))
    with Reloading(Trained("tree-lstm", tmp_path), predictor) as reloading:
        assert reloading._thread.is_alive()


def test_several_workers_are_refused_where_sockets_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    socket: Any = None
    with pytest.raises(DataError, match=r"^--workers must be 1 on Windows, .* got 2\.$"):
        run_workers(2, socket)


def test_an_experiment_is_interrupted_without_process_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    script = "import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(86400)\n"
    (tmp_path / "waiting.py").write_text(script, encoding="utf-8")
    assert experiment.run_script("waiting", []) == INTERRUPTED


def test_the_page_names_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    here = Path(__file__).relative_to(ROOT)
    named = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", page)
    texts = {place: (ROOT / (place or here)).read_text(encoding="utf-8") for place, _ in named}
    assert not [(place, name) for place, name in named if f"def {name}(" not in texts[place]]
    written = re.findall(r"^def (test_\w+)", texts[""], re.MULTILINE)
    assert {name for place, name in named if not place} == {*written[:-1]}, "the last test is this one"
