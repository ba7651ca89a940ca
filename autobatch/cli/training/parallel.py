"""Training by several processes of this machine: this one is the first, and starts the others with its own command.

The others print nothing, and end with the first. Where one of them ends before, the first says so in a sentence.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import IO

import autobatch as ab
from autobatch.cli.ending import describe_end
from autobatch.distributed.group import Joined
from autobatch.distributed.wire import Alone, ConnectionLost
from autobatch.errors import DistributedError
from autobatch.release import pip_install

PROCESS = "AUTOBATCH_PROCESS"
"""The environment of another process has its number, how many there are, and the port where the first one listens."""
JOIN_WITHIN = 300.0  # seconds, in which a process imports its packages
END_WITHIN = 5.0
CHECK_EVERY = 0.02


@contextmanager
def processes(n: int, to_go_on: str) -> Iterator[Joined]:
    """Within the context, this process and n - 1 others are a group.

    Raises:
        DistributedError: PyTorch is not installed, or a process has ended; says which, how, and how to go on.
    """
    if n == 1:
        yield Joined(Alone())
        return
    try:
        from torch import distributed
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except ModuleNotFoundError:
        raise DistributedError(
            f"--data-parallel {n}: the processes send each other gradients through PyTorch, and it is not installed; "
            f"{pip_install('torch')}."
        ) from None
    longest = timedelta(seconds=JOIN_WITHIN)
    if PROCESS in os.environ:
        rank, n, port = map(int, os.environ[PROCESS].split())
        store = TCPStore("127.0.0.1", port, timeout=longest)
        store.set(f"process {rank}", "here")
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=n)
        with ab.distributed.group() as joined:
            yield joined
        return
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=longest)
    with _Others(n, store.port) as others:
        others.wait_for(store)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=n)
        try:
            with ab.distributed.group() as joined:
                yield joined
        except ConnectionLost as error:
            ended = others.say_ended()
            raise DistributedError(f"{ended}; {to_go_on}." if ended else str(error)) from None
        finally:
            distributed.destroy_process_group()


class _Others:
    """The other processes of n, which end with the context; they find the first at a port."""

    def __init__(self, n: int, port: int) -> None:
        self._n, self._port = n, port
        self._started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def __enter__(self) -> _Others:
        for rank in range(1, self._n):
            told = tempfile.TemporaryFile()
            environment = {**os.environ, PROCESS: f"{rank} {self._n} {self._port}"}
            command = [sys.executable, "-m", "autobatch", *sys.argv[1:]]
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=told
            )
            self._started.append((process, told))
        return self

    def __exit__(self, *_: object) -> None:
        """End those that do not end by themselves."""
        until = time.monotonic() + END_WITHIN
        for process, told in self._started:
            try:
                process.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            told.close()

    def wait_for(self, store: object) -> None:
        """Wait until all have begun.

        Raises:
            DistributedError: one has ended, or does not answer.
        """
        names = [f"process {rank}" for rank in range(1, self._n)]
        until = time.monotonic() + JOIN_WITHIN
        while not store.check(names):  # type: ignore[attr-defined]
            ended = self.say_ended(wait=0.0)
            if ended or time.monotonic() > until:
                raise DistributedError(f"{ended or f'a process did not begin within {JOIN_WITHIN:.0f} s'}.")
            time.sleep(CHECK_EVERY)

    def say_ended(self, wait: float = END_WITHIN) -> str:
        """Say which process has ended first, and how; nothing if none has within some seconds."""
        until = time.monotonic() + wait
        while True:
            ended = [(rank, p, told) for rank, (p, told) in enumerate(self._started, 1) if p.poll()]
            if ended:
                break
            if time.monotonic() > until:
                return ""
            time.sleep(CHECK_EVERY)
        killed = [one for one in ended if (one[1].returncode or 0) < 0]  # others end because of it
        rank, process, told = (killed or ended)[0]
        told.seek(0)
        lines = told.read().decode(errors="replace").strip().splitlines()
        status = process.returncode
        said = f", and said: {lines[-1].removeprefix('autobatch: ')}" if lines and status > 0 else ""
        return f"process {rank} of {self._n} {describe_end(status)}{said}"
