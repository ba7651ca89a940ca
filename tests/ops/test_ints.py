"""Test ints that cells compute: equal to torch on every backend, independent of batching, refused out of range."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.errors import GraphError, ShapeError
from autobatch.ops.define import MOST_INTS
from helpers.runs.ways import each
from host_device import HostDevice

BACKENDS: list[Callable[[], Any]] = [lambda: Reference(poison=True), lambda: Cpu(poison=True)]
if shutil.which("g++") is not None:
    BACKENDS.append(lambda: Cuda(poison=True, device=HostDevice()))
CHOICES = 5


class Chooser(ab.Module):
    """Cells that choose in every way, from computed and from given scores."""

    def __init__(self, dtype: str = "float64") -> None:
        self.scale = ab.Parameter(np.ones(CHOICES))
        self.names = ab.Parameter(np.random.default_rng(3).standard_normal((CHOICES, 2)))
        self.astype(dtype)

    @ab.cell
    def choose(self, x: Any, rows: Any) -> Any:
        best, places = ab.top_k(x * self.scale, 3)
        return ab.argmax(x * self.scale), ab.argmax(x), ab.argmax(rows), ab.argmax(rows, axis=1), best, places

    @ab.cell
    def draw(self, x: Any, rows: Any) -> Any:
        return ab.categorical(x), ab.categorical(x * self.scale), ab.categorical(rows)

    @ab.cell
    def name(self, word: Any, words: Any) -> Any:
        return ab.lookup(self.names, word), ab.lookup(self.names, words)

    def chosen(self, item: Any) -> Any:
        return self.choose(*item)

    def drawn(self, item: Any) -> Any:
        first, again, others = self.draw(*item)
        return first, again, others, self.draw(*item)[0], self.name(again, others)

    @ab.cell
    def scaled(self, x: Any) -> Any:
        return self.scale * x

    @ab.cell
    def weigh(self, x: Any, word: Any) -> Any:
        return 0.5 * word + ab.sum(x) * (word == 2)

    def weighed(self, x: Any) -> Any:
        h = self.scaled(x)
        return self.weigh(h, ab.argmax(h))

    def both(self, item: Any) -> Any:
        word, _, _, _, _, places = self.choose(*item)
        return self.name(word, places)


def draw_items(kind: str, n: int = 6) -> list[Any]:
    rng = np.random.default_rng(0)
    items = [(rng.standard_normal(CHOICES), rng.standard_normal((3, CHOICES))) for _ in range(n)]
    match kind:
        case "ties":
            return [tuple(np.round(x) for x in item) for item in items]
        case "nan":
            return [tuple(np.where(rng.random(x.shape) < 0.3, np.nan, x) for x in item) for item in items]
        case "infinite":
            return [tuple(np.where(rng.random(x.shape) < 0.6, -np.inf, x) for x in item) for item in items]
    return items


def expected(item: Any) -> list[Any]:
    """Return torch's choices; its sort can be stable, and treats NaN as the largest."""
    x, rows = map(torch.as_tensor, item)
    values, places = x.sort(descending=True, stable=True)
    return [
        np.asarray(part) for part in (x.argmax(), x.argmax(), rows.argmax(), rows.argmax(1), values[:3], places[:3])
    ]


@each("kind", ["plain", "ties", "nan", "infinite"])
def test_choices_are_torchs(kind: str) -> None:
    model, items = Chooser(), draw_items(kind)
    wanted = [np.stack(parts) for parts in zip(*map(expected, items), strict=True)]
    for make in BACKENDS:
        for found, other in zip(ab.batched(model.chosen, backend=make())(items), wanted, strict=True):
            np.testing.assert_array_equal(found, other)
            assert found.dtype == other.dtype
    for part, eager in zip(wanted, zip(*map(model.chosen, items), strict=True), strict=True):
        np.testing.assert_array_equal(part, np.stack(eager))
        assert np.stack(eager).dtype == part.dtype


@each("make", BACKENDS)
def test_another_node_looks_up_what_a_node_chose(make: Any) -> None:
    model, items = Chooser(), draw_items("ties")
    found = ab.batched(model.both, backend=make())(items)
    for one, choice in zip(found, (0, 5), strict=True):
        words = np.stack([expected(item)[choice] for item in items])
        np.testing.assert_array_equal(one, model.names.data[words])


