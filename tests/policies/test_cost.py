"""The cost model, what is measured for it, and how measurements become coefficients."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from autobatch import policies
from autobatch.backends.base import Backend
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.cli.measuring.calibrating import REPEATS, SIZES, Chopped, calibrate, fit_cost, trimmed_mean
from autobatch.cli.workload import load_workload
from autobatch.errors import PolicyError
from autobatch.policies.cost import (
    CostModel,
    MeasuredCosts,
    TypeCost,
    batch_cost,
    find_costs,
    load_costs,
    look_up_costs,
)
from autobatch.schedule.schedule import chain_lengths, min_batches
from autobatch.schedule.schedule_check import check_schedule
from graphs import random_dag
from host_device import HostDevice
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


def backends() -> list[Backend]:
    """One of each kind that can run here, the compiled ones without Numba and without a GPU."""
    return [Reference(), Cpu(jitted=False), *([Cuda(device=HostDevice())] if shutil.which("g++") else [])]


@pytest.mark.slow
@each("backend", backends())
def test_every_type_of_a_model_is_measured_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    told: list[str] = []
    workload = load_workload("tree-lstm", None, 4, 0)
    measured = calibrate(workload, backend, (1, 4, 8), told.append)
    assert len(told) == 3 * REPEATS
    assert (measured.backend, measured.dim) == (backend.name, 4)
    assert [kind.name for kind in measured.types] == ["leaf", "node_loss", "merge", "sum_n"]
    for kind in measured.types:
        assert kind.launch_us + kind.row_us > 0
        assert min(kind.launch_us, kind.row_us, kind.efficient_rows - 1) >= 0
    merge = measured.types[2]
    assert merge.row_bytes >= 4 * 2 * 4 * 4  # float32 h and c of two children, and their gradients, of width 4
    path = measured.keep()
    assert path is not None
    assert load_costs(path) == measured
    loss = workload.batched("loss", "timed(score+both)", backend)
    instances = workload.first(4)
    np.testing.assert_allclose(loss(instances), workload.batched("loss", "depth", "reference")(instances), rtol=1e-5)


def test_a_type_whose_nodes_are_all_folded_into_others_costs_as_much_as_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    workload = load_workload("lattice-lstm", None, 4, 0)
    measured = calibrate(workload, "reference", (8,))
    folded = next(kind for kind in measured.types if kind.outline == "sum_n(values: tuple(value, value)*)")
    launches = sorted(kind.launch_us for kind in measured.types if kind is not folded)
    assert launches[2] <= folded.launch_us <= launches[3]
    measured.keep()
    workload.batched("loss", "timed(score)", "reference").prepare(workload.first(8))


def test_what_is_measured_on_a_backend_is_found_for_that_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    kept = [costs_of(backend, 1.0 + k) for k, backend in enumerate(("reference", "cuda"))]
    for costs in kept:
        assert costs.keep() is not None
    assert [find_costs(["a()"], costs.backend) for costs in kept] == kept
    assert find_costs(["a()"]) == kept[0]
    assert look_up_costs(["a()"], "cpu") is None
    with pytest.raises(
        PolicyError, match=r"for the types a\(\) on the cpu backend; .* --calibrate MODEL --backend cpu"
    ):
        find_costs(["a()"], "cpu")
    again = costs_of("cuda", 5.0)
    again.keep()
    assert [find_costs(["a()"], costs.backend) for costs in kept] == [kept[0], again]


def test_costs_that_were_kept_before_there_were_others_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the key that they had, which is of the types alone."""
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    costs = costs_of("reference", 7.0)
    content = {"format": "autobatch costs", **asdict(costs)}
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "37cfb0746dc2cfb0a67309a19eb2715b.json").write_text(json.dumps(content))
    assert find_costs(["a()"], "reference") == costs


def costs_of(backend: str, launch_us: float) -> MeasuredCosts:
    return MeasuredCosts(backend, 8, "train", (TypeCost("a", "a()", launch_us, 1.0, 1.0, 4.0),))


@each("seed", range(20))
def test_no_schedule_is_predicted_to_take_less_than_the_chain_bound_in_time(seed: int) -> None:
    rng, graph = np.random.default_rng(seed), random_dag(seed)
    n = len(graph.types.names)
    costs = CostModel(rng.uniform(0, 9, n), rng.uniform(0, 2, n), rng.integers(0, 5, n).astype(float))
    lengths, counts = chain_lengths(graph), np.bincount(graph.type_id, minlength=n)
    for name in ("search", "unbatched"):
        schedule = policies.get(name).schedule(graph)
        assert costs.least_us(lengths, counts) <= costs.schedule_us(schedule) * (1 + 1e-12)
    assert CostModel.counting(n, 3.0).least_us(lengths, counts) == 3.0 * min_batches(graph)


@each("step", [0.0, 0.5, 1.0])
def test_typical_times_do_not_depend_on_the_steps_of_a_clock(step: float) -> None:
    """Of a batch of 4.3 microseconds that a clock reads in steps of one at most, with one that was held up."""
    starts = np.random.default_rng(0).uniform(0, 1, 400)
    times = np.floor((starts + 4.3) / step) * step - np.floor(starts / step) * step if step else np.full(400, 4.3)
    assert trimmed_mean([*times, 900.0]) == pytest.approx(4.3, abs=0.07)
    assert trimmed_mean([2.0, 5.0]) == 3.5


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
