"""Test loops over whole graphs against their definitions: attributes, ranges, splitting, and what losses reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from autobatch import _native
from autobatch._native import (
    crossing_node,
    data_starts,
    first_out_of_range,
    mark_outputs,
    split_words,
)
from autobatch.graph.build import merge_graphs, split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.graph.words import OUTPUT
from autobatch.ir.flows import join_flows
from helpers.programs.graphs import random_toys
from helpers.programs.random_types import Kind, Kinds, draw_instance, draw_kinds
from helpers.runs.ways import each

SEEDS = range(60)
MANY = [pytest.param(range(60), id="some"), pytest.param(range(60, 3000), id="many", marks=pytest.mark.slow)]
Rng = np.random.Generator


def draw(seed: int, wrong: float = 0.02) -> tuple[Kinds, list[Graph]]:
    rng = np.random.default_rng(seed)
    types = draw_kinds(rng)
    return types, [draw_instance(rng, types, wrong) for _ in range(rng.integers(0, 5))]


def merge(types: Kinds, graphs: list[Graph]) -> Graph:
    """Merge graphs without checking ranges."""
    words, floats, structures, keys, _, _ = _native.merge_graphs(graphs)
    return Graph(words, floats, types, structures, keys)


def kinds_of(types: Kinds, graph: Graph) -> list[Kind]:
    return [types.kinds[number] for number in graph.type_id.tolist()]


def attributes_of(types: Kinds, graph: Graph) -> Iterator[tuple[list[int], list[list[list[int]]]]]:
    """Yield the ints of each node, and for each of its data those of every element."""
    left = iter(graph.attr.tolist())
    for kind in kinds_of(types, graph):
        own = [next(left) for _ in range(kind.n_ints)]
        data = [[[next(left) for _ in range(one.n_ints)] for _ in range(next(left))] for one in kind.data]
        yield own, data
    assert next(left, None) is None


def rows_of(kind: Kind, graph: Graph, node: int, data: list[Any]) -> list[int]:
    """Return the number of rows of each group of a node."""
    read = graph.edge_in[graph.edge_ptr[node] : graph.edge_ptr[node + 1]].tolist()
    rows = [0] * kind.n_groups
    for port, group in enumerate(kind.ports):
        if group >= 0:
            rows[group] = read.count(port)
    for one, elements in zip(kind.data, data, strict=True):
        rows[one.group] = len(elements)
    for part in kind.parts:
        of = rows[part.of] if part.of >= 0 else part.n_rows
        rows[part.group] += len(range(of)[part.cut]) * (rows[part.times] if part.times >= 0 else 1)
    return rows


@pytest.mark.parametrize("seeds", MANY)
def test_attributes_begin_where_those_of_earlier_nodes_end(seeds: range) -> None:
    for seed in seeds:
        types, graphs = draw(seed)
        for graph in graphs:
            ints, floats = data_starts(graph.type_id, graph.attr, types.arrays())
            at = [0, 0]
            for node, (kind, (own, data)) in enumerate(
                zip(kinds_of(types, graph), attributes_of(types, graph), strict=True)
            ):
                assert [ints[node], floats[node]] == at
                at[0] += len(own) + sum(1 + sum(map(len, elements)) for elements in data)
                at[1] += kind.n_floats + sum(len(x) * one.n_floats for x, one in zip(data, kind.data, strict=True))
            assert [ints[-1], floats[-1]] == at == [graph.attr.size, graph.floats.size]


def outside(types: Kinds, graph: Graph, node: int, data: list[Any], own: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the range, value and size of a node's out-of-range ints, its own before those of its data."""
    number = int(graph.type_id[node])
    kind, rows = types.kinds[number], rows_of(types.kinds[number], graph, node, data)
    first = sum(len(before.limits) for before in types.kinds[:number])
    for which, elements in enumerate([[own], *data], -1):
        for r, limit in enumerate(kind.limits, first):
            if limit.data == which:
                size = limit.size if limit.size >= 0 else rows[-1 - limit.size]
                for element in elements:
                    value = element[limit.column]
                    if not 0 <= value < size and (limit.size < 0 or value != limit.ignore):
                        yield r, value, size


@pytest.mark.parametrize("seeds", MANY)
def test_the_first_int_of_each_instance_that_is_out_of_range(seeds: range) -> None:
    n_found = 0
    for seed in seeds:
        types, graphs = draw(seed, wrong=[0.02, 0.3][seed % 2])
        expected, first = [], 0
        for graph in graphs:
            found = [
                [first + node, *wrong]
                for node, (own, data) in enumerate(attributes_of(types, graph))
                for wrong in outside(types, graph, node, data, own)
            ]
            expected += found[:1]
            first += graph.n_nodes
        assert first_out_of_range(merge(types, graphs).words, types.arrays()).tolist() == expected
        n_found += len(expected)
    assert n_found > len(seeds) / 2


