"""Prove lower bounds on the cost of the batches of a graph, and measure the gap of a schedule.

The *chain bound* adds up, over types, the most nodes of a type on a path. It ignores how types alternate. The *better
bound* takes this into account for a few types at a time: a sequence that finishes a graph, restricted to these types,
finishes the graph projected on them. So it has at least as many batches of these types as a shortest sequence of the
projected graph: the *demand* of these types. Demands are found exactly, and a small integer program finds the fewest
batches that meet all of them. Its last answer selects the next set of types: only sets for which it has fewer batches
than the best known sequence, smaller sets first.

A schedule is judged without running it: by its length after compaction, and its distance from a proven bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np

from autobatch.arrays import FloatArray, IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, chains_ahead, cost_of, reverse, to_dag, type_costs
from autobatch.graph.graph import Graph
from autobatch.policies.search.exact import TOLERANCE, beam_search, search_both
from autobatch.policies.search.reduction import find_suffixes, project, reduce_graph
from autobatch.policies.sequences import compact, finishes
from autobatch.release import pip_install
from autobatch.schedule.schedule import Schedule

MAX_STATES = 400_000
"""The most states of all projections together; they take one or two seconds."""


@dataclass(frozen=True)
class Bound:
    """A proven lower bound and its origin.

    Attributes:
        value: a lower bound on the cost of all sequences; batches, if all types cost 1.
        chain: the chain bound.
        parts: for each set of types examined, a lower bound on the cost of its batches.
        n_states: states created by the searches.
    """

    value: float
    chain: float
    parts: Mapping[tuple[int, ...], float]
    n_states: int


@dataclass(frozen=True)
class Certificate:
    """A proven statement of the quality of a sequence.

    Attributes:
        n_batches: the length of the sequence.
        cost: the cost of the sequence; its length, if all types cost 1.
        bound: a lower bound on the cost of all sequences.
    """

    n_batches: int
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """Return the cost above the bound, relative to the bound: 0.05 is 5%."""
        return (self.cost - self.bound) / self.bound if self.bound else 0.0

    @property
    def optimal(self) -> bool:
        """Return whether no sequence costs less."""
        return self.cost <= self.bound + TOLERANCE * (1 + self.bound)

    def __str__(self) -> str:
        verdict = "proven optimal" if self.optimal else f"at most {self.gap:.1%} above the optimum"
        price = "" if self.cost == self.n_batches else f" that cost {self.cost:g}"
        return f"{self.n_batches} batches{price}, bound {self.bound:g}, {verdict}"


def chain_bound(dag: Dag) -> float:
    """Sum over types the largest number of the type's nodes on one path, times the cost of a batch of the type.

    Nodes on one path never share a batch. Cost: O(T * (N + E)).
    """
    return float(_longest_chains(dag) @ type_costs(dag))


def pair_bound(
    dag: Dag,
    max_states: int = MAX_STATES,
    *,
    max_types: int = 3,
    known: IntArray | None = None,
) -> Bound:
    """Bound the cost of sequences by their cost on pairs of types, then on three types, up to `max_types`.

    A search that exhausts its share of the budget still proves a bound, but a weaker one.

    Args:
        dag: N nodes, E edges, T types.
        max_states: the most states created by all searches together; each may create at most half of them.
        max_types: the most types examined together.
        known: int32[K], a sequence that finishes the graph, as short as possible; by default that of a beam search.
            The search ends when the bound reaches its cost, which proves it optimal.

    Raises:
        PolicyError: the reduced graph has too many suffixes to compare, or SciPy is missing.

    Cost: that of reducing the graph and, for each set of types, its projection; 1 to 5 µs per state; and milliseconds
    for each integer program.

    >>> dag = Dag(*(np.array(a, np.int32) for a in ([0, 1, 1, 0], [0, 0, 1, 1, 2], [0, 2])), 2)
    >>> chain_bound(dag), pair_bound(dag).value
    (2.0, 3.0)
    """
    reduced, cost = reduce_graph(dag).dag, type_costs(dag)
    known = beam_search(reduced) if known is None else known
    counts = np.bincount(known, minlength=dag.n_types).astype(np.int32)
    target = float(counts @ cost) * (1 - TOLERANCE)
    search = _Search(reduced, cost, counts)
    value, fewest = float(search.longest @ cost), search.longest.astype(np.float64)
    while value < target and search.n_states < max_states:
        types = search.choose_types(fewest, max_types)
        if types is None:
            break
        if search.solve(types, fewest, max_states):
            value, fewest = _combine(search.longest, search.parts, cost)
    return Bound(value, float(search.longest @ cost), search.parts, search.n_states)


def certify(dag: Dag, sequence: IntArray, bound: float) -> Certificate:
    """State how far a sequence is from a lower bound.

    Args:
        dag: the graph.
        sequence: int32[K] type ids.
        bound: a lower bound on the cost of sequences that finish the graph.

    Raises:
        PolicyError: the sequence does not finish the graph, or costs less than the bound, which is then invalid.

    >>> dag = Dag(*(np.array(a, np.int32) for a in ([0, 1, 1, 0], [0, 0, 1, 1, 2], [0, 2])), 2)
    >>> print(certify(dag, np.array([0, 1, 0], np.int32), 2))
    3 batches, bound 2, at most 50.0% above the optimum
    """
    if not finishes(dag, sequence):
        raise PolicyError(
            f"certifying a sequence of {sequence.size} types: it must finish the graph of {dag.type_id.size} "
            f"nodes, but does not."
        )
    certificate = Certificate(sequence.size, cost_of(dag, sequence), float(bound))
    if certificate.cost < bound - TOLERANCE * (1 + bound):
        raise PolicyError(
            f"certifying a sequence: its cost must be at least the bound, {bound:g}, got {certificate.cost:g}; one of "
            f"them is for another graph or other costs."
        )
    return certificate


def _longest_chains(dag: Dag) -> IntArray:
    """Count the most nodes of each type on a path: int32[T]."""
    longest: IntArray = chains_ahead(dag).max(axis=0, initial=0)
    return longest


class _Search:
    """The results for the sets of types examined so far.

    Attributes:
        parts: for each set, a lower bound on the cost of its batches.
        most: for each set, the cost of a known sequence that finishes the projected graph.
        n_states: states created.
    """

    def __init__(self, reduced: Dag, cost: FloatArray, counts: IntArray) -> None:
        self.reduced = reduced
        self.longest = _longest_chains(reduced)
        self.cost = cost
        self.counts = counts
        self.parts: dict[tuple[int, ...], float] = {}
        self.most: dict[tuple[int, ...], float] = {}
        self.n_states = 0

    def choose_types(self, fewest: FloatArray, max_types: int) -> tuple[int, ...] | None:
        """Choose the smallest set of types whose demand may exceed the program's answer; None if there is no such set.

        Among sets of one size, the possible excess decides. The cost of a known sequence bounds the demand of a set
        from above.
        """
        present = [int(type_id) for type_id in np.flatnonzero(self.counts)]
        for n_types in range(2, max_types + 1):
            sets = [types for types in combinations(present, n_types) if types not in self.parts]
            gains = [
                self.most.get(types, self._price(self.counts, types)) - self._price(fewest, types) for types in sets
            ]
            if gains and max(gains) > TOLERANCE * (1 + float(self.counts @ self.cost)):
                return sets[int(np.argmax(gains))]
        return None

    def solve(self, types: tuple[int, ...], fewest: FloatArray, max_states: int) -> bool:
        """Find the demand of a set of types; return whether it exceeds the program's answer."""
        part = project(self.reduced, types)
        share = min(max_states // 2, max_states - self.n_states)
        least, enough = self._combine_within(types), self._price(fewest, types)
        both = (find_suffixes(part), find_suffixes(reverse(part)))
        exact = search_both(both, self.cost, share, least=least, enough=enough)
        self.n_states += exact.n_states
        # If this demand is met, `choose_types` skips the set until the program's answer for its types falls.
        self.most[types] = exact.cost
        if exact.cost <= enough * (1 + TOLERANCE):
            return False
        self.parts[types] = exact.lower_bound
        return True

    def _combine_within(self, types: tuple[int, ...]) -> float:
        """Bound the demand of a set from below by those of its subsets."""
        inner = {smaller: part for smaller, part in self.parts.items() if set(smaller) < set(types)}
        among = np.isin(np.arange(self.cost.size), types)
        return _combine(np.where(among, self.longest, 0), inner, self.cost)[0] if inner else 0.0

    def _price(self, counts: FloatArray | IntArray, types: tuple[int, ...]) -> float:
        return float((counts * self.cost)[list(types)].sum())


def _combine(longest: IntArray, parts: Mapping[tuple[int, ...], float], cost: FloatArray) -> tuple[float, FloatArray]:
    """Find the cheapest numbers of batches that meet all demands; return their cost and the numbers, float64[T].

    Raises:
        PolicyError: SciPy is missing.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError as error:
        raise PolicyError(
            "combining bounds in an integer program: the package scipy is not installed; "
            f"{pip_install('search')}, or use the chain bound."
        ) from error
    demands = np.zeros((len(parts), cost.size))
    for row, types in zip(demands, parts, strict=True):
        row[list(types)] = cost[list(types)]
    least = np.array(list(parts.values()))
    # Demands are sums of floats: without slack, rounding might cost another batch, and the bound might be too high.
    least -= TOLERANCE * (1 + np.abs(least))
    # No gap: the cost of an answer that is nearly optimal is not a lower bound.
    answer = milp(
        cost,
        integrality=np.ones(cost.size),
        bounds=Bounds(longest, np.inf),
        constraints=LinearConstraint(demands, least, np.inf),
        options={"mip_rel_gap": 0.0},
    )
    assert answer.success, answer.message  # there always is an answer: enough batches of each type
    fewest = np.round(answer.x)
    return float(fewest @ cost), fewest


BoundKind: TypeAlias = Literal["chain", "pairs"]


@dataclass(frozen=True)
class Judgement:
    """The quality of a schedule.

    Attributes:
        compacted: number of batches after deletion of superfluous ones.
        bound: lower bound on the batches of any schedule.
        bound_kind: "chain", or "pairs" for the better bound, which takes about a second.
    """

    compacted: int
    bound: int
    bound_kind: str


def judge(graph: Graph, schedule: Schedule, bound_kind: str = "chain") -> Judgement:
    """Compact a schedule, and bound the batches of any schedule of the graph.

    Raises:
        PolicyError: `bound_kind` is unknown, or SciPy, which "pairs" needs, is missing.
    """
    dag = to_dag(graph)._replace(costs=None)  # batches are counted, whatever they cost
    shorter = compact(dag, schedule.batch_type)
    if bound_kind == "chain":
        bound = float(chains_ahead(dag).max(axis=0, initial=0).sum())
    elif bound_kind == "pairs":
        bound = pair_bound(dag, known=shorter).value
    else:
        raise PolicyError(f"bounding a schedule: bound must be 'chain' or 'pairs', got {bound_kind!r}.")
    # A bound on a whole number is rounded up. The bound is a sum of floats, which may exceed its value a little.
    return Judgement(shorter.size, int(np.ceil(bound - 1e-6)), bound_kind)
