"""Test that one call of the core rewrites, schedules and places a graph and makes its tables as the stages do."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import autobatch as ab
from autobatch._native import make_tables
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.options import Options
from autobatch.backends.tables import N_DESTINATIONS, PlanTables, arrays_of
from autobatch.errors import DataError, GraphError
from autobatch.graph.build import split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.marks import Marks
from autobatch.graph.rewrite import PASSES, rewrite
from autobatch.memplan.placement import CoreOptions, plan_graphs
from autobatch.memplan.planner import MemoryPlanner
from autobatch.plan.plan import PlannedTypes
from autobatch.policies import get
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import Frontier, FrontierPolicy
from autobatch.trace.record import Recorder
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.planned import assert_same_plan

RULES = ("depth", "agenda", "sufficient", "critical", "score")
WAYS = ("", "+backward", "+both", "+compact", "+both+compact")
MANY = [pytest.param(range(12), id="some"), pytest.param(range(12, 300), id="many", marks=pytest.mark.slow)]


def record(rng: np.random.Generator, training: bool) -> tuple[Any, PlannedTypes]:
    """Record a random program over random instances; return the graph and its planned types."""
    model = draw_model(rng, smooth=True)
    function = model.loss if training else model.everything
    recorder, planner = Recorder(function, model), MemoryPlanner()
    graph = recorder.record(draw_instances(rng, model, n=int(rng.integers(1, 9))))
    cells = [planner.plan_cell(node_type, training) for node_type in recorder.types.types]
    return graph, PlannedTypes(cells, list(recorder.slots.shapes), training)


@pytest.mark.parametrize("seeds", MANY)
def test_it_does_what_the_stages_do(seeds: range) -> None:
    n_rewritten = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        graph, cells = record(rng, training=bool(seed % 2))
        chosen = ["auto", "all", (), [name for name in PASSES if rng.random() < 0.5]][int(rng.integers(4))]
        policy = get(RULES[int(rng.integers(len(RULES)))] + WAYS[int(rng.integers(len(WAYS)))])
        rewritten, rewrites = rewrite(graph, chosen)
        expected = MemoryPlanner().place(rewritten, make_schedule(rewritten, policy), cells)
        assert policy.core_rule is not None
        graphs = [graph] if rng.random() < 0.5 else split_graph(graph)
        found = plan_graphs(graphs, graph.types, CoreOptions(chosen, policy.core_rule, cells))
        assert_same_plan(found.plan, expected)
        assert found.rewrites == rewrites
        assert (found.plan.graph is found.graph) is (rewritten is graph)
        assert (found.graph is graphs[0]) is (len(graphs) == 1)
        np.testing.assert_array_equal(found.graph.words, graph.words)
        np.testing.assert_array_equal(found.graph.floats, graph.floats)
        np.testing.assert_array_equal(found.graph.keys, graph.keys)
        assert found.graph.structures == graph.structures
        assert min(found.seconds) >= 0.0
        n_rewritten += rewritten is not graph
    assert n_rewritten > len(seeds) // 4


def test_it_makes_the_tables_of_the_backend() -> None:
    """If all types of the plan were known before. Addresses are those of the plan's arrays."""
    n_made = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        graph, cells = record(rng, training=bool(seed % 2))
        backend, options = Cpu(), Options(get("score+both"), threads=1 + seed % 3)
        rule, sizes = options.policy.core_rule, backend.table_sizes(cells, options)
        assert rule is not None
        _, plan, _, tables, _ = plan_graphs([graph], graph.types, CoreOptions("auto", rule, cells, *sizes))
        assert tables is None or not plan.graph.n_nodes
        expected = backend.prepare(plan, cells, options).tables
        _, plan, _, tables, _ = plan_graphs([graph], graph.types, CoreOptions("auto", rule, cells, *sizes))
        assert tables is not None
        found = backend.prepare(plan, cells, options, tables).tables
        for field in fields(PlanTables):
            one, other = getattr(found, field.name), getattr(expected, field.name)
            if field.name == "lists":
                for parts, others in zip(one, other, strict=True):
                    for part, like in zip(parts, others, strict=True):
                        np.testing.assert_array_equal(part, like)
            elif field.name == "addresses":
                again = make_tables(arrays_of(plan), sizes[0], options.threads)[found_at("addresses")]
                np.testing.assert_array_equal(np.delete(one, tiles_at(cells)), np.delete(again, tiles_at(cells)))
            elif isinstance(one, np.ndarray):
                np.testing.assert_array_equal(one, other, err_msg=field.name)
            else:
                assert one == other, field.name
        n_made += len(found.type_ids)
    assert n_made > 40


class Interrupting(dict[int, Any]):
    """A dict whose first assignment is interrupted."""

    def __setitem__(self, key: int, value: Any) -> None:
        if not hasattr(self, "was_interrupted"):
            self.was_interrupted = True
            raise KeyboardInterrupt
        super().__setitem__(key, value)


