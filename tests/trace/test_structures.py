"""Test random structures of values and constants as results and in `ab.value`, compared with eager execution."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.trace import results
from helpers.runs.ways import each

DIM = 3
N_INSTANCES = 4


class Couple(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


class Model(ab.Module):
    """Computes values of several classes: vectors, scalars, ints and matrices of any number of rows."""

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.random.default_rng(0).standard_normal((DIM, DIM)))

    @ab.cell
    def vector(self, x: Any) -> Any:
        return ab.tanh(self.weight @ x)

    @ab.cell
    def scalar(self, x: Any) -> Any:
        return ab.sum(self.weight @ x)

    @ab.cell
    def choice(self, x: Any) -> Any:
        return ab.argmax(x)

    @ab.cell
    def both(self, x: Any) -> Any:
        return ab.exp(0.1 * x), ab.max(x)


Form = Callable[[Model, Any], Any]
LEAVES: tuple[Form, ...] = (
    lambda m, x: m.vector(x),
    lambda m, x: m.scalar(x),
    lambda m, x: m.choice(x),
    lambda m, x: m.both(x)[0],
    lambda m, x: m.both(x)[1],
    lambda m, x: m.vector(m.vector(x)),
    lambda m, x: 3,
    lambda m, x: 0.5,
    lambda m, x: x,
)


def draw_form(rng: np.random.Generator, depth: int = 3) -> Form:
    """Draw a structure; lists often hold values of one class alone, and every instance has its own length."""
    kind = int(rng.integers(0, 9)) if depth else 8
    if kind >= 7:
        return LEAVES[int(rng.integers(0, len(LEAVES)))]
    if kind == 0:  # a list of values of one class, of a length that depends on the instance
        leaf = draw_form(rng, 0)
        return lambda m, x: [leaf(m, (k + 1) * x) for k in range(int(x[0] * 8) % 4)]
    parts = [draw_form(rng, depth - 1) for _ in range(int(rng.integers(0, 4)))]
    pair = [draw_form(rng, depth - 1) for _ in range(2)]
    forms: tuple[Form, ...] = (
        lambda m, x: [part(m, x) for part in parts],
        lambda m, x: tuple(part(m, x) for part in parts),
        lambda m, x: {f"key {k}": part(m, x) for k, part in enumerate(parts)},
        lambda m, x: Couple(*(part(m, x) for part in pair)),
        lambda m, x: Pair(*(part(m, x) for part in pair)),
        lambda m, x: tuple(leaf(m, x) for leaf in LEAVES[:5]),
    )
    return forms[kind - 1]


def compare(found: Any, expected: Any) -> None:
    """Assert that two structures have the same containers, types and, up to rounding, numbers.

    Found arrays must be plain ones; `expected` may also have those of eager execution.
    """
    if isinstance(expected, (list, tuple)):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other)
    elif isinstance(expected, dict):
        assert [*found] == [*expected]
        compare([*found.values()], [*expected.values()])
    elif isinstance(expected, Pair):
        assert type(found) is Pair
        compare((found.left, found.right), (expected.left, expected.right))
    else:
        assert type(found) is (np.ndarray if isinstance(expected, np.ndarray) else type(expected))
        assert np.shape(found) == np.shape(expected)
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def draw_instances(seed: int) -> list[Any]:
    return [*np.random.default_rng(seed).uniform(0, 1, (N_INSTANCES, DIM)).astype(np.float32)]


@each("seed", range(60))
def test_results_of_any_structure_equal_eager_ones(seed: int) -> None:
    model, form = Model(), draw_form(np.random.default_rng(seed))
    batched = ab.batched(lambda x: [form(model, x)], module=model, backend="reference")  # in a list: per instance
    instances = draw_instances(seed)
    for _ in range(2):  # the second call knows the classes of values
        for found, x in zip(batched(instances), instances, strict=True):
            compare(found, [form(model, x)])


@each("seed", range(60))
def test_awaited_structures_equal_eager_ones(seed: int) -> None:
    model, form = Model(), draw_form(np.random.default_rng(seed))
    seen: dict[int, list[Any]] = {}

    async def program(given: tuple[int, Any]) -> int:
        number, x = given
        seen[number] = [await ab.value(form(model, x)) for _ in range(3)]
        return number

    instances = draw_instances(seed)
    ab.batched(program, module=model, backend="reference")([*enumerate(instances)])
    for number, x in enumerate(instances):
        compare(seen[number], [form(model, x)] * 3)


def mix(model: Model, number: int, x: Any) -> tuple[Any, ...]:
    """Return a tuple of vectors and scalars, drawn by the bits of a number."""
    return tuple(model.vector(x) if number >> k & 1 else model.scalar(x) for k in range(6))


def test_caches_of_structures_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples of many kinds and lists of many lengths, awaited and as results."""
    most = 60
    monkeypatch.setattr(results, "MOST_PARTS", most)
    model, xs = Model(), draw_instances(0)
    given = [(number, xs[number % N_INSTANCES]) for number in [*range(64)] * 2]
    seen = list[Any]()

    def plain(given: tuple[int, Any]) -> list[Any]:
        number, x = given
        return [mix(model, number, x), [model.vector(x)] * number, ([model.scalar(x)] * 3, model.vector(x))]

    async def program(given: tuple[int, Any]) -> tuple[Any, ...]:
        seen.append((given, await ab.value(mix(model, *given))))
        return mix(model, *given)

    run = ab.batched(plain, module=model, backend="reference")
    for _ in range(2):
        for found, one in zip(run(given), given, strict=True):
            compare(found, plain(one))
    for found, one in zip(run(run.record_all(given[:9]) + run.record_all(given)), given[:9] + given, strict=True):
        compare(found, plain(one))
    with ab.serve(program, module=model, backend="reference", max_running=3) as server:
        for future, one in zip([server.submit(one) for one in given], given, strict=True):
            compare(future.result(60), mix(model, *one))
        assert len(seen) == len(given)
        for one, found in seen:
            compare(found, mix(model, *one))
        served = server._engine.recorder
        for known in (run.recorder.slots._structures, served.slots._structures, served._known_tuples):
            assert 0 < known.n_parts <= most + 64  # one structure may be larger
            assert 0 < len(known) <= most


