"""A process that serves a trained model over HTTP.

Client connections are closed if no request arrives in time.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from autobatch.cli.serving.predictor import Predictor
from autobatch.cli.serving.workers import HELD, LOG, status_after
from autobatch.cli.training.trained import Trained
from autobatch.errors import AutobatchError
from autobatch.serving import app, serve
from autobatch.starting import INTERRUPTED, SAID

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
        # `cycle` is the current or the last request. The check of an idle connection passes its last request, or itself
        # without any, to the next check; if that finds the same one, nothing has arrived in between.
        is_idle = self.cycle is None or self.cycle.response_complete
        now = (self.cycle or self) if is_idle else None
        if is_idle and now is before:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(HEAD_WITHIN, self._close_if_idle, now)


GARBAGE = 20_000, 50, 100  # thresholds of the garbage collector: a large request makes a million long-lived objects
LOOK_EVERY = 1.0  # seconds between checks for a new checkpoint
END_WITHIN = 15.0  # seconds after SIGTERM to answer accepted requests


class Reloading:
    """A thread that loads new checkpoints.

    Args:
        trained: the model's name and path on the command line.
        predictor: the predictor whose parameters are replaced.
    """

    def __init__(self, trained: Trained, predictor: Predictor) -> None:
        self._trained, self._predictor = trained, predictor
        self._wake, self._is_over, self._asked = threading.Event(), False, False
        self._seen = _stamp(trained.file)
        self._thread = threading.Thread(target=self._watch, name="autobatch checkpoint", daemon=True)

    def __enter__(self) -> Reloading:
        if hasattr(signal, "SIGHUP"):  # Windows has none
            signal.signal(signal.SIGHUP, self._ask)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._wake.set()
        self._thread.join(LOOK_EVERY)  # do not wait longer: it may be reading from a slow disk

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._wake.set()

    def _watch(self) -> None:
        while not self._is_over:
            self._wake.wait(LOOK_EVERY)
            self._wake.clear()
            try:
                self._look()
            except AutobatchError as error:
                LOG.warning("kept the current model: %s", error)

    def _look(self) -> None:
        """Load the checkpoint if it has changed, or after SIGHUP."""
        asked, self._asked = self._asked, False  # before reading, so that a later SIGHUP counts
        seen = _stamp(self._trained.file)
        if not asked and seen == self._seen:
            return
        # Before reading, so that a faulty file is reported once, and one written meanwhile is read next.
        self._seen = seen
        stored = self._trained.read()
        self._predictor.take(stored)
        LOG.info("reloaded %r.", str(stored.path))


def _stamp(path: Path) -> tuple[Path, int, int] | None:
    """Return a stamp that changes with the file or its content; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return path, found.st_mtime_ns, found.st_ino


class _Running(uvicorn.Server):
    """A uvicorn server that shuts down on SIGINT and SIGTERM.

    Attributes:
        ended_by: the signals received.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended_by: list[int] = []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Answer accepted requests, then shut down; at a second Ctrl-C, exit at once.

        Workers ignore Ctrl-C and wait for a signal of the first process.
        """
        if sig == signal.SIGINT and HELD in os.environ:
            return
        if sig == signal.SIGINT and sig in self.ended_by:
            os.write(2, SAID)
            os._exit(INTERRUPTED)
        self.ended_by.append(sig)
        self.should_exit = True


def run_process(
    listening: socket.socket, trained: Trained, token: str | None, deadline: float | None, **options: Any
) -> int:
    """Serve until a signal ends the process; return the exit status.

    Args:
        deadline: seconds after which a request times out, or None.
        options: options of `autobatch.serving.serve`.
    """
    predictor = Predictor.of(trained.read())
    stored, spec = predictor.stored, predictor.spec
    backend = options.pop("backend") or stored.settings.backend
    server = serve(
        getattr(predictor.model, spec.predictor), policy=stored.policy, backend=backend,
        precision=stored.settings.precision, **options,
    )  # fmt: skip
    predictor.model.to("cuda" if backend == "cuda" else "cpu")

    def warm_up() -> None:
        for future in [server.submit(spec.given(instance)) for instance in predictor.draw()]:
            future.result()
        gc.collect()
        gc.freeze()  # permanent objects: full collections over them would stall requests
        gc.set_threshold(*GARBAGE)

    application = app(
        server, read=predictor.read, write=predictor.write, given=spec.given, title=spec.name, token=token,
        deadline=deadline, warm_up=warm_up, schema=predictor.schema,
    )  # fmt: skip
    config = uvicorn.Config(
        application, log_level="warning", http=Connection, ws="none", timeout_graceful_shutdown=int(END_WITHIN)
    )
    running = _Running(config)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, running.handle_exit)  # until uvicorn handles signals itself
    with Reloading(trained, predictor):
        running.run(sockets=[listening])
    return status_after(running.ended_by)
