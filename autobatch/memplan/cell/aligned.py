"""Order several memory areas at once so that given lists of values are consecutive and in matching order.

A *line* is a list of spans that must be consecutive. Lines with the same `order` must put their spans in the same
order, whatever it is: they are the operands and the result of instructions that run as one. Each area has a PQ-tree.
The constraints that one line puts on the order of its spans are copied to all lines of the same `order`, until nothing
changes. Then an order is chosen for each group of lines: children of P-nodes are permuted and Q-nodes reversed so that
all lines follow it. Where that fails, the next order is tried.
Source: Booth and Lueker 1976 for the trees; ED-Batch (arXiv:2302.03851), section 3, for lines of one order.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeAlias

from autobatch.memplan.pqtree.node import Leaf
from autobatch.memplan.pqtree.order import Pairs
from autobatch.memplan.pqtree.tree import PQTree

Span: TypeAlias = tuple[Hashable, ...]
MAX_TRIES = 2_000  # orders tried for the groups of lines before a system counts as impossible


@dataclass(frozen=True)
class Line:
    """Spans that must be consecutive in memory.

    Attributes:
        order: lines with an equal value put their spans in the same order; None fixes the order of `spans`.
        spans: the items of each span, consecutive in memory; all lie in one area.
    """

    order: Hashable | None
    spans: tuple[Span, ...]


@dataclass
class Work:
    """A budget for finding orders, in tree nodes and spans visited: the same in every process.

    A clock would limit the user's waiting time more exactly, but would make the layout of a cell, and the last bits of
    its results, depend on the load of the machine.
    """

    left: int

    @property
    def is_used_up(self) -> bool:
        return self.left <= 0


class AlignedOrders:
    """All orders of the items of each area that satisfy the lines added so far.

    Args:
        areas: the items of each area, every item in one of them.
        work: a budget that adding lines uses up. Once it is used up, only the first candidate order of each group of
            lines is tried. Copies share it.

    >>> orders = AlignedOrders(["abcd", "wxyz"])
    >>> orders.add([Line("gates", (("a",), ("b",), ("c",))), Line("gates", (("w",), ("x",), ("y",)))])
    True
    >>> orders.add([Line(None, (("x",), ("w",)))]), orders.add([Line("other", (("a",), ("c",)))])
    (True, True)
    >>> [*map("".join, orders.frontiers())]
    ['dbac', 'zxwy']
    >>> orders.add([Line(None, (("y",), ("x",)))])
    False
    """

    def __init__(self, areas: Iterable[Iterable[Hashable]], work: Work | None = None) -> None:
        self.work = Work(sys.maxsize) if work is None else work
        self._trees = [PQTree(area) for area in areas]
        self._area = {item: at for at, tree in enumerate(self._trees) for item in tree.frontier()}
        self._lines: list[Line] = []
        self.gave_up = False

    def add(self, lines: Iterable[Line]) -> bool:
        """Keep only those orders that satisfy these lines too.

        Returns:
            Whether there are such orders. If not, nothing changes. Also False if `MAX_TRIES` orders of the groups of
            lines were tried without success, or `work` was used up; `gave_up` is then set.

        Cost: a reduction per line and per constraint carried over, then a walk of the trees for each order tried.
        """
        # Reductions change trees in place, and a rejected line may have reduced some already: only the copy is lost.
        trial = self.copy()
        fits = all(trial._place(line) for line in lines) and trial._carry_over() and trial._choose_orders()
        self.gave_up |= trial.gave_up
        if fits:
            self._trees, self._lines = trial._trees, trial._lines
        return fits

    def copy(self, work: Work | None = None) -> AlignedOrders:
        """Copy the system; the copy shares only `work`, unless it is given its own."""
        twin = AlignedOrders([], work or self.work)
        self.work.left -= len(self._area)
        twin._trees, twin._area, twin._lines = [tree.copy() for tree in self._trees], self._area, [*self._lines]
        return twin

    def frontiers(self) -> list[list[Hashable]]:
        """Return one order of each area that satisfies all lines."""
        return [tree.frontier() for tree in self._trees]

    def _place(self, line: Line) -> bool:
        """Reduce the tree by one line: each span, all spans together, and neighbours where the order is fixed."""
        items = _joined(line.spans)
        self.work.left -= len(items)
        if len(set(items)) < len(items) or len({self._area[item] for item in items}) > 1:
            return False
        self._lines.append(line)
        neighbours = pairwise(line.spans) if line.order is None else ()
        subsets = [*line.spans, items, *(_joined(pair) for pair in neighbours)]
        return all(self._tree(line).reduce(subset) for subset in subsets)

    def _carry_over(self) -> bool:
        """Copy each constraint on the order of a line to all lines of the same `order`, until nothing changes."""
        groups = self._tied_lines()
        before: list[int] = []
        # Ends, because each round but the last excludes orders: `n_changes` does not count other reductions.
        while (now := [tree.n_changes for tree in self._trees]) != before:
            before = now
            self.work.left -= len(self._area)
            for lines in groups:
                known = [positions for line in lines for positions in self._known_of(line)]
                self.work.left -= len(lines) * sum(map(len, known))
                for line, positions in product(lines, known):
                    if not self._tree(line).reduce(_joined(line.spans[k] for k in positions)):
                        return False
        return True

    def _known_of(self, line: Line) -> list[list[int]]:
        """Return the tree's constraints on the order of a line's spans: sets of consecutive positions."""
        return self._tree(line).ways().constraints(self._leaves_of(line))

    def _tied_lines(self) -> list[list[Line]]:
        """Group the lines by order, leaving out orders of a single line."""
        groups: defaultdict[Hashable, list[Line]] = defaultdict(list)
        for line in self._lines:
            if line.order is not None and len(line.spans) > 1:
                groups[line.order].append(line)
        return [lines for lines in groups.values() if len(lines) > 1]

    def _choose_orders(self) -> bool:
        """Arrange all trees so that the fixed lines are in their order and the lines of each group in one order."""
        chosen: list[list[list[Hashable]]] = [[] for _ in self._trees]
        for line in self._lines:
            if line.order is None:
                chosen[self._area_of(line)].append(_firsts(line))
        if not all(tree.arrange_all(orders) for tree, orders in zip(self._trees, chosen, strict=True)):
            return False
        groups = self._tied_lines()
        # One iterator for all levels of the recursion: MAX_TRIES limits all tries together.
        return self._pairs_agree(groups) and self._choose(groups, chosen, iter(range(MAX_TRIES)))

    def _pairs_agree(self, groups: list[list[Line]]) -> bool:
        """Return whether the pairwise orders of spans are free of contradictions; if not, no order can succeed."""
        pairs = Pairs()
        self.work.left -= sum(len(line.spans) ** 2 for lines in groups for line in lines) // 2
        fixed = [line for line in self._lines if line.order is None]
        return all(pairs.fix(self._tree(line).ways(), self._leaves_of(line)) for line in fixed) and all(
            pairs.align([(self._tree(line).ways(), self._leaves_of(line)) for line in lines]) for lines in groups
        )

    def _choose(self, groups: list[list[Line]], chosen: list[list[list[Hashable]]], tries: Iterator[int]) -> bool:
        """Choose orders for the groups of lines in turn, backtracking where no order is left."""
        if not groups:
            return True
        lines, *rest = groups
        for number, order in enumerate(self._possible_orders(lines)):
            if next(tries, None) is None or (number and self.work.is_used_up):
                self.gave_up = True
                return False
            self.work.left -= sum(len(line.spans) for line in lines)
            extended = [[*orders] for orders in chosen]
            # The frontiers satisfy `chosen` at all times, because a failed try arranges trees by `chosen` and more.
            # So a tree whose lines have the new order already is not arranged again.
            touched: set[int] = set()
            for line in lines:
                extended[self._area_of(line)].append([line.spans[k][0] for k in order])
                if self._order_of(line) != order:
                    touched.add(self._area_of(line))
            self.work.left -= sum(len(order) for at in touched for order in extended[at]) + len(touched) * len(
                self._area
            )
            fits = all(self._trees[at].arrange_all(extended[at]) for at in touched)
            if fits and self._choose(rest, extended, tries):
                return True
        return False

    def _possible_orders(self, lines: list[Line]) -> Iterator[list[int]]:
        """List orders for the spans of these lines: first their present orders, then all that the first line permits.

        Constraints have been carried over, so each line on its own permits the same orders.
        """
        for line in lines:
            yield self._order_of(line)
        number = {item: k for k, item in enumerate(_firsts(lines[0]))}
        # `restricted` makes a tree of its own, so arranging this one between two orders does not disturb the iteration.
        for order in self._tree(lines[0]).restricted(number).orders():
            yield [number[item] for item in order]

    def _order_of(self, line: Line) -> list[int]:
        position = self._tree(line).ways().position
        places = [position[leaf] for leaf in self._leaves_of(line)]
        return sorted(range(len(places)), key=places.__getitem__)

    def _leaves_of(self, line: Line) -> list[Leaf]:
        return self._tree(line).leaves_of(_firsts(line))

    def _area_of(self, line: Line) -> int:
        return self._area[line.spans[0][0]]

    def _tree(self, line: Line) -> PQTree:
        return self._trees[self._area_of(line)]


def _firsts(line: Line) -> list[Hashable]:
    """Return the first item of each span as its representative, which is enough because spans do not interleave."""
    return [span[0] for span in line.spans]


def _joined(spans: Iterable[Span]) -> list[Hashable]:
    return [item for span in spans for item in span]
