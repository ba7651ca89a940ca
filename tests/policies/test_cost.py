"""The cost model, what is measured for it, and how measurements become coefficients."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from autobatch import policies
from autobatch.cli.measuring.calibrating import REPEATS, SIZES, Chopped, calibrate, fit_cost
from autobatch.cli.workload import load_workload
from autobatch.errors import PolicyError
from autobatch.policies.cost import CostModel, MeasuredCosts, TypeCost, batch_cost, load_costs
from autobatch.schedule.schedule_check import check_schedule
from graphs import random_dag
from ways import each


def test_a_schedule_takes_as_long_as_its_batches() -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        graph = random_dag(seed)
        n = len(graph.types.names)
        costs = CostModel(rng.uniform(0, 9, n), rng.uniform(0, 2, n), rng.integers(0, 5, n).astype(float))
        schedule = policies.get("agenda").schedule(graph)
        by_hand = [
            costs.launch_us[kind] + costs.row_us[kind] * max(nodes.size, costs.efficient_rows[kind])
            for kind, nodes in schedule
        ]
        assert costs.schedule_us(schedule) == pytest.approx(sum(by_hand))
        batches = [batch_cost(costs.array(), kind, nodes.size) for kind, nodes in schedule]
        assert batches == pytest.approx(by_hand)
        assert CostModel.counting(n).schedule_us(schedule) == len(schedule)


@pytest.mark.parametrize("bad", [[-1.0], [np.nan], [np.inf], [1.0, 2.0]])
def test_bad_costs_are_refused(bad: list[float]) -> None:
    with pytest.raises(PolicyError, match=r"row_us=.* must hold a number of at least 0 per type"):
        CostModel(np.ones(1), np.array(bad), np.ones(1))


@each("efficient", [1.0, 8.0, 64.0])
@each("row", [0.0, 0.01, 3.0])
def test_coefficients_are_found_again(efficient: float, row: float) -> None:
    """From times that are 1% off; what is found predicts every batch to 5%."""
    rows = np.array(SIZES, np.float64)
    noise = np.random.default_rng(0).normal(1, 0.01, rows.size)
    launch_us, row_us, efficient_rows = fit_cost(rows, (40 + row * np.maximum(rows, efficient)) * noise)
    predicted = launch_us + row_us * np.maximum(rows, efficient_rows)
    assert predicted == pytest.approx(40 + row * np.maximum(rows, efficient), rel=0.05)
    if row == 3.0:
        assert efficient_rows == efficient


def test_no_coefficient_is_negative() -> None:
    rows = np.array([1.0, 2.0, 4.0, 8.0])
    assert fit_cost(rows, np.array([80.0, 40.0, 20.0, 10.0]))[1] == 0.0
    assert min(fit_cost(rows, rows**2)) >= 0
    assert fit_cost(np.array([3.0]), np.array([7.0])) == (7.0, 0.0, 3.0)


@pytest.mark.parametrize("n_rows", [1, 3, 100])
def test_chopped_schedules_are_valid(n_rows: int) -> None:
    for seed in range(10):
        graph = random_dag(seed)
        schedule = Chopped(n_rows).schedule(graph)
        check_schedule(graph, schedule)
        assert np.diff(schedule.batch_ptr).max(initial=0) <= n_rows


def test_every_type_of_a_model_is_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autobatch.cli.measuring.calibrating.MAX_INSTANCES", 8)
    monkeypatch.setattr("autobatch.cli.measuring.calibrating.SIZES", (1, 4, 16))
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    told: list[str] = []
    workload = load_workload("tree-lstm", None, 4, 0)
    measured = calibrate(workload, told.append)
    assert len(told) == 3 * REPEATS
    assert [kind.name for kind in measured.types] == ["leaf", "node_loss", "merge", "sum_n"]
    assert all(kind.launch_us > 0 and kind.row_us >= 0 and kind.efficient_rows >= 1 for kind in measured.types)
    merge = measured.types[2]
    assert merge.row_bytes >= 4 * 2 * 4 * 4  # float32 h and c of two children, and their gradients, of width 4
    path = measured.keep()
    assert path is not None
    assert load_costs(path) == measured
    loss = workload.batched("loss", "timed(score+both)", "reference")
    instances = workload.first(4)
    np.testing.assert_allclose(loss(instances), workload.batched("loss", "depth", "reference")(instances), rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [{"format": "other"}, {"types": None}, {"types": []}, {"backend": 0, "extra": 1}, {"types": [{"name": "a"}]}],
)
def test_a_damaged_file_of_costs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: object) -> None:
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    path = MeasuredCosts("reference", 8, "train", (TypeCost("a", "a()", 1.0, 1.0, 1.0, 4.0),)).keep()
    assert path is not None
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(change)))  # type: ignore[call-overload]
    with pytest.raises(PolicyError, match=r"cannot load costs .*; measure them again\."):
        load_costs(path)
