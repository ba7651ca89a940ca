"""Test inner batches: they can run, and in small cells they are as few as brute force finds."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from autobatch.graph.dag import chains_ahead
from autobatch.memplan.cell.grouping import Batch, Steps, choose_batches, make_steps
from autobatch.memplan.cell.memory import ProgramMemory
from helpers.programs.small_cells import draw_ops


def sources_of(steps: Steps) -> list[set[int]]:
    _, ptr, src, *_ = steps.dag
    return [set(src[ptr[n] : ptr[n + 1]].tolist()) for n in range(len(steps.values))]


def fewest_batches(steps: Steps) -> int:
    """Try every type next. Running all ready nodes of a type never costs a batch."""
    kinds, sources = steps.dag.type_id.tolist(), sources_of(steps)

    @cache
    def fewest(done: frozenset[int]) -> int:
        ready = [n for n in range(len(kinds)) if n not in done and sources[n] <= done]
        choices = {kinds[n]: frozenset(m for m in ready if kinds[m] == kinds[n]) for n in ready}
        return 1 + min(fewest(done | nodes) for nodes in choices.values()) if choices else 0

    return fewest(frozenset())


def check_order(steps: Steps, batches: tuple[Batch, ...]) -> None:
    """Check that every instruction runs once, after its inputs, with others of its type."""
    finished: set[int] = set()
    for batch in batches:
        nodes = {steps.values.index(value) for value in batch}
        assert len({steps.dag.type_id[n] for n in nodes}) == 1
        assert set().union(*(sources_of(steps)[n] for n in nodes)) <= finished
        assert not finished & nodes
        finished |= nodes
    assert len(finished) == len(steps.values)


@pytest.mark.parametrize("start", range(0, 60, 15))
def test_batches_of_small_cells_are_the_fewest(start: int) -> None:
    for seed in range(start, start + 15):
        steps = make_steps(ProgramMemory(draw_ops(np.random.default_rng(seed), 8)))
        batches = choose_batches(steps)
        check_order(steps, batches)
        assert len(batches) == fewest_batches(steps)


@pytest.mark.parametrize("seed", range(5))
def test_cells_of_ordinary_size_are_near_the_bound(seed: int) -> None:
    """60 instructions take at most two batches more than the chain bound."""
    for drawn in range(seed, 20, 5):
        steps = make_steps(ProgramMemory(draw_ops(np.random.default_rng(drawn), 60)))
        batches = choose_batches(steps)
        check_order(steps, batches)
        bound = int(chains_ahead(steps.dag).max(axis=0).sum())
        assert bound <= len(batches) <= bound + 2
