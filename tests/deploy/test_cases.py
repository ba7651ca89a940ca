"""Test cases: files with a mini-batch that run without the code they come from, with bit-identical results."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.workload import load_workload
from autobatch.deploy.cases import read_case
from autobatch.models import MODELS
from helpers.programs.waiting_programs import Model as Waiting
from helpers.programs.waiting_programs import items
from helpers.twins.cases import CASES


class Noisy(ab.Module):
    """Dropout, a number in the model, a static argument, a list, and ragged rows."""

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.random.default_rng(0).standard_normal((3, 3)))
        self.scale = 1.25

    @ab.cell(static=("times",), ragged=("rows",))
    def turn(self, rows: Any, *, times: int) -> Any:
        return times * self.scale * ab.dropout(ab.max(ab.tanh(rows @ self.weight), axis=0), 0.5)

    @ab.cell
    def total(self, states: list[Any]) -> Any:
        return ab.sum(ab.sum_n([ab.tanh(state) for state in states]))

    def loss(self, n: int) -> Any:
        states = [self.turn(np.full((k + 1, 3), 0.1 * k), times=2) for k in range(n)]
        return self.total(states), {"last": states[-1], "all": states}


def flat(x: Any) -> list[Any]:
    """Return the numbers in a structure, in order."""
    if isinstance(x, dict):
        x = [*x.values()]
    return [n for part in x for n in flat(part)] if isinstance(x, (list, tuple)) else [*np.ravel(x)]


def check_bits(loss: ab.Batched, instances: list[Any], path: Path) -> None:
    ab.testing.dump(loss, instances, path, training=True)
    made, graphs = read_case(path).batched()
    assert np.array_equal(made(graphs), loss(instances))
    value, expected = loss.value_and_grad(instances)
    found, gradients = made.value_and_grad(graphs)
    assert found == value
    assert all(np.array_equal(np.asarray(x), np.asarray(expected[name])) for name, x in gradients.items())


def test_a_case_runs_to_the_same_bits(tmp_path: Path) -> None:
    model, instances = CASES[0].draw(seed=5, n_instances=4, dim=4)
    check_bits(ab.batched(model.astype("float64").loss, backend="reference"), instances, tmp_path / "case.zip")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_cases_of_all_models_do(name: str, tmp_path: Path) -> None:
    workload = load_workload(name, None, 4, 0)
    check_bits(workload.batched("loss", "auto", "reference"), workload.first(2), tmp_path / "case.zip")


def test_a_case_draws_what_was_drawn_and_keeps_how_it_ran(tmp_path: Path) -> None:
    """The results are a loss, and everything else as a list, whatever the structure was."""
    model = Noisy().train()
    loss = ab.batched(
        model.loss, policy="score+both+compact", backend="reference", seed=7, rewrites=("fold",), max_bytes=10**6
    )
    loss.value_and_grad([1, 2], has_aux=True)
    ab.testing.dump(loss, [2, 1, 3], tmp_path / "case.zip", training=True, has_aux=True)
    made, graphs = read_case(tmp_path / "case.zip").batched()
    assert (made.policy.name, made.rewrites, made.seed, made.step, made.max_bytes) == (
        "score+both+compact", ("fold",), 7, 1, 10**6,
    )  # fmt: skip
    (value, aux), _ = loss.value_and_grad([2, 1, 3], has_aux=True)
    (found, rest), _ = made.value_and_grad(graphs, has_aux=True)
    assert found == value
    per_instance = [[aux["last"][k], aux["all"][k]] for k in range(3)]
    assert flat(rest) == flat(per_instance)


def test_recorded_graphs_and_async_programs_are_written_too(tmp_path: Path) -> None:
    model = Waiting()
    run = ab.batched(model.loop, backend="reference")
    expected = run(items(2, 1, 3))
    ab.testing.dump(run, items(2, 1, 3), tmp_path / "case.zip")
    made, graphs = read_case(tmp_path / "case.zip").batched()
    np.testing.assert_allclose(flat(made(graphs)), flat(expected), rtol=1e-12)
    ab.testing.dump(run, run.record_all(items(2, 1, 3)), tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "case.zip").read_bytes()


def test_learned_policies_meet_the_types_that_they_know(tmp_path: Path) -> None:
    model, instances = CASES[0].draw(seed=5, n_instances=4, dim=4)
    loss = ab.batched(model.loss, backend="reference")
    policy = loss.learn_policy([instances], seed=0, episodes=50)
    ab.testing.dump(loss, instances, tmp_path / "case.zip")
    made, graphs = read_case(tmp_path / "case.zip").batched()
    assert made.policy.name == policy.name
    (here,), (there,) = loss.prepare(instances).parts, made.prepare(graphs).parts
    assert here.figures.unseen_share == there.figures.unseen_share == 0.0
    assert here.plan.schedule.n_batches == there.plan.schedule.n_batches


def test_numbers_of_parameters_may_stay_behind(tmp_path: Path) -> None:
    model, instances = CASES[0].draw(seed=5, n_instances=2, dim=4)
    path = tmp_path / "case.zip"
    ab.testing.dump(ab.batched(model.loss, backend="reference"), instances, path, values=False)
    drawn = [{name: p.data for name, p in read_case(path).parameters.items()} for _ in range(2)]
    shapes = {name: p.shape for name, p in model.parameters().items()}
    assert all(x.shape == shapes[name] and np.array_equal(x, drawn[1][name]) for name, x in drawn[0].items())
    with zipfile.ZipFile(path) as zipped:
        assert b"parameter." not in zipped.read("numbers.safetensors")
        assert json.loads(zipped.read("case.json"))["setting"]["dtype"] == "float64"
    made, graphs = read_case(path).batched()
    assert np.isfinite(flat(made(graphs))).all()


def test_what_makes_no_case_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "case.zip"
    with pytest.raises(ab.DataError, match="instances of a case must not be empty"):
        ab.testing.dump(lambda x: x, [], path)
    with pytest.raises(ab.GraphError, match="needs a scalar loss"):
        ab.testing.dump(lambda x: x, [np.ones(2)], path, training=True)
    assert not path.exists()
    with pytest.raises(ab.DataError, match="cannot write"):
        ab.testing.dump(lambda x: x, [np.ones(2)], tmp_path / "nowhere" / "case.zip")
    with pytest.raises(ab.DataError, match=r"cannot read .*No such file"):
        read_case(path)
    path.write_text("no zip")
    with pytest.raises(ab.DataError, match="damaged, or not a case of this version"):
        read_case(path)
