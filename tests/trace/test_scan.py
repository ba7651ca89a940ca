"""Test that scans equal the plain loop: in eager mode, recorded, batched and differentiated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.trace.record import Recorder

N_WORDS, DIM = 20, 4


class Tagger(ab.Module):
    """A two-layer bidirectional network, by scans and by loops."""

    forward = ab.scan("step", "start")
    backward = ab.scan("step", "start", reverse=True)
    above = ab.scan("join", "zeros")
    tags = ab.scan("step", "start", each="tag_loss", where="known")
    final = ab.scan("step", "start", last="total")

    def __init__(self, rng: np.random.Generator) -> None:
        self.words = ab.Parameter(rng.standard_normal((N_WORDS, DIM)))
        self.start = [ab.Parameter(rng.standard_normal(DIM)), ab.Parameter(rng.standard_normal(DIM))]
        self.inner, self.outer = ab.Linear(DIM, DIM, rng=rng), ab.Linear(DIM, 3, rng=rng)

    @ab.cell
    def step(self, state: Any, word: int, scale: float = 1.0) -> Any:
        h, c = state
        c = 0.5 * c + scale * ab.lookup(self.words, word)
        return ab.dropout(ab.tanh(self.inner(h) + c), 0.3), c

    @ab.cell
    def join(self, state: Any, both: Any) -> Any:
        (left, _), (right, _) = both
        return ab.tanh(self.inner(state) + left * right)

    @ab.cell
    def tag_loss(self, state: Any, tag: int) -> Any:
        return ab.cross_entropy(self.outer(state[0]), tag)

    @ab.cell
    def total(self, state: Any) -> Any:
        return ab.sum(state[0]) + ab.sum(state[1])

    def zeros(self) -> Any:
        return np.zeros(DIM)

    def fields(self, x: dict[str, Any], i: int) -> dict[str, Any]:
        """Return the fields of item i for a step."""
        return {
            name: x[name][i].item() if isinstance(x[name], np.ndarray) else x[name][i] for name in ("word", "scale")
        }

    def scanned(self, x: Any) -> Any:
        both = [*zip(self.forward(x), self.backward(x), strict=True)]
        losses, above, final = self.tags(x), self.above(both), self.final(x)
        return ab.sum_n([*losses, *map(ab.sum, above), final])

    def looped(self, x: Any) -> Any:
        n = len(x["word"])
        forward, backward, losses, start = list[Any](), list[Any](), list[Any](), tuple(self.start)
        for i in range(n):
            forward.append(self.step(forward[-1] if i else start, **self.fields(x, i)))
        for i in reversed(range(n)):
            backward.append(self.step(backward[-1] if backward else start, **self.fields(x, i)))
        state: Any = start
        for i in range(n):
            state = self.step(state, **self.fields(x, i))
            if x["known"][i]:
                losses.append(self.tag_loss(state, int(x["tag"][i])))
        above = list[Any]()
        for pair in zip(forward, backward[::-1], strict=True):
            above.append(self.join(above[-1] if above else self.zeros(), pair))
        last: Any = start
        for i in range(n):
            last = self.step(last, **self.fields(x, i))
        final = self.total(last)
        return ab.sum_n([*losses, *map(ab.sum, above), final])


def draw(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Draw a sentence whose fields are arrays and lists."""
    known = rng.random(n) < 0.6
    return {
        "word": rng.integers(0, N_WORDS, n).astype((np.int32, np.int64)[int(rng.integers(2))]),
        "scale": rng.standard_normal(n).tolist(), "tag": rng.integers(0, 3, n),
        "known": known if rng.random() < 0.5 else known.astype(int).tolist(),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_a_scan_equals_the_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = Tagger(rng).astype("float64")
    sentences = [draw(rng, int(rng.integers(0, 9))) for _ in range(6)]
    recorders = [Recorder(function, model) for function in (model.scanned, model.looped)]
    for _ in range(2):  # forms and templates are known the second time
        scanned, looped = (recorder.record(sentences) for recorder in recorders)
        assert np.array_equal(scanned.words, looped.words)
        assert np.array_equal(scanned.floats, looped.floats)
    model.eval()
    expected = [float(model.looped(x)) for x in sentences]
    assert np.allclose([float(model.scanned(x)) for x in sentences], expected, rtol=1e-12)
    value, grads = ab.batched(model.scanned).value_and_grad(sentences)
    wanted, wanted_grads = ab.batched(model.looped).value_and_grad(sentences)
    assert np.isclose(value, wanted, rtol=1e-12)
    assert np.isclose(value, np.mean(expected), rtol=1e-12)
    for name, grad in wanted_grads.items():
        assert np.allclose(grads[name], grad, rtol=1e-10, atol=1e-12), name


class Sum(ab.Module):
    """Scans of one field."""

    sums = ab.scan("add", np.float64(1.0))
    without = ab.scan("add")
    last = ab.scan("add", "start", last="same", reverse=True)

    def __init__(self) -> None:
        self.start = ab.Parameter(10.0).astype("float64")

    @ab.cell
    def same(self, state: Any) -> Any:
        return 1.0 * state

    @ab.cell
    def add(self, state: Any, x: Any) -> Any:
        return 1.0 * x if state is None else 2.0 * state + x


def test_sequences_are_arrays_lists_fields_and_values() -> None:
    model = Sum()
    for function, instance, expected in (
        (model.sums, [1, 2], [3, 8]),
        (model.sums, (1.5,), [3.5]),
        (model.sums, np.array([1.0, 2.0]), [3, 8]),
        (model.sums, np.array([[1.0, 2.0], [3.0, 4.0]]), [[3, 4], [9, 12]]),
        (model.sums, {"x": [1, 2]}, [3, 8]),
        (model.sums, SimpleNamespace(x=np.array([1, 2])), [3, 8]),
        (model.sums, [], []),
        (model.without, [1, 2], [1, 4]),
        (model.last, [1, 2], 2 * (20 + 2) + 1),
        (model.last, [], 10),
    ):
        for found in (function(instance), ab.batched(function)([instance])[0]):
            assert np.allclose(np.array(found, float), expected)


def test_a_call_may_give_the_initial_state() -> None:
    model = Sum()
    assert [float(x) for x in model.sums([1, 2], initial=np.float64(0.0))] == [1, 4]
    found = ab.batched(lambda x: model.sums(x, initial=model.last(x)), module=model)([[1, 2]])
    assert np.allclose(found[0], [2 * 45 + 1, 2 * 91 + 2])


def test_rows_of_a_value_are_a_sequence() -> None:
    model = Sum()

    def of_rows(x: Any) -> Any:
        return ab.sum_n(model.without(ab.stack([model.sums([i])[0] for i in x])))

    assert np.allclose(ab.batched(of_rows, module=model)([[1, 2], [3]]), [of_rows([1, 2]), of_rows([3])])


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        ({}, "one of the fields x"),
        ({"y": "house"}, "one of the fields x, got the fields y"),
        (3, "one of the fields x, got 3"),
        ({"x": 5}, "field 'x' must be an array or a list of items, got a single"),
        ({"x": "abc"}, "field 'x' must be an array or a list, got str"),
    ],
)
def test_malformed_sequences_are_refused(instance: Any, message: str) -> None:
    with pytest.raises(ab.DataError, match=message):
        Sum().sums(instance)


