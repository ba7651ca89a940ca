"""Test recording in worker processes: the graphs equal those recorded in this process."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures.process import BrokenProcessPool
from pickle import PicklingError
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError, GraphError
from helpers.models.every_model import MODELS

HAS_FORK = "fork" in multiprocessing.get_all_start_methods()
STARTS = [
    pytest.param("fork", marks=pytest.mark.skipif(not HAS_FORK, reason="this system does not fork")),
    pytest.param("spawn", marks=pytest.mark.slow),
]


class Doubler(ab.Module):
    """A model that doubles numbers; an instance may also ask for an error, a crash or an odd result."""

    def __init__(self) -> None:
        self.scale = ab.Parameter(np.full(2, 2.0))

    @ab.cell
    def double(self, x: Any) -> Any:
        return self.scale * x

    def run(self, wanted: Any) -> Any:
        """Double `wanted` times, or raise, crash or return an unpicklable result."""
        if isinstance(wanted, Exception):
            raise wanted
        if wanted == "die":
            os._exit(3)
        x = np.ones(2)
        for _ in range(wanted):
            x = self.double(x)
        return (x, lambda: 0) if wanted == 7 else x

    async def wait(self, n: int) -> Any:
        """Double and await the value."""
        return await ab.value(self.double(np.ones(2)))


@pytest.fixture
def start(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: [request.param])


@pytest.mark.parametrize("start", STARTS, indirect=True)
@pytest.mark.parametrize("name", ["tree-lstm", pytest.param("lattice-lstm", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("start")
def test_workers_record_what_one_process_does(name: str) -> None:
    model, instances = MODELS[name]()
    loss = ab.batched(model.loss, backend="reference")
    instances = [*instances] * 5
    expected, graphs = loss.record_all(instances), loss.record_all(instances, workers=2)
    assert len(graphs) == len(instances)
    for graph, other in zip(graphs, expected, strict=True):
        assert np.array_equal(graph.words, other.words)
        assert np.array_equal(graph.floats, other.floats)
        assert graph.keys == other.keys
        assert graph.structures == other.structures
        assert graph.types is other.types
    anew = ab.batched(model.loss, backend="reference")  # has not met the types that its workers will meet
    assert anew(anew.record_all(instances, workers=3)) == pytest.approx(np.asarray(loss(instances)), rel=1e-6)


def test_few_instances_and_none() -> None:
    run = ab.batched(Doubler().run, backend="reference")
    assert run.record_all([], workers=2) == []
    (graph,) = run.record_all([3], workers=4)
    assert np.array_equal(run([graph]), [[8.0, 8.0]])


def test_progress_counts_instances(capfd: pytest.CaptureFixture[str]) -> None:
    assert len(ab.batched(Doubler().run, backend="reference").record_all([1] * 9, progress=True, workers=2)) == 9
    assert "recording" in capfd.readouterr().err


@pytest.mark.parametrize("kind", [ValueError, TypeError, AttributeError, PicklingError, BrokenProcessPool])
def test_an_error_of_the_function_is_raised_here_and_names_the_instance(kind: type[Exception]) -> None:
    run = ab.batched(Doubler().run, backend="reference")
    with pytest.raises(kind, match="no number") as caught:
        run.record_all([1] * 11 + [kind("no number"), 1], workers=2)
    assert caught.value.__notes__ == ["while instance 11 was recorded"]
    assert caught.traceback[-1].name == "run"


@pytest.mark.parametrize("workers", [0, -1, True, 2.0, "2", None])
def test_what_is_no_number_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises(DataError, match=f"workers of record_all must be an int.*, got {workers!r}"):
        ab.batched(Doubler().run, backend="reference").record_all([1], workers=workers)


def test_what_cannot_leave_a_worker_is_refused() -> None:
    with pytest.raises(GraphError, match="results of its function must not hold objects"):
        ab.batched(Doubler().run, backend="reference").record_all([1, 7], workers=2)
    nameless = ab.cell(lambda x: 2.0 * x)
    with pytest.raises(GraphError, match="cell '<lambda>' must not depend on objects"):
        ab.batched(lambda n: nameless(np.ones(n)), backend="reference").record_all([1, 1], workers=2)


def test_async_functions_are_refused() -> None:
    with pytest.raises(GraphError, match=r"must be 1 for an async function, .* got 2"):
        ab.batched(Doubler().wait, backend="reference").record_all([1, 1], workers=2)


def test_a_worker_that_ends_is_named() -> None:
    with pytest.raises(GraphError, match="a worker process ended while it recorded"):
        ab.batched(Doubler().run, backend="reference").record_all([1, "die"], workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn"], indirect=True)
@pytest.mark.usefixtures("start")
def test_a_function_without_a_name_is_not_sent() -> None:
    model = Doubler()
    with pytest.raises(GraphError, match="cannot be sent to a new process"):
        ab.batched(lambda n: model.run(n), module=model, backend="reference").record_all([1, 1], workers=2)
