"""The server: requests of any thread or event loop go through one queue to one thread, which runs their programs.

A request waits in the queue until a place is free (`autobatch.serving.running`). The queue is ordered by deadline, then
by arrival, but no request is overtaken by one that arrives more than `PATIENCE` later. The future of a request is set
when its program has ended. A request that fails, is cancelled, or passes its deadline leaves its place without effect
on the others.

The first deadline starts a second thread. It fails the futures of late requests even while a program keeps the first
thread busy; the first thread then only removes requests whose futures are done.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import os
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import aclosing
from functools import partial
from inspect import isasyncgenfunction
from time import monotonic
from types import TracebackType
from typing import Any, Self

from autobatch.api import Batched, batched
from autobatch.arguments import check_int, is_number
from autobatch.errors import DataError, DeadlineError, GraphError, ServingError
from autobatch.keywords import checked, suggesting
from autobatch.schedule.schedule import Policy
from autobatch.serving.counts import Counts
from autobatch.serving.running import Running
from autobatch.system.locks import run_lock
from autobatch.trace.awaiting import holds_value

LOG = logging.getLogger("autobatch.serve")

MOST_RUNNING = 128
MOST_WAITING = 4096
PATIENCE = 2.0
"""Seconds after which a request in the queue precedes all later ones, whatever their deadlines are."""


class CancellableFuture(Future[Any]):
    """A future that reports its cancellation; this costs less than a callback, which every future would call.

    Args:
        on_cancel: called after it was cancelled.
    """

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        super().__init__()
        self._on_cancel = on_cancel

    def cancel(self) -> bool:
        try:
            return super().cancel()
        finally:  # a done callback may raise a SystemExit
            if self.cancelled():
                self._on_cancel()


class Request:
    """A request: its instance, and the future of its result.

    Attributes:
        number: its number, in the order of arrival.
        deadline, arrived, begun: times of `time.monotonic`; a request begins when it has a place.
        urgent: the key that orders the queue, a time.
    """

    __slots__ = ("arrived", "begun", "deadline", "future", "instance", "number", "urgent")

    def __init__(self, number: int, instance: Any, deadline: float, on_cancel: Callable[[], None]) -> None:
        self.number, self.instance, self.deadline, self.arrived = number, instance, deadline, monotonic()
        self.begun, self.urgent = self.arrived, min(deadline, self.arrived + PATIENCE)
        self.future = CancellableFuture(on_cancel)

    def finish(self, result: Any) -> None:
        """Set the result, unless the request is over."""
        self._set(self.future.set_result, result)

    def fail(self, error: BaseException) -> None:
        """Set the error, unless the request is over."""
        self._set(self.future.set_exception, _passable(error))

    def be_late(self) -> None:
        """Fail the request because of its deadline, unless it is over."""
        self.fail(DeadlineError(f"the deadline of request {self.number} passed before it was done."))

    def _set(self, put: Callable[[Any], None], outcome: Any) -> None:
        try:
            put(outcome)
        except InvalidStateError:  # its deadline has passed, or it was cancelled
            pass
        except BaseException as error:  # such as SystemExit raised by a done callback
            LOG.error("a callback of a request failed.", exc_info=error)

    def leave(self) -> None:
        """Notify waiters if the request was cancelled."""
        if self.future.cancelled():
            self.future.set_running_or_notify_cancel()


def _passable(error: BaseException) -> BaseException:
    """Return the error, or a ServingError caused by it that is safe to set on a future and to raise in a reader."""
    if isinstance(error, Exception) and not isinstance(error, (StopIteration, CancelledError)):
        return error
    found = ServingError(f"the program of the request raised {error!r}.")
    found.__cause__ = error
    return found


class Streamed:
    """An instance for an async generator.

    Args:
        instance: the instance.
        put: receives each item; None to only return them all at the end.

    Attributes:
        n_put: the number of items passed to `put`; a rerun program skips these.
    """

    def __init__(self, instance: Any, put: Callable[[Any], None] | None) -> None:
        self.instance, self.put, self.n_put = instance, put, 0


END: Any = object()


class Server:
    """A server of a function: requests join the running mini-batch, and leave it when they are done.

    Use `serve` to make one. Thread-safe. As a context manager it closes at the end of the context, after all accepted
    requests are done.
    """

    @checked()
    def __init__(self, batched: Batched, max_running: int, max_waiting: int) -> None:
        function = batched.recorder.function
        self._streams = isasyncgenfunction(function) or isasyncgenfunction(type(function).__call__)
        batched = batched.of_programs(_as_program)
        self._engine, self._n_places, self._max_waiting = batched, max_running, max_waiting
        self._queue: list[tuple[float, int, Request]] = []  # a heap, by `urgent` and number
        self._alone: list[Request] = []
        self._at: dict[int, Request] = {}
        self._running: Running | None = None
        self._n_taken, self._is_closing, self._pid = 0, False, os.getpid()
        self._has_over, self._next_deadline = False, math.inf  # whether a future is done early; the earliest deadline
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._earlier = threading.Condition(self._lock)  # signals an earlier deadline than before
        self._is_idle = False  # whether the thread waits for requests
        self._watcher: threading.Thread | None = None
        self._counts = Counts()
        self._thread = threading.Thread(target=self._serve, name="autobatch serving", daemon=True)
        self._thread.start()

    # For callers.

    @suggesting()
    def submit(self, instance: Any, deadline: float | None = None) -> Future[Any]:
        """Submit an instance; return the future of the function's result.

        Cancelling the future abandons the request immediately, even if it runs.

        Args:
            instance: the argument of the function.
            deadline: seconds from now after which the request fails; requests with earlier deadlines go first.

        Raises:
            DataError: the deadline is not a number of seconds above 0.
            ServingError: too many requests wait, or the server is closed.
        """
        return self._submit(Streamed(instance, None) if self._streams else instance, deadline)

    @suggesting()
    async def stream(self, instance: Any, deadline: float | None = None) -> AsyncGenerator[Any, None]:
        """Yield the items of an async generator for `instance`, each as soon as it is available.

        `deadline` is as in `submit`.

        Raises:
            GraphError: the function is not an async generator.
            As `submit`; and the errors of the function, after the items before them.
        """
        if not self._streams:
            raise GraphError(
                "the function of server.stream must be an async generator, got one that returns its result; use "
                "server.submit."
            )
        loop, items = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def put(item: Any) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        future = self._submit(Streamed(instance, put), deadline)
        future.add_done_callback(lambda _: put(END))
        try:
            while (item := await items.get()) is not END:
                yield item
            future.result()
        finally:
            future.cancel()  # the caller may have stopped early

    def _submit(self, instance: Any, deadline: float | None) -> Future[Any]:
        until = math.inf
        if deadline is not None:
            if not is_number(deadline) or not deadline > 0:
                raise DataError(f"deadline must be a number of seconds above 0 or None, got {deadline!r}.")
            until = monotonic() + float(deadline)
        self._refuse_fork()
        with self._lock:
            if self._is_closing:
                raise ServingError("the server is closed and no longer accepts requests.")
            if len(self._queue) >= self._max_waiting:
                raise ServingError(
                    f"{len(self._queue)} requests are waiting, the limit of max_waiting={self._max_waiting}; retry in "
                    f"{self._counts.seconds_for(len(self._queue)):.2g} seconds."
                )
            request = Request(self._n_taken, instance, until, self._note_end)
            self._n_taken += 1
            if until < self._next_deadline:
                self._expect(until)
            heapq.heappush(self._queue, (request.urgent, request.number, request))
            if self._is_idle:
                self._changed.notify()
        return request.future

    def _refuse_fork(self) -> None:
        """Raise a ServingError in a forked process, which has the server but not its threads."""
        if os.getpid() != self._pid:
            raise ServingError(
                f"the server must be used in the process that made it, {self._pid}, got a call in its fork "
                f"{os.getpid()}, which has no server threads; make a server in each process, after the fork."
            )

    def _note_end(self) -> None:
        """Note that a request was cancelled; called in the thread that cancels it."""
        self._has_over = True

    @suggesting()
    async def __call__(self, instance: Any, deadline: float | None = None) -> Any:
        """Await the function's result for `instance`; `deadline` and errors are as in `submit`."""
        return await asyncio.wrap_future(self.submit(instance, deadline))

    @property
    def streams(self) -> bool:
        """Return whether the function is an async generator, whose items `stream` yields."""
        return self._streams

    @property
    def is_closed(self) -> bool:
        """Return whether the server has stopped accepting requests; always True in a forked process."""
        return self._is_closing or os.getpid() != self._pid

    def explain(self) -> Counts:
        """Return statistics of the server so far; they print as a table.

        Raises:
            ServingError: called in a fork of the server's process.
        """
        self._refuse_fork()
        with self._changed:
            n_waiting = len(self._queue) + len(self._alone)
            return self._counts.copy(n_waiting, len(self._at), self._engine.recorder.types.names)

    @suggesting()
    def close(self, within: float | None = None) -> bool:
        """Stop accepting requests, and wait until all accepted ones are done.

        Args:
            within: seconds after which unfinished requests fail, such as one whose program never ends; None to wait for
                all.

        Returns:
            Whether all requests were done. Closing does nothing in a fork of the server's process.

        Raises:
            DataError: `within` is not a number of seconds of at least 0.
        """
        if within is not None and (not is_number(within) or not within >= 0):
            raise DataError(f"within must be a number of seconds of at least 0 or None, got {within!r}.")
        if os.getpid() != self._pid:
            return True
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._earlier.notify()
        self._thread.join(None if within is None else min(float(within), threading.TIMEOUT_MAX))
        if not self._thread.is_alive():
            return True
        return not self._give_up(
            ServingError(f"the server was closed, and the request was not done within {within:g} seconds.")
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # The thread.

    def _serve(self) -> None:
        """Run requests until the server is closed and all are done."""
        try:
            while self._wait():
                try:
                    running = self._find_running()
                    self._begin(running)
                    self._go_on(running)
                except BaseException as error:  # a SystemExit in user code ends requests, not the server
                    self._recover(error)
        except BaseException as error:
            with self._changed:
                self._is_closing = True
            self._give_up(error)
            raise
        if self._running is not None:
            self._running.close()

    def _give_up(self, error: BaseException) -> int:
        """Fail all unfinished requests; return their number."""
        with self._changed:
            left = [request for request in self._all() if not request.future.done()]
        # Outside the lock, because the callbacks of futures run here.
        for request in left:
            request.fail(error)
        self._has_over = True
        return len(left)

    def _all(self) -> list[Request]:
        """Return all accepted requests that are not answered yet. The caller holds the lock."""
        return [*self._at.values(), *self._alone, *(request for _, _, request in self._queue)]

    def _wait(self) -> bool:
        """Wait for a request; return False if the server is closed and all requests are done."""
        with self._changed:
            while not (self._queue or self._alone or self._at):
                if self._is_closing:
                    return False
                self._is_idle = True
                self._changed.wait()
            self._is_idle = False
        return True

    def _find_running(self) -> Running:
        """Return the current `Running`, or a new one if its recording is full and no program runs."""
        if self._running is not None and self._running.is_full and not self._at:
            self._running.close()
            self._running = None
        self._running = self._running or Running(self._engine, self._n_places)
        return self._running

    def _begin(self, running: Running) -> None:
        """Remove requests that are over, and give free places to waiting ones."""
        if self._has_over:
            self._clear(running)
        now, places = monotonic(), dict[int, Request]()
        with self._changed:
            if self._alone:  # run these one at a time
                new = [] if self._at else [self._alone.pop()]
            else:
                new = [self._pop() for _ in range(min(running.room(len(self._at)), len(self._queue)))]
            if new:
                free = (place for place in range(self._n_places) if place not in self._at)
                places = dict(zip(free, (request for request in new if not self._has_left(request)), strict=False))
                self._at.update(places)
        for place, request in places.items():
            request.begun = now
            running.begin(place, request.number, request.instance)

    def _pop(self) -> Request:
        """Take the first request of the queue. The caller holds the lock."""
        return heapq.heappop(self._queue)[-1]

    def _clear(self, running: Running) -> None:
        """Remove all requests that are over, from places and from the queue."""
        self._has_over = False  # before the search, so that a request that ends meanwhile is found by the next one
        with self._changed:
            over = [place for place, request in self._at.items() if self._has_left(request)]
            for place in over:
                del self._at[place]
            self._alone = [request for request in self._alone if not self._has_left(request)]
            self._queue = [entry for entry in self._queue if not self._has_left(entry[-1])]
            heapq.heapify(self._queue)
        if over:
            running.leave(over)

    def _has_left(self, request: Request) -> bool:
        """Return whether a request was cancelled or is late; count it if so."""
        is_over = request.future.done()
        if is_over:
            self._count_over(request)
        return is_over

    def _count_over(self, request: Request) -> None:
        """Count a cancelled or late request."""
        if request.future.cancelled():
            self._counts.cancelled += 1
        else:
            self._counts.failed += 1
        request.leave()

    def _go_on(self, running: Running) -> None:
        """Resume the ready programs, run a round, and answer requests."""
        # Recording runs users' programs, for which runs of other functions must not wait, so it takes no run lock.
        for place, error in running.record().items():
            self._fail(self._at.pop(place), error)
        with run_lock():
            done = running.run()
            over = running.answer()
            running.compact()
        now = monotonic()
        if done is not None:
            self._counts.add(done)
        for ended in over:
            request = self._at.pop(ended.place)
            if request.deadline < now:
                request.be_late()
            if request.future.done():
                self._count_over(request)
            else:  # counted first, so that a client that has its result finds it counted
                self._counts.finish(request.arrived, request.begun, now, ended)
                request.finish(ended.result)
                request.leave()  # it may have been cancelled meanwhile

    def _fail(self, request: Request, error: BaseException) -> None:
        request.fail(error)
        self._count_over(request)

    def _recover(self, error: BaseException) -> None:
        """Handle an error of the current requests: fail a single one; run several one by one to find the cause."""
        running, self._running = self._running, None
        with self._changed:
            requests = [*self._at.values()]
            self._at.clear()
            if not requests and (self._alone or self._queue):  # fail the next one, so that errors cannot repeat
                requests = [self._alone.pop() if self._alone else self._pop()]
            if len(requests) > 1:
                self._alone += requests
        if len(requests) == 1:
            self._fail(requests[0], error)
        if running is not None:
            running.close()  # runs the `finally` blocks of programs

    # Deadlines, kept by a separate thread.

    def _expect(self, until: float) -> None:
        """Notify the deadline thread of a new earliest deadline. The caller holds the lock."""
        self._next_deadline = until
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._keep_deadlines, name="autobatch deadlines", daemon=True)
            self._watcher.start()
        self._earlier.notify()

    def _keep_deadlines(self) -> None:
        """Fail late requests until the server is closed and all requests are done."""
        while True:
            with self._changed:
                wait = self._next_deadline - monotonic()
                if wait > 0:
                    if self._is_closing and math.isinf(wait):
                        self._watcher = None
                        return
                    self._earlier.wait(min(wait, threading.TIMEOUT_MAX))  # `wait` may be infinite
                    continue
                waiting = [request for request in self._all() if not request.future.done()]
                now = monotonic()
                late = [request for request in waiting if request.deadline <= now]
                self._next_deadline = min((x.deadline for x in waiting if x.deadline > now), default=math.inf)
            # Outside the lock, because the callbacks of futures run here.
            for request in late:
                request.be_late()
                self._has_over = True


