"""Test lines of several areas at once, and lists that a PQ-tree keeps in order: both equal brute force."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise, permutations, product

import numpy as np
import pytest

from autobatch.memplan import PQTree
from autobatch.memplan.cell.aligned import AlignedOrders, Line
from helpers.checkers.consecutive_ones import random_system

AREAS = ("abcde", "wxyz")
Orders = dict[Hashable, tuple[int, ...]]


def order_in(line: Line, frontier: Sequence[Hashable]) -> tuple[int, ...] | None:
    """Return the order of a line's spans in memory, by definition, or None if they are not adjacent."""
    place = {item: at for at, item in enumerate(frontier)}
    spans = [sorted(place[item] for item in span) for span in line.spans]
    order = sorted(range(len(spans)), key=lambda k: spans[k])
    places = [at for k in order for at in spans[k]]
    return tuple(order) if all(b == a + 1 for a, b in pairwise(places)) else None


def area_of(line: Line) -> str:
    return next(area for area in AREAS if line.spans[0][0] in [*area])


def orders_in(lines: Iterable[Line], frontier: Sequence[Hashable]) -> Orders | None:
    """Return the order of each group of lines in one area, or None if a line is broken or two in a group differ."""
    found: Orders = {}
    for line in lines:
        order = order_in(line, frontier)
        wanted = tuple(range(len(line.spans))) if line.order is None else found.setdefault(line.order, order or ())
        if order is None or order != wanted:
            return None
    return found


def are_kept(lines: Sequence[Line], frontiers: Sequence[Sequence[Hashable]]) -> bool:
    found: Orders = {}
    for area, frontier in zip(AREAS, frontiers, strict=True):
        orders = orders_in([line for line in lines if area_of(line) == area], frontier)
        if orders is None or any(found.setdefault(name, order) != order for name, order in orders.items()):
            return False
    return True


def can_be_kept(lines: Sequence[Line]) -> bool:
    """Try all orders of all areas."""
    possible: list[list[Orders]] = []
    for area in AREAS:
        local = [line for line in lines if area_of(line) == area]
        found = {tuple(orders.items()) for p in permutations(area) if (orders := orders_in(local, p)) is not None}
        possible.append([dict(orders) for orders in found])
    return any(
        all(second.get(name, order) == order for name, order in first.items()) for first, second in product(*possible)
    )


def random_line(rng: np.random.Generator) -> Line:
    """Draw two to four spans of one or two items. Names are few, so that lines often share an order."""
    area = AREAS[rng.integers(2)]
    items = rng.permutation(list(area)).tolist()
    n_spans = int(rng.integers(2, 4 if area == AREAS[0] else 3))
    sizes = [1 + int(rng.random() < 0.2) for _ in range(n_spans)]
    spans = [tuple(items.pop() for _ in range(size)) for size in sizes if len(items) >= size]
    name = None if rng.random() < 0.1 else f"{rng.choice(['p', 'q', 'r'])}{len(spans)}"
    return Line(name, tuple(spans))


@pytest.mark.parametrize("start", range(0, 150, 30))
def test_lines_are_added_if_some_orders_keep_them(start: int) -> None:
    for seed in range(start, start + 30):
        rng = np.random.default_rng(seed)
        orders, kept = AlignedOrders(AREAS), list[Line]()
        n_added = 0
        for line in (random_line(rng) for _ in range(7)):
            before = orders.frontiers()
            added = orders.add([line])
            assert added == can_be_kept([*kept, line])
            if added:
                n_added += 1
                kept.append(line)
                assert are_kept(kept, orders.frontiers())
            else:
                assert orders.frontiers() == before
        assert n_added >= 1


def test_an_alignment_that_turns_in_a_circle_is_refused() -> None:
    """Consecutive in both areas, but p orders (a b c) like (b c a), and no order of three is its own rotation."""
    orders = AlignedOrders(["abc"])
    assert orders.add([Line("p", (("a",), ("b",), ("c",)))])
    assert not orders.add([Line("p", (("b",), ("c",), ("a",)))])
    assert orders.add([Line("q", (("c",), ("b",), ("a",)))])


@pytest.mark.parametrize("start", range(0, 60, 15))
def test_arrange_all_finds_an_order_if_there_is_one(start: int) -> None:
    for seed in range(start, start + 15):
        rng = np.random.default_rng(seed)
        tree = PQTree(range(6))
        for subset in random_system(rng, 6, int(rng.integers(0, 5)), share_wrong=0.2):
            tree.reduce(subset)
        permitted = [tuple(order) for order in tree.orders()]
        for _ in range(20):
            lists = [rng.permutation(6)[: rng.integers(0, 4)].tolist() for _ in range(rng.integers(0, 4))]
            possible = {
                p for p in permitted if all(p.index(a) < p.index(b) for some in lists for a, b in pairwise(some))
            }
            before, same = tuple(tree.frontier()), tree.copy()
            assert tree.arrange_all(lists) == bool(possible)
            assert tuple(tree.frontier()) in possible if possible else tuple(tree.frontier()) == before
            assert tree == same
            tree.check()
