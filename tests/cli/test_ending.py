"""How commands end: by Ctrl-C at any moment, on full disks, and when one of several processes is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.cli.ending import run_to_the_end
from autobatch.cli.results import open_json
from autobatch.errors import DataError
from helpers.runs.commands import Command

resource: Any = pytest.importorskip("resource", reason="signals and limits of POSIX")
SLOW = pytest.mark.slow
COMMAND = (
    "import sys; sys.argv[0] = 'autobatch'; print('begun', flush=True); from autobatch.cli.main import main; main()"
)
TRAIN = ("train", "tree-lstm", "--dim", "4", "--backend", "reference")


def begin(*words: str, before: Callable[[], None] | None = None, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], env=environment, text=True, stderr=subprocess.PIPE, preexec_fn=before,
        **{"stdout": subprocess.PIPE, **options},
    )  # fmt: skip


# --- Ctrl-C ---


@SLOW
@pytest.mark.parametrize("seed", range(12))
def test_ctrl_c_ends_it_at_any_moment(seed: int, tmp_path: Path) -> None:
    """During imports, reading of data, compilation and training."""
    process = begin(*TRAIN, "--epochs", "1000", "--json", str(tmp_path / "run.jsonl"))
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(float(np.random.default_rng(seed).uniform(0, 3)) ** 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("autobatch: interrupted.\n")
    assert "Traceback" not in err
    if (tmp_path / "run.jsonl").exists():
        for line in (tmp_path / "run.jsonl").read_text().splitlines():
            json.loads(line)


@SLOW
@pytest.mark.parametrize("seed", range(4))
def test_ctrl_c_leaves_nothing_half_written(seed: int, tmp_path: Path) -> None:
    process = begin("bench", "tree-lstm", "--dim", "4", "--json", str(tmp_path / "results.json"))
    assert process.stdout is not None
    until = time.monotonic() + 120
    while not [*tmp_path.iterdir()]:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(float(np.random.default_rng(seed).uniform(0, 0.5)))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not [*tmp_path.iterdir()]


# --- full disks ---


def limit_files(n_bytes: int) -> None:
    """Limit the size of files; further writes fail as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))


@SLOW
@pytest.mark.parametrize("n_bytes", [0, 100, 3000])
def test_a_full_disk_ends_it_in_a_sentence_and_leaves_nothing_half_written(
    n_bytes: int, command: Command, tmp_path: Path
) -> None:
    assert command(*TRAIN, "--epochs", 1, "--checkpoint", tmp_path / "run")[0] == 0
    checkpoint = (tmp_path / "run" / "last.safetensors").read_bytes()
    (tmp_path / "model.ab").write_bytes(b"an earlier one")
    given = ("tree-lstm", "--checkpoint", str(tmp_path / "run"))
    for words in (
        (*TRAIN, "--epochs", "30", "--json", str(tmp_path / "run.jsonl")),
        (*TRAIN, "--epochs", "2", "--resume", "--checkpoint", str(tmp_path / "run")),
        (*TRAIN, "--epochs", "1", "--profile", str(tmp_path / "profile.json")),
        (*TRAIN, "--epochs", "9", "--tensorboard", str(tmp_path / "scalars")),
        ("export", *given, "--out", str(tmp_path / "model.ab")),
        ("predict", *given, "--out", str(tmp_path / "predicted.jsonl")),
    ):
        if "--tensorboard" in words:
            pytest.importorskip("tensorboard")
        process = begin(*words, before=partial(limit_files, n_bytes))
        _, err = process.communicate(timeout=120)
        told = [line for line in err.splitlines() if "compiling" not in line and "cannot cache" not in line]
        assert process.returncode == 2, words
        assert len(told) == 1, err
        assert "file too large; " in told[0].lower()
        assert not [*tmp_path.rglob("*.tmp")]
    assert (tmp_path / "run" / "last.safetensors").read_bytes() == checkpoint
    assert (tmp_path / "model.ab").read_bytes() == b"an earlier one"
    for line in (tmp_path / "run.jsonl").read_text().splitlines():
        json.loads(line)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
@SLOW
@pytest.mark.parametrize("words", [("models",), ("predict", "tree-lstm", "--checkpoint"), ("train", "tree-lstm")])
def test_standard_output_may_be_full(words: tuple[str, ...], command: Command, tmp_path: Path) -> None:
    if words[-1] == "--checkpoint":
        assert command(*TRAIN, "--epochs", 1, "--checkpoint", tmp_path / "run")[0] == 0
        words = (*words, str(tmp_path / "run"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "autobatch", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120,
            env=environment, check=False,
        )  # fmt: skip
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1].startswith("autobatch: cannot write ")
    assert "no space left on device" in found.stderr
    assert "Traceback" not in found.stderr


# --- too little memory ---


