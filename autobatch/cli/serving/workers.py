"""Worker processes that share a port: the first process listens, the workers accept. Dead workers are restarted.

Events are lines on standard error. They go through `logging`, which raises no error if they cannot be written, such as
on a full disk.
"""

from __future__ import annotations

import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import FrameType

from autobatch.cli.ending import describe_end
from autobatch.errors import DataError
from autobatch.starting import FIRST, INTERRUPTED

LOG = logging.getLogger("autobatch.serve")


def begin_log() -> None:
    """Write the log to standard error, with the prefix of all messages of the command."""
    if not LOG.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("autobatch: %(message)s"))
        LOG.addHandler(handler)
        LOG.setLevel(logging.INFO)
        LOG.propagate = False


HELD = "AUTOBATCH_SOCKET"
"""Environment variable of workers: the file descriptor of the first process's listening socket."""
LEAST_LIFE = 5.0  # seconds; a worker that fails earlier would fail again
MOST_KILLED = 5  # consecutive workers that a signal killed this early
CHECK_EVERY = 0.2  # seconds
KILL_AFTER = 25  # seconds after SIGTERM; a healthy worker ends sooner


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address; in a worker, take the socket of the first process.

    Raises:
        DataError: the address is not available.
    """
    if HELD in os.environ:
        return socket.socket(fileno=int(os.environ[HELD]))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        at = f"[{host}]" if ":" in host else host
        raise DataError(f"serving at {at}:{port}: {error}; give another --host or --port.") from None
    made.listen(1024)
    return made


def run_workers(n: int, listening: socket.socket) -> int:
    """Run this command in n processes that accept on a socket, until a signal; return the exit status.

    Raises:
        DataError: this system cannot pass sockets or share memory.
    """
    if sys.platform == "win32":
        raise DataError(f"--workers must be 1 on Windows, which cannot pass a socket to other processes, got {n}.")
    from autobatch.serving.workers import SEVERAL, VARIABLE, Board, make_memory

    ended: list[int] = []
    theirs, ours = os.pipe()  # workers end when `ours` closes, however this process ends
    try:
        memory = make_memory(n)
    except OSError as error:
        raise DataError(f"--workers {n}: cannot allocate shared memory: {error.strerror}.") from None
    board, passed = Board(mmap.mmap(memory, 0), 0), (listening.fileno(), theirs, memory)
    with tempfile.TemporaryDirectory() as shared, os.fdopen(theirs), os.fdopen(ours, "w"):
        environment = {**os.environ, HELD: str(passed[0]), FIRST: f"{theirs} {KILL_AFTER}", SEVERAL: shared}

        def begin(place: int) -> tuple[subprocess.Popen[bytes], float]:
            command = [sys.executable, "-m", "autobatch", *sys.argv[1:]]
            own = {**environment, VARIABLE: f"{memory} {place}"}
            return subprocess.Popen(command, env=own, pass_fds=passed), time.monotonic()

        workers = [begin(place) for place in range(n)]

        def pass_on(number: int, frame: FrameType | None) -> None:
            if number != signal.SIGHUP:
                ended.append(number)
            for process, _ in workers:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM if number == signal.SIGINT else number)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, pass_on)
        n_killed = 0
        while not ended:
            time.sleep(CHECK_EVERY)
            for place, (process, since) in enumerate(workers):
                status = process.poll()
                if status is None or ended:  # after a signal, workers are meant to end
                    continue
                board.clear(place)
                is_early = time.monotonic() - since < LEAST_LIFE
                n_killed = n_killed + 1 if is_early else 0
                # A worker that exits early has an error, which would recur. One killed early, such as for lack of
                # memory, is restarted a few times.
                if is_early and (status >= 0 or n_killed == MOST_KILLED):
                    LOG.error("a worker %s within %d seconds of its start.", describe_end(status), LEAST_LIFE)
                    pass_on(signal.SIGTERM, None)
                    _wait(workers)
                    return max(status, 1)
                LOG.warning("a worker %s; starting another.", describe_end(status))
                workers[place] = begin(place)
                if ended:  # a signal came before the new worker was listed
                    workers[place][0].terminate()
        _wait(workers)
    return status_after(ended)


def status_after(signals: Sequence[int]) -> int:
    """Return the exit status after these signals: after SIGINT that of an interrupt, which is reported; else 0."""
    if signal.SIGINT not in signals:
        return 0
    if HELD not in os.environ:  # only the first process reports it
        LOG.info("interrupted.")
    return INTERRUPTED


def _wait(workers: list[tuple[subprocess.Popen[bytes], float]]) -> None:
    """Wait for workers to end, and kill those that do not within `KILL_AFTER` seconds."""
    last = time.monotonic() + KILL_AFTER
    for process, _ in workers:
        try:
            process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            LOG.error("killing a worker that did not end within %d seconds.", KILL_AFTER)
            process.kill()
            process.wait()
