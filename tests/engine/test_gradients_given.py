"""Test gradients to add to, passed as `out=`: correct for any memory layout, or refused with one sentence."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.graph.rewrite import UNSHARED
from helpers.checkers.refusals import refused
from helpers.runs.ways import each

BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": Reference,
    "cpu": Cpu,
}


class Net(ab.Module):
    """Three matrices that planning makes adjacent and one that it does not, a bias, a scalar and a table."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.first, self.left, self.right = (ab.Parameter(rng.standard_normal((4, 3))) for _ in range(3))
        self.alone = ab.Parameter(rng.standard_normal((2, 4)))
        self.bias = ab.Parameter(rng.standard_normal(4))
        self.factor = ab.Parameter(0.5)
        self.table = ab.Parameter(rng.standard_normal((5, 3)))
        self.astype("float64")

    @ab.cell
    def score(self, word: int) -> Any:
        x = ab.lookup(self.table, word)
        gates = ab.tanh(self.left @ x) * ab.sigmoid(self.right @ x)
        return ab.sum(self.alone @ ((self.first @ x + self.bias) * gates)) * self.factor

    def loss(self, words: list[int]) -> Any:
        return ab.sum_n([self.score(word) for word in words])


def strided(array: Any) -> Any:
    """Return every second element along each axis of a larger array."""
    larger = np.full([2 * n for n in array.shape], np.nan, array.dtype)
    index: tuple[Any, ...] = (slice(None, None, 2),) * array.ndim
    view = larger[(*index, ...)]
    view[...] = array
    return view


def unaligned(array: Any) -> Any:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    view = np.ndarray(array.shape, array.dtype, memory, offset=1)
    view[...] = array
    return view


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "as they come": np.array,
    "by columns": lambda array: np.array(array, order="F"),
    "strided": strided,
    "rows apart": lambda array: np.concatenate([array, array], -1)[..., : array.shape[-1]] if array.ndim else array,
    "backwards": lambda array: np.array(array[::-1])[::-1] if array.ndim else np.array(array),
    "unaligned": unaligned,
    "a subclass": lambda array: np.array(array).view(np.ma.MaskedArray),
}


@pytest.mark.slow
@each("n", [1, 64])
@each("max_bytes", [None, 12_000])
@each("backend", BACKENDS)
def test_gradients_are_added_wherever_they_are(backend: str, max_bytes: int | None, n: int) -> None:
    model, batch = Net(), [[1, 2], [4]] * n
    run = ab.batched(model.loss, backend=BACKENDS[backend](), max_bytes=max_bytes, rewrites=UNSHARED)
    wanted = {k: np.asarray(g) for k, g in ab.batched(model.loss, backend="reference").value_and_grad(batch)[1].items()}
    for layout in LAYOUTS.values():
        given = {name: layout(np.full(gradient.shape, 2.0)) for name, gradient in wanted.items()}
        kept = dict(given)
        _, returned = run.value_and_grad(batch, out=given)
        assert returned is given
        for name, gradient in wanted.items():
            assert given[name] is kept[name]
            np.testing.assert_allclose(np.asarray(given[name]), 2.0 + gradient, rtol=1e-12, atol=1e-12)
    assert run.last is not None
    assert (run.last.parts > 1) == (max_bytes is not None and n > 1)


def test_nothing_around_strided_gradients_is_written() -> None:
    run = ab.batched(Net().loss, backend=Cpu())
    _, grads = run.value_and_grad([[1]])
    given = {name: strided(np.zeros(gradient.shape)) for name, gradient in grads.items()}
    run.value_and_grad([[1]], out=given)
    assert np.isnan(given["first"].base[1::2]).all()
    assert np.isnan(given["first"].base[:, 1::2]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_arrays_that_are_read_only_are_refused_and_stay(backend: str) -> None:
    run = ab.batched(Net().loss, backend=BACKENDS[backend]())
    _, grads = run.value_and_grad([[1, 2]])
    for name in grads:
        given = {key: np.zeros(gradient.shape) for key, gradient in grads.items()}
        given[name].flags.writeable = False
        with refused(ab.DataError, "out= must hold writable arrays", f"read-only one for parameter {name!r}"):
            run.value_and_grad([[1, 2]], out=given)  # type: ignore[arg-type]
        assert all(not array.any() for array in given.values())
    broadcast = {key: np.broadcast_to(0.0, gradient.shape) for key, gradient in grads.items()}
    with refused(ab.DataError, "read-only"):
        run.value_and_grad([[1, 2]], out=broadcast)  # type: ignore[arg-type]
    assert run.step == 1


@each(
    "wrong, says",
    [
        (lambda given: list(given.values()), "out= must be a dict of gradients by parameter name, got a list"),
        (lambda given: types.MappingProxyType(given), "out= must be a dict of gradients by parameter name, got a map"),
        (lambda given: given | {"bias": [0.0] * 4}, "out= has a list for parameter 'bias'"),
        (lambda given: given | {"bias": None}, "out= has a NoneType for parameter 'bias'"),
        (lambda given: given | {"bias": np.zeros(4, ">f8")}, "out= has >f8 of shape (4,) for parameter 'bias'"),
        (
            lambda given: given | {"bias": np.zeros(4, np.float32)},
            "out= has float32 of shape (4,) for parameter 'bias'",
        ),
        (lambda given: given | {"bias": np.zeros((4, 1))}, "out= has float64 of shape (4, 1) for parameter 'bias'"),
        (lambda given: given | {"more": np.zeros(4)}, "for parameter 'more', whose gradient is nothing"),
        (lambda given: {"bias": given["bias"]}, "out= has nothing for parameter 'first'"),
    ],
)
def test_what_is_no_gradient_is_refused(wrong: Callable[[Any], Any], says: str) -> None:
    run = ab.batched(Net().loss)
    _, grads = run.value_and_grad([[1, 2]])
    given = {key: np.zeros(gradient.shape) for key, gradient in grads.items()}
    with refused(ab.AutobatchError, says, "gradients that an earlier call returned"):
        run.value_and_grad([[1, 2]], out=wrong(given))
    assert all(not array.any() for array in given.values())