@each("dtype", ["float32", "float64"])
def test_draws_are_the_same_however_they_are_batched(dtype: str) -> None:
    model, items = Chooser(dtype), draw_items("plain", 9)
    wanted = []
    for key, item in enumerate(items):
        with ab.randomness(seed=5, key=key):
            wanted.append(model.drawn(item))
    for make in BACKENDS:
        for policy in ("unbatched", "agenda", "depth"):
            run = ab.batched(model.drawn, backend=make(), policy=policy, seed=5)
            *words, _ = run(items)
            for number, part in enumerate(words):
                np.testing.assert_array_equal(part, np.stack([other[number] for other in wanted]))
        graphs = run.record_all(items)
        np.testing.assert_array_equal(run(graphs[4:7])[2], np.stack([other[2] for other in wanted[4:7]]))
    assert len({tuple(map(int, others)) for _, _, others, *_ in wanted}) > 1
    assert any(first != again for first, _, _, again, _ in wanted)


def test_draws_have_the_distribution_of_the_softmax() -> None:
    logits, n = np.array([0.5, -1.0, 2.0, -np.inf, 0.0, 1.5]), 20_000
    draw = ab.cell(lambda x: ab.categorical(x))
    words = ab.batched(lambda x: draw(x), module=Chooser(), backend="reference", seed=1)([logits] * n)
    share = np.exp(logits) / np.exp(logits).sum()
    counts = np.bincount(words, minlength=logits.size)
    assert counts[3] == 0
    possible = share > 0
    statistic = ((counts - n * share)[possible] ** 2 / (n * share)[possible]).sum()
    assert statistic < 18.5  # the 0.999 quantile of chi-square with 4 degrees of freedom


def test_ints_are_numbers_in_arithmetic_and_let_no_gradient_pass() -> None:
    items = [np.array([0.0, 1.0, 3.0, 2.0, 1.0]), np.array([5.0, 1.0, 3.0, 2.0, 1.0])]
    for make in BACKENDS:
        model = Chooser()
        value, grads = ab.batched(model.weighed, backend=make()).value_and_grad(items, reduce="sum")
        assert float(value) == 1.0 + 7.0 == sum(map(model.weighed, items))
        np.testing.assert_allclose(grads["scale"], items[0])


def refuse(kind: type[Exception], text: str, body: Callable[..., Any], *values: Any) -> None:
    with pytest.raises(kind, match=text):
        ab.batched(lambda item: ab.cell(body)(*item), module=Chooser())([values])


def test_ids_out_of_range_are_refused_when_a_cell_is_traced() -> None:
    x, table = np.zeros(4), np.zeros((3, 2))
    refuse(ShapeError, r"lookup takes ids in 0..2, but these are computed by a cell and in 0..3",
           lambda x, t: ab.lookup(t, ab.argmax(x)), x, table)  # fmt: skip
    refuse(
        ShapeError, "cross_entropy takes ids in 0..2", lambda x, t: ab.cross_entropy(t[:, 0], ab.argmax(x)), x, table
    )
    refuse(GraphError, "results of ab.argmax, ab.top_k or ab.categorical",
           lambda x, t: ab.lookup(t, ab.argmax(x) + 1), x, table)  # fmt: skip


def test_more_choices_than_floats_tell_apart_are_refused() -> None:
    many = np.broadcast_to(np.zeros((), np.float32), MOST_INTS + 1)
    with pytest.raises(ShapeError, match="at most 16777216 elements, got 16777217"):
        ab.argmax(many)


def test_a_place_of_the_result_is_ints_or_floats() -> None:
    choose = ab.cell(lambda x: (ab.argmax(x), ab.sum(x)))
    with pytest.raises(ShapeError, match=r"got shape \(\) of int64 for one instance and \(\) for another"):
        ab.batched(lambda x: choose(x)[int(x[0] > 0)], module=Chooser())([np.zeros(2), np.ones(2)])
    found = ab.batched(lambda x: [choose(x)[int(x[0] > 0)]], module=Chooser())([np.zeros(2), np.ones(2)])
    assert [(part.dtype.kind, float(part)) for (part,) in found] == [("i", 0.0), ("f", 2.0)]