def test_the_core_makes_no_tables_of_a_type_whose_lowering_was_interrupted() -> None:
    graph, cells = record(np.random.default_rng(1), training=True)
    backend, options = Cpu(), Options(get("score"))
    rule = options.policy.core_rule
    assert rule is not None
    types = backend.compiled_types(cells, options)
    types.cells = Interrupting()
    _, plan, _, tables, _ = plan_graphs([graph], graph.types, CoreOptions("auto", rule, cells, types.sizes))
    with pytest.raises(KeyboardInterrupt):
        backend.prepare(plan, cells, options, tables)
    _, plan, _, tables, _ = plan_graphs([graph], graph.types, CoreOptions("auto", rule, cells, types.sizes))
    assert tables is None
    assert {*backend.prepare(plan, cells, options, tables).tables.type_ids} == types.cells.keys()
    assert plan_graphs([graph], graph.types, CoreOptions("auto", rule, cells, types.sizes)).tables is not None


def found_at(name: str) -> int:
    """Return the position of a part among those that the core makes."""
    return [field.name for field in fields(PlanTables)].index(name) - 2


def tiles_at(cells: PlannedTypes) -> slice:
    """Return the slice of the tiles' addresses, which change each time."""
    return slice(N_DESTINATIONS, N_DESTINATIONS + len(cells.cells))


def test_it_finds_whether_a_loss_depends_on_all_nodes() -> None:
    counts = {False: 0, True: 0}
    for seed in range(60):
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=True)
        function = model.loss if seed % 2 else model.everything
        recorder, planner = Recorder(function, model), MemoryPlanner()
        graph = recorder.record(draw_instances(rng, model, n=int(rng.integers(1, 5))))
        types = [planner.plan_cell(node_type, True) for node_type in recorder.types.types]
        cells = PlannedTypes(types, list(recorder.slots.shapes), True)
        rule = get("score").core_rule
        assert rule is not None
        for slot in range(len(cells.slot_shapes)):
            plan = plan_graphs([graph], graph.types, CoreOptions("auto", rule, cells), slot).plan
            marks = Marks()
            marks.mark(plan.graph, cells.flows, len(cells.slot_shapes), [slot])
            assert plan.whole_slot == (slot if marks.is_whole else -1)
            counts[marks.is_whole] += 1
    assert min(counts.values()) > 10, counts


def test_it_names_an_edge_that_points_backwards() -> None:
    graph, cells = record(np.random.default_rng(0), training=True)
    node = int(np.flatnonzero(np.diff(graph.edge_ptr))[0])
    graph.edge_src[graph.edge_ptr[node]] = graph.n_nodes - 1
    rule = get("score").core_rule
    assert rule is not None
    with pytest.raises(GraphError, match="points backwards"):
        plan_graphs([graph], graph.types, CoreOptions("auto", rule, cells))
    with pytest.raises(GraphError, match="points backwards"):
        plan_graphs([graph, graph], graph.types, CoreOptions("auto", rule, cells))


def test_it_refuses_what_cannot_be_merged() -> None:
    (graph, cells), (other, _) = (record(np.random.default_rng(seed), training=True) for seed in (0, 1))
    rule = get("score").core_rule
    assert rule is not None
    for graphs in ([graph, other], [other, graph], [other]):
        with pytest.raises(GraphError, match="record all instances with the same batched function"):
            plan_graphs(graphs, graph.types, CoreOptions("auto", rule, cells))

    for n_graphs in (1, 2):
        wrong = Graph(graph.words.copy(), graph.floats, graph.types, graph.structures, graph.keys)
        assert wrong.attr.size
        wrong.attr[:] = 10**6
        with pytest.raises(DataError):
            plan_graphs([graph, wrong][-n_graphs:], graph.types, CoreOptions("auto", rule, cells))


class FirstReady(FrontierPolicy):
    """A user's policy."""

    name = "first ready"

    def choose(self, frontier: Frontier) -> int:
        return frontier.types[0]


class OwnPlanner:
    """A user's planner that delegates everything to the built-in one."""

    def __init__(self) -> None:
        self.planner = MemoryPlanner()

    def plan_cell(self, node_type: Any, training: bool) -> Any:
        return self.planner.plan_cell(node_type, training)

    def place(self, *args: Any) -> Any:
        return self.planner.place(*args)


@pytest.mark.parametrize(
    ("options", "n_calls"),
    [
        ({"policy": "score"}, 1),
        ({"policy": "unbatched"}, 0),
        ({"policy": FirstReady()}, 0),
        ({"planner": OwnPlanner()}, 0),
    ],
)
def test_batched_functions_use_it_where_python_has_no_part(options: dict[str, Any], n_calls: int) -> None:
    rng = np.random.default_rng(3)
    model = draw_model(rng, smooth=True)
    instances = draw_instances(rng, model, n=4)
    loss = ab.batched(model.loss, backend="reference", **options)
    with patch("autobatch.memplan.placement.plan_graphs", wraps=plan_graphs) as counted:
        loss.value_and_grad(instances)
    assert counted.call_count == n_calls
    assert loss.last is not None
    assert {"rewrite", "schedule", "place"} <= loss.last.ms.keys()


def test_checked_runs_go_stage_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CHECK", "1")
    rng = np.random.default_rng(4)
    model = draw_model(rng, smooth=True)
    loss = ab.batched(model.loss, policy="score", backend="reference")
    with patch("autobatch.memplan.placement.plan_graphs", wraps=plan_graphs) as counted:
        loss.value_and_grad(draw_instances(rng, model, n=3))
    assert counted.call_count == 0
