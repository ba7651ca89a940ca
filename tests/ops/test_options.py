"""Test that options may be NumPy numbers and arrays: eager, batched, exported and dumped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from helpers.runs.ways import each

Make = Callable[[Any], Any]
"""Converts a Python option (an int, a float or True)."""
X = np.array([0.5, -1.5, 2.0])
SCALARS: dict[str, Make] = {
    "int64": lambda v: np.dtype(type(v)).type(v), "small": lambda v: np.min_scalar_type(v).type(v),
    "int8": lambda v: np.int8(v) if type(v) is int else np.float32(v) if type(v) is float else np.bool_(v),
    "0-d": lambda v: np.array(v) if type(v) is not bool else np.bool_(v),
}  # fmt: skip


def twice(x: Any) -> Any:
    return ab.outer(x, x + 1.0)


ONE_BY_ONE: dict[str, Callable[[Any, Make], Any]] = {
    "reshape": lambda x, i: ab.reshape(x, (i(3), 1)), "reshape to the rest": lambda x, i: ab.reshape(x, (i(-1), 1)),
    "reshape to a vector": lambda x, i: ab.reshape(x, i(3)), "sum": lambda x, i: ab.sum(twice(x), i(1), i(True)),
    "sum of axes": lambda x, i: ab.sum(twice(x), (i(0), i(1))), "mean": lambda x, i: ab.mean(twice(x), i(1), i(True)),
    "max": lambda x, i: ab.max(twice(x), i(0), i(True)), "min": lambda x, i: ab.min(twice(x), i(-1)),
    "logsumexp": lambda x, i: ab.logsumexp(twice(x), i(0), i(True)), "softmax": lambda x, i: ab.softmax(x, i(0)),
    "argmax": lambda x, i: ab.argmax(twice(x), i(1)), "log_softmax": lambda x, i: ab.log_softmax(x, i(-1)),
    "concat": lambda x, i: ab.concat([x, x], i(0)), "stack": lambda x, i: ab.stack([x, x], i(1)),
    "split": lambda x, i: ab.split(x, i(3))[1], "top_k": lambda x, i: ab.top_k(x, i(2))[0],
    "transpose": lambda x, i: ab.transpose(twice(x), (i(1), i(0))), "index": lambda x, i: x[i(1)],
    "slice": lambda x, i: x[i(0) : i(3) : i(2)], "sum_n": lambda x, i: ab.sum_n([x, x], shape=(i(3),)),
    "max_n": lambda x, i: ab.max_n([x, x], shape=i(3)), "mean_n": lambda x, i: ab.mean_n([x, x], shape=(i(3),)),
    "dot_n": lambda x, i: ab.dot_n([2.0], [x], shape=(i(3),)), "clip": lambda x, i: ab.clip(x, i(0), i(1.0)),
    "attend": lambda x, i: ab.attend(x, [x, -x], [x, x + 1.0], i(0.5), shape=i(3)),
    "layer_norm": lambda x, i: ab.layer_norm(x, x, x, i(0.125)), "leaky_relu": lambda x, i: ab.leaky_relu(x, i(0.5)),
    "elu": lambda x, i: ab.elu(x, i(0.5)), "dropout": lambda x, i: ab.dropout(x, i(0.5)),
    "normal": lambda x, i: 0.0 * ab.normal(i(3)) + ab.normal((i(3),)) * 0.0 + x,
    "x.sum": lambda x, i: x.sum(i(0)), "x.reshape": lambda x, i: x.reshape(i(3), i(1)),
}  # fmt: skip
ARRAYS: dict[str, Callable[[Any, Make], Any]] = {
    "reshape": lambda x, i: ab.reshape(x, i([3, 1])), "sum": lambda x, i: ab.sum(twice(x), i((0, 1))),
    "mean": lambda x, i: ab.mean(twice(x), i((1,))), "max": lambda x, i: ab.max(twice(x), i((0,))),
    "logsumexp": lambda x, i: ab.logsumexp(twice(x), i((0, 1))), "min": lambda x, i: ab.min(twice(x), i((0, 1))),
    "transpose": lambda x, i: ab.transpose(twice(x), i((1, 0))), "sum_n": lambda x, i: ab.sum_n([x], shape=i((3,))),
    "max_n": lambda x, i: ab.max_n([x], shape=i((3,))), "mean_n": lambda x, i: ab.mean_n([x, x], shape=i((3,))),
    "dot_n": lambda x, i: ab.dot_n([2.0], [x], shape=i((3,))),
    "attend": lambda x, i: ab.attend(x, [x], [x], 1.0, i((3,))), "normal": lambda x, i: x + 0.0 * ab.normal(i((3,))),
    "x.reshape": lambda x, i: x.reshape(i((3, 1))),
}  # fmt: skip
CALLS = [(name, apply, make) for name, apply in ONE_BY_ONE.items() for make in SCALARS.values()]
CALLS += [(name, apply, np.array) for name, apply in ARRAYS.items()]
ON_A_VALUE = {"x.sum", "x.reshape", "normal", "dropout"}
"""Methods that NumPy also has, and draws, which need a cell."""


@each("name, apply, make", CALLS)
def test_numbers_of_numpy_are_options(name: str, apply: Callable[[Any, Make], Any], make: Make, tmp_path: Path) -> None:

    class Model(ab.Module):
        def __init__(self) -> None:
            self.w = ab.Parameter(np.ones(3))
            self.eval()

        @ab.cell
        def run(self, x: Any) -> Any:
            return apply(x * self.w, make) * 1.0

    model = Model()
    run = ab.batched(model.run, backend="reference")
    expected = np.asarray(apply(X, lambda v: v)) if name not in ON_A_VALUE else None
    found = np.asarray(run([X])[0])
    ab.export(model.run, tmp_path / "model.ab", examples=[X])
    loaded = ab.load(tmp_path / "model.ab")
    ab.testing.dump(run, [X], tmp_path / "case.zip")
    ways = [model.run(X), ab.batched(loaded.run, module=loaded, backend="reference")([X])[0]]
    if expected is not None:
        between = ab.batched(lambda x: apply(x * model.w, make), module=model, backend="reference")
        ways += [expected, between([X])[0], apply(X, make)]
    for way in ways:
        assert np.shape(way) == found.shape
        np.testing.assert_allclose(way, found, rtol=1e-6)


def test_other_arrays_are_no_options() -> None:
    wrongs: tuple[Any, ...] = np.ones(1), np.array([[0]]), np.array(["a"])
    for wrong in wrongs:
        with pytest.raises(ab.ShapeError):
            ab.sum(X, axis=wrong)


def test_a_computed_scale_of_attention_is_a_factor() -> None:
    @ab.cell
    def attend(query: Any, keys: Any, scale: Any) -> Any:
        return ab.attend(query, keys, keys, scale)

    instances = [(k * X, [X] * k + [-X], np.array(0.5 * k)) for k in range(4)]
    run = ab.batched(lambda one: attend(*one), backend="reference")
    np.testing.assert_allclose(run(instances), [attend(*one) for one in instances], rtol=1e-6)


scaled = ab.ops.define_op(
    "scaled by an option",
    shape=lambda x, by: x,
    kernel=lambda xp, x, out, by: xp.multiply(x, xp.asarray(by[0] if isinstance(by, tuple) else by), out=out),
)
MIDDLE = np.ones(2000), np.where(np.arange(2000) == 1000, 5.0, 1.0)  # the text of both omits the middle
BARELY = np.array([1.0]), np.array([1.0 + 1e-9])  # the text of both is [1.]


@each("options", [MIDDLE, BARELY, [(x,) for x in BARELY], (np.array([0.0]), np.array([-0.0]))])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_arrays_as_options_are_compared_number_by_number(options: Any, backend: str) -> None:
    model: Any = ab.Module()
    model.ones = ab.Parameter(np.ones(2000))
    model.astype("float64")

    @ab.cell
    def inside(x: Any) -> Any:
        return [scaled(x * model.ones, by=by) for by in options]

    @ab.cell
    def row(x: Any) -> Any:
        return x * model.ones

    def outside(x: Any) -> Any:
        whole = row(x)
        return [scaled(whole, by=by) for by in options]

    for function in (inside, outside):
        found = ab.batched(function, module=model, backend=backend)([2.0])[0]
        for each_found, by in zip(found, options, strict=True):
            wanted = 2.0 * np.ravel(by) * np.ones(2000)
            assert np.asarray(each_found).tobytes() == wanted.tobytes()


@each("option", [lambda by: by, lambda by: (by,)])
def test_an_array_option_may_be_changed_in_place_after_the_call(option: Any) -> None:
    by, row = np.array([1.0]), ab.cell(lambda x: x * 1.0)

    def outside(k: float) -> Any:
        by[0] = k
        return scaled(row(np.ones(1)), by=option(by))

    @ab.cell
    def inside(x: Any) -> Any:
        own = np.array([2.0])
        first = scaled(x, by=option(own))
        own[0] = 3.0
        return first + scaled(x, by=option(own))

    found = ab.batched(outside, backend="reference")([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(found, [outside(k) for k in (1.0, 2.0, 3.0)])
    assert ab.batched(inside, backend="reference")([np.ones(1)])[0] == inside(np.ones(1)) == 5.0
