"""Test calls that the native core records: arguments, results, and that the state around them is unchanged."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.system.freeing import without_collection
from helpers.checkers.refusals import refused
from helpers.counters.counting import files_entered
from helpers.runs.ways import each

DIM = 3


class Pair(NamedTuple):
    """A structure other than a plain tuple."""

    first: Any
    second: Any


class Model(ab.Module):
    """Cells with one output, and with several in tuples and in a named tuple."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.table = ab.Parameter(rng.standard_normal((5, DIM)))
        self.first, self.second = (ab.Parameter(rng.standard_normal(DIM)) for _ in range(2))

    @ab.cell
    def word(self, number: int, scale: Any = 1.0) -> Any:
        return ab.lookup(self.table, number) * scale

    @ab.cell
    def state(self, x: Any) -> Any:
        return ab.tanh(x), (x * x, -x)

    @ab.cell
    def pair(self, x: Any) -> Any:
        return Pair(x + 1.0, x - 1.0)

    @ab.cell
    def join(self, *parts: Any, weight: Any = 1.0, **more: Any) -> Any:
        return ab.sum_n([*parts, *more.values()]) * weight

    @ab.cell
    def scaled(self, x: Any, /, by: Any, *, plus: Any = 0.0) -> Any:
        return x * by + plus

    @ab.cell
    def stacked(self, parts: Any) -> Any:
        return parts[0] - 2.0 * parts[1][0] * parts[1][1]

    @ab.cell
    def added(self, parts: list[Any]) -> Any:
        return ab.sum_n(parts)


CALLS: dict[str, Callable[[Model, int], Any]] = {
    "a default": lambda m, n: m.word(n),
    "by name": lambda m, n: m.word(scale=2.0, number=n),
    "nested tuples": lambda m, n: m.state(m.word(n))[1][0] + m.state(m.word(n))[0],
    "tuples taken apart": lambda m, n: (lambda a, bc: (a, *bc))(*m.state(m.word(n)))[2],
    "a named tuple": lambda m, n: m.pair(m.word(n)).first * m.pair(m.word(n)).second,
    "any number of arguments": lambda m, n: m.join(*[m.word(i % 5) for i in range(n + 1)]),
    "any number by name": lambda m, n: m.join(m.word(n), a=m.word(1), b=m.word(2), weight=0.5),
    "by position alone": lambda m, n: m.scaled(m.word(n), 2.0, plus=m.word(1)),
    "arrays": lambda m, n: m.scaled(m.word(n), np.arange(3.0), plus=np.ones(DIM)),
    "arrays in a list": lambda m, n: m.join(np.ones(DIM), m.word(n), np.arange(3.0) * n),
    "arrays of equal bytes": lambda m, n: m.scaled(m.word(n), np.zeros(()), plus=np.zeros(DIM)),
    "a sum of a list": lambda m, n: ab.sum_n([m.word(i % 5) for i in range(n + 1)]),
    "a sum of one": lambda m, n: ab.sum_n([m.word(n)]) + ab.mean_n([m.word(n)]) + ab.max_n([m.word(n)]),
    "a sum with arrays": lambda m, n: ab.sum_n([m.word(n), np.ones(DIM), 2.0 * m.word(1)]),
    "a sum of tuples": lambda m, n: ab.sum_n([(m.word(n), m.word(1)), (m.word(2), m.word(n))])[1],
    "a sum with a shape": lambda m, n: ab.sum_n([m.word(i) for i in range(n)], shape=(DIM,)),
    "a sum of tuples with shapes": lambda m, n: ab.sum_n([(m.word(n), m.word(1))] * n, shape=((DIM,), (DIM,)))[1],
    "a mean of scalars": lambda m, n: ab.mean_n([ab.sum(m.word(i)) for i in range(n + 1)], shape=()),
    "parameters": lambda m, n: m.word(n, m.second) * m.word(1, m.first),
    "parameters in tuples": lambda m, n: m.stacked((m.first, (m.word(n), m.second))),
    "parameters in lists": lambda m, n: m.added([m.first, m.word(n), np.ones(DIM), m.second]),
    "a parameter twice": lambda m, n: m.stacked((m.first, (m.first, m.word(n)))),
    "operators": lambda m, n: -(m.word(n) + m.word(1) - m.word(2) * m.word(3)) / (m.word(n) * m.word(n) + 1.0),
    "operators of numbers": lambda m, n: 2 * m.word(n) - 1 + (3.0 - m.word(1)) + (m.word(2) + 0.0) * 0 + 2 ** m.word(1),
    "operators of bools": lambda m, n: (m.word(n) + True) * False,
    "comparisons": lambda m, n: (m.word(n) > 0.5) + (m.word(n) <= m.word(1)) * 1.0 + (m.word(n) == m.word(2)),
    "operators of arrays": lambda m, n: np.arange(3.0) * m.word(n) + np.ones(DIM),
    "operators of parameters": lambda m, n: m.first * m.word(n) + m.second,
    "a sum by sum": lambda m, n: sum([m.word(i % 5) for i in range(n + 1)]),
}
ALL_NATIVE = "a sum of one", "parameters", "parameters in tuples", "parameters in lists", "operators"


@each("name", CALLS)
def test_calls_give_what_they_give_eagerly(name: str) -> None:
    model, call = Model(), CALLS[name]
    run = ab.batched(lambda n: ab.sum(call(model, n)), module=model)
    numbers = [0, 3, 1, 4, 3]
    expected = [float(np.sum(call(model, n))) for n in numbers]
    for _ in range(3):
        np.testing.assert_allclose(run(numbers), expected, rtol=1e-5, atol=1e-6)


