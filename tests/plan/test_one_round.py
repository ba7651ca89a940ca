"""Test that one call of the core chooses a round's nodes, emits their graph and plans it as the stages do."""

from __future__ import annotations

from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import autobatch as ab
from autobatch.arrays import IntArray
from autobatch.graph.graph import Types
from autobatch.graph.growing import NOWHERE, SLOT, GrowingGraph, KeptRows, Request
from autobatch.memplan.placement import CoreOptions, PlannedRound, plan_graphs, plan_round
from helpers.programs.random_rounds import Instance, RoundModel, minibatches
from helpers.programs.waiting_programs import Model, items
from helpers.runs.planned import assert_same_plan

PLANNING = "autobatch.memplan.placement.plan_round"


def assert_same_parts(found: Any, expected: Any) -> None:
    """Compare tuples of arrays and numbers, at any depth."""
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same_parts(one, other)
    else:
        np.testing.assert_array_equal(found, expected)


class Comparing:
    """Plans rounds in one call and in stages, and compares the results and changes of state.

    Attributes:
        n_planned, n_idle, n_untyped, n_last: number of rounds that were planned, had nothing to run, read values for
            which no type of sources existed yet, and returned results.
    """

    def __init__(self) -> None:
        self.n_planned = self.n_idle = self.n_untyped = self.n_last = 0

    def __call__(
        self, graph: GrowingGraph, request: Request, rows: KeptRows, last: IntArray, types: Types, options: CoreOptions
    ) -> PlannedRound:
        twin, twin_rows = deepcopy((graph, rows))
        found = plan_round(graph, request, rows, last, types, options)
        chosen = twin.choose(request, types)
        assert_same_parts(found.chosen, chosen)
        twin_rows.tables(request.slots.source.size, last.size)
        if not chosen.nodes.size and request.results is None:
            assert found.moved is None
            assert found.planned is None
            self.n_idle += 1
        else:
            assert_same_parts(found.moved, twin_rows.move(last))
            source, slots = request.slots.source, graph.values[SLOT, chosen.sources]
            if (slots >= source.size).any() or (source[slots] == NOWHERE).any():
                assert found.planned is None
                self.n_untyped += 1
            else:
                self.check_plan(found, twin, request, types, options)
        assert_same_parts((*graph.nodes, graph.values), (*twin.nodes, twin.values))
        assert_same_parts((*rows.tables(0, 0), graph._pending), (*twin_rows.tables(0, 0), twin._pending))
        return found

    def check_plan(
        self, found: PlannedRound, twin: GrowingGraph, request: Request, types: Types, options: CoreOptions
    ) -> None:
        emitted = twin.emit(found.chosen, request, types)
        expected = plan_graphs([emitted], types, options)
        assert found.planned is not None
        graph = found.planned.graph
        assert_same_parts((graph.words, graph.floats, graph.keys), (emitted.words, emitted.floats, emitted.keys))
        assert graph.structures == emitted.structures
        assert graph.types is types
        assert_same_plan(found.planned.plan, expected.plan)
        assert found.planned.rewrites == expected.rewrites
        assert (found.planned.tables is None) == (expected.tables is None)
        self.n_planned += 1
        self.n_last += request.results is not None


def test_it_does_what_the_stages_do() -> None:
    model, comparing = RoundModel(), Comparing()
    runs = [ab.batched(model.everything, backend="reference", policy=policy) for policy in ("score", "agenda+both")]

    @settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
    @given(minibatches())
    def compare(instances: list[Instance]) -> None:
        for run in runs:
            with patch(PLANNING, comparing):
                run(instances)

    compare()
    assert comparing.n_planned > 100, vars(comparing)
    assert min(comparing.n_idle, comparing.n_untyped, comparing.n_last) > 2, vars(comparing)


@pytest.mark.parametrize(("policy", "n_calls", "n_emitted"), [("score", 5, (1, 0)), ("unbatched", 0, (5, 5))])
def test_a_round_is_one_call_where_python_has_no_part(policy: str, n_calls: int, n_emitted: tuple[int, ...]) -> None:
    """Python emits the first round that reads a kept value, because it must create a type. Later calls know it."""
    run = ab.batched(Model().loop, backend="reference", policy=policy)
    for expected in n_emitted:
        with (
            patch(PLANNING, wraps=plan_round) as counted,
            patch.object(GrowingGraph, "emit", autospec=True, side_effect=GrowingGraph.emit) as emitted,
        ):
            run(items(1, 4))
        assert counted.call_count == n_calls
        assert emitted.call_count == expected
