"""Records requests, whose programs await nothing, while the mini-batch before theirs runs.

The kernels of a mini-batch leave the interpreter to this thread. What it has recorded is run next, merged.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from autobatch.graph.graph import Graph
from autobatch.serving.arrivals import record_each
from autobatch.serving.queue import Queue, Request
from autobatch.trace.record import Recorder

CHUNK = 8  # requests at a time: the other thread waits for the interpreter no longer than they take
YIELD = 1e-5  # seconds of sleep after each chunk, in which the other thread takes the interpreter


class Taken(NamedTuple):
    """Requests that were recorded together."""

    requests: Sequence[Request]
    graph: Graph


class Ahead:
    """A thread that records requests of a queue, as many as it is let.

    Args:
        queue: of requests; its condition guards what is here too.
        recorder: of the function that is served.

    Attributes:
        recorded: what is to run; failed: requests that could not be recorded, and why; over: those that were over.
        n: requests that are being recorded, or in one of these.
    """

    def __init__(self, queue: Queue, recorder: Recorder) -> None:
        self._queue, self._recorder = queue, recorder
        self.recorded, self.failed = deque[Taken](), list[tuple[Request, Exception]]()
        self.over = list[Request]()
        self.n, self._room, self._is_closing = 0, 0, False
        self._thread = threading.Thread(target=self._run, name="autobatch recording", daemon=True)
        self._thread.start()

    def let(self, room: int) -> None:
        """Let it record until so many requests are recorded."""
        with self._queue.changed:
            self._room = room
            self._queue.changed.notify_all()

    def take(self, room: int) -> tuple[list[Taken], list[tuple[Request, Exception]], list[Request]]:
        """Take what is recorded, up to some requests, what failed, and what is over; the condition is held."""
        taken = list[Taken]()
        while self.recorded and len(self.recorded[0].requests) <= room:
            taken.append(self.recorded.popleft())
            room -= len(taken[-1].requests)
        failed, over, self.failed, self.over = self.failed, self.over, [], []
        self.n -= sum(len(one.requests) for one in taken) + len(failed) + len(over)
        return taken, failed, over

    @property
    def has_some(self) -> bool:
        """Whether there is something to take."""
        return bool(self.recorded or self.failed or self.over)

    def close(self) -> None:
        """End the thread."""
        with self._queue.changed:
            self._is_closing = True
            self._queue.changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        changed = self._queue.changed
        while True:
            with changed:
                changed.wait_for(lambda: self._is_closing or (self._queue.requests and self.n < self._room))
                if self._is_closing:
                    return
                chunk, now = list[Request](), time.monotonic()
                for request in self._queue.pop(min(CHUNK, self._room - self.n)):
                    (self.over if request.is_over(now) else chunk).append(request)
                    self.n += 1
            recorded, failed = record_each(self._recorder, [request.instance for request in chunk])
            with changed:
                self.recorded += [Taken([chunk[k] for k in which], graph) for graph, which in recorded]
                self.failed += [(chunk[k], error) for k, error in failed.items()]
                changed.notify_all()
            time.sleep(YIELD)
