"""Readiness of a server for requests: it has warmed up, is open, and its last predictions did not all fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from autobatch.serving.server import Server

MOST_FAILED = 3  # consecutive server errors before the server counts as not ready
TRY_AFTER = 5.0  # seconds without an answer before requests are let through again as a test
WARMING = "warming up"


class Readiness:
    """The readiness of a server, and the reason if it is not ready.

    Args:
        server: the server to report on.
        warm_up: computes known-good instances; see `autobatch.serving.app`.
    """

    def __init__(self, server: Server, warm_up: Callable[[], object]) -> None:
        self._server, self._warm_up = server, warm_up
        self._fault, self._n_failed, self._last = WARMING, 0, 0.0
        self._trying: asyncio.Task[None] | None = None

    async def warm(self) -> None:
        """Warm up in a thread; the server is not ready until that succeeds."""
        try:
            await asyncio.to_thread(self._warm_up)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                raise
            failing = "predictions fail" if self._n_failed >= MOST_FAILED else "warming up failed"
            self._fault = f"{failing}, {type(error).__name__}: {error}"
        else:
            self._fault = ""

    def count(self, status: int) -> None:
        """Count an answer; statuses of 500 and above are server errors."""
        self._n_failed = self._n_failed + 1 if status >= 500 else 0
        self._last = monotonic()

    async def why_not(self) -> str:
        """Return why the server is not ready; empty if it is."""
        if self._server.is_closed:
            return "closing"
        if self._fault == WARMING or self._n_failed < MOST_FAILED:
            return self._fault
        is_quiet = monotonic() - self._last > TRY_AFTER
        if is_quiet and (self._trying is None or self._trying.done()):
            self._trying = asyncio.create_task(self._try())
        return self._fault or f"predictions fail, the last {self._n_failed} in a row"

    async def _try(self) -> None:
        """Compute the known-good instances; on success, report ready again."""
        await self.warm()
        if not self._fault:
            self._n_failed = MOST_FAILED - 1  # one more failure makes it not ready