def test_values_of_another_recording_are_refused_in_tuples_and_lists() -> None:
    model, kept = Model(), list[Any]()

    def keep(x: Any) -> Any:
        kept.append(model.vector(x))
        return [model.vector(x), model.vector(x)]

    keep_all = ab.batched(keep, module=model, backend="reference")
    keep_all(draw_instances(0))
    again = ab.batched(lambda x: [model.vector(x), kept[0]], module=model, backend="reference")
    with pytest.raises(ab.GraphError, match="own recording"):
        again(draw_instances(0))

    async def wait(x: Any) -> Any:
        return await ab.value((model.vector(x), kept[0]))

    with pytest.raises(ab.GraphError, match="recorded"):
        ab.batched(wait, module=model, backend="reference")(draw_instances(0))


@dataclass
class Doubled:
    """A state whose constructor changes a field, computes another one, and sets an attribute that is not a field."""

    h: Any
    norm: Any = field(init=False)

    def __post_init__(self) -> None:
        self.h = self.h * 2.0
        self.norm = ab.sum(self.h)
        self.kind = "doubled"


@dataclass(init=False)
class OwnInit:
    h: Any

    def __init__(self, start: Any) -> None:
        self.h = start * 2.0


class DoubledTuple(NamedTuple("DoubledTuple", [("h", Any)])):
    def __new__(cls, h: Any) -> DoubledTuple:
        return super().__new__(cls, h * 2.0)


@each("kind", [Doubled, OwnInit, DoubledTuple])
def test_structures_are_rebuilt_with_the_values_that_they_hold(kind: Any) -> None:
    """A constructor runs once, where the program calls it."""
    double = ab.cell(lambda x: x * 2.0)
    read, make = ab.cell(lambda state: state.h * 1.0), ab.cell(lambda x: kind(x))
    programs: list[Callable[[Any], Any]] = [
        lambda x: read(kind(x)), lambda x: make(x).h, lambda x: kind(double(x)).h, lambda x: read(make(double(x))),
        lambda x: kind(double(x)),
    ]  # fmt: skip
    for program in programs:
        expected, found = program(np.ones(2)), ab.batched(program)([np.ones(2)] * 2)
        if isinstance(expected, kind):
            expected, found = expected.h, found.h
        np.testing.assert_array_equal(found, [expected, expected])


def nested(x: Any, depth: int) -> Any:
    return nested((x,), depth - 1) if depth else x


def inside(x: Any) -> Any:
    while isinstance(x, tuple):
        (x,) = x
    return x


def test_deep_arguments_are_refused_and_deep_results_returned() -> None:
    read = ab.batched(ab.cell(lambda x: inside(x) * 2.0), backend="reference")
    make = ab.batched(ab.cell(lambda x: nested(x * 2.0, 1500)), backend="reference")
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        np.testing.assert_array_equal(inside(make([np.ones(2)])), [[2.0, 2.0]])
        with pytest.raises(ab.GraphError, match="argument 'x' of a cell must be nested at most 2000 deep"):
            read([nested(np.ones(2), 2001)])
    finally:
        sys.setrecursionlimit(before)
