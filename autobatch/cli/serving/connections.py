"""Connections of clients, none of which is held open for a request that does not come."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN = 10.0  # seconds in which the head of a request has to arrive; up to twice as many for a slow client


class Connection(H11Protocol):
    """Closes itself where a client has sent nothing, or a part of a head, for too long."""

    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to look at what the client sends."""
        super().connection_made(transport)
        self._look = self.loop.call_later(HEAD_WITHIN, self._close_if_idle, self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self, before: object) -> None:
        """Close the connection if no request has come since the look before, at which there was none as well."""
        is_idle = self.cycle is None or self.cycle.response_complete
        now = (self.cycle or self) if is_idle else None
        if is_idle and now is before:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(HEAD_WITHIN, self._close_if_idle, now)
