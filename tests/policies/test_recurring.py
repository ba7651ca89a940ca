"""Test the schedules of recurring mini-batches: found with other type numbers and data, and after loading."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import PolicyError, ScheduleError
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.models import find_model
from autobatch.policies.files import from_text, to_text
from autobatch.policies.search.recurring import Recurring, structure_of
from autobatch.policies.search.search import Search
from autobatch.schedule.schedule_check import check_schedule
from helpers.programs.graphs import random_tree
from helpers.runs.ways import each

NAMES = ("a", "b", "c")


def drawn(seed: int, order: tuple[int, ...] = (0, 1, 2)) -> Graph:
    """Draw a graph of three types, numbered in a given order."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    kinds = rng.integers(0, 3, n)
    edges = [(int(source), node) for node in range(1, n) for source in set(rng.integers(0, node, rng.integers(0, 3)))]
    number = np.argsort(order)
    return make_graph(NamedTypes(tuple(NAMES[i] for i in order)), number[kinds].tolist(), edges)


@each("seed", range(25))
def test_known_graphs_have_the_schedules_that_were_found(seed: int) -> None:
    graphs = [drawn(100 * seed + i) for i in range(5)]
    recurring = Recurring.of(graphs)
    for i, graph in enumerate(graphs):
        expected = Search().schedule(graph)
        renumbered = drawn(100 * seed + i, (2, 0, 1))
        assert np.array_equal(recurring.schedule(graph).order, expected.order)
        schedule = recurring.schedule(renumbered)
        check_schedule(renumbered, schedule)
        assert recurring.unseen_share == 0.0
        assert np.array_equal(schedule.batch_ptr, expected.batch_ptr)


@each("direction", ["forward", "backward", "both"])
def test_other_graphs_are_scheduled_by_the_rule(direction: Any) -> None:
    known, other = (merge_graphs([random_tree(seed + j) for j in range(4)]) for seed in (0, 100))
    recurring, rule = Recurring.of([known], direction=direction), ab.policies.Score(direction)
    assert np.array_equal(recurring.schedule(other).order, rule.schedule(other).order)
    assert recurring.unseen_share == 1.0


def test_digests_tell_types_and_edges_apart() -> None:
    types, other = NamedTypes(("a", "b")), NamedTypes(("a", "c"))
    graphs = [
        make_graph(types, [0, 1, 1], [(0, 1), (1, 2)]),
        make_graph(types, [0, 1, 1], [(0, 1), (0, 2)]),
        make_graph(types, [0, 0, 1], [(0, 1), (1, 2)]),
        make_graph(types, [0, 1, 0], [(0, 1), (1, 2)]),
        make_graph(other, [0, 1, 1], [(0, 1), (1, 2)]),
        make_graph(types, [1, 0, 0], [(0, 1), (1, 2)]),
        make_graph(types, [], []),
    ]
    assert len({structure_of(graph).digest for graph in graphs}) == len(graphs)


def test_files_hold_them(tmp_path: Path) -> None:
    graph = drawn(3)
    recurring = Recurring.of([graph], direction="both", compact=True)
    recurring.save(tmp_path / "known.policy.json")
    loaded = ab.policies.load(tmp_path / "known.policy.json")
    assert np.array_equal(loaded.schedule(graph).order, recurring.schedule(graph).order)
    assert (loaded.name, loaded.unseen_share) == ("recurring+both+compact", 0.0)


@each("sequence", [[-1], ["0"], [0.5], [True], [2**40], 3])
def test_files_of_other_content_are_refused(sequence: Any) -> None:
    made = Recurring.of([drawn(3)])
    made.describe = lambda: {"sequences": {"x": sequence}}  # type: ignore[method-assign]
    with pytest.raises(PolicyError, match="not a valid policy"):
        from_text(to_text(made, "writing"), ab.policies.KINDS, "reading")


@each("sequence", [[], [0], [7, 0, 9]])
def test_a_sequence_that_does_not_finish_its_graph_is_refused(sequence: list[int]) -> None:
    graph = make_graph(NamedTypes(("a", "b")), [0, 1], [(0, 1)])
    with pytest.raises(ScheduleError, match="does not finish the graph"):
        Recurring({structure_of(graph).digest: sequence}).schedule(graph)


def test_the_file_of_a_model_takes_them_along(tmp_path: Path) -> None:
    spec, rng = find_model("tree-lstm"), np.random.default_rng(0)
    data = spec.load("listops", rng)
    model: Any = spec.build(data, dim=8, rng=rng).eval()
    run = ab.batched(model.scores, backend="reference")
    batches = [data.dev[:6], data.dev[6:12]]
    run.policy = Recurring.of([run.merged(batch) for batch in batches])
    ab.export(run, tmp_path / "trees.ab", examples=data.dev[:20])

    loaded = ab.load(tmp_path / "trees.ab")
    scores = types.MethodType(type(model).scores, loaded)
    again: Any = ab.batched(scores, module=loaded, backend="reference", **loaded.options)
    again(data.dev[12:20])  # the types get other numbers
    for batch, is_known in ((batches[1], True), (batches[0], True), (data.dev[12:18], False)):
        again(batch)
        assert again.policy.unseen_share == float(not is_known)
