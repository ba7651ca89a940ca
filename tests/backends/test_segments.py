"""Test the rows of instances, and groups of them, against a loop over instances."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autobatch.backends.segments import InstanceRows, cut, groups_of, round_up
from autobatch.ir.program import NODE

N_INSTANCES = 12


def draw_rows(rng: np.random.Generator) -> tuple[InstanceRows, list[list[int]]]:
    """Draw the rows of a type; return them with each instance's rows, found by a loop."""
    n_nodes = int(rng.integers(1, 60))
    instance_of = np.sort(rng.integers(0, N_INSTANCES, n_nodes))
    node_at = rng.permutation(n_nodes)
    graph = SimpleNamespace(
        instance_ptr=np.searchsorted(instance_of, np.arange(N_INSTANCES + 1)), n_instances=N_INSTANCES
    )
    active = rng.random(n_nodes) < 0.8
    plan: Any = SimpleNamespace(graph=graph, type_ptr=np.array([0, n_nodes]), node_at=node_at)
    wanted = [[r for r in range(n_nodes) if instance_of[node_at[r]] == b and active[r]] for b in range(N_INSTANCES)]
    return InstanceRows(plan, 0, NODE, active), wanted


@pytest.mark.parametrize("seed", range(20))
def test_groups_hold_the_rows_of_each_instance(seed: int) -> None:
    """Each instance with rows is in one group, and at most a third of a group's rows is padding."""
    rng = np.random.default_rng(seed)
    drawn = [draw_rows(rng) for _ in range(seed % 2 + 1)]
    first, end = 2, 11
    seen = []
    for group in groups_of([rows for rows, _ in drawn], first, end):
        seen += group.places.tolist()
        where = group.where(lambda array: array)
        np.testing.assert_array_equal(np.arange(end - first)[where], group.places)
        for taken, (_, wanted) in zip(group.taken, drawn, strict=True):
            filled = np.zeros(taken.rows.shape, bool) if taken.filled is None else taken.filled
            assert filled.sum() * 3 <= filled.size
            for place, rows, is_filled in zip(group.places, taken.rows, filled, strict=True):
                assert rows[~is_filled].tolist() == wanted[first + place]
                assert {*rows[is_filled]} <= {*wanted[first + place]}
    assert sorted(seen) == [b - first for b in range(first, end) if any(wanted[b] for _, wanted in drawn)]


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_are_filled_up_add_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, wanted = draw_rows(rng)
    x, weight = rng.standard_normal((rows.instance.size, 3)), rng.standard_normal((1, 3))
    found = np.zeros((N_INSTANCES, 3))
    for group in groups_of([rows], 0, N_INSTANCES):
        shared, taken = group.taken[0].of([weight, x], np.asarray, shared=[0])
        assert shared.shape == (1, 1, 3)
        found[group.places] = (shared * taken).sum(axis=1)
    np.testing.assert_allclose(found, [(weight[0] * x[own]).sum(axis=0) for own in wanted], atol=1e-12)


def test_runs_of_instances_are_cut() -> None:
    assert [*cut(np.array([], int), 3)] == []
    assert [*cut(np.array([5]), 3)] == [(0, 1)]
    assert [*cut(np.array([1, 2, 3, 9, 0]), 3)] == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_counts_are_rounded_up_by_a_third_at_most() -> None:
    counts = np.arange(1, 1000)
    found = round_up(counts)
    assert (found >= counts).all()
    assert (3 * (found - counts) <= found).all()
    assert np.unique(found).size == 20
