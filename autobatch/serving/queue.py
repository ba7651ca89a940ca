"""Requests that wait for a place, the most urgent first."""

from __future__ import annotations

import heapq
import threading
from concurrent.futures import Future, InvalidStateError
from time import monotonic
from typing import Any

PATIENCE = 2.0
"""Seconds after which a request in the queue goes before all that come later, whatever their deadlines are."""


class Request:
    """A request: its instance, and the future of its result.

    Attributes:
        number: counts requests.
        deadline, arrived, begun: times of `time.monotonic`; it begins when it has a place.
        urgent: the time by which requests in the queue are ordered.
    """

    __slots__ = ("arrived", "begun", "deadline", "future", "instance", "number", "urgent")

    def __init__(self, number: int, instance: Any, deadline: float) -> None:
        self.number, self.instance, self.deadline, self.arrived = number, instance, deadline, monotonic()
        self.begun, self.urgent = self.arrived, min(deadline, self.arrived + PATIENCE)
        self.future = Future[Any]()

    def __lt__(self, other: Request) -> bool:
        return (self.urgent, self.number) < (other.urgent, other.number)

    def is_over(self, now: float) -> bool:
        """Whether it was cancelled, or is too late."""
        return self.future.cancelled() or self.deadline < now

    def finish(self, result: Any) -> None:
        """Set the result, unless the request was cancelled."""
        try:
            self.future.set_result(result)
        except InvalidStateError:
            self.cancel()

    def fail(self, error: BaseException) -> None:
        """Set the error, unless the request was cancelled."""
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            self.cancel()

    def cancel(self) -> None:
        """Let those know that wait for a request that was cancelled."""
        self.future.set_running_or_notify_cancel()


class Queue:
    """Requests in the order of `Request.urgent`: none is overtaken by one that comes `PATIENCE` after it.

    Attributes:
        changed: the condition that guards the queue.
        requests: a heap.
    """

    def __init__(self) -> None:
        self.changed, self.requests = threading.Condition(), list[Request]()

    def push(self, request: Request) -> None:
        """Add a request; the condition is held."""
        heapq.heappush(self.requests, request)
        self.changed.notify_all()

    def pop(self, most: int) -> list[Request]:
        """Take the most urgent requests; the condition is held."""
        return [heapq.heappop(self.requests) for _ in range(min(most, len(self.requests)))]
