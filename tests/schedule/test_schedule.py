"""Test schedules, their checker, frontier policies and the lower bound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from autobatch.errors import GraphError, PolicyError, ScheduleError
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import Frontier, FrontierPolicy, Schedule, chain_lengths, min_batches
from autobatch.schedule.schedule_check import check_schedule
from autobatch.system.unchecked import unchecked
from helpers.programs.graphs import LETTERS, chain, random_batch, random_dag
from helpers.runs.ways import each

SEEDS = range(20)


def by_hand(*batches: tuple[int, list[int]]) -> Schedule:
    """Make a schedule of (type, nodes) pairs."""
    sizes = [len(nodes) for _, nodes in batches]
    return Schedule(
        np.array([kind for kind, _ in batches], np.int32),
        np.cumsum([0, *sizes]).astype(np.int32),
        np.array([node for _, nodes in batches for node in nodes], np.int32),
    )


def paths_from(graph: Graph, node: int) -> Iterator[list[int]]:
    """Yield the types along every path from a node."""
    kind = int(graph.type_id[node])
    yield [kind]
    for reader in range(node + 1, graph.n_nodes):
        if node in graph.inputs_of(reader):
            for path in paths_from(graph, reader):
                yield [kind, *path]


def fewest_batches(graph: Graph) -> int:
    """Return the optimum, by breadth-first search over all sets of executed nodes."""
    inputs = [set(graph.inputs_of(node)) for node in range(graph.n_nodes)]
    reached, n_batches = {frozenset[int]()}, 0
    while frozenset(range(graph.n_nodes)) not in reached:
        further = set()
        for done in reached:
            ready = [node for node in range(graph.n_nodes) if node not in done and inputs[node] <= done]
            for kind in {int(graph.type_id[node]) for node in ready}:
                further.add(done | {node for node in ready if graph.type_id[node] == kind})
        reached, n_batches = further, n_batches + 1
    return n_batches


class Alternating(FrontierPolicy):
    """Chooses the ready types in turn."""

    name = "alternating"

    def prepare(self, graph: Graph) -> None:
        self.seen: list[tuple[list[int], list[int]]] = []

    def choose(self, frontier: Frontier) -> int:
        self.seen.append((frontier.ready.tolist(), frontier.remaining.tolist()))
        return frontier.types[len(self.seen) % len(frontier.types)]


class Stubborn(FrontierPolicy):
    """Always returns the same answer."""

    name = "stubborn"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def choose(self, frontier: Frontier) -> int:
        return self.answer  # type: ignore[return-value]


class TestSchedule:
    def test_it_lists_its_batches(self) -> None:
        schedule = by_hand((0, [0, 1]), (1, [2]))
        assert [(kind, nodes.tolist()) for kind, nodes in schedule] == [(0, [0, 1]), (1, [2])]
        assert (schedule.n_batches, schedule.n_nodes, len(schedule)) == (2, 3, 2)

    def test_it_prints_with_and_without_names(self) -> None:
        schedule = by_hand((0, [0, 1]), (1, [2]))
        assert str(schedule).splitlines() == [
            "Schedule(batches=2, nodes=3)",
            "  0: type 0 x 2: 0 1",
            "  1: type 1 x 1: 2",
        ]
        assert schedule.text(("leaf", "merge")).splitlines()[1:] == ["  0: leaf x 2: 0 1", "  1: merge x 1: 2"]

    def test_long_ones_are_shortened(self) -> None:
        text = str(by_hand((0, list(range(100))), *((1, [node]) for node in range(100, 200))))
        assert text.splitlines()[1] == "  0: type 0 x 100: 0 1 2 3 4 5 6 7 8 9 10 11 ..."
        assert len(text.splitlines()) == 42
        assert text.endswith("\n  ...")


class TestCheckSchedule:
    """For two instances of a -> b -> a: nodes 0 1 2 and 3 4 5."""

    graph = merge_graphs([chain("a", "b", "a")] * 2)
    rule = "a batch holds ready, unrun nodes of one type."

    def refuse(self, schedule: Schedule) -> str:
        with pytest.raises(ScheduleError) as error:
            check_schedule(self.graph, schedule)
        return str(error.value)

    def test_a_good_one_passes(self) -> None:
        check_schedule(self.graph, by_hand((0, [0, 3]), (1, [4, 1]), (0, [2, 5])))

    def test_unfinished_inputs(self) -> None:
        assert self.refuse(by_hand((0, [0, 3]), (1, [4]), (0, [2, 5]), (1, [1]))) == (
            f"batch 2 ('a' x 2) takes node 2 ('a') while inputs [1] are unfinished; {self.rule}"
        )

    def test_two_nodes_of_a_path_in_one_batch(self) -> None:
        graph = merge_graphs([chain("a", "a")])
        with pytest.raises(ScheduleError, match=r"takes node 1 \('a'\) while inputs \[0\] are unfinished"):
            check_schedule(graph, by_hand((0, [0, 1])))

    def test_another_type(self) -> None:
        assert self.refuse(by_hand((0, [0, 3]), (0, [1]))) == f"batch 1 ('a' x 1) takes node 1 ('b'); {self.rule}"
        assert self.refuse(by_hand((7, [0]))) == f"batch 0 ('type 7' x 1) takes node 0 ('a'); {self.rule}"

    def test_a_node_twice(self) -> None:
        assert self.refuse(by_hand((0, [0, 3]), (0, [3]))) == (
            f"batch 1 ('a' x 1) takes node 3 ('a'), which already runs in batch 0; {self.rule}"
        )
        assert "takes node 3 ('a'), which already runs in batch 0" in self.refuse(by_hand((0, [3, 3])))

    def test_a_node_of_another_graph(self) -> None:
        assert self.refuse(by_hand((0, [0, 6]))) == (
            f"batch 0 ('a' x 2) takes node 6, but the graph has nodes 0..5; {self.rule}"
        )

    def test_nodes_left_out(self) -> None:
        assert self.refuse(by_hand((0, [0, 3]), (1, [4]))) == (
            "checking a schedule: 3 of 6 nodes are in no batch, the first is node 1 ('b'); "
            "a schedule runs every node once."
        )

    def test_an_empty_batch(self) -> None:
        assert "must rise from 0 to 1 in 2 steps; a batch holds at least one node" in self.refuse(
            by_hand((0, [0]), (1, []))
        )

    def test_runs_check_unchecked_policies_when_asked_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @unchecked
        class Lazy:
            name = "lazy"

            def schedule(self, graph: Graph) -> Schedule:
                return by_hand((0, [0, 3]))

        monkeypatch.setenv("AUTOBATCH_CHECK", "0")
        make_schedule(self.graph, Lazy())
        monkeypatch.setenv("AUTOBATCH_CHECK", "1")
        with pytest.raises(ScheduleError, match="4 of 6 nodes are in no batch"):
            make_schedule(self.graph, Lazy())


class TestMinBatches:
    @each("seed", SEEDS)
    def test_chain_lengths_are_those_of_the_longest_paths(self, seed: int) -> None:
        graph = random_dag(seed, n_nodes=12)
        paths = [path for node in range(graph.n_nodes) for path in paths_from(graph, node)]
        expected = [max(path.count(kind) for path in paths) for kind in range(graph.n_types)]
        assert chain_lengths(graph).tolist() == expected
        assert min_batches(graph) == sum(expected)

    @each("seed", SEEDS)
    def test_no_schedule_goes_below(self, seed: int) -> None:
        graph = random_dag(seed, n_nodes=10)
        assert min_batches(graph) <= fewest_batches(graph)

    def test_of_chains_that_can_be_aligned_it_is_the_optimum(self) -> None:
        """Type by type: a b a, a b, and b a run as a b a."""
        abc = NamedTypes(("a", "b"))
        graph = make_graph(abc, [0, 1, 0, 0, 1, 1, 0], [(0, 1), (1, 2), (3, 4), (5, 6)])
        assert min_batches(graph) == fewest_batches(graph) == 3

    def test_crossed_chains_need_more(self) -> None:
        """a b and b a: the bound is 2, but 3 batches are needed."""
        graph = make_graph(LETTERS, [0, 1, 1, 0], [(0, 1), (2, 3)])
        assert min_batches(graph) == 2
        assert fewest_batches(graph) == 3

    def test_the_empty_graph_needs_none(self) -> None:
        assert min_batches(merge_graphs([], LETTERS)) == 0

    def test_an_edge_backwards_is_refused(self) -> None:
        graph = chain("a", "b", "c")
        graph.edge_src[0] = 2
        with pytest.raises(GraphError) as error:
            min_batches(graph)
        assert str(error.value) == (
            "checking a graph: edge 2 ('c') -> 1 ('b') points backwards; "
            "record the instance again, or make the graph with make_graph."
        )


class TestFrontierPolicy:
    @each("seed", SEEDS)
    def test_every_choice_runs_what_is_ready(self, seed: int) -> None:
        graph, policy = random_batch(seed), Alternating()
        schedule = make_schedule(graph, policy)
        check_schedule(graph, schedule)
        remaining = np.bincount(graph.type_id, minlength=graph.n_types)
        for (kind, nodes), (ready, seen_remaining) in zip(schedule, policy.seen, strict=True):
            assert ready[kind] == nodes.size
            assert seen_remaining == remaining.tolist()
            remaining[kind] -= nodes.size
        assert not remaining.any()

    def test_what_it_keeps_of_a_frontier_does_not_change(self) -> None:
        seen: list[Frontier] = []

        class Keeping(FrontierPolicy):
            name = "keeping"

            def choose(self, frontier: Frontier) -> int:
                seen.append(frontier)
                return frontier.types[0]

        make_schedule(chain("a", "b", "a"), Keeping())
        assert [frontier.remaining.tolist() for frontier in seen] == [[2, 1], [1, 1], [1, 0]]
        assert [frontier.ready.tolist() for frontier in seen] == [[1, 0], [0, 1], [1, 0]]

    @pytest.mark.parametrize("answer", [1, -1, 99, "a", None, 0.0])
    def test_a_choice_that_is_not_ready_is_refused(self, answer: object) -> None:
        with pytest.raises(PolicyError, match=f"'stubborn' chose {answer!r} for batch 0, .* {{0: 'a'}}"):
            make_schedule(chain("a", "b"), Stubborn(answer))

    def test_ints_of_numpy_will_do(self) -> None:
        assert make_schedule(chain("a", "a"), Stubborn(np.int64(0))).n_batches == 2

    def test_a_cycle_is_refused(self) -> None:
        graph = chain("a", "a", "a")
        graph.edge_src[0] = 2
        with pytest.raises(GraphError, match=r"edge 2 \('a'\) -> 1 \('a'\) points backwards"):
            make_schedule(graph, Stubborn(0))
