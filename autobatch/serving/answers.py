"""Answers to HTTP requests: threads read instances and write results, a few at a time.

A large request therefore delays neither small requests nor the event loop, which answers health checks. A refusal is an
error response: a status and a sentence.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from autobatch.errors import AutobatchError, DataError, DeadlineError, ServingError
from autobatch.serving.server import Server
from autobatch.system.nested_json import to_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LOG = logging.getLogger("autobatch.serve")


class Refusal(Exception):
    """A request that is answered with an error.

    Args:
        status: the HTTP status.
        sentence: the reason.
        headers: additional headers of the response.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, dict(headers or {})


def refusal_of(error: BaseException) -> Refusal:
    """Convert an error of an instance to a refusal, without the source line that the error quotes.

    Errors from outside autobatch are logged instead of shown.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, DeadlineError):
        return Refusal(504, str(error))
    # A ServingError with a cause stands for the error of a program, see `autobatch.serving.server`; any other one is
    # the server's own, such as that it is full.
    if isinstance(error, ServingError) and error.__cause__ is None:
        return Refusal(503, str(error), {"Retry-After": "1"})
    if isinstance(error, AutobatchError) and not isinstance(error, ServingError):
        return Refusal(422, str(error).replace(error._line, ""))
    raised = error.__cause__ if isinstance(error, ServingError) else error
    LOG.error("the model failed on an instance.", exc_info=error)
    return Refusal(500, f"the model failed on the instance ({type(raised).__name__}).")


def refused(refusal: Refusal) -> Response:
    """Return the response to a refused request."""
    from starlette.responses import JSONResponse

    return JSONResponse({"error": str(refusal)}, refusal.status, refusal.headers)


async def refuse(request: Request, error: Exception) -> Response:
    """Answer a refused request, as an exception handler of Starlette."""
    assert isinstance(error, Refusal)
    return refused(error)


async def fail(request: Request, error: Exception) -> Response:
    """Answer a request on which the application failed, as an exception handler of Starlette."""
    return refused(Refusal(500, "the server failed; its log says why."))


T = TypeVar("T")
U = TypeVar("U")

N_THREADS = 2
AT_A_TIME = 16  # instances of one request that a thread reads or writes before it turns to other requests


class Instance(NamedTuple):
    """An instance: the form for `write`, and the form for the function."""

    read: Any
    given: Any


class Asked(NamedTuple):
    """A request for the result of one instance.

    Attributes:
        instance: the instance, or the error of reading it.
        result: the future of its result, or the error of submitting it.
        began: the start time of the request.
    """

    instance: Instance | Refusal
    result: Future[Any] | Refusal
    began: float


class Answers:
    """Reads instances, submits them and writes results.

    Args:
        server, read, given, write, deadline: see `autobatch.serving.app`.
        count: called with the status and the seconds of every answer.
    """

    def __init__(
        self, server: Server, read: Callable[[Any], Any], given: Callable[[Any], Any],
        write: Callable[[Any, Any], Any], deadline: float | None, count: Callable[[int, float], None],
    ) -> None:  # fmt: skip
        self._server, self._read, self._given, self._write = server, read, given, write
        self._deadline, self._count = deadline, count
        self._threads = ThreadPoolExecutor(N_THREADS, "autobatch instances")

    def close(self) -> None:
        """Shut the threads down without waiting; calls that have not started are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, given: Sequence[Any]) -> list[Instance | Refusal]:
        """Read instances; return each, or the refusal of one that cannot be read."""
        return await self._in_threads(self._read_one, given)

    async def one(self, instance: Instance | Refusal) -> str:
        """Return the result of an instance as JSON.

        Raises:
            Refusal: the instance failed.
        """
        (found,) = await self.several([instance])
        if isinstance(found, Refusal):
            raise found
        return found

    async def several(self, instances: Sequence[Instance | Refusal]) -> list[str | Refusal]:
        """Return the results of instances as JSON, or their refusals."""
        began, futures, is_over = perf_counter(), list[Future[Any]](), False

        def submit(instance: Instance | Refusal) -> Future[Any] | Refusal:
            result = self._submit(instance)
            if isinstance(result, Future):
                # Appended before `is_over` is read, and below, `is_over` is set before the futures are copied. So every
                # future is cancelled here or there.
                futures.append(result)
                if is_over:  # the caller was cancelled while this thread was still submitting
                    result.cancel()
            return result

        try:
            results = await self._in_threads(submit, instances)
            await _all_done(futures)
        finally:
            is_over = True
            for future in [*futures]:  # no effect unless this was cancelled, as when the client has disconnected
                future.cancel()
        asked = [Asked(*both, began) for both in zip(instances, results, strict=True)]
        return await self._in_threads(self._write_one, asked)

    async def items(self, instance: Instance) -> AsyncIterator[Any]:
        """Yield the items of an async generator as JSON values; the last one may be a Refusal."""
        began, status = perf_counter(), 200
        try:
            async with aclosing(self._server.stream(instance.given, self._deadline)) as items:
                async for item in items:
                    yield to_json(item)
        except Exception as error:  # the response head has already been sent
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

    def _submit(self, instance: Instance | Refusal) -> Future[Any] | Refusal:
        if isinstance(instance, Refusal):
            return instance
        try:
            return self._server.submit(instance.given, self._deadline)
        except BaseException as error:
            return refusal_of(error)

    def _write_one(self, asked: Asked) -> str | Refusal:
        instance, result, began = asked
        found: str | Refusal
        try:
            if isinstance(instance, Refusal):
                found = instance
            elif isinstance(result, Refusal):
                found = result
            else:
                found = json.dumps(to_json(self._write(instance.read, result.result())))
        except BaseException as error:
            found = refusal_of(error)
        self._count(found.status if isinstance(found, Refusal) else 200, perf_counter() - began)
        return found


async def _all_done(futures: Sequence[Future[Any]]) -> None:
    """Wait until all futures are done; wake the event loop only once."""
    loop, lock, left = asyncio.get_running_loop(), Lock(), len(futures)
    done = loop.create_future()

    def wake() -> None:
        if not done.done():  # it was cancelled if its request was
            done.set_result(None)

    def count(future: Future[Any]) -> None:
        nonlocal left
        with lock:  # several threads set results
            left -= 1
            is_last = not left
        if is_last:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(wake)

    for future in futures:
        future.add_done_callback(count)
    if futures:
        await done


def _each(function: Callable[[T], U], given: Iterable[T]) -> list[U]:
    return [function(x) for x in given]


def outcome(found: str | Refusal) -> str:
    """Return one of several results, or its error, as JSON."""
    if isinstance(found, Refusal):
        return json.dumps({"error": str(found), "status": found.status})
    return f'{{"result": {found}}}'