def test_fields_must_be_of_one_length() -> None:
    model = Tagger(np.random.default_rng(0))
    with pytest.raises(ab.DataError, match="'scale' must have an item for each of the 2 nodes, got 1"):
        model.forward({"word": [1, 2], "scale": [1.0]})
    with pytest.raises(ab.DataError, match=r"fields word, scale, got a single sequence"):
        model.forward([1, 2])
    with pytest.raises(ab.DataError, match="node 0 must have a field 'word'"):
        model.forward({"scale": [1.0, 2.0]})


def test_malformed_scans_are_refused() -> None:
    class Wrong(ab.Module):
        nowhere = ab.scan("add", "nothing")

        def add(self, state: Any, x: Any) -> Any:
            return state

    with pytest.raises(ab.GraphError, match=r"'nothing' of .* must be a state, or a method"):
        Wrong().nowhere([1])
    with pytest.raises(ab.DataError, match=r"step of scan must be"):
        ab.scan(3)  # type: ignore[arg-type]
    with pytest.raises(ab.DataError, match=r"at least one item, because <lambda>\(\) takes its fields"):
        ab.scan(lambda state, x: x, last=lambda state, x: x)([])


class Awaiting(ab.Module):
    """Folds and scans inside programs that await values and inside differentiated functions."""

    visit = ab.fold("children", "node")
    states = ab.scan("node", "start")

    def __init__(self) -> None:
        self.start = ab.Parameter(0.5).astype("float64")

    @ab.cell
    def node(self, below: Any, value: float) -> Any:
        total = ab.sum_n(below, shape=()) if isinstance(below, list) else below
        return ab.tanh(self.start * value + total)

    async def waiting(self, x: Any) -> Any:
        tree, values = x
        total = 0.0
        for _ in range(3):
            root = self.visit(tree)
            if float(await ab.value(root)) > 0:
                values = [*values, 1.0]
            total = total + root * self.states(values)[-1]
        return total

    def differentiated(self, x: Any) -> Any:
        tree, values = x

        def inner(start: Any) -> Any:
            return self.visit(tree) * self.states(values, initial=start)[-1]

        return ab.value_and_grad(inner)(ab.tanh(self.start))[1]


def test_recursions_work_in_rounds_and_under_derivatives() -> None:
    model = Awaiting()
    rng = np.random.default_rng(0)

    def tree(depth: int) -> dict[str, Any]:
        below = [tree(depth - 1) for _ in range(int(rng.integers(1, 3)))] if depth else []
        return {"value": float(rng.standard_normal()), "children": below}

    instances = [(tree(k % 4), rng.standard_normal(1 + k).tolist()) for k in range(8)]
    found = ab.batched(model.waiting, module=model)(instances)
    assert np.allclose(found, [ab.eager(model.waiting, x) for x in instances], rtol=1e-12)
    found = ab.batched(model.differentiated, module=model)(instances)
    assert np.allclose(found, [model.differentiated(x) for x in instances], rtol=1e-12)
