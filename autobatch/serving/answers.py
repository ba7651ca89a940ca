"""Answers to requests over HTTP: instances are read and results written in threads, a few at a time.

So neither the event loop, which says that the process lives, nor a small request waits for a large one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import fields, is_dataclass
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from autobatch.errors import DataError
from autobatch.serving.refusals import Refusal, refusal_of
from autobatch.serving.server import Server

T = TypeVar("T")
U = TypeVar("U")

N_THREADS = 2
AT_A_TIME = 16  # instances of one request that a thread reads or writes before it looks at other requests


class Instance(NamedTuple):
    """An instance: as `write` takes it, and as the function does."""

    read: Any
    given: Any


class Computed(NamedTuple):
    """An instance, or why it cannot be read; its result, or an error; and when the request began."""

    instance: Instance | Refusal
    result: Any
    began: float


class Answers:
    """Reads instances, has them computed, and writes results.

    Args:
        server, read, given, write, deadline: see `autobatch.serving.app`.
        count: is called with the status of every answer, and the seconds that it took.
    """

    def __init__(
        self, server: Server, read: Callable[[Any], Any], given: Callable[[Any], Any],
        write: Callable[[Any, Any], Any], deadline: float | None, count: Callable[[int, float], None],
    ) -> None:  # fmt: skip
        self._server, self._read, self._given, self._write = server, read, given, write
        self._deadline, self._count = deadline, count
        self._threads = ThreadPoolExecutor(N_THREADS, "autobatch instances")

    def close(self) -> None:
        """End the threads when they are done."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, given: Sequence[Any]) -> list[Instance | Refusal]:
        """Read instances; each is one, or how the error of reading it is answered."""
        return await self._in_threads(self._read_one, given)

    async def one(self, instance: Instance | Refusal) -> Any:
        """The result of an instance, as JSON holds it.

        Raises:
            Refusal: there is none.
        """
        found = (await self.several([instance]))[0]
        if isinstance(found, Refusal):
            raise found
        return found

    async def several(self, instances: Sequence[Instance | Refusal]) -> list[Any]:
        """The results of instances, or how their errors are answered."""
        computed = await asyncio.gather(*map(self._compute, instances))
        return await self._in_threads(self._write_one, computed)

    async def items(self, instance: Instance) -> AsyncIterator[Any]:
        """The items that an async generator yields, as JSON holds them; the last one may be a Refusal."""
        began, status = perf_counter(), 200
        try:
            async with aclosing(self._server.stream(instance.given, self._deadline)) as items:
                async for item in items:
                    yield to_json(item)
        except Exception as error:  # the head of the answer is sent already
            refusal = refusal_of(error)
            status = refusal.status
            yield refusal
        self._count(status, perf_counter() - began)

    async def _in_threads(self, function: Callable[[T], U], given: Sequence[T]) -> list[U]:
        loop, found = asyncio.get_running_loop(), list[U]()
        for first in range(0, len(given), AT_A_TIME):
            some = given[first : first + AT_A_TIME]
            found += await loop.run_in_executor(self._threads, _each, function, some)
        return found

    def _read_one(self, x: Any) -> Instance | Refusal:
        if isinstance(x, Refusal):
            return x
        try:
            instance = self._read(x)
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            return refusal_of(DataError(f"cannot read the instance ({type(error).__name__}: {error})."))
        except BaseException as error:
            return refusal_of(error)
        try:
            return Instance(instance, self._given(instance))
        except BaseException as error:
            return refusal_of(error)

    async def _compute(self, instance: Instance | Refusal) -> Computed:
        began = perf_counter()
        if isinstance(instance, Refusal):
            return Computed(instance, instance, began)
        try:
            return Computed(instance, await self._server(instance.given, self._deadline), began)
        except Exception as error:
            return Computed(instance, refusal_of(error), began)

    def _write_one(self, computed: Computed) -> Any:
        instance, found, began = computed
        if isinstance(instance, Instance) and not isinstance(found, Refusal):
            try:
                found = to_json(self._write(instance.read, found))
            except BaseException as error:
                found = refusal_of(error)
        self._count(found.status if isinstance(found, Refusal) else 200, perf_counter() - began)
        return found


def _each(function: Callable[[T], U], given: Iterable[T]) -> list[U]:
    return [function(x) for x in given]


def outcome(found: Any) -> dict[str, Any]:
    """One of several results, or its error, as JSON holds it."""
    return {"error": str(found), "status": found.status} if isinstance(found, Refusal) else {"result": found}


def to_json(x: Any) -> Any:
    """What JSON can hold of a result: arrays and tensors as lists, dataclasses as objects, NaN and infinity as null."""
    if is_dataclass(x) and not isinstance(x, type):
        return {field.name: to_json(getattr(x, field.name)) for field in fields(x)}
    if isinstance(x, Mapping):
        return {str(key): to_json(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [to_json(value) for value in x]
    if isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "detach"):
        return to_json(x.tolist())
    if isinstance(x, float) and not np.isfinite(x):
        return None
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    raise DataError(f"a result holds {x!r} ({type(x).__name__}), which JSON cannot; give the application a write=.")
