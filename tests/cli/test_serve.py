"""`autobatch serve`: predictions of a trained model over HTTP; start, operation and end of the command."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.serving.workers import run_workers
from helpers.runs.commands import Command

pytest.importorskip("uvicorn", reason="the extra serve is not installed")

TREE = "(2 (2 a) (3 film))"
SLOW = pytest.mark.slow


@pytest.fixture
def run(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Train a model; return its folder."""
    monkeypatch.setattr("autobatch.models.data.dataset.N_DRAWN", 90)
    options = "--dim", 8, "--epochs", 1, "--backend", "reference", "--data", "reviews"
    status, _, err = command("train", "tree-lstm", *options, "--checkpoint", tmp_path / "run")
    assert (status, err) == (0, "")
    return tmp_path / "run"


@contextmanager
def serving(
    run: Path | None, *options: str, token: str | None = None, log: Any = subprocess.STDOUT
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the command in a process; yield it and its port once ready. Without a run, the options name the model."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if token is not None:
        environment["AUTOBATCH_TOKEN"] = token
    command = [
        sys.executable,
        "-m",
        "autobatch",
        "serve",
        *(() if run is None else ("tree-lstm", "--checkpoint", str(run))),
        "--port",
        "0",
        *options,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout is not None
    try:
        found = re.search(r"http://127.0.0.1:(\d+)/", process.stdout.readline())
        assert found is not None
        port = int(found[1])
        for _ in range(600):
            if ask(port, "GET", "/readyz")[0] == 200:
                break
            time.sleep(0.1)
        yield process, port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def predict(port: int, *texts: str, **headers: str) -> list[Any]:
    status, text = ask(port, "POST", "/predict", {"instances": [*texts]}, **headers)
    assert status == 200, text
    found: list[Any] = json.loads(text)["results"]
    return found


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    return [int(number) for number in listed.stdout.split()]


@SLOW
def test_it_predicts_what_predict_writes(command: Command, run: Path, tmp_path: Path) -> None:
    trees = [TREE, "(3 good)", "(1 (2 not) (3 (3 good) (2 (2 a) (2 film))))"]
    (tmp_path / "trees.txt").write_text("\n".join(trees) + "\n")
    _, out, _ = command("predict", "tree-lstm", "--checkpoint", run, "--data", tmp_path / "trees.txt")
    expected = [json.loads(line) for line in out.splitlines()]
    with serving(run, "--backend", "reference") as (process, port):
        found = predict(port, *trees, "(2 (2 a)", "", TREE + "\n" + TREE)
        assert [one["result"] for one in found[:3]] == expected
        assert [one["status"] for one in found[3:]] == [422, 422, 422]
        assert "the instance, line 1" in found[3]["error"]
        assert all("/" not in one["error"] for one in found[3:])
        assert json.loads(ask(port, "POST", "/predict", {"instance": 3})[1])["error"].endswith("got 3.")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@SLOW
def test_a_file_is_served_and_a_new_one_taken_up(command: Command, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "trees.ab"
    assert command("export", "tree-lstm", "--checkpoint", run, "--out", path)[0] == 0
    (tmp_path / "trees.txt").write_text(TREE + "\n")
    _, out, _ = command("predict", "--model", path, "--data", tmp_path / "trees.txt")
    with serving(None, "--model", str(path), "--backend", "reference", "--workers", "2") as (process, port):
        assert [one["result"] for one in predict(port, TREE)] == [json.loads(out)]
        model = ab.load(path)
        bias = model.parameters()["output.bias"]
        bias.data[:] += 100.0 * (np.arange(bias.data.size) == (json.loads(out)["label"] + 1) % bias.data.size)
        new = tmp_path / "new.ab"
        ab.export(lambda word: model.leaf(word), new, examples=[1], module=model, about=model.about)
        shutil.move(new, path)
        deadline, n_new = time.monotonic() + 60, 0
        while n_new < 20 and time.monotonic() < deadline:  # until both workers have loaded it
            n_new = n_new + 1 if predict(port, TREE)[0]["result"] != json.loads(out) else 0
            time.sleep(0.1)
        assert n_new == 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@SLOW
def test_a_new_checkpoint_is_taken_up(run: Path, tmp_path: Path) -> None:
    from autobatch.params.checkpoint import load_checkpoint, save_checkpoint

    path = run / "best.safetensors"
    with serving(run, "--backend", "reference") as (process, port):
        before = predict(port, TREE)[0]["result"]
        stored = load_checkpoint(path)
        shifted = {name: array * np.float32(-1) for name, array in stored[0].items()}
        save_checkpoint(tmp_path / "new.safetensors", shifted, stored[1])
        (tmp_path / "old.safetensors").write_bytes(path.read_bytes())
        path.write_bytes(b"broken")
        time.sleep(2.5)
        assert predict(port, TREE)[0]["result"] == before
        shutil.move(tmp_path / "new.safetensors", path)
        process.send_signal(signal.SIGHUP)
        for _ in range(100):
            if predict(port, TREE)[0]["result"] != before:
                break
            time.sleep(0.1)
        assert predict(port, TREE)[0]["result"] != before
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stdout is not None
        said = process.stdout.read()
        assert "kept the current model" in said
        assert "reloaded" in said
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ([("best", None)], ["last"]),
        ([("best", None), ("best", 2.0)], ["last", "best"]),
        ([("last", None)], []),
        ([("last", 2.0), ("best", 3.0)], ["best"]),
        ([("best", None), ("last", None), ("last", 2.0)], ["last", "last"]),
    ],
)
def test_a_change_in_the_folder_is_taken_up_once(
    changes: list[tuple[str, float | None]],
    taken: list[str],
    run: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Files are deleted, or written with parameters of this value; the server checks three times after each change."""
    from autobatch.cli.serving.predictor import Predictor
    from autobatch.cli.serving.process import Reloading
    from autobatch.cli.training.trained import Trained
    from autobatch.params.checkpoint import load_checkpoint, save_checkpoint

    arrays, state = load_checkpoint(run / "last.safetensors")
    trained = Trained("tree-lstm", run)
    predictor = Predictor.of(trained.read())
    reloading = Reloading(trained, predictor)
    caplog.set_level("INFO", "autobatch.serve")
    for name, value in changes:
        path = run / f"{name}.safetensors"
        if value is None:
            path.unlink()
        else:
            save_checkpoint(path, {k: np.full_like(array, value) for k, array in arrays.items()}, state)
        for _ in range(3):
            with suppress(ab.CheckpointError):
                reloading._look()
    assert [record.args for record in caplog.records] == [(str(run / f"{name}.safetensors"),) for name in taken]
    if changes[-1][1] is not None:
        assert np.all(predictor.model.state_dict()["output.bias"] == changes[-1][1])


@SLOW
def test_a_checkpoint_is_taken_up_under_load(run: Path, tmp_path: Path) -> None:
    """Every answer comes from either the old or the new parameters."""
    from autobatch.params.checkpoint import load_checkpoint, save_checkpoint

    path = run / "best.safetensors"
    arrays, metadata = load_checkpoint(path)
    save_checkpoint(tmp_path / "new.safetensors", {k: -a for k, a in arrays.items()}, metadata)
    with serving(run, "--backend", "reference") as (process, port):
        before, found, is_over = predict(port, TREE)[0], list[Any](), threading.Event()

        def load() -> None:
            while not is_over.is_set():
                found.extend(predict(port, *[TREE] * 5))

        clients = [threading.Thread(target=load) for _ in range(4)]
        for client in clients:
            client.start()
        time.sleep(0.5)
        shutil.move(tmp_path / "new.safetensors", path)
        process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 30
        while (after := predict(port, TREE)[0]) == before and time.monotonic() < until:
            time.sleep(0.05)
        is_over.set()
        for client in clients:
            client.join()
        assert after != before
        assert before in found
        assert [one for one in found if one not in (before, after)] == []


@SLOW
def test_workers_share_a_port_and_are_begun_again(run: Path) -> None:
    with serving(run, "--backend", "reference", "--workers", "2") as (process, port):
        expected = predict(port, TREE)
        for _ in range(20):
            assert predict(port, TREE) == expected
        counted = re.search(r'autobatch_instances_total\{status="200"\} (\d+)', ask(port, "GET", "/metrics")[1])
        assert counted is not None
        assert int(counted[1]) == 21
        for _ in range(40):  # until the other worker has received a request
            live = json.loads(ask(port, "GET", "/live")[1])
            if live["servers"] == 2:
                break
            time.sleep(0.1)
        assert live["servers"] == 2
        assert live["done"] >= 21  # including the warm-up requests
        workers = workers_of(process)
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        time.sleep(1.0)
        for _ in range(20):
            assert predict(port, TREE) == expected
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@SLOW
def test_workers_that_are_killed_again_and_again_end_the_server(run: Path) -> None:
    with serving(run, "--backend", "reference", "--workers", "2") as (process, _):
        for _ in range(600):
            if process.poll() is not None:
                break
            for worker in workers_of(process)[:1]:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(worker, signal.SIGKILL)
            time.sleep(0.1)
        assert process.wait(60) == 1


def test_a_signal_while_a_worker_starts_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler cannot know a worker that is not listed yet."""
    begun: list[Any] = []

    class Worker:
        """A process that has ended if it is the first, and else runs until it is told to end."""

        def __init__(self, *args: Any, **options: Any) -> None:
            begun.append(self)
            self.status = -signal.SIGKILL if len(begun) == 1 else None
            if len(begun) == 2:
                signal.raise_signal(signal.SIGTERM)

        def poll(self) -> int | None:
            return self.status

        def terminate(self) -> None:
            self.status = 0

        def send_signal(self, number: int) -> None:
            self.status = -number

        def wait(self, timeout: float) -> None:
            assert self.status is not None, "the worker was not told to end"

    monkeypatch.setattr("autobatch.cli.serving.workers.subprocess.Popen", Worker)
    monkeypatch.setattr("autobatch.cli.serving.workers.CHECK_EVERY", 0.0)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            assert run_workers(1, listening) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [worker.status for worker in begun] == [-signal.SIGKILL, 0]


@SLOW
def test_workers_end_with_the_first_process_however_it_ends(run: Path) -> None:
    with serving(run, "--backend", "reference", "--workers", "2") as (process, port):
        workers = workers_of(process)
        process.kill()
        process.wait()
        for _ in range(100):
            if not any(Path(f"/proc/{worker}").exists() for worker in workers):
                break
            time.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            ask(port, "GET", "/live")


@SLOW
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_log_on_a_full_disk_stops_nothing(run: Path) -> None:
    with (
        Path("/dev/full").open("w") as full,
        serving(run, "--workers", "2", "--backend", "reference", log=full) as (
            process,
            port,
        ),
    ):
        expected = predict(port, TREE)
        for worker in workers_of(process):
            os.kill(worker, signal.SIGHUP)  # it reloads the checkpoint and prints a message
        os.kill(workers_of(process)[0], signal.SIGKILL)
        time.sleep(1.0)
        assert len(workers_of(process)) == 2
        for _ in range(20):
            assert predict(port, TREE) == expected
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@SLOW
def test_a_token_is_asked_for(run: Path) -> None:
    with serving(run, "--backend", "reference", token="secret") as (_, port):
        assert ask(port, "POST", "/predict", {"instance": TREE})[0] == 401
        assert predict(port, TREE, Authorization="Bearer secret")[0]["result"]


@SLOW
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("begin", ["", "POST /pre", "POST /predict HTTP/1.1\r\nHost: x\r\n", "whole head", "half body"])
def test_a_client_that_sends_no_more_does_not_keep_it_from_ending(begin: str, workers: int, run: Path) -> None:
    if begin in ("whole head", "half body"):
        part = "{" if begin == "half body" else ""
        begin = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{part}"
    with serving(run, "--backend", "reference", "--workers", str(workers)) as (process, port):
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        for client in clients:
            client.sendall(begin.encode())
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        for client in clients:
            client.close()


@SLOW
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("to_all", [False, True])
def test_ctrl_c_ends_it_in_a_sentence(workers: int, to_all: bool, run: Path, tmp_path: Path) -> None:
    """Whether the terminal sends it to all processes, or a user to the first one."""
    with (tmp_path / "log").open("w") as log, serving(
        run, "--backend", "reference", "--workers", str(workers), log=log
    ) as (process, port):  # fmt: skip
        assert predict(port, TREE)
        for pid in [process.pid, *(workers_of(process) if to_all and workers > 1 else [])]:
            os.kill(pid, signal.SIGINT)
        assert process.wait(30) == 130
    assert (tmp_path / "log").read_text() == "autobatch: interrupted.\n"


@SLOW
def test_a_full_disk_stops_no_prediction(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request writes no files; here even the temporary folder is missing."""
    with serving(run, "--backend", "reference", "--workers", "2") as (process, port):
        expected = predict(port, TREE)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with serving(run, "--backend", "reference", "--workers", "2") as (process, port):
        shutil.rmtree(tmp_path / "temporary")
        for _ in range(20):
            assert predict(port, TREE) == expected
            assert ask(port, "GET", "/metrics")[0] == 200
        counted = re.search(r'autobatch_instances_total\{status="200"\} (\d+)', ask(port, "GET", "/metrics")[1])
        assert counted is not None
        assert int(counted[1]) == 20
        os.kill(workers_of(process)[0], signal.SIGKILL)
        time.sleep(1.0)
        counted = re.search(r'autobatch_instances_total\{status="200"\} (\d+)', ask(port, "GET", "/metrics")[1])
        assert counted is not None
        assert int(counted[1]) == 20  # counts are kept


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
def test_only_regular_files_are_opened(
    kind: str, command: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = {"fifo": "pipe", "device": "/dev/zero", "socket": "socket"}[kind]
    if kind == "fifo":
        os.mkfifo(path)
    with socket.socket(socket.AF_UNIX) as bound:
        if kind == "socket":
            bound.bind(path)
        for words in (
            ("serve", "tree-lstm", "--checkpoint", path),
            ("serve", "--model", path),
            ("predict", "tree-lstm", "--checkpoint", run, "--data", path),
            ("eval", "tree-lstm", "--checkpoint", run, "--data", path),
            ("train", "tree-lstm", "--data", path),
            ("train", "tree-lstm", "--policy", path),
        ):
            status, _, err = command(*words)
            assert status == 2, words
            assert "regular file" in err or kind == "socket", err
            assert err.startswith("autobatch: ")
            assert err.count("\n") == 1


@SLOW
def test_the_address_that_is_printed_can_be_opened(run: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("the machine has no IPv6")
    words = ["serve", "tree-lstm", "--checkpoint", str(run), "--host", "::1", "--port", "0", "--backend", "reference"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-m", "autobatch", *words], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found is not None
        for _ in range(600):
            try:
                assert urllib.request.urlopen(f"{found[0]}healthz", timeout=10).status == 200
                break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail("it does not answer")
        process.kill()


@pytest.mark.parametrize("token", ["", " ", "\t", "two words"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_blank_token_is_refused(
    token: str, host: str, command: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOBATCH_TOKEN", token)
    status, out, err = command("serve", "tree-lstm", "--checkpoint", run, "--host", host)
    assert (status, out) == (2, "")
    assert err.startswith("autobatch: the token must be one or more visible ASCII characters")


def test_others_reach_it_only_by_a_token(command: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOBATCH_TOKEN", raising=False)
    status, out, err = command("serve", "tree-lstm", "--checkpoint", run, "--host", "0.0.0.0")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("autobatch: AUTOBATCH_TOKEN must be set to serve at 0.0.0.0")


def test_what_is_not_there_is_refused(command: Command, run: Path, tmp_path: Path) -> None:
    status, _, err = command("serve", "tree-lstm", "--checkpoint", tmp_path / "nowhere")
    assert status == 2
    assert "cannot find a checkpoint" in err
    status, _, err = command("serve", "bilstm-tagger", "--checkpoint", run)
    assert status == 2
    assert "it holds a tree-lstm" in err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, err = command("serve", "tree-lstm", "--checkpoint", run, "--port", port)
    assert status == 2
    assert err.startswith(f"autobatch: serving at 127.0.0.1:{port}: ")


@pytest.mark.parametrize("port", [65_536, 99_999, 2**70, -1, "1.5", "http"])
def test_a_port_is_one_of_those_that_there_are(port: object, command: Command, run: Path) -> None:
    status, out, err = command("serve", "tree-lstm", "--checkpoint", run, "--port", port)
    assert (status, out) == (2, "")
    assert f"Invalid value for '--port': must be an int from 0 to 65535, got '{port}'" in err
    assert err.count("\n") == 1


def test_it_needs_its_packages(command: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autobatch.cli.serving.serve.find_spec", lambda package: None)
    status, _, err = command("serve", "tree-lstm", "--checkpoint", run)
    assert status == 2
    assert err == "autobatch: serving: the package starlette is not installed; pip install 'autobatch-nn[serve]'.\n"
