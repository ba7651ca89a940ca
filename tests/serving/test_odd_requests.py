"""Test requests whose results differ from all others: each is answered as if it were alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from helpers.programs.waiting_programs import Model

WAIT = 60.0
SHAPES = [(), (1,), (2,), (3,), (2, 3), (3, 2), (1, 1, 2)]


class Odd(Model):
    """Programs whose result has the shape, dtype and structure that the request asks for."""

    @ab.cell
    def half(self, x: Any) -> Any:
        return 0.5 * x

    @ab.cell
    def best(self, x: Any) -> Any:
        return ab.argmax(x)

    def run(self, request: tuple[str, Any]) -> Any:
        what, x = request
        value, choice = self.half(x), self.best(np.ravel(x))
        results: dict[str, Callable[[], Any]] = {
            "value": lambda: value,
            "int": lambda: choice,
            "constant": lambda: 3,
            "text": lambda: "three",
            "nothing": lambda: None,
            "array": lambda: np.asarray(x),
            "tuple": lambda: (value, self.half(value), choice),
            "short tuple": lambda: (value,),
            "swapped": lambda: (choice, value),
            "dict": lambda: {"a": value, "b": [choice, value]},
            "other dict": lambda: {"b": value},
            "list": lambda: [value] * len(np.shape(x)),
        }
        return results[what]()

    async def wait(self, request: tuple[str, Any]) -> Any:
        await ab.value(self.half(np.sum(request[1])))
        return self.run(request)


KINDS = (
    "value", "int", "constant", "text", "nothing", "array", "tuple", "short tuple", "swapped", "dict", "other dict",
    "list",
)  # fmt: skip


def draw(rng: np.random.Generator, n: int) -> list[tuple[str, Any]]:
    def shape() -> tuple[int, ...]:
        return SHAPES[int(rng.integers(len(SHAPES)))]

    return [(str(rng.choice(KINDS)), rng.standard_normal(shape())) for _ in range(n)]


def check(found: Any, expected: Any) -> None:
    assert type(found) is type(expected) or isinstance(expected, (int, float, np.ndarray, np.number))
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = [*found.values()], [*expected.values()]
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check(one, other)
    elif isinstance(expected, (int, float, np.ndarray, np.number)):
        assert np.shape(found) == np.shape(expected)
        assert np.asarray(found).dtype.kind == np.asarray(expected).dtype.kind or isinstance(expected, int)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    else:
        assert found == expected


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_result_is_a_rule_for_another(seed: int, is_async: bool) -> None:
    model, requests = Odd(), draw(np.random.default_rng(seed), 40)
    expected = [ab.eager(model.run, request) for request in requests]
    with ab.serve(model.wait if is_async else model.run, backend="reference", max_running=5) as server:
        for request, value in zip(requests[:5], expected, strict=False):
            check(server.submit(request).result(WAIT), value)
        futures = [server.submit(request) for request in requests]
        for future, value in zip(futures, expected, strict=True):
            check(future.result(WAIT), value)
    assert server.explain().failed == 0


@pytest.mark.parametrize("seed", range(3))
def test_no_item_of_a_stream_is_a_rule_for_another(seed: int) -> None:
    model, requests = Odd(), draw(np.random.default_rng(seed), 12)

    async def run(requests: list[tuple[str, Any]]) -> Any:
        for _, x in requests:
            yield await ab.value(model.half(x))

    async def main() -> list[list[Any]]:
        async def items(server: Any, own: list[tuple[str, Any]]) -> list[Any]:
            return [item async for item in server.stream(own)]

        async with ab.serve(run, module=model, backend="reference") as server:
            return await asyncio.gather(*(items(server, requests[k:]) for k in range(6)))

    for k, found in enumerate(asyncio.run(main())):
        check(found, [0.5 * x for _, x in requests[k:]])


@pytest.mark.parametrize("seed", range(3))
def test_no_mini_batch_is_a_rule_for_the_next(seed: int) -> None:
    """Stacked values have one shape within a mini-batch, but the next mini-batch may have another."""
    model = Odd()
    run = ab.batched(model.run, backend="reference")
    for what, x in draw(np.random.default_rng(seed), 20):
        if what in ("value", "tuple", "swapped", "dict"):
            instances = [(what, x + k) for k in range(3)]
            found = run(instances)
            parts = [found] if what == "value" else [*found.values()] if what == "dict" else [*found]
            for k, instance in enumerate(instances):
                alone = ab.eager(model.run, instance)
                own = [alone] if what == "value" else [*alone.values()] if what == "dict" else [*alone]
                check([part[k] for part in parts], own)
    with pytest.raises(ab.ShapeError, match=r"its result .* got shape \(2,\) for one instance and \(3,\) for another"):
        run([("value", np.ones(2)), ("value", np.ones(3))])


def test_losses_of_ints_and_floats_are_refused_together() -> None:
    model = Odd()

    def loss(x: Any) -> Any:
        return model.total(x) if x[0] > 0 else model.best(x)

    run = ab.batched(loss, module=model, backend="reference")
    assert run.value_and_grad([np.ones(3)])[0] == 3
    with pytest.raises(ab.ShapeError, match=r"got shape \(\) for one instance and \(\) of int64 for another"):
        run.value_and_grad([np.ones(3), -np.ones(3)])
