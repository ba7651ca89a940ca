"""Test programs that raise anything anywhere: only their own request fails, and items of others come once."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import ServingError
from helpers.programs.waiting_programs import Model

WAIT = 60.0


class Strange(BaseException):
    """An error that does not derive from `Exception`."""


UNUSUAL = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), concurrent.futures.CancelledError(),
           GeneratorExit(), StopIteration(), Strange()]  # fmt: skip
USUAL = [ZeroDivisionError(), TimeoutError(), concurrent.futures.InvalidStateError(), MemoryError(), RecursionError()]


class Raising(Model):
    """A program that raises an error where the request says."""

    error: Any = None

    @ab.cell
    def broken(self, x: Any) -> Any:
        raise self.error

    def run(self, where: str) -> Any:
        x = self.turn(np.ones(3))
        if where == "at once":
            raise self.error
        return self.broken(x) if where == "in a cell" else self.total(x)

    async def branch(self, where: str) -> Any:
        x = self.turn(np.ones(3))
        await ab.value(self.total(x))
        if where == "in a branch":
            raise self.error
        return self.run(where)

    async def wait(self, where: str) -> Any:
        try:
            if where == "before waiting":
                raise self.error
            found = await ab.gather(self.branch(""), self.branch(where))
            if where == "after waiting":
                raise self.error
            return found
        finally:
            if where == "at the end":
                raise self.error

    async def items(self, where: str) -> Any:
        for k in range(4):
            yield k
            await ab.value(self.total(np.ones(3)))
            if k == 2:
                await self.branch(where)


def check_alone(server: Any, where: str, error: BaseException) -> None:
    futures = [server.submit(x) for x in ("", where, "", where, "")]
    for future in (*futures[::2], server.submit("")):
        assert np.isfinite(future.result(WAIT)).all()
    for future in futures[1::2]:
        found = future.exception(WAIT)
        if isinstance(error, Exception) and error not in UNUSUAL:
            assert isinstance(found, (type(error), ab.GraphError))
        elif isinstance(found, ServingError):
            assert f"the program of the request raised {error!r}" in str(found)
            assert found.__cause__ is error
        else:  # a coroutine cannot raise StopIteration
            assert isinstance(found, RuntimeError)


@pytest.mark.parametrize("error", [*UNUSUAL, *USUAL], ids=lambda x: f"{type(x).__module__}.{type(x).__name__}")
def test_any_error_is_that_of_one_request(error: BaseException) -> None:
    model = Raising()
    model.error = error
    with ab.serve(model.run, module=model, backend="reference") as server:
        for where in ("at once", "in a cell"):
            check_alone(server, where, error)
    with ab.serve(model.wait, module=model, backend="reference") as server:
        for where in ("before waiting", "in a branch", "after waiting", "at the end", "at once", "in a cell"):
            check_alone(server, where, error)
    with ab.serve(model.items, module=model, backend="reference") as server:
        for where in ("in a branch", "at once", "in a cell"):
            check_alone(server, where, error)


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(1)])
def test_a_callback_that_raises_ends_nothing(error: BaseException) -> None:
    def fail(future: Any) -> None:
        raise error

    with ab.serve(Model().total, backend="reference") as server:
        future = server.submit(np.ones(2))
        future.add_done_callback(fail)
        assert future.result(WAIT) == 2
        assert server.submit(np.ones(3)).result(WAIT) == 3


@pytest.mark.parametrize("error", UNUSUAL, ids=lambda x: f"{type(x).__module__}.{type(x).__name__}")
def test_an_awaiting_caller_gets_the_error_too(error: BaseException) -> None:
    model = Raising()
    model.error = error

    async def main() -> Any:
        async with ab.serve(model.run, module=model, backend="reference") as server:
            return await asyncio.gather(*(server(x) for x in ("", "at once", "")), return_exceptions=True)

    found = asyncio.run(main())
    assert found[0] == found[2]
    assert isinstance(found[1], ServingError)


class Streams(Raising):
    """A generator whose requests set the number of items, and where it fails or exceeds memory."""

    @ab.cell
    def big(self, x: Any, y: Any) -> Any:
        return ab.sum(y) * ab.sum(x)

    async def stream(self, request: tuple[int, int | None, str]) -> Any:
        n, at, how = request
        x: Any = np.ones(3)
        for k in range(n):
            x = self.turn(x)
            yield k, round(float(await ab.value(self.total(x))), 9)
            if k == at:
                await (ab.value(self.big(x, np.ones(200_000))) if how == "too big" else self.branch(how))


@pytest.mark.parametrize("seed", range(5))
def test_items_come_once_whatever_others_do(seed: int) -> None:
    rng, model = np.random.default_rng(seed), Streams()
    model.error = [Strange(), ZeroDivisionError()][seed % 2]
    requests = list[tuple[int, int | None, str]]()
    for _ in range(10):
        n, how = int(rng.integers(0, 9)), str(rng.choice(["", "", "too big", "in a branch", "in a cell"]))
        requests.append((n, int(rng.integers(n)) if n and how else None, how))

    async def main() -> list[list[Any]]:
        async with ab.serve(
            model.stream, module=model, backend="reference", max_bytes=100_000, max_running=int(rng.integers(2, 8))
        ) as server:

            async def items(request: Any) -> list[Any]:
                found = list[Any]()
                try:
                    async for item in server.stream(request):
                        found.append(item)
                except Exception as error:
                    found.append(type(error))
                return found

            return await asyncio.gather(*map(items, requests))

    everything = [ab.eager(model.total, x) for x in _turned(model, 8)]
    for (n, at, _), found in zip(requests, asyncio.run(main()), strict=True):
        n_items = n if at is None else at + 1
        assert [k for k, _ in found[:n_items]] == list(range(n_items))
        np.testing.assert_allclose([x for _, x in found[:n_items]], everything[:n_items], atol=1e-8)
        assert len(found) == n_items + (at is not None)


def _turned(model: Streams, n: int) -> list[Any]:
    found, x = list[Any](), np.ones(3)
    for _ in range(n):
        x = ab.eager(model.turn, x)
        found.append(x)
    return found