@checked(batched)
def serve(
    function: Callable[[Any], Any] | Batched,
    *,
    max_running: int = MOST_RUNNING,
    max_waiting: int = MOST_WAITING,
    policy: str | Policy = "auto",
    **options: Any,
) -> Server:
    """Serve a function of one instance; requests are batched as they arrive.

    Args:
        function: a function of one instance that calls cells, as for `batched`; or a batched function, whose options
            are used, so that it takes no others here.
        max_running: the maximum number of running requests.
        max_waiting: the maximum number of waiting requests; more raise a ServingError.
        policy: the batching policy, as for `batched`.
        options: the other options of `batched`.

    Raises:
        DataError: a number of requests is not an int of at least 1, or a batched function is given with options.
        As `batched`.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> @ab.cell
    ... def double(x):
    ...     return 2.0 * x
    >>> with ab.serve(lambda x: double(double(x)), backend="reference") as server:
    ...     futures = [server.submit(np.full(2, k)) for k in (1.0, 2.0)]
    ...     print([future.result().tolist() for future in futures])
    [[4.0, 4.0], [8.0, 8.0]]
    """
    for name, number in (("max_running", max_running), ("max_waiting", max_waiting)):
        check_int(f"{name} of serve", number, at_least=1)
    if not isinstance(function, Batched):
        function = batched(function, policy=policy, plan_cache=0, **options)
    elif ignored := [*options, *(["policy"] if policy != "auto" else [])]:
        raise DataError(f"{ignored[0]} must be an option of ab.batched for a batched function, got it in serve.")
    return Server(function, max_running, max_waiting)


async def _run_generator(function: Callable[[Any], AsyncGenerator[Any, None]], request: Streamed) -> list[Any]:
    """Run an async generator as a program that returns the list of its items."""
    items = list[Any]()
    async with aclosing(function(request.instance)) as generator:
        async for item in generator:
            if holds_value(item):
                raise GraphError(f"a served async generator must yield numbers, got {item!r}; await it first.")
            items.append(item)
            if request.put is not None and len(items) > request.n_put:
                request.put(item)
                request.n_put += 1
    return items


def _as_program(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Convert an async generator to an async function; return other functions unchanged."""
    if isasyncgenfunction(function) or isasyncgenfunction(type(function).__call__):
        return partial(_run_generator, function)
    return function
