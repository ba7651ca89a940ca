"""Test the built-in rules: their schedules are valid and equal those of their definitions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from autobatch import policies
from autobatch.errors import GraphError
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import Policy, Schedule, min_batches
from autobatch.schedule.schedule_check import check_schedule
from helpers.programs.graphs import LETTERS, chain, random_batch, random_dag, random_tree
from helpers.runs.ways import each

POLICIES = [policies.get(name) for name in policies.names()]
LOOPS = [policy for policy in POLICIES if policy.name != "search"]
Batches = list[tuple[int, list[int]]]


def depths_by_hand(graph: Graph) -> list[int]:
    depth: list[int] = []
    for node in range(graph.n_nodes):
        depth.append(max((depth[source] + 1 for source in graph.inputs_of(node)), default=0))
    return depth


def agenda_by_hand(graph: Graph) -> Batches:
    """Run agenda by its definition, looking at all nodes again before every batch."""
    depth, done, batches = depths_by_hand(graph), set[int](), list[tuple[int, list[int]]]()
    while len(done) < graph.n_nodes:
        left = [node for node in range(graph.n_nodes) if node not in done]
        ready = [node for node in left if set(graph.inputs_of(node)) <= done]

        def mean_depth(kind: int, left: list[int] = left) -> Fraction:
            of_kind = [depth[node] for node in left if graph.type_id[node] == kind]
            return Fraction(sum(of_kind), len(of_kind))

        kind = min({int(graph.type_id[node]) for node in ready}, key=lambda kind: (mean_depth(kind), kind))
        batches.append((kind, [node for node in ready if graph.type_id[node] == kind]))
        done.update(batches[-1][1])
    return batches


def depth_by_hand(graph: Graph) -> Batches:
    depth = depths_by_hand(graph)
    keys = sorted({(depth[node], int(graph.type_id[node])) for node in range(graph.n_nodes)})
    return [
        (kind, [n for n in range(graph.n_nodes) if (depth[n], graph.type_id[n]) == (level, kind)])
        for level, kind in keys
    ]


def unbatched_by_hand(graph: Graph) -> Batches:
    return [(int(kind), [node]) for node, kind in enumerate(graph.type_id)]


def sorted_batches(schedule: Schedule) -> Batches:
    """Sort the nodes within batches, whose order is left to the simulator."""
    return [(kind, sorted(nodes.tolist())) for kind, nodes in schedule]


GRAPHS: list[Callable[[int], Graph]] = [
    random_batch,
    random_tree,
    lambda seed: merge_graphs([random_tree(seed + 100 * i) for i in range(8)]),
    lambda seed: random_dag(seed, n_nodes=60),
    lambda seed: random_dag(seed, n_nodes=60, types=NamedTypes(("a", "b"))),
    lambda seed: merge_graphs([], LETTERS),
    lambda seed: chain("a", *"ab" * seed),
]


@each("policy", POLICIES)
@each("make", GRAPHS)
@pytest.mark.parametrize("seed", range(8))
def test_every_policy_gives_a_valid_schedule(policy: Policy, make: Callable[[int], Graph], seed: int) -> None:
    graph = make(seed)
    schedule = make_schedule(graph, policy)
    check_schedule(graph, schedule)
    assert schedule.n_batches >= min_batches(graph)


@each("name, by_hand", [("unbatched", unbatched_by_hand), ("depth", depth_by_hand), ("agenda", agenda_by_hand)])
@each("make", GRAPHS)
@each("seed", range(8))
def test_every_policy_is_the_one_defined(
    name: str, by_hand: Callable[[Graph], Batches], make: Callable[[int], Graph], seed: int
) -> None:
    graph = make(seed)
    assert sorted_batches(make_schedule(graph, policies.get(name))) == by_hand(graph)


@each("name, n_batches", [("unbatched", 10), ("depth", 7), ("agenda", 6)])
def test_agenda_waits_where_depth_does_not(name: str, n_batches: int) -> None:
    """
    a - a - a - b - c     Depth runs b at depths 1 and 3, and c at depths 2 and 4, separately: a a b a c b c.
    a - b - c             Agenda delays c until all b are done: a a b a b c. The best is a a a b c.
    a - b
    """
    graph = make_graph(
        NamedTypes(("a", "b", "c")),
        [0, 0, 0, 1, 2, 0, 1, 2, 0, 1],
        [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (8, 9)],
    )
    assert min_batches(graph) == 5
    assert make_schedule(graph, policies.get(name)).n_batches == n_batches


def test_agenda_takes_the_lowest_type_of_equal_means() -> None:
    """Types 2 and 1 both have mean depth 0; node 0 has type 2."""
    graph = make_graph(LETTERS, [2, 1, 3, 3], [(0, 2), (1, 3)])
    assert [kind for kind, _ in make_schedule(graph, policies.get("agenda"))] == [1, 2, 3]


def test_agenda_counts_nodes_that_wait() -> None:
    """
    b              One b is ready at depth 0, and one waits at depth 2: their mean is 1.
    a - a - b      The means of a are 1/2 and then 1, and a is the lower type: a a b, with both b together.
    """
    graph = make_graph(LETTERS, [1, 0, 0, 1], [(1, 2), (2, 3)])
    assert sorted_batches(make_schedule(graph, policies.get("agenda"))) == [(0, [1]), (0, [2]), (1, [0, 3])]


def test_a_cycle_is_refused() -> None:
    graph = chain("a", "b", "c")
    graph.edge_src[0] = 2
    with pytest.raises(GraphError, match=r"edge 2 \('c'\) -> 1 \('b'\) points backwards"):
        make_schedule(graph, policies.get("agenda"))
