"""Measure what recording costs per node, compared with the same program with empty functions as cells.

The programs walk through trees, lattices and sentences, and call cells. The first variant records them as one graph of
the mini-batch; the second makes a graph of each instance (`record_all`). In the third, every cell is a Python function
that returns a ready-made object, and so is every op between cells: what remains is the user's own Python. Results are
nanoseconds per node, from medians of rounds in which all variants take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.models import find_model
from autobatch.ops.operators import Symbol
from autobatch.params.known import KnownModule
from autobatch.trace.cell import Cell
from harness import find_data, run, take_turns
from records import Findings, Settings

MODELS = {"tree-lstm": "sst", "lattice-lstm": "lattice", "bilstm-tagger": "wikiner"}
RECORDED, EACH, EMPTY = "recorded", "recorded, a graph each", "empty functions"
TITLES = ("", "nodes", RECORDED, EACH, EMPTY, "recorded / empty", "a graph each / empty")
WALKED = 8  # instances to run eagerly, to find what cells return


@dataclass(frozen=True)
class Config(Settings):
    """Models have width `dim`, and mini-batches of `batch` instances."""

    dim: int = 64
    batch: int = 64
    repeats: int = 51


class Dummy(Symbol):
    """A stand-in for every value; every op on it returns it."""

    __slots__ = ()
    shape = ()

    def apply(self, op: Any, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        return self

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self


def measure(config: Config) -> Iterator[Findings]:
    """Time the variants for each model."""
    for name, folder in MODELS.items():
        spec, rng = find_model(name), np.random.default_rng(config.seed)
        data = spec.load(find_data(folder) or spec.default_data, rng)
        model: Any = spec.build(data, config.dim, rng)
        instances = list(data.train[: config.batch])
        with empty_cells(model, instances[:WALKED]) as put:
            seconds = take_turns(ways_of(model, instances, put), config.repeats)
        n_nodes = ab.batched(model.loss).recorder.record(instances).n_nodes
        typical = {way: median(found) / n_nodes * 1e9 for way, found in seconds.items()}
        row = [name, str(n_nodes), *(f"{typical[way]:.0f}" for way in (RECORDED, EACH, EMPTY))]
        row += [f"{typical[way] / typical[EMPTY]:.2f}" for way in (RECORDED, EACH)]
        yield Findings(seconds, {"nodes": n_nodes, "ns": typical}, format_table(TITLES, [row]), part=name)


def ways_of(model: Any, instances: Sequence[Any], put: Callable[[bool], None]) -> dict[str, Callable[[], Any]]:
    """Make the three variants, each a call over all instances."""
    loss = ab.batched(model.loss)

    def walk() -> None:
        put(True)
        function = model.loss
        for instance in instances:
            function(instance)
        put(False)

    return {
        RECORDED: lambda: loss.recorder.record(instances),
        EACH: lambda: loss.record_all(instances),
        EMPTY: walk,
    }


class Method(NamedTuple):
    """A cell that is a method of a module."""

    owner: Any
    name: str


def cells_of(model: Any) -> Iterator[Method]:
    """Find the cells among the methods of a model's modules."""
    for module in KnownModule(model).modules():
        for name in dir(type(module)):
            if isinstance(getattr(type(module), name), Cell):
                yield Method(module, name)


@contextmanager
def empty_cells(model: Any, instances: Sequence[Any]) -> Iterator[Callable[[bool], None]]:
    """Yield a function that replaces the model's cells with empty functions, or restores them."""
    methods, found = [*cells_of(model)], dict[Method, Callable[..., Any]]()

    def watched(method: Method) -> Callable[..., Any]:
        cell = getattr(method.owner, method.name)

        def call(*args: Any) -> Any:
            result = cell(*args)
            found[method] = empty(len(args), _dummy_like(result))
            return result

        return call

    def put(is_on: bool) -> None:
        for method in methods:
            if is_on and method in found:
                vars(method.owner)[method.name] = found[method]
            else:
                vars(method.owner).pop(method.name, None)

    for method, function in [(method, watched(method)) for method in methods]:
        vars(method.owner)[method.name] = function
    for instance in instances:
        model.loss(instance)
    put(False)
    yield put
    put(False)


def _dummy_like(result: Any) -> Any:
    return tuple(map(_dummy_like, result)) if isinstance(result, tuple) else Dummy()


def empty(n: int, result: Any) -> Callable[..., Any]:
    """Make a Python function of n arguments that returns `result`."""
    names = [f"a{i}" for i in range(n)]
    function: Callable[..., Any] = eval(f"lambda {', '.join(names)}: result", {"result": result})
    return function


if __name__ == "__main__":
    run(Config(), measure)