@each("name", ALL_NATIVE)
def test_no_python_of_ours_runs_in_calls_of_known_forms(name: str) -> None:
    """The number of Python calls must not depend on the number of recorded calls."""
    model, call = Model(), CALLS[name]
    recorder = ab.batched(lambda times: [call(model, 1) for _ in range(times)].pop(), module=model).recorder
    _, once, often = (files_entered(recorder.record, [times, times]) for times in (2, 1, 9))
    assert once == often


def test_inputs_are_one_source_for_each_part() -> None:
    """Slices are temporary objects, so a later slice may have the same `id`."""
    model = Model()

    def loss(x: Any) -> Any:
        total = ab.sum(model.scaled(x[0], 1.0))
        for k in range(len(x)):
            total = total + ab.sum(model.join(x[k], x[0], x[k]) * model.word(k, x[k]))
        return total

    items = [np.random.default_rng(n).standard_normal((n, DIM)) for n in (1, 4, 2, 4)]
    run = ab.batched(loss, module=model)
    for _ in range(3):
        _, _, gradients = run.value_and_grad(items, reduce="sum", inputs=True)
        for x, gradient in zip(items, gradients, strict=True):
            words = np.array([model.word(k, np.ones(DIM)) for k in range(len(x))])
            expected = (4.0 * x + x[0]) * words  # the gradient of the k-th term with respect to x[k]
            expected[0] += 1.0 + np.sum(x * words, axis=0)
            np.testing.assert_allclose(gradient, expected, rtol=1e-4)


def test_shapes_of_sums_are_compared() -> None:
    model = Model()

    def total(shape: Any) -> Any:
        return ab.sum_n([model.word(0), model.word(1)], shape=shape)

    run = ab.batched(total, module=model)
    run([(DIM,)])
    for shape in ((DIM, 1), (DIM + 1,), (float(DIM),), ()):
        with pytest.raises(ab.AutobatchError, match="shape"):
            run([shape])


def test_while_recorded_tuples_are_plain_tuples() -> None:
    model, kinds = Model(), list[type]()

    def run(n: int) -> Any:
        state = model.state(model.word(n))
        kinds.extend((type(state), type(state[1]), type(model.pair(model.word(n)))))
        return ab.sum(state[0])

    ab.batched(run, module=model)([1, 2])
    assert kinds[-3:] == [tuple, tuple, Pair]


@each("name", ["an unknown name", "one too many", "a name twice", "one too few"])
def test_arguments_that_do_not_fit_are_refused_by_the_name_of_the_cell(name: str) -> None:
    model = Model()
    wrong: dict[str, Callable[[int], Any]] = {
        "an unknown name": lambda n: model.word(n, size=2),  # type: ignore[call-arg]
        "one too many": lambda n: model.word(n, 1.0, 2.0),  # type: ignore[call-arg]
        "a name twice": lambda n: model.word(n, number=n),  # type: ignore[misc]
        "one too few": lambda n: model.word(),  # type: ignore[call-arg]
    }
    with refused(TypeError, "word() "):
        ab.batched(lambda n: ab.sum(wrong[name](n)), module=model)([1])


@each("is_on", [True, False])
@each("fails", [True, False])
def test_garbage_collection_is_as_it_was(is_on: bool, fails: bool) -> None:
    model, seen = Model(), list[bool]()

    def run(n: int) -> Any:
        seen.append(gc.isenabled())
        if fails:
            raise ZeroDivisionError
        return ab.sum(model.word(n))

    loss = ab.batched(run, module=model)
    try:
        gc.enable() if is_on else gc.disable()
        for _ in range(2):
            if fails:
                with pytest.raises(ZeroDivisionError):
                    loss([1])
            else:
                loss([1, 2, 3])
            assert gc.isenabled() is is_on
    finally:
        gc.enable()
    assert seen
    assert not any(seen)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks need a POSIX system")
@each("is_on", [True, False])
@each("traces", [True, False])
def test_garbage_collection_is_on_in_a_child_that_was_forked_meanwhile(is_on: bool, traces: bool) -> None:
    """The child lacks the thread that would turn it on again."""
    model, is_inside, may_end = Model(), threading.Event(), threading.Event()

    def run(n: Any) -> Any:
        is_inside.set()
        assert may_end.wait(60)
        return ab.sum(model.word(n))

    def trace() -> None:
        with without_collection():
            run(1)

    thread = threading.Thread(target=trace if traces else lambda: ab.batched(run, module=model)([1]))
    try:
        gc.enable() if is_on else gc.disable()
        thread.start()
        assert is_inside.wait(60)
        child = os.fork()
        if child == 0:
            os._exit(gc.isenabled())
        may_end.set()
        thread.join()
        assert gc.isenabled() is is_on
    finally:
        gc.enable()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == is_on


@each("depth", [2, 200])
def test_circles_are_collected_while_many_instances_are_recorded(depth: int) -> None:
    """Each program is a recursive function, which only the garbage collector frees."""
    model, alive = Model(), list[int]()

    class Marked:
        """Counts its living instances."""

        n = 0

        def __init__(self) -> None:
            Marked.n += 1

        def __del__(self) -> None:
            Marked.n -= 1

    def run(n: int) -> Any:
        mark = Marked()

        def visit(depth: int) -> Any:
            return model.word(depth % 5) + (visit(depth - 1) if depth and mark else 0)

        result = ab.sum(visit(n))
        alive.append(Marked.n)
        return result

    ab.batched(run, module=model).record_all([depth] * 1000)
    assert max(alive) < 100
