"""Inner batches: as few as brute force over all sequences finds, and the grouping that the memory plan likes best."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from autobatch.graph.dag import chains_ahead
from autobatch.memplan.cell.inner import Batches, Price, Steps, choose_batches, make_steps, run_late
from autobatch.memplan.cell.memory import Memory
from small_cells import draw_ops

Groups = frozenset[tuple[int, ...]]


def sources_of(steps: Steps) -> list[set[int]]:
    _, ptr, src, _ = steps.dag
    return [set(src[ptr[n] : ptr[n + 1]].tolist()) for n in range(len(steps.values))]


def all_groupings(steps: Steps) -> dict[Groups, int]:
    """The fewest batches for each way to group the hard instructions: any part of what is ready may run."""
    kinds, sources = steps.dag.type_id.tolist(), sources_of(steps)
    states: dict[tuple[frozenset[int], Groups], int] = {(frozenset(), frozenset()): 0}
    found: dict[Groups, int] = {}
    while states:
        after: dict[tuple[frozenset[int], Groups], int] = {}
        for (done, groups), n_batches in states.items():
            if len(done) == len(kinds):
                found.setdefault(groups, n_batches)
            ready = [n for n in range(len(kinds)) if n not in done and sources[n] <= done]
            for kind in {kinds[n] for n in ready}:
                nodes = [n for n in ready if kinds[n] == kind]
                for size in range(1, len(nodes) + 1):
                    for batch in combinations(nodes, size):
                        grouped = groups | {batch} if steps.hard[kind] else groups
                        after[done | {*batch}, grouped] = n_batches + 1
        states = after
    return found


def random_price(seed: int) -> dict[Groups, Price]:
    rng = np.random.default_rng(seed)

    class Prices(dict[Groups, Price]):
        def __missing__(self, groups: Groups) -> Price:
            self[groups] = (int(rng.integers(0, 4)), int(rng.integers(1, 100)))
            return self[groups]

    return Prices()


def check_order(steps: Steps, batches: Batches) -> None:
    """Every instruction once, after what it reads, with others of its type."""
    finished: set[int] = set()
    for batch in batches:
        nodes = {steps.values.index(value) for value in batch}
        assert len({steps.dag.type_id[n] for n in nodes}) == 1
        assert all(sources_of(steps)[n] <= finished for n in nodes)
        assert not finished & nodes
        finished |= nodes
    assert len(finished) == len(steps.values)


@pytest.mark.parametrize("seed", range(60))
def test_choices_equal_brute_force(seed: int) -> None:
    steps = make_steps(Memory(draw_ops(np.random.default_rng(seed), 6)))
    price, possible = random_price(seed), all_groupings(steps)
    number = {value: n for n, value in enumerate(steps.values)}
    choice = choose_batches(steps, lambda batches: price[frozenset(tuple(number[v] for v in b) for b in batches)])
    expected = min((n + price[groups][0], price[groups][1]) for groups, n in possible.items())
    assert choice.proven
    assert choice.fewest == min(possible.values())
    assert (len(choice.batches) + choice.price[0], choice.price[1]) == expected
    check_order(steps, choice.batches)


@pytest.mark.parametrize("seed", range(20))
def test_cells_of_ordinary_size_are_solved(seed: int) -> None:
    """60 instructions, at the chain bound or above; moving soft ones back keeps the number of batches."""
    steps = make_steps(Memory(draw_ops(np.random.default_rng(seed), 60)))
    choice = choose_batches(steps, lambda batches: (0, 0))
    bound = int(chains_ahead(steps.dag).max(axis=0).sum())
    assert bound <= choice.fewest == len(choice.batches) <= bound + 2
    assert choice.proven
    late = run_late(steps, choice.batches)
    check_order(steps, choice.batches)
    check_order(steps, late)
    assert len(late) == choice.fewest
