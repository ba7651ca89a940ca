"""`tools/fuzz.py --replay` reruns a failing case and shrinks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import autobatch as ab
import fuzz
from autobatch.cli.workload import load_workload
from autobatch.deploy.cases import read_case
from autobatch.ops.define import run_kernel
from fuzzing.replaying import find_case_failure, replay
from helpers.twins.cases import CASES

SECONDS = 60.0


def wrong_in_batches(patch: pytest.MonkeyPatch, op_name: str) -> None:
    """Make an interpreted op wrong in all rows but the first."""

    def wrong(op: Any, xp: Any, arrays: list[Any], out: Any, static: dict[str, Any]) -> None:
        run_kernel(op, xp, arrays, out, static)
        if op.name == op_name:
            out[1:] *= 0.9

    patch.setattr("autobatch.backends.interpret.run_kernel", wrong)


def fails_on(patch: pytest.MonkeyPatch, op_name: str) -> None:
    """Make an interpreted op fail in batches of more than one node."""

    def fail(op: Any, xp: Any, arrays: list[Any], out: Any, static: dict[str, Any]) -> None:
        if op.name == op_name and len(out) > 1:
            raise RuntimeError("not today")
        run_kernel(op, xp, arrays, out, static)

    patch.setattr("autobatch.backends.interpret.run_kernel", fail)


def write(path: Path, training: bool = False) -> Path:
    """Write a case of Tree-LSTMs with dozens of nodes."""
    model, instances = CASES[0].draw(seed=5, n_instances=4, dim=4)
    loss = ab.batched(model.loss, policy="score+both+compact", backend="reference")
    ab.testing.dump(loss, instances, path, training=training)
    return path


@pytest.mark.usefixtures("capfd")
def test_a_wrong_kernel_leaves_a_few_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "case.zip")
    assert not replay(path, SECONDS)
    assert read_case(path).words[1] > 40
    wrong_in_batches(monkeypatch, "sigmoid")
    assert replay(path, SECONDS)
    small = read_case(tmp_path / "case.small.zip")
    n_instances, n_nodes, *_ = small.words.tolist()
    assert n_instances <= 2
    assert n_nodes <= 4
    assert small.setting.policy == {"name": "agenda"}
    failure = find_case_failure(small)
    assert failure is not None
    assert failure.signature == "batched in reference"
    monkeypatch.undo()
    assert find_case_failure(small) is None


@pytest.mark.slow
@pytest.mark.usefixtures("capfd")
@pytest.mark.parametrize(
    ("model", "op", "plant", "signature"),
    [
        ("lattice-lstm", "tanh", wrong_in_batches, "batched in reference"),
        ("tree-lstm-childsum", "sum_n", fails_on, "crash in reference: RuntimeError not today"),
        ("bilstm-tagger", "cross_entropy", fails_on, "crash in reference: RuntimeError not today"),
    ],
)
def test_training_is_made_small_too(
    model: str, op: str, plant: Any, signature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, workload = tmp_path / "case.zip", load_workload(model, None, 4, 0)
    ab.testing.dump(workload.batched("loss", "agenda", "reference"), workload.first(2), path, training=True)
    plant(monkeypatch, op)
    failure = find_case_failure(read_case(path))
    assert failure is not None
    assert failure.signature == signature
    assert replay(path, 2 * SECONDS)
    small = read_case(tmp_path / "case.small.zip")
    assert small.words[1] <= 8
    assert any(op in str(node_type.program) for node_type in small.types)


def test_the_command_refuses_what_is_no_case_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "case.zip"
    path.write_bytes(b"no zip")
    for given in (path, tmp_path / "none.zip"):
        done = CliRunner().invoke(fuzz.main, ["--replay", str(given)])
        assert done.exit_code == 2
        assert done.output.startswith("cannot read ")
        assert done.output.count("\n") == 1
    write(path)
    done = CliRunner().invoke(fuzz.main, ["--replay", str(path)])
    assert done.exit_code == 0
    assert "right: batched equals one instance at a time" in done.output
