"""`autobatch bench --peers`: what it tells the experiment, what it refuses, and a whole run in the small."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autobatch.cli import experiment, peers
from autobatch.cli.ending import run_to_the_end
from autobatch.cli.main import dispatch

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `bench` in this process; give its exit status and what it printed."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run_to_the_end(lambda: dispatch(["bench", *map(str, arguments)]))
        return (status, *capfd.readouterr())

    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose experiment prints what it is told and fails."""
    (tmp_path / "harness.py").write_text("")
    (tmp_path / "against_torch.py").write_text("import sys\nprint(*sys.argv[1:])\nsys.exit(3)\n")
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    return tmp_path


def test_only_what_is_given_is_told(command: Command, folder: Path) -> None:
    assert command("--peers") == (3, "\n", "")
    options = ("--dim", 8, "--batch-size", 4, "--policy", "depth", "--mode", "train", "--out", folder / "records")
    told = f"models=tree-lstm dims=8, batch_sizes=4, policy=depth modes=train out={folder / 'records'}\n"
    status, out, err = command("tree-lstm", "--peers", *options)
    assert (status, sorted(out.split()), err) == (3, sorted(told.split()), "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--peers", "--json", "x.jsonl"], "--json does not go with --peers"),
        (["--peers", "--policy", "depth,agenda"], "--peers takes one policy, not 2"),
        (["tree-lstm", "--out", "records"], "--out goes with --peers"),
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
    status, _, err = command("--peers")
    assert status == 2
    assert "experiments are not part of the installed package" in err


def test_without_torch_nothing_runs(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    status, out, err = command("--peers")
    assert (status, out) == (2, "")
    assert err == ("autobatch: comparing with PyTorch: the package torch is not installed; pip install torch.\n")


@pytest.mark.slow
def test_an_unknown_model_has_no_peers(command: Command) -> None:
    status, _, err = command("tree-lstm-2type", "--peers")
    assert status == 1
    assert err == "'tree-lstm-2type' has no peers; give some of tree-lstm, bilstm-tagger, lattice-lstm\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "data", "n_peers"),
    [("tree-lstm", "listops", 4), ("bilstm-tagger", "tagging", 2), ("lattice-lstm", "random-dag", 4)],
)
def test_all_ways_are_checked_and_timed(command: Command, tmp_path: Path, model: str, data: str, n_peers: int) -> None:
    pytest.importorskip("matplotlib", reason="draws with it")
    small = (
        "--dim",
        8,
        "--batch-size",
        4,
        "--minibatches",
        2,
        "--repeats",
        1,
        "--threads",
        1,
        "--backend",
        "reference",
    )
    status, out, err = command(model, "--peers", "--data", data, *small, "--out", tmp_path)
    assert (status, err) == (0, "")
    assert out.startswith(f"{model}, {data}, policy auto; instances per second\n\ndim 8, mini-batches of 4, 1 thread ")
    record = json.loads((tmp_path / f"peers-{model}.json").read_text())
    (setting,) = record["figures"]["settings"]
    rates, ratios = setting["instances_per_s"], setting["ratios"]
    ours = [f"autobatch reference, {way}" for way in ("recorded afresh", "recorded graphs", "cached plans")]
    theirs = [way for way in rates if way.startswith("PyTorch, ")]
    assert [way for way in rates if way not in theirs] == list(ratios) == ours
    assert len(theirs) == 2 * n_peers - 1
    for our in ours:
        for their in theirs:
            for mode in ("infer", "train"):
                expected = rates[our][mode] / rates[their][mode]
                assert ratios[our][their][mode] == pytest.approx(expected, rel=1e-2, abs=1e-3)
    assert len(record["seconds"][f"dim 8, mini-batches of 4, 1 thread, train: {ours[0]}"]) == 2
    assert (tmp_path / f"peers-{model}.png").read_bytes().startswith(b"\x89PNG\r\n")
