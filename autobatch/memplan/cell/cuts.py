"""Minimum cuts of small networks: what is on the side of the source (Ford and Fulkerson 1956, shortest paths first)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable

SOURCE: Hashable = "source"
SINK: Hashable = "sink"


class Network:
    """Edges with capacities, from `SOURCE` to `SINK`; every path has an edge of finite capacity.

    >>> import math
    >>> network = Network()
    >>> for start, end, capacity in ((SOURCE, "a", 3.0), ("a", "b", math.inf), ("b", SINK, 2.0), (SOURCE, "c", 1.0)):
    ...     network.add(start, end, capacity)
    >>> sorted(network.source_side())
    ['a', 'b', 'c', 'source']
    """

    def __init__(self) -> None:
        self._left: defaultdict[Hashable, dict[Hashable, float]] = defaultdict(dict)

    def add(self, start: Hashable, end: Hashable, capacity: float) -> None:
        """Add an edge, or to its capacity."""
        self._left[start][end] = self._left[start].get(end, 0.0) + capacity
        self._left[end].setdefault(start, 0.0)

    def source_side(self) -> set[Hashable]:
        """The nodes on the side of the source of the minimum cut that has fewest of them; uses up the capacities.

        Cost: O(nodes * edges^2) at worst.
        """
        while SINK in (reached := self._reached()):
            edges, node = [], SINK
            while node != SOURCE:
                edges.append((reached[node], node))
                node = reached[node]
            flow = min(self._left[start][end] for start, end in edges)
            for start, end in edges:
                self._left[start][end] -= flow
                self._left[end][start] += flow
        return set(reached)

    def _reached(self) -> dict[Hashable, Hashable]:
        """What the source reaches with capacity left, each with the node before it."""
        before: dict[Hashable, Hashable] = {SOURCE: SOURCE}
        waiting = deque([SOURCE])
        while waiting:
            node = waiting.popleft()
            for other, left in self._left[node].items():
                if left > 0 and other not in before:
                    before[other] = node
                    waiting.append(other)
        return before