@pytest.mark.parametrize("n_axes", range(1, 4))
@pytest.mark.parametrize("seed", range(3))
def test_too_little_memory_ends_it_in_a_sentence(
    n_axes: int, seed: int, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """The request exceeds the address space, so it fails on every system."""
    sizes = np.random.default_rng(seed).dirichlet(np.ones(n_axes)) * 57
    shape = [int(2**size) + 1 for size in sizes]
    monkeypatch.setattr("autobatch.models.spec.ModelSpec.build", lambda *arguments: np.empty(shape))
    status, out, err = command("train", "tree-lstm")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("autobatch: cannot continue: out of memory (Unable to allocate ")
    assert err.endswith("); reduce --dim, --batch-size or --max-bytes.\n")


def test_memory_errors_without_a_word_end_it_so_too(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise MemoryError

    assert run_to_the_end(fail) == 2
    assert capfd.readouterr().err.startswith("autobatch: cannot continue: out of memory; reduce --dim")


@pytest.mark.parametrize("name", ["train", "bench", "explain", "warm"])
@pytest.mark.parametrize("exponent", [6, 11, 19, 24])
def test_a_width_beyond_any_memory_is_refused(name: str, exponent: int, command: Command) -> None:
    dim = 10**exponent + 1
    status, out, err = command(name, "tree-lstm", "--dim", dim)
    assert (status, out) == (2, "")
    assert f"'--dim': must be an int from 1 to 1000000, got '{dim}'; see autobatch {name} --help." in err


# --- lines of JSON ---


@pytest.mark.parametrize("n_done", range(5))
@pytest.mark.parametrize("rest", ["", '{"epo', '{"epoch": 5}', "\n"])
def test_lines_of_epochs_after_the_checkpoint_are_taken_away(n_done: int, rest: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f'{{"epoch": {k}}}\n' for k in range(1, 5)) + rest)
    with open_json(path, append=True, n_epochs=n_done) as results:
        for number in range(n_done + 1, 7):
            results.write({"epoch": number})
    found = [json.loads(line)["epoch"] for line in path.read_text().splitlines() if line]
    kept = 4 if rest == "\n" else n_done  # lines by others stay, and so do the lines before them
    assert found == [*range(1, kept + 1), *range(n_done + 1, 7)]


def test_lines_of_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"epoch": 9}\n{"about": "mine"}\n[3]\nno JSON\n')
    with open_json(path, append=True, n_epochs=1) as results:
        results.write({"epoch": 2})
    assert path.read_text() == '{"epoch": 9}\n{"about": "mine"}\n[3]\nno JSON\n{"epoch": 2}\n'


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_line_that_cannot_be_written_is_an_error() -> None:
    with (
        pytest.raises(DataError, match="cannot write results to /dev/full: no space left on device"),
        open_json(Path("/dev/full")) as results,
    ):
        results.write({"epoch": 1})


# --- several processes ---


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@SLOW
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_whichever_process_is_killed_and_whenever_all_are_gone(rank: int, seed: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    process = begin(
        *TRAIN, "--epochs", "10000", "--data-parallel", "3", "--checkpoint", str(tmp_path / "run"),
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    pids = [process.pid]
    until = time.monotonic() + 120
    while len(pids) < 3:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.01)
        found = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "autobatch"], capture_output=True, text=True)
        pids = [process.pid, *sorted(map(int, found.stdout.split()))]
    time.sleep(float(np.random.default_rng(seed).uniform(0, 4)) ** 2)
    os.kill(pids[rank], signal.SIGKILL)
    began = time.monotonic()
    try:
        if rank == 0:
            process.wait(10)
        while any(map(is_running, pids)):
            assert time.monotonic() - began < 10
            process.poll()
            time.sleep(0.05)
    finally:
        for pid in filter(is_running, pids):
            os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=10)
    if rank:
        assert process.returncode == 2
        assert err.startswith("autobatch: process ")
        assert "was ended by SIGKILL" in err
        assert "Traceback" not in err


# --- errors of the user's class ---

FAULTY = """
import autobatch as ab

class Constructed(ab.Module):
    def __init__(self, dim, rng):
        self.words = ab.Embeding(10, dim, rng=rng)  # a typo

    def loss(self, tree):
        return 0.0

class Recorded(ab.Module):
    def __init__(self, dim, rng):
        self.words = ab.Embedding(10, dim, rng=rng)

    def loss(self, tree):
        return ab.sum(self.words(tree.nothing))
"""


@pytest.mark.parametrize(("name", "line"), [("Constructed", "ab.Embeding"), ("Recorded", "tree.nothing")])
def test_a_traceback_has_the_lines_of_the_users_class_only(name: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    process = begin("train", f"faulty:{name}", "--backend", "reference", cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    files = re.findall(r'^  File "(.*)", line', err, re.MULTILINE)
    assert [Path(file).name for file in files] == ["faulty.py"], err
    assert line in err
    assert re.search(r"^AttributeError: .*(Embeding|nothing)", err, re.MULTILINE)


def test_a_full_traceback_is_shown_if_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_TRACEBACK", "full")
    (tmp_path / "faulty.py").write_text(FAULTY)
    process = begin("train", "faulty:Constructed", "--backend", "reference", cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert err.count('File "') > 5
