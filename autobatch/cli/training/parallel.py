"""Training in several processes on this machine: the first one starts the others with its own command line.

The others print nothing, and end with the first. If one of them ends early, the first reports it in one sentence and
ends, even during a long operation such as compilation. When a signal asks the first to end, it continues stopped
processes (SIGCONT), because it waits for them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import IO

import autobatch as ab
from autobatch.cli.ending import USER_ERROR, describe_end
from autobatch.distributed.group import Joined
from autobatch.distributed.wire import Alone, ConnectionLost
from autobatch.errors import DistributedError
from autobatch.release import pip_install
from autobatch.starting import FIRST

PROCESS = "AUTOBATCH_PROCESS"
"""Environment variable of the other processes: rank, number of processes, and the port of the first one."""
JOIN_WITHIN = 300.0  # seconds for a process to import its packages
END_WITHIN = 5.0
GIVE_UP_AFTER = 7.0  # seconds for the first process to notice that another has ended
CHECK_EVERY = 0.02
STOPPED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # exit statuses after a signal


@contextmanager
def processes(n: int, advice: str) -> Iterator[Joined]:
    """Run the block in a group of this process and n - 1 others; `advice` ends the message about one that failed.

    Raises:
        DistributedError: PyTorch is not installed, or a process has ended; the message has its rank and status.
    """
    if n == 1:
        yield Joined(Alone())
        return
    try:
        from torch import distributed
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except ModuleNotFoundError:
        raise DistributedError(
            f"--data-parallel {n} needs PyTorch to exchange gradients, and it is not installed; {pip_install('torch')}."
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
    # Do not wait here: `wait_for` waits, and also notices a process that has ended.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=longest)
    with _Others(n, store.port, advice) as others:
        others.wait_for(store)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=n)
        try:
            with ab.distributed.group() as joined:
                yield joined
        except ConnectionLost as error:
            ended = others.say_ended()
            raise DistributedError(f"{ended}; {advice}." if ended else str(error)) from None
        finally:
            distributed.destroy_process_group()


class _Others:
    """The other n - 1 processes, which connect to a port of the first and end with the context.

    Args:
        advice: end of the error message if one of them has ended.
    """

    def __init__(self, n: int, port: int, advice: str) -> None:
        self._n, self._port, self._advice = n, port, advice
        self._started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        self._watching = threading.Thread(target=self._watch, name="autobatch processes", daemon=True)
        self._is_over, self._pipe = threading.Event(), os.pipe()  # the others end when the pipe closes
        self._signals, self._wakeup = os.pipe(), -1  # receives signal numbers even before their handlers run

    def __enter__(self) -> _Others:
        theirs, passes = self._pipe[0], os.name == "posix"
        if passes:
            for end in self._signals:
                os.set_blocking(end, False)
            self._wakeup = signal.set_wakeup_fd(self._signals[1], warn_on_full_buffer=False)
        for rank in range(1, self._n):
            told = tempfile.TemporaryFile()
            environment = {**os.environ, PROCESS: f"{rank} {self._n} {self._port}"}
            if passes:
                environment[FIRST] = f"{theirs} {END_WITHIN}"
            command = [sys.executable, "-m", "autobatch", *sys.argv[1:]]
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=told,
                pass_fds=(theirs,) if passes else (),
            )  # fmt: skip
            self._started.append((process, told))
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the others to end, and kill those that do not."""
        if os.name == "posix":
            signal.set_wakeup_fd(self._wakeup)
        self._is_over.set()
        self._watching.join()
        until = time.monotonic() + END_WITHIN
        for process, told in self._started:
            try:
                process.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            told.close()
        for end in (*self._pipe, *self._signals):
            os.close(end)

    def _watch(self) -> None:
        """End all processes if this one does not notice in time that another has ended.

        Continue stopped processes when a signal asks this one to end.
        """
        is_asked = False
        while not self._is_over.wait(CHECK_EVERY):
            is_asked = is_asked or self._was_asked()
            if is_asked:
                for process, _ in self._started:
                    process.send_signal(signal.SIGCONT)
            statuses = [process.poll() for process, _ in self._started]
            # Statuses after Ctrl-C or SIGTERM are expected, so they are not reported.
            if any(status and status not in STOPPED for status in statuses):
                if self._is_over.wait(GIVE_UP_AFTER):  # the main thread reports it, unless it is blocked
                    return
                for process, _ in self._started:
                    process.kill()
                os.write(2, f"autobatch: {self.say_ended()}; {self._advice}.\n".encode())
                os._exit(USER_ERROR)  # the main thread may be in native code

    def _was_asked(self) -> bool:
        """Return whether SIGINT or SIGTERM has arrived since the last call."""
        if os.name != "posix":
            return False
        try:
            numbers = os.read(self._signals[0], 64)
        except BlockingIOError:
            return False
        return signal.SIGINT in numbers or signal.SIGTERM in numbers

    def wait_for(self, store: object) -> None:
        """Wait until all processes have started.

        Raises:
            DistributedError: one has ended or does not answer.
        """
        names = [f"process {rank}" for rank in range(1, self._n)]
        until = time.monotonic() + JOIN_WITHIN
        while not store.check(names):  # type: ignore[attr-defined]
            ended = self.say_ended(wait=0.0)
            if ended or time.monotonic() > until:
                raise DistributedError(f"{ended or f'a process did not start within {JOIN_WITHIN:.0f} s'}.")
            time.sleep(CHECK_EVERY)

    def say_ended(self, wait: float = END_WITHIN) -> str:
        """Describe a failed process, preferably one killed by a signal, with its status and last line of standard
        error. Wait for one for `wait` seconds; return "" if none has failed by then.
        """
        until = time.monotonic() + wait
        while True:
            ended = [(rank, p, told) for rank, (p, told) in enumerate(self._started, 1) if p.poll()]
            if ended:
                break
            if time.monotonic() > until:
                return ""
            time.sleep(CHECK_EVERY)
        killed = [one for one in ended if (one[1].returncode or 0) < 0]  # the cause; others end because of it
        rank, process, told = (killed or ended)[0]
        told.seek(0)
        lines = told.read().decode(errors="replace").strip().splitlines()
        status = process.returncode
        said = f": {lines[-1].removeprefix('autobatch: ')}" if lines and status > 0 else ""
        return f"process {rank} of {self._n} {describe_end(status)}{said}"
