"""Test the graphs of models against manual counts and against what the models record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch import policies
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.graph.rewrite import rewrite
from autobatch.graph.sketch import Sketch, to_graph
from autobatch.models.data.dag import draw_dags, draw_lattices
from autobatch.models.data.lattice import Lattice, read_lattices
from autobatch.models.data.listops import draw_trees
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.sst import parse_tree, read_trees
from autobatch.models.shapes import (
    LATTICE_FORMS,
    SHAPES,
    make_lattice_graph,
    make_tagger_graph,
    make_tree_graph,
    make_two_type_tree_graph,
)
from autobatch.schedule.schedule import min_batches
from autobatch.trace.record import Recorder
from helpers.data.datasets import REAL, SMALL, needs_real, real
from helpers.twins.cases import draw_lattices_case

LATTICE = Lattice([0, 1, 2, 1], [[], [(0, 1)], [(1, 2), (0, 3)], [(2, 3)]])


def nodes_of(graph: Graph) -> list[str]:
    return [" ".join([graph.type_of(n), *map(str, graph.inputs_of(n))]) for n in range(graph.n_nodes)]


def count_agenda(graph: Graph) -> int:
    return policies.get("agenda").schedule(graph).n_batches


def test_a_tree_by_hand() -> None:
    tree = parse_tree("(3 (2 good) (2 film))")
    assert nodes_of(make_tree_graph([tree])) == [
        "leaf", "output 0", "loss 1", "leaf", "output 3", "loss 4", "inner 0 3", "output 6", "loss 7", "sum 2 5 8",
    ]  # fmt: skip


def test_a_lattice_by_hand() -> None:
    """Four positions, one of them with two arcs: 0 → 1 → 2 → 3 and 0 → 2."""
    start = ["character", "output 0", "character 0", "word"]
    arity, variadic, folded = (make_lattice_graph([LATTICE], form) for form in LATTICE_FORMS)
    assert nodes_of(arity) == [*start, "sum2 2 3", "output 4", "character 4", "output 6", "loss 1 5 7"]
    assert nodes_of(variadic) == [*start, "sum 2 3", "output 4", "character 4", "output 6", "loss 1 5 7"]
    assert nodes_of(folded) == [*start, "output 2 3", "character 2 3", "output 5", "loss 1 4 6"]


def test_a_sentence_by_hand() -> None:
    graph = make_tagger_graph([Sentence(["so", "long"], ["O", "O"]), Sentence([], [])])
    assert nodes_of(graph) == [
        "forward", "forward 0", "backward", "backward 2", "output 0 3", "loss 4", "output 1 2", "loss 6", "sum 5 7",
    ]  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_graphs_of_any_mini_batch(name: str) -> None:
    rng = np.random.default_rng(0)
    drawn: dict[str, Sequence[Any]] = {
        "tree": [parse_tree("(2 film)"), *draw_trees(20, rng)],
        "bilstm": [Sentence(["a"] * n, ["O"] * n) for n in range(5)],
        "lattice": [Lattice([0], [[]]), *draw_lattices(10, rng), *draw_dags(10, rng)],
    }
    instances = next(drawn[kind] for kind in drawn if name.startswith(kind))
    for n in (0, 1, 2, len(instances)):
        graph = SHAPES[name](instances[:n], np.random.default_rng(1))
        check_graph(graph)
        assert (graph.n_nodes == 1) == (n == 0 or (n == 1 and not name.startswith("tree")))
        again = SHAPES[name](instances[:n], np.random.default_rng(1))
        assert again.words.tolist() == graph.words.tolist()


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("folder", "form", "nodes", "bound", "agenda"),
    [
        (SMALL, "arity", 1227, 54, 117),
        (SMALL, "variadic", 1227, 51, 103),
        (SMALL, "folded", 1020, 36, 62),
        real("arity", 4607, 216, 511),
        real("variadic", 4607, 209, 434),
        real("folded", 3847, 150, 243),
    ],
)
def test_lattices_are_as_counted_elsewhere(folder: Path, form: str, nodes: int, bound: int, agenda: int) -> None:
    """An external count for the real data has 32 more nodes: an output at the first position of each lattice."""
    graph = make_lattice_graph(read_lattices(folder / "lattice" / "train.txt")[:32], form)
    assert (graph.n_nodes, min_batches(graph), count_agenda(graph)) == (nodes, bound, agenda)


@pytest.mark.slow
@needs_real
def test_trees_are_as_counted_elsewhere() -> None:
    """An external count used one draw of the types, with bound 31 and agenda 64."""
    trees = read_trees(REAL / "sst" / "train.txt")[:256]
    drawn = [make_two_type_tree_graph(trees, np.random.default_rng(seed)) for seed in range(10)]
    assert {graph.n_nodes for graph in drawn} == {30_061}
    counts = [(min_batches(graph), count_agenda(graph)) for graph in drawn]
    assert np.median(counts, axis=0).tolist() == [31.5, 66.0]
    assert (31, 64) in counts
    n_inner = [np.bincount(graph.type_id)[1:3].tolist() for graph in drawn]
    assert {a + b for a, b in n_inner} == {4882}
    assert abs(np.mean([a - b for a, b in n_inner])) < 70  # its standard deviation is 22


def test_another_form_is_refused() -> None:
    with pytest.raises(GraphError, match="must be one of arity, variadic, folded, got 'packed'"):
        make_lattice_graph([LATTICE], "packed")


def reads_of(graph: Graph, names: Mapping[str, str]) -> dict[tuple[str, int], set[tuple[str, int]]]:
    """Return what nodes of the named types read from each other; nodes are numbered within their renamed type."""
    kinds = [names.get(graph.type_of(node), "") for node in range(graph.n_nodes)]
    keys = [(kind, kinds[:node].count(kind)) for node, kind in enumerate(kinds)]
    read = {keys[node]: {keys[source] for source in graph.inputs_of(node)} for node in range(graph.n_nodes)}
    return {key: {source for source in sources if source[0]} for key, sources in read.items() if key[0]}


def test_the_folded_form_is_what_folding_makes_of_the_model() -> None:
    """Compares every arc and position, except the learned first state."""
    model, lattices = draw_lattices_case(seed=0, n_instances=16, dim=2)
    recorder = Recorder(model.loss, model)
    n_folded = 0
    for lattice in lattices:
        recorded, done = rewrite(recorder.record([lattice]))
        drawn = make_lattice_graph([lattice], "folded")
        found = reads_of(recorded, {"read_character": "character", "read_word": "word", "tag_loss": "output"})
        assert found == reads_of(drawn, {name: name for name in ("character", "word", "output")})
        n_folded += done.folded
    assert n_folded == 54


@pytest.mark.parametrize(
    ("kind", "inputs", "said"),
    [
        (2, [], "node 1 must lie in 0..1, got 2"),
        (-1, [], "node 1 must lie in 0..1, got -1"),
        (0, [1], "node 1 must read earlier nodes, got 1"),
        (0, [0, -1], "node 1 must read earlier nodes, got -1"),
    ],
)
def test_a_sketch_that_is_no_graph_is_refused(kind: int, inputs: list[int], said: str) -> None:
    sketch = Sketch(2)
    sketch.add(0)
    sketch.add(kind, inputs)
    with pytest.raises(GraphError, match=re.escape(said)):
        sketch.to_dag()


def test_types_need_a_name_each() -> None:
    make = partial(to_graph, Sketch(2).to_dag())
    assert make().types.names == ("0", "1")
    with pytest.raises(GraphError, match=r"each of its 2 types, got \['a'\]"):
        make(["a"])
