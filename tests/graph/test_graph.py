"""Test graphs: building, merging, checking, printing and pickling them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autobatch.errors import DataError, GraphError
from autobatch.graph import build
from autobatch.graph.build import check_ranges, make_graph, merge_graphs, split_graph
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.graph.graph_check import check_graph
from autobatch.graph.words import words_size, write_header
from helpers.counters.counting import count_lines
from helpers.programs.graphs import (
    CELL,
    IDENTITY,
    LETTERS,
    SWAP,
    TOYS,
    WORD,
    chain,
    random_batch,
    random_dag,
    random_toys,
    same_graph,
)
from helpers.runs.ways import each

SEEDS = range(20)


def merge_by_hand(graphs: list[Graph]) -> dict[str, list[int]]:
    """Merge the sections by definition."""
    parts: dict[str, list[int]] = {name: [] for name in graphs[0].sections._fields}
    for name in ("instance_ptr", "output_ptr", "edge_ptr"):
        parts[name] = [0]
    nodes = edges = outputs = 0
    for graph in graphs:
        parts["instance_ptr"] += [nodes + i for i in graph.instance_ptr.tolist()[1:]]
        parts["output_ptr"] += [outputs + o for o in graph.output_ptr.tolist()[1:]]
        parts["edge_ptr"] += [edges + e for e in graph.edge_ptr.tolist()[1:]]
        parts["edge_src"] += [nodes + n for n in graph.edge_src.tolist()]
        parts["out_node"] += [nodes + n for n in graph.out_node.tolist()]
        for name in ("type_id", "edge_out", "edge_in", "attr", "out_port", "out_slot"):
            parts[name] += getattr(graph, name).tolist()
        nodes, edges, outputs = nodes + graph.n_nodes, edges + graph.n_edges, outputs + graph.n_outputs
    return parts


class TestMakeGraph:
    def test_the_edges_of_a_node_are_ordered_by_port(self) -> None:
        graph = make_graph(TOYS, [WORD, CELL, SWAP], [(1, 2, 1, 1), (0, 2, 0, 0), (0, 1)], [2], [7, 1, 2], [0.5])
        assert graph.edge_ptr.tolist() == [0, 0, 1, 3]
        assert graph.edge_src.tolist() == [0, 0, 1]
        assert graph.edge_out.tolist() == [0, 0, 1]
        assert graph.edge_in.tolist() == [0, 0, 1]
        assert graph.attr.tolist() == [7, 1, 2]
        assert graph.floats.tolist() == [0.5]
        assert (graph.n_nodes, graph.n_edges, graph.n_instances, graph.n_outputs) == (3, 3, 1, 1)
        assert len(graph) == 3
        assert graph.inputs_of(2) == [0, 1]
        assert graph.type_of(2) == "swap"

    def test_arrays_of_ints_are_taken_too(self) -> None:
        graph = make_graph(LETTERS, np.array([0, 1]), np.array([[0, 1]]), np.array([1]))  # type: ignore[arg-type]
        assert same_graph(graph, make_graph(LETTERS, [0, 1], [(0, 1)], [1]))

    def test_a_wrong_order_is_told_from_a_cycle(self) -> None:
        with pytest.raises(
            GraphError, match=r"edge 2 \('c'\) -> 1 \('b'\) points backwards, .* order, such as 0, 2, 1"
        ):
            make_graph(LETTERS, [0, 1, 2], [(2, 1), (0, 2)])

    def test_a_cycle_is_named(self) -> None:
        with pytest.raises(GraphError) as error:
            make_graph(LETTERS, [0, 1, 2, 3], [(0, 1), (1, 2), (2, 3), (3, 1)])
        assert "edge 3 ('d') -> 1 ('b') points backwards" in str(error.value)
        assert "cycle 1 ('b') -> 2 ('c') -> 3 ('d') -> 1 ('b')" in str(error.value)

    def test_a_node_that_reads_itself_is_a_cycle(self) -> None:
        with pytest.raises(GraphError, match=r"cycle 1 \('b'\) -> 1 \('b'\)"):
            make_graph(LETTERS, [0, 1], [(1, 1)])

    @each(
        "type_id, edges, outputs, message",
        [
            ([0, 4], [], [], "type 4 does not exist; there are 4"),
            ([-1], [], [], "type -1 does not exist"),
            ([0.0], [], [], r"type_id of make_graph must be a list of ints, got \[0\.0\]"),
            (["a"], [], [], r"type_id of make_graph must be a list of ints, got \['a'\]"),
            ([0, 1], [(0, 2)], [], r"node in edge \(0, 2\) 2 does not exist; there are 2"),
            ([0, 1], [(-1, 1)], [], r"node in edge \(-1, 1\) -1 does not exist"),
            ([0, 1], [(0, "1")], [], r"edges of make_graph must be .* a list of ints, got \[\(0, '1'\)\]"),
            ([0, 1], [(0, 1, 0.5)], [], r"edges of make_graph must be .* a list of ints, got \[\(0, 1, 0\.5\)\]"),
            ([0, 1], [(0, 1, 1)], [], r"edge_out\[0\] must lie in 0..0, got 1"),
            ([0, 1], [(0, 1, 0, -1)], [], "an edge has port -1, but ports start at 0"),
            ([0, 1], [(0,)], [], r"edge must be \(source, reader\).* got \(0,\)"),
            ([0], [], [1], "output node 1 does not exist; there are 1"),
        ],
    )
    def test_bad_parts_are_refused(
        self, type_id: list[Any], edges: list[Any], outputs: list[int], message: str
    ) -> None:
        with pytest.raises(GraphError, match=message):
            make_graph(LETTERS, type_id, edges, outputs)

    def test_attributes_must_fit_the_types(self) -> None:
        with pytest.raises(GraphError, match="types take 1 int and 0 float attributes, but there are 2 and 0"):
            make_graph(TOYS, [WORD], [], attr=[1, 2])


class TestMerge:
    @each("seed", SEEDS)
    def test_merging_adds_offsets(self, seed: int) -> None:
        graphs = [random_toys(seed + 100 * i) for i in range(seed % 4 + 1)]
        merged = merge_graphs(graphs)
        check_graph(merged)
        assert {name: part.tolist() for name, part in merged.sections._asdict().items()} == merge_by_hand(graphs)
        assert merged.floats.tolist() == [value for graph in graphs for value in graph.floats]
        assert merged.structures == (None,) * len(graphs)

    @each("seed", SEEDS)
    def test_merging_in_steps_is_merging_at_once(self, seed: int) -> None:
        a, b, c = (random_toys(seed + 100 * i) for i in range(3))
        assert same_graph(merge_graphs([a, merge_graphs([b, c])]), merge_graphs([a, b, c]))

    @each("seed", SEEDS)
    def test_splitting_undoes_merging(self, seed: int) -> None:
        graphs = [random_toys(seed + 100 * i) for i in range(seed % 5)]
        parts = split_graph(merge_graphs(graphs, TOYS))
        assert len(parts) == len(graphs)
        for part, graph in zip(parts, graphs, strict=True):
            check_graph(part)
            assert same_graph(part, graph)

    def test_structures_are_chained(self) -> None:
        a, b = chain("a"), chain("a")
        a.structures, b.structures = ("first",), ("second",)
        merged = merge_graphs([a, merge_graphs([b, a])])
        assert merged.structures == ("first", "second", "first")
        assert [part.structures for part in split_graph(merged)] == [("first",), ("second",), ("first",)]

    def test_nothing_merges_to_the_empty_graph(self) -> None:
        merged = merge_graphs([], LETTERS)
        check_graph(merged)
        assert (merged.n_instances, merged.n_nodes, merged.types) == (0, 0, LETTERS)
        assert split_graph(merged) == []
        assert merge_graphs([]).n_types == 0

    def test_instances_may_have_no_nodes(self) -> None:
        empty = random_dag(0, n_nodes=0)
        full = random_dag(1)
        merged = merge_graphs([empty, full, empty])
        check_graph(merged)
        assert merged.instance_ptr.tolist() == [0, 0, full.n_nodes, full.n_nodes]

    def test_graphs_of_two_tables_are_refused(self) -> None:
        with pytest.raises(GraphError) as error:
            merge_graphs([chain("a", "b"), chain("a", "c")])
        assert str(error.value) == (
            "merging 2 graphs: graph 1 numbers its types by ['a', 'c'], but the batch by ['a', 'b']; "
            "record all instances with the same batched function."
        )

    @pytest.mark.parametrize("attributes", ["ints", "floats"])
    def test_positions_must_fit_int32(self, attributes: str) -> None:
        """The graph has 2**30 zeros, which take no memory until they are read."""
        n, header = 2**30, words_size(1, 0, 0, 0, 0)
        words = np.zeros(header + (n if attributes == "ints" else 0), np.int32)
        floats = np.zeros(n if attributes == "floats" else 0)
        write_header(words, 1, 0, 0, words.size - header, 0, floats.size)
        graph = Graph(words, floats, TOYS, (None,))
        with pytest.raises(GraphError, match=r"merging 2 graphs gives about .* merge fewer instances at a time"):
            merge_graphs([graph, graph])

    def test_an_instance_that_reads_another_cannot_be_split(self) -> None:
        merged = merge_graphs([chain("a", "b"), chain("a", "b")])
        merged.edge_src[1] = 0
        check_graph(merged)
        with pytest.raises(GraphError, match=r"node 0 \('a'\) is used by several instances"):
            split_graph(merged)

    def test_an_instance_that_returns_a_node_of_another_cannot_be_split(self) -> None:
        merged = merge_graphs([chain("a", "b"), chain("a", "b")])
        merged.out_node[1] = 1
        with pytest.raises(GraphError, match=r"node 1 \('b'\) is used by several instances"):
            split_graph(merged)


class TestRanges:
    def test_the_first_value_out_of_range_is_named(self) -> None:
        good = make_graph(TOYS, [WORD, CELL], [(0, 1)], attr=[99, 1000, 4], floats=[0.0])
        bad = make_graph(TOYS, [WORD, WORD, CELL], [(0, 2)], attr=[0, 0, 0, 5], floats=[0.0])
        merge_graphs([good, good])
        with pytest.raises(
            DataError, match=r"instance 1, node 2 \('cell'\) gives 5 as argument 1 of cell 'cell', .* 0\.\.4"
        ):
            merge_graphs([good, bad, bad])

    @each("value", [-1, 100, 2**31 - 1, -(2**31)])
    def test_both_ends_are_checked(self, value: int) -> None:
        with pytest.raises(DataError, match=f"node 0 \\('word'\\) gives {value} as argument 0 of cell 'word'"):
            check_ranges(make_graph(TOYS, [WORD], [], attr=[value]))

    def test_an_instance_without_nodes_is_not_blamed(self) -> None:
        empty, bad = make_graph(TOYS, [], []), make_graph(TOYS, [WORD], [], attr=[100])
        with pytest.raises(DataError, match="instance 2, node 0"):
            merge_graphs([empty, empty, bad])


class TestCheckGraph:
    @each(
        "section, index, value, message",
        [
            ("instance_ptr", 1, 99, "instance_ptr must rise from 0 to 8"),
            ("output_ptr", 0, 1, "output_ptr must rise from 0 to 2"),
            ("edge_ptr", 3, 0, "edge_ptr must rise from 0 to 6"),
            ("type_id", 1, 9, r"type_id\[1\] must lie in 0..3, got 9"),
            ("edge_src", 0, -1, r"edge_src\[0\] must .* got -1"),
            ("edge_src", 0, 2, r"edge 2 \('c'\) -> 1 \('b'\) points backwards"),
            ("edge_out", 0, 1, r"edge_out\[0\] must lie in 0..0, got 1"),
            ("edge_in", 1, 3, "node 2 reads port 3 before port 1"),
            ("out_node", 0, 8, r"out_node\[0\] must lie in 0..7, got 8"),
            ("out_port", 1, 1, r"out_port\[1\] must .* got 1"),
        ],
    )
    def test_every_invariant_is_checked(self, section: str, index: int, value: int, message: str) -> None:
        one = make_graph(LETTERS, [0, 1, 2, 3], [(0, 1), (0, 2), (1, 2, 0, 1)], [3])
        graph = merge_graphs([one, one])
        check_graph(graph)
        getattr(graph, section)[index] = value
        with pytest.raises(GraphError, match=message):
            check_graph(graph)

    @each("kinds, edges, message", [
            ([WORD, CELL], [(0, 1), (0, 1, 0, 2)], r"edge_in\[1\] must lie in 0..1, got 2"),
            ([WORD, WORD], [(0, 1)], r"edge_in\[0\] must lie in 0..-1, got 0"),
            ([WORD, SWAP], [(0, 1, 0, 1)], r"node 1 \('swap'\) has no edge at port 0"),
            ([WORD, SWAP, SWAP], [(0, 1), (0, 1, 0, 1), (0, 2)], r"node 2 \('swap'\) has no edge at port 1"),
            (
                [WORD, SWAP, IDENTITY], [(0, 1), (0, 1, 0, 1), (1, 2), (0, 2), (1, 2, 2)],
                r"port 0 of node 2 \('identity'\) adds up outputs 0 and 2 of nodes of type 'swap', but the values of",
            ),
        ])  # fmt: skip
    def test_ports_are_those_of_the_type(self, kinds: list[int], edges: list[tuple[int, ...]], message: str) -> None:
        attr = [0] * (kinds.count(WORD) + 2 * kinds.count(CELL))
        with pytest.raises(GraphError, match=message):
            make_graph(TOYS, kinds, edges, attr=attr, floats=[0.0] * kinds.count(CELL))

    def test_a_plain_port_may_read_a_sum(self) -> None:
        """It sums two words, one of them twice, and an output of a swap."""
        edges = [(0, 2), (1, 2, 0, 1), (0, 3), (1, 3), (0, 3), (2, 3, 2)]
        graph = make_graph(TOYS, [WORD, WORD, SWAP, IDENTITY], edges, attr=[1, 2])
        assert str(graph).splitlines()[-1] == "  3 = identity(0 + 1 + 0 + 2.2)"

    def test_sizes_must_agree(self) -> None:
        graph = chain("a", "b")
        with pytest.raises(GraphError, match="requires 21 words, but there are 20"):
            check_graph(Graph(graph.words[:-1], graph.floats, graph.types, graph.structures))
        with pytest.raises(GraphError, match="requires 0 float attributes, but there are 1"):
            check_graph(Graph(graph.words, np.ones(1), graph.types, graph.structures))
        with pytest.raises(GraphError, match="there are 1 instances, but 2 structures"):
            check_graph(Graph(graph.words, graph.floats, graph.types, (None, None)))

    def test_runs_check_when_asked_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        graph = chain("a", "b")
        graph.out_node[0] = 5
        monkeypatch.setenv("AUTOBATCH_CHECK", "0")
        merge_graphs([graph])
        monkeypatch.setenv("AUTOBATCH_CHECK", "1")
        with pytest.raises(GraphError, match=r"out_node\[0\] must .* got 5"):
            merge_graphs([graph])


class TestPrinting:
    def test_a_small_graph_is_listed(self) -> None:
        one = make_graph(
            TOYS,
            [WORD, CELL, SWAP],
            [(0, 1), (0, 1, 0, 1), (0, 1, 0, 1), (1, 2, 1), (0, 2, 0, 1)],
            [2],
            [7, 1, 2],
            [0.5],
        )
        assert str(merge_graphs([one, make_graph(TOYS, [], [])])).splitlines() == [
            "Graph(instances=2, nodes=3, edges=5, types=8, outputs=1)",
            "instance 0 returns 2",
            "  0 = word() of [7]",
            "  1 = cell(0, [0, 0]) of [1, 2]",
            "  2 = swap(1.1, 0)",
            "instance 1 returns nothing",
        ]

    def test_a_long_graph_is_shortened(self) -> None:
        lines = str(random_dag(0, n_nodes=1000)).splitlines()
        assert len(lines) == 61
        assert lines[-1] == "  ..."

    @each("seed", SEEDS)
    def test_every_graph_prints(self, seed: int) -> None:
        assert str(random_batch(seed)).startswith("Graph(instances=")


def test_graphs_can_be_pickled() -> None:
    graph = random_toys(4)
    assert str(graph)  # fills the views, which are not part of the pickle
    again = pickle.loads(pickle.dumps(graph))
    assert same_graph(again, graph)
    assert np.shares_memory(again.type_id, again.words)


def test_hand_made_types_limit_nothing() -> None:
    with pytest.raises(IndexError, match="range 0 of types without attributes"):
        NamedTypes(("a",)).describe_range(0)


@pytest.mark.parametrize("operation", [merge_graphs, lambda graphs: split_graph(merge_graphs(graphs))])
def test_merging_and_splitting_cost_the_same_per_instance(operation: Callable[[list[Graph]], object]) -> None:
    graph = random_toys(5, n_nodes=30)
    few, many = (count_lines(operation, [graph] * n) for n in (10, 100))
    assert many < 10.5 * few


def test_what_was_checked_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [make_graph(TOYS, [WORD], [], attr=[value]) for value in (0, 99)]
    checked = []
    monkeypatch.setattr(build, "check_ranges", lambda graph: checked.append(graph.n_nodes))
    merged = merge_graphs(graphs)
    parts = split_graph(merged)
    assert [graph.in_range for graph in (*graphs, merged, *parts)] == [True] * 5
    merge_graphs(parts)
    merge_graphs([*parts, pickle.loads(pickle.dumps(parts[0]))])
    assert checked == [2, 3]
