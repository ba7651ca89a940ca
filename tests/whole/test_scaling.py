"""The model of a step with several processes, shares, and the experiments that measure both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import data_parallel
import scaling
import tables
from data_parallel import COST, COUNT, divide, unevenness
from digest import ROOT
from helpers.runs.ways import each
from records import read_records
from scaling import GROUPS, loads_of, make_shares, ways_of
from step_model import Costs, Machine, Measured, Network, finish_times, fit, spread_by_speed, step_parts
from teams import STAGES, stages_of

COSTS = Costs(
    fixed_s=0.01, per_work_s=0.001, optimizer_s=0.002, divide_s=0.0, noise=0.0,
    dense_bytes=1e6, row_bytes=(1000.0, 1.0), table_bytes=1e9,
)  # fmt: skip
FREE = Network(np.inf, 0.0, 0.0)


def step_of(costs: Costs, work: list[float], cores: float = np.inf, network: Network = FREE) -> float:
    return sum(step_parts(costs, work, 100, network, Machine(cores)).values())


def test_one_process_takes_the_time_of_its_share_and_of_the_optimizer() -> None:
    nothing = Measured(0.0, 0.0, 0.0)
    parts = step_parts(COSTS, [50.0], 100, nothing, Machine(2))
    assert parts["compute"] == pytest.approx(0.06)
    assert sum(parts.values()) == pytest.approx(0.062)
    slow = Network(1e9, 1e-3, 1e-9)
    assert step_of(COSTS, [50.0], network=slow) == pytest.approx(0.062)


@each("n", [2, 7, 1000])
def test_equal_shares_over_a_free_network_are_ideal(n: int) -> None:
    free = replace(COSTS, fixed_s=0.0, optimizer_s=0.0)
    assert step_of(free, [50.0 / n] * n) == pytest.approx(step_of(free, [50.0]) / n)


def test_uneven_shares_wait_for_the_largest() -> None:
    even, uneven = (step_parts(COSTS, work, 100, FREE, Machine(4)) for work in ([20.0] * 4, [10.0, 20.0, 10.0, 40.0]))
    assert even["wait"] == pytest.approx(0.0)
    assert uneven["wait"] == pytest.approx(0.020)
    assert sum(uneven.values()) - sum(even.values()) == pytest.approx(0.020)


def test_a_process_without_instances_costs_nothing() -> None:
    assert step_of(replace(COSTS, optimizer_s=0.0), [0.0, 0.0]) == 0.0


def test_processes_beyond_the_cores_take_turns() -> None:
    assert step_of(COSTS, [20.0] * 4, cores=2) == pytest.approx(2 * step_of(COSTS, [20.0] * 4))


def test_cores_are_busy_until_fewer_processes_are_left() -> None:
    seconds = np.random.default_rng(0).random(20)
    ends = finish_times(seconds, 1)
    assert ends.max() == pytest.approx(seconds.sum())
    assert (np.argsort(ends) == np.argsort(seconds)).all()
    np.testing.assert_allclose(finish_times(seconds, 20), seconds)
    assert max(seconds.max(), seconds.sum() / 3) <= finish_times(seconds, 3).max() <= seconds.sum()


def test_rows_of_tables_go_to_all_and_arrays_around_a_ring() -> None:
    few, many = (Network(1e9, 0.0, 0.0).seconds(n, 1e6, 1e6) for n in (2, 1000))
    assert many["rows"] == pytest.approx(999 * few["rows"])
    assert many["arrays"] < 2 * few["arrays"] + 1e-12


def test_a_fit_finds_the_costs_of_an_exchange() -> None:
    columns = [[1.0, float(arrays), float(rows)] for arrays in (0, 1, 4) for rows in (0, 2, 9)]
    assert fit(columns, [3.0 + 0.5 * a + 0.25 * r for _, a, r in columns]) == pytest.approx([3.0, 0.5, 0.25])


@each("n", [1, 3, 16, 40])
def test_every_way_shares_all(n: int) -> None:
    costs = np.random.default_rng(n).lognormal(size=640)
    loads = {way: loads_of(costs, n, way) for way in (COUNT, COST, GROUPS)}
    for found in loads.values():
        assert len(found) == n
        assert sum(found) == pytest.approx(costs.sum())
    assert unevenness(loads[COST]) <= unevenness(loads[COUNT]) + 1e-12
    for way in (COUNT, COST):
        positions = [k for own in divide(costs, n, way) for k in own]
        assert sorted(positions) == [*range(640)]
    assert set(ways_of(COSTS, n, 640, 1e-6)) == set(loads)


def test_a_process_at_half_speed_has_half_as_much() -> None:
    costs, speeds = np.random.default_rng(0).random(10_000), np.array([0.5, 1.0, 1.0])
    loads = spread_by_speed(costs, speeds)
    assert loads.sum() == pytest.approx(costs.sum())
    np.testing.assert_allclose(loads / speeds, costs.sum() / 2.5, rtol=1e-3)


def test_shares_that_are_timed_are_of_instances_that_there_are() -> None:
    for n in (5, 1000):
        assert all(set(share) <= set(range(n)) for share in make_shares(n, 256))


def test_the_stages_of_a_step_are_all_of_it() -> None:
    found = stages_of(
        {"step": 10.0, "divide": 1.0, "optimizer": 2.0}, {"merge": 0.5, "place": 0.5, "weights": 1.0, "record": 0.25}
    )
    assert (found["planning"], found["backward"]) == (1.0, 1.0)
    assert sum(found[stage] for stage in STAGES) == pytest.approx(10.0)


@pytest.mark.long
def test_both_experiments_write_records_that_tables_are_made_of(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="processes send each other gradients through it")
    pytest.importorskip("scipy", reason="costs are fitted with it")
    settings = {
        "data_parallel": ("dim=16", "batch_size=32", "minibatches=1", "turns=1", "share_repeats=1",
                          "share_minibatches=1", "share_processes=2", "parts=tree-lstm,torch,shares"),
        "scaling": ("dim=16", "batch_size=32", "minibatches=2", "turns=1", "models=tree-lstm", "processes=1,2",
                    "exchanges=1", "many=8,", "fixed_batch=256", "requests=4"),
    }  # fmt: skip
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    for name, changes in settings.items():
        command = (sys.executable, str(ROOT / "experiments" / f"{name}.py"), *changes, f"out={tmp_path}")
        ran = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    records = read_records(tmp_path)
    assert json.dumps([record.figures for record in records.values()])
    trained = {part: records[f"data_parallel-{part}"] for part in ("tree-lstm", data_parallel.TORCH)}
    made = [
        tables.tabulate_parallel(trained),
        tables.tabulate_shares({"shares": records["data_parallel-shares"]}),
        *(tabulate(records["scaling"].figures) for tabulate in scaling.TABULATED),
    ]
    for table in made:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}
