"""Client connections that are closed if no request arrives in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN = 10.0  # seconds for the head of a request to arrive; up to twice as long for a slow client


class Connection(H11Protocol):
    """A connection that closes itself if the client sends nothing, or only part of a head, for too long."""

    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._look = self.loop.call_later(HEAD_WITHIN, self._close_if_idle, self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self, before: object) -> None:
        """Close the connection if there is still no request since the previous check."""
        is_idle = self.cycle is None or self.cycle.response_complete
        now = (self.cycle or self) if is_idle else None
        if is_idle and now is before:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(HEAD_WITHIN, self._close_if_idle, now)
