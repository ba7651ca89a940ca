"""Ray workers return the same results as this process, or an error of one sentence."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

import claims
from autobatch.cli import experiment, on_ray
from autobatch.cli import policy_learn as learning
from autobatch.errors import AutobatchError, DistributedError
from autobatch.graph.build import merge_graphs
from autobatch.graph.graph import Graph
from autobatch.policies.fsm.qlearning import Learned, Lesson, Progress
from autobatch.policies.learning import learn
from claims import measure_parts
from helpers.fakes.claims import make_claim
from helpers.programs.graphs import random_tree
from helpers.runs.commands import Command
from helpers.runs.ways import each
from records import Findings, Settings, read_record

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("--dim", "4", "--batch-size", "4", "--minibatches", "2", "--episodes", "60")
LEARN = ("policy", "learn", "tree-lstm-2type", *SMALL)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


def here(function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], *others: str) -> Iterator[tuple[int, Any]]:
    """Do jobs in this process, the last one first."""
    for number in reversed(range(len(jobs))):
        yield number, function(*jobs[number])


def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that Ray is not installed."""
    monkeypatch.setattr(on_ray, "find_spec", lambda name: None)


# Tests without Ray.


@each("text", ["local", "auto", "10.0.0.1:6379", "head:6379", "[::1]:6379"])
def test_an_address_is_taken(text: str) -> None:
    assert on_ray.to_address(None, None, text) == text  # type: ignore[arg-type]


@each(
    "text",
    ["only=tree-lstm", "batches", "head", "http://head:80", "head:port", "head:123456", "", "ray://head:1", "head:1/x"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="must be HOST:PORT, auto or local, got"):
        on_ray.to_address(None, None, text)  # type: ignore[arg-type]


def graphs() -> list[Graph]:
    """Return two mini-batches of trees with one table of types."""
    return [merge_graphs([random_tree(10 * i + j) for j in range(6)]) for i in range(2)]


def test_lessons_may_be_done_in_any_order_and_elsewhere() -> None:
    """The tables are bit-identical; only progress is reported in another order."""
    told: dict[str, list[Progress]] = {"here": [], "elsewhere": []}

    def backwards(
        learn_one: Callable[[Lesson, Any], Learned], lessons: Sequence[Lesson], report: Callable[[Progress], None]
    ) -> list[Learned]:
        done = [learn_one(pickle.loads(pickle.dumps(lesson)), report) for lesson in reversed(lessons)]
        return done[::-1]

    options: dict[str, Any] = {"episodes": 60, "seed": 3, "tolerance": 0.0}
    trees = graphs()
    one = learn(trees, on_progress=told["here"].append, **options)
    other = learn(trees, on_progress=told["elsewhere"].append, each=backwards, **options)
    assert json.dumps(one.describe()) == json.dumps(other.describe())
    assert one.about == other.about
    assert len(told["here"]) == len(told["elsewhere"]) == 4
    key = lambda progress: (progress.episodes, progress.batches, progress.states)  # noqa: E731
    assert sorted(told["here"], key=key) == sorted(told["elsewhere"], key=key)


def test_learning_writes_the_same_file_and_tells_of_every_rollout(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "as_done", here)
    monkeypatch.setattr(learning, "require_ray", lambda what: None)
    for name, words in (("one", ()), ("other", ("--ray",))):
        status, _, errors = command(*LEARN, "--out", tmp_path / name, *words)
        assert (status, errors) == (0, "")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_other_ways_to_learn_are_refused(command: Command) -> None:
    status, out, errors = command("policy", "learn", "tree-lstm", "--algorithm", "ppo", "--ray")
    assert (status, out) == (2, "")
    assert errors.count("\n") == 1
    assert "--ray needs --algorithm q, got --algorithm ppo; leave one out" in errors


def test_where_ray_is_missing_a_sentence_says_what_to_install(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ray(monkeypatch)
    for words, what in ((LEARN, "learning a policy"), (("experiment", "batches"), "experiment batches")):
        status, out, errors = command(*words, "--ray")
        assert (status, out) == (2, "")
        assert errors.startswith(f"autobatch: {what}: --ray needs the package ray,")
        assert errors.endswith("; pip install 'autobatch-nn[ray]'.\n")
    with pytest.raises(DistributedError, match="needs the package ray"):
        on_ray.run_jobs(len, [([1],)], "local", "counting")


def test_an_experiment_without_parts_is_refused(command: Command) -> None:
    status, out, errors = command("experiment", "latency", "--ray")
    assert (status, out) == (2, "")
    assert errors.startswith("autobatch: NAME must be one of all, ")
    assert "all, ablation, batches, " in errors


def test_the_claims_are_those_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "require_ray", lambda what: None)
    for name in ("all", *claims.NAMES):
        experiment._require_parts(name)


def test_an_experiment_is_told_the_address(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "harness.py").write_text("")
    script = 'import sys\nif __name__ == "__main__":\n    print(*sys.argv[1:])  # run_claim(CLAIM)\n'
    (tmp_path / "first.py").write_text(script)
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    monkeypatch.setattr(experiment, "require_ray", lambda what: None)
    assert command("experiment", "first", "seed=1", "--ray") == (0, "seed=1 ray=local\n", "")
    assert command("experiment", "first", "--ray", "head:6379", "--quick")[1] == "quick=True ray=head:6379\n"
    assert "must be HOST:PORT, auto or local, got 'seed=1'" in command("experiment", "first", "--ray", "seed=1")[2]


def test_where_nothing_answers_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "require_ray", lambda what: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(DistributedError, match=r"counting: nothing answers at .*ray start --head\."):
        on_ray.run_jobs(len, [([1],)], address, "counting")


def test_parts_are_measured_in_workers_and_those_that_are_there_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="draws with it")
    measured: list[str] = []
    claim = make_claim("first", measured)
    monkeypatch.setattr(claims, "load_claim", {"first": claim}.__getitem__)
    monkeypatch.setattr(claims, "as_done", here)
    measure_parts(claim, Settings(), ["one"], tmp_path, again=False)
    measure_parts(claim, Settings(), ["one", "three"], tmp_path, again=False, ray="local")
    assert measured == ["one", "three"]
    assert "first-one.json exists already" in capsys.readouterr().out
    plain, shared = (read_record(tmp_path / f"first-{part}.json").content for part in ("one", "three"))
    assert shared["ray"] is True
    assert shared.keys() - plain.keys() == {"ray"}
    assert shared["command"] == plain["command"]
    page = (tmp_path / "first.md").read_text()
    assert "as one of several tasks at a time" in page
    measure_parts(claim, Settings(), ["one", "three"], tmp_path, again=True, ray="local")
    assert measured == ["one", "three", "three", "one"]


