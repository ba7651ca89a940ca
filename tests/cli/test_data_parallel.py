"""`autobatch train --data-parallel N`: equal losses to one process, and the end of a run when a process dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

TREES = ["(3 (2 good) (2 film))", "(1 (2 bad) (1 (2 long) (2 film)))", "(2 film)", "(4 (3 very) (3 good))"]
SETTINGS = ("--dim", "4", "--batch-size", "8", "--lr", "0.03")
SECONDS = 120.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "trees.txt").write_text("\n".join(TREES * 30) + "\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "autobatch", "train", "tree-lstm", "--data", "trees.txt", *SETTINGS, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*words: str) -> tuple[int, str, str]:
    process = begin(*words)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def read_figures(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def check_equal(name: str, other: str) -> None:
    both = read_figures(name), read_figures(other)
    assert len(both[0]) == len(both[1])
    for mine, theirs in zip(*both, strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
        assert {k: v for k, v in mine.items() if "accuracy" in k} == {
            k: v for k, v in theirs.items() if "accuracy" in k
        }


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("options", [(), ("--class-weights", "3=5,2=0.1")])
def test_two_processes_print_what_one_prints(options: tuple[str, ...]) -> None:
    alone = run("--epochs", "1", "--json", "one.jsonl", *options)
    both = run("--epochs", "1", "--json", "two.jsonl", "--data-parallel", "2", *options)
    assert (alone[0], both[0], both[2]) == (0, 0, "")
    without_speed = [re.sub(r"[\d,]+(/s| instances/s).*", "", out) for _, out, _ in (alone, both)]
    assert without_speed[0].splitlines()[-1] == without_speed[1].splitlines()[-1]
    check_equal("one.jsonl", "two.jsonl")


def others_of(process: subprocess.Popen[str]) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "autobatch train"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def wait_for(path: Path) -> None:
    until = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("n", ["1", "3"])
def test_a_killed_process_ends_the_run_in_a_sentence_and_another_number_goes_on(folder: Path, n: str) -> None:
    assert run("--epochs", "40", "--json", "whole.jsonl", "--checkpoint", "whole")[0] == 0
    words = ("--epochs", "40", "--checkpoint", "run", "--json", "run.jsonl")
    process = begin(*words, "--checkpoint-steps", "1", "--data-parallel", "2")
    wait_for(folder / "run" / "last.safetensors")
    (other,) = others_of(process)
    os.kill(other, signal.SIGKILL)
    began = time.monotonic()
    _, err = process.communicate(timeout=SECONDS)
    assert time.monotonic() - began < 10.0
    assert process.returncode == 2
    assert err == ("autobatch: process 1 of 2 was ended by SIGKILL; the checkpoint is in run, resume with --resume.\n")
    assert len(read_figures("run.jsonl")) < 40
    assert run(*words, "--resume", "--data-parallel", n)[0] == 0
    check_equal("whole.jsonl", "run.jsonl")


@pytest.mark.slow
def test_others_end_where_the_first_process_is_killed(folder: Path) -> None:
    words = ("--epochs", "200", "--checkpoint", "run", "--checkpoint-steps", "1")
    process = begin(*words, "--data-parallel", "3")
    wait_for(folder / "run" / "last.safetensors")
    others = others_of(process)
    assert len(others) == 2
    process.kill()
    process.communicate(timeout=SECONDS)
    until = time.monotonic() + 10.0
    while any(is_running(other) for other in others):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert run("--epochs", "1", "--checkpoint", "run", "--resume")[0] == 0


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_signal_ends_all_after_one_step(folder: Path) -> None:
    words = ("--epochs", "200", "--checkpoint", "run", "--json", "run.jsonl", "--data-parallel", "2")
    process = begin(*words, "--checkpoint-steps", "1")
    wait_for(folder / "run" / "last.safetensors")
    (other,) = others_of(process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert err == "autobatch: interrupted; the checkpoint is in run, resume with --resume.\n"
    assert not is_running(other)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("n", [2, 3])
def test_a_signal_ends_a_run_whose_other_processes_are_stopped(folder: Path, n: int, number: signal.Signals) -> None:
    words = ("--epochs", "200", "--checkpoint", "run", "--data-parallel", str(n))
    process = begin(*words, "--checkpoint-steps", "1")
    wait_for(folder / "run" / "last.safetensors")
    others = others_of(process)
    assert len(others) == n - 1
    for other in others:
        os.kill(other, signal.SIGSTOP)
    time.sleep(1.0)  # until the first one waits for them
    began = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert time.monotonic() - began < 10.0
    assert process.returncode == 128 + number
    assert err == "autobatch: interrupted; the checkpoint is in run, resume with --resume.\n"
    assert not any(map(is_running, others))
    assert run("--epochs", "1", "--checkpoint", "run", "--resume")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_two_signals_at_once_end_it_in_one_sentence(folder: Path, n: int) -> None:
    process = begin("--epochs", "200", "--checkpoint", "run", "--data-parallel", str(n), "--checkpoint-steps", "1")
    wait_for(folder / "run" / "last.safetensors")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert err == "autobatch: interrupted; the checkpoint is in run, resume with --resume.\n"


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_what_is_refused_is_said_once() -> None:
    status, _, err = run("--data-parallel", "0")
    assert status == 2
    assert "--data-parallel" in err
    status, _, err = run("--data-parallel", "2", "--max-bytes", "100")
    assert status == 2
    assert len(err.splitlines()) == 1
    assert "max_bytes is 100" in err