@pytest.mark.parametrize("seeds", MANY)
def test_merged_instances_are_split_again(seeds: range) -> None:
    for seed in seeds:
        types, graphs = draw(seed, wrong=0.0)
        merged = merge(types, graphs)
        check_graph(merged)
        assert crossing_node(merged.words) == -1
        words, ptr, float_ptr = split_words(merged.words, types.arrays())
        for i, graph in enumerate(graphs):
            assert words[ptr[i] : ptr[i + 1]].tolist() == graph.words.tolist()
            assert merged.floats[float_ptr[i] : float_ptr[i + 1]].tolist() == graph.floats.tolist()
        assert [ptr[-1], float_ptr[-1]] == [words.size, merged.floats.size]


@each("seed", SEEDS)
def test_the_first_node_that_another_instance_uses(seed: int) -> None:
    rng = np.random.default_rng(seed)
    merged = merge_graphs([random_toys(10 * seed + k) for k in range(3)])
    graph = Graph(merged.words.copy(), merged.floats, merged.types, merged.structures)
    reader = np.repeat(np.arange(graph.n_nodes), np.diff(graph.edge_ptr))
    for _ in range(rng.integers(0, 3)):
        if graph.n_edges and rng.random() < 0.7:
            e = rng.integers(graph.n_edges)
            graph.edge_src[e], graph.edge_out[e] = rng.integers(reader[e]), 0
        else:
            o = rng.integers(graph.n_outputs)
            graph.out_node[o], graph.out_port[o] = rng.integers(graph.n_nodes), 0
    expected = [
        node
        for i in range(3)
        for of, ptr in ((graph.edge_src, graph.edge_ptr[graph.instance_ptr]), (graph.out_node, graph.output_ptr))
        for node in of[ptr[i] : ptr[i + 1]].tolist()
        if not graph.instance_ptr[i] <= node < graph.instance_ptr[i + 1]
    ]
    assert crossing_node(graph.words) == (expected[0] if expected else -1)
    if expected:
        with pytest.raises(ValueError, match=r"words must encode"):
            split_words(graph.words, graph.types.arrays())
    else:
        assert len(split_graph(graph)) == 3


def reached_outputs(graph: Graph, flows: dict[int, Any], slots: set[int]) -> set[tuple[int, int]]:
    """Return the node outputs from which a path of flows leads to a value in these slots."""
    values = zip(graph.out_node.tolist(), (graph.out_port & OUTPUT).tolist(), graph.out_slot.tolist(), strict=True)
    found, left = set[tuple[int, int]](), [(node, output) for node, output, slot in values if slot in slots]
    while left:
        node, output = left.pop()
        if (node, output) not in found:
            found.add((node, output))
            for e in range(graph.edge_ptr[node], graph.edge_ptr[node + 1]):
                if flows[int(graph.type_id[node])][output, graph.edge_in[e]]:
                    left.append((int(graph.edge_src[e]), int(graph.edge_out[e] & OUTPUT)))
    return found


@pytest.mark.parametrize("seeds", MANY)
def test_marks_are_what_flows_lead_to(seeds: range) -> None:
    for seed in seeds:
        rng = np.random.default_rng(seed)
        types, graphs = draw(seed, wrong=0.0)
        graph = merge(types, graphs)
        shapes = [(kind.n_outputs, len(kind.ports)) for kind in types.kinds]
        flows = {number: rng.random(shape) < 0.7 for number, shape in enumerate(shapes)}
        wanted = rng.random(int(graph.out_slot.max(initial=0)) + 1) < 0.5
        most = max(shape[0] for shape in shapes) + int(rng.integers(0, 2))
        marks = rng.random((graph.n_nodes, 1 + most)) < 0.5
        is_whole = mark_outputs(graph.words, join_flows([*flows.values()]), wanted, marks)
        reached = reached_outputs(graph, flows, {*np.flatnonzero(wanted).tolist()})
        assert {(node, int(output)) for node, output in zip(*np.nonzero(marks[:, 1:]), strict=True)} == reached
        assert np.flatnonzero(marks[:, 0]).tolist() == sorted({node for node, _ in reached})
        assert is_whole == marks[:, 0].all()
