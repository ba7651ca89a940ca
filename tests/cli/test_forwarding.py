"""`autobatch bench --baselines`, `--roofline`, `--compile`: forwarded arguments, errors, and a small run."""

from __future__ import annotations

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from autobatch.cli import bench, experiment
from helpers.runs.commands import Command


@pytest.fixture
def command(command: Command) -> Command:
    """Return a function that runs `bench`."""
    return partial(command, "bench")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write experiments that print their arguments and fail."""
    (tmp_path / "harness.py").write_text("")
    for name in ("against_torch", "roofline", "compile_times"):
        (tmp_path / f"{name}.py").write_text("import sys\nprint(*sys.argv[1:])\nsys.exit(3)\n")
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    return tmp_path


def test_only_what_is_given_is_told(command: Command, folder: Path) -> None:
    assert command("--baselines") == (3, "\n", "")
    options = ("--dim", 8, "--batch-size", 4, "--policy", "depth", "--mode", "train", "--out", folder / "records")
    told = f"models=tree-lstm dims=8, batch_sizes=4, policy=depth modes=train out={folder / 'records'}\n"
    status, out, err = command("tree-lstm", "--baselines", *options)
    assert (status, sorted(out.split()), err) == (3, sorted(told.split()), "")


def test_the_former_name_of_baselines_is_deprecated(command: Command, folder: Path) -> None:
    status, out, err = command("tree-lstm", "--peers", "--dim", 8)
    assert (status, out) == (3, "models=tree-lstm dims=8,\n")
    assert all(word in err for word in ("--peers", "0.4", "--baselines"))
    assert "--peers" not in command("--help")[1]


@pytest.mark.parametrize(
    ("flag", "options", "told"),
    [
        ("--roofline", ["--dim", 8, "--policy", "depth", "--repeats", 2], ["dim=8", "policy=depth", "repeats=2"]),
        ("--compile", ["--dim", 8, "--batch-size", 4, "--seed", 1], ["batch_size=4", "dim=8", "seed=1"]),
    ],
)
def test_experiments_of_a_model_are_told_its_name(
    command: Command, folder: Path, flag: str, options: list[object], told: list[str]
) -> None:
    path = folder / "results.jsonl"
    status, out, err = command("tree-lstm", flag, *options, "--json", path)
    assert (status, sorted(out.split()), err) == (3, sorted([*told, "model=tree-lstm", f"json={path}"]), "")


@pytest.mark.parametrize(
    ("flag", "option", "value"),
    [
        ("--compile", "--policy", "score"),
        ("--compile", "--repeats", "2"),
        ("--compile", "--threads", "1"),
        ("--roofline", "--threads", "2"),
        ("--roofline", "--precision", "bf16"),
        ("--baselines", "--json", "x.jsonl"),
    ],
)
def test_options_that_an_experiment_does_not_take_are_refused(
    command: Command, flag: str, option: str, value: str
) -> None:
    status, _, err = command("tree-lstm", flag, option, value)
    assert status == 2
    assert f"{flag} does not support {option}; leave it out" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--baselines", "--policy", "depth,agenda"], "--policy must be one policy with --baselines, got 2"),
        (["tree-lstm", "--out", "records"], "--out needs --baselines, --roofline or --compile"),
        ([], "Missing argument 'MODEL'"),
    ],
)
def test_what_does_not_go_together_is_refused(command: Command, arguments: list[str], said: str) -> None:
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_outside_a_checkout_nothing_runs(command: Command, folder: Path) -> None:
    (folder / "harness.py").unlink()
    status, _, err = command("--baselines")
    assert status == 2
    assert "experiments are not part of the installed package" in err


def test_without_torch_nothing_runs(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    status, out, err = command("--baselines")
    assert (status, out) == (2, "")
    assert err == ("autobatch: comparing with PyTorch: the package torch is not installed; pip install torch.\n")


@pytest.mark.slow
def test_an_unknown_model_has_no_baselines(command: Command) -> None:
    status, _, err = command("tree-lstm-2type", "--baselines")
    assert status == 2
    assert all(name in err for name in ("'tree-lstm-2type'", "tree-lstm, bilstm-tagger, lattice-lstm"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "n_baselines"),
    [("tree-lstm", "listops", 4), ("bilstm-tagger", "tagging", 2), ("lattice-lstm", "random-dag", 4)],
)
def test_all_ways_are_checked_and_timed(
    command: Command, tmp_path: Path, model: str, data: str, n_baselines: int
) -> None:
    sizes = {"--dim": 8, "--batch-size": 4, "--minibatches": 2, "--repeats": 1, "--threads": 1}
    small = [word for option in sizes.items() for word in option]
    options = [*small, "--backend", "reference", "--out", tmp_path]
    status, out, err = command(model, "--baselines", "--data", data, *options)
    assert (status, err) == (0, "")
    assert f"{model}, {data}, policy auto; instances per second\n\ndim 8, mini-batches of 4, 1 thread " in out
    record = json.loads((tmp_path / f"baselines-{model}.json").read_text())
    (setting,) = record["figures"]["settings"]
    rates, ratios = setting["instances_per_s"], setting["ratios"]
    ours = [f"autobatch reference, {way}" for way in ("recorded afresh", "recorded graphs", "cached plans")]
    by_torch, by_jax = ([way for way in rates if way.startswith(name)] for name in ("PyTorch, ", "JAX, "))
    theirs = [*by_torch, *by_jax]
    assert [way for way in rates if way not in theirs] == list(ratios) == ours
    assert len(by_torch) == 2 * n_baselines - 1
    is_left_out = model == "tree-lstm" and find_spec("jax") is None
    assert ("package jax" in out) == is_left_out
    assert len(by_jax) == (0 if model != "tree-lstm" or is_left_out else 2)
    for our in ours:
        for their in theirs:
            for mode in ("infer", "train"):
                expected = rates[our][mode] / rates[their][mode]
                assert ratios[our][their][mode] == pytest.approx(expected, rel=1e-2, abs=1e-3)
    assert len(record["seconds"][f"dim 8, mini-batches of 4, 1 thread, train: {ours[0]}"]) == 2