def test_a_worker_with_other_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="draws with it")
    claim = make_claim("first", [])
    other = {"code": {"modules": [], "digest": "other"}}, Findings({}, {}, "")
    monkeypatch.setattr(claims, "as_done", lambda function, jobs, *others: [(0, other)])
    with pytest.raises(AutobatchError, match=r"measuring first: the code of a worker differs from .*; install"):
        measure_parts(claim, Settings(), ["one"], tmp_path, again=False, ray="local")
    assert not [*tmp_path.iterdir()]


# Tests with Ray on this machine, each in a separate process.

JOBS = """
import os, pathlib, signal, sys
import numpy as np
from autobatch.cli.on_ray import as_done, run_jobs
from autobatch.errors import AutobatchError, DataError, DistributedError

def work(number, array, folder):
    mark = pathlib.Path(folder) / str(number)
    tries = len(mark.read_text()) if mark.is_file() else 0
    mark.write_text("x" * (tries + 1))
    if number == 1 and tries == 0 or number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 8:
        raise DataError("number 8 is refused.")
    array += number
    return array.sum(), tries

if __name__ == "__main__":
    folder = sys.argv[1]
    jobs = [(number, np.arange(5.0), folder) for number in range(4)]
    found = run_jobs(work, jobs, "local", "adding")
    assert found == [(10.0, 0), (15.0, 1), (20.0, 0), (25.0, 0)], found
    for number, kind in ((7, DistributedError), (8, DataError)):
        try:
            run_jobs(work, [(number, np.arange(5.0), folder)], "local", "adding")
        except AutobatchError as error:
            assert type(error) is kind
            print(error)
    print(len((pathlib.Path(folder) / "7").read_text()), "tries")
    assert "ray" in sys.modules and not sys.modules["ray"].is_initialized()
"""


def run(words: Sequence[object], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the paths of this process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0", **more}
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@needs_ray
def test_a_killed_worker_is_replaced_and_results_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    found = run(["jobs.py", tmp_path], tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    told = [line for line in found.stdout.splitlines() if "(raylet)" not in line]  # Ray's messages about dead workers
    died, refused, tries = told
    assert died.startswith("adding: job 1 of 1 was started 4 times and its worker died each time")
    assert (refused, tries) == ("number 8 is refused.", "4 tries")


@pytest.mark.slow
@needs_ray
def test_a_policy_that_workers_learned_is_the_same_to_the_byte(tmp_path: Path) -> None:
    for name, words in (("one", []), ("other", ["--ray"])):
        found = run(["-m", "autobatch", *LEARN, "--seed", 3, "--out", name, *words], tmp_path)
        assert (found.returncode, found.stderr) == (0, "")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def counted(found: Any) -> Any:
    """Drop timings from figures."""
    timed = ("ns/node", "learning s")
    return {name: counted(x) for name, x in found.items() if name not in timed} if isinstance(found, dict) else found


@pytest.mark.slow
@needs_ray
def test_a_claim_counts_the_same_in_workers_and_goes_on_where_it_was(tmp_path: Path) -> None:
    for package in ("matplotlib", "scipy"):
        pytest.importorskip(package, reason="the claim needs it")
    only = "only=random-dag-4,tree-lstm-2type"
    command = ["-m", "autobatch", "experiment", "batches", only, "sizes=8,", "held_out=2", "learning_seeds=1",
               "repeats=1", "search_steps=100", "--out"]  # fmt: skip
    for words in (["one"], ["other", "--ray"]):
        found = run([*command, *words], tmp_path)
        assert found.returncode == 0, found.stderr
    for part in ("random-dag-4", "tree-lstm-2type"):
        one, other = (read_record(tmp_path / name / f"batches-{part}.json").content for name in ("one", "other"))
        assert counted(one["figures"]) == counted(other["figures"])
        assert (one["code"], one["settings"]) == (other["code"], other["settings"])
    (tmp_path / "other" / "batches-random-dag-4.json").unlink()
    found = run([*command, "other", "--ray"], tmp_path)
    assert "batches-tree-lstm-2type.json exists already" in found.stdout
    assert "written to other/batches-random-dag-4.json" in found.stdout


@pytest.mark.slow
@needs_ray
def test_ray_tune_drives_learning(tmp_path: Path) -> None:
    pytest.importorskip("ray.tune", reason="Ray Tune is not installed", exc_type=ImportError)
    found = run([EXAMPLES / "ray_tune.py", "--trees", 4], tmp_path, RAY_CHDIR_TO_TRIAL_DIR="0")
    assert "12 policies, 0 failed; batches from " in found.stdout, found.stderr
    assert "the best options: encoding=" in found.stdout
