"""Have a helper process compile, while mini-batches run without compiled code.

    AUTOBATCH_COMPILE=later    a helper compiles; until it is done, NumPy runs cells (the default)
    AUTOBATCH_COMPILE=now      what is not compiled is compiled where it is needed first, which waits for it
    AUTOBATCH_COMPILE=never    nothing is compiled

The helper fills the caches on disk, and this process loads from there; so without a cache, everything is compiled now.
It finds modules where this process does.
Results are equal up to rounding: compiled cells add in another order.

    here      waits_for(task) ──task──▶ helper: one task after the other
              waits_for(task) is False ◀──answer── done, or failed

A task that failed is done here, where its error shows. The helper ends when it has nothing to do, and with this
process.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from autobatch.errors import BackendError
from autobatch.jit.progress import NOTICE
from autobatch.system.cache import cache_folder

if TYPE_CHECKING:
    from queue import SimpleQueue

VARIABLE = "AUTOBATCH_COMPILE"
LATER, NOW, NEVER = "later", "now", "never"
MODES = LATER, NOW, NEVER
POLL_S = 0.02
IS_FROZEN = getattr(sys, "frozen", False)
"""Whether the program is an executable of its own, which no helper can be started from."""


class Task(NamedTuple):
    """A call that compiles something into a cache on disk: of a function of a module, with arguments that pickle."""

    module: str
    function: str
    args: tuple[Any, ...]


class _Thread(threading.local):
    """Whether a thread compiles what it needs, whatever the variable says."""

    compiles = False


_THREAD = _Thread()


def compile_mode() -> str:
    """When code is compiled that this thread needs: one of `MODES`.

    Raises:
        BackendError: the variable has another value.
    """
    if _THREAD.compiles:
        return NOW
    mode = os.environ.get(VARIABLE, LATER)
    if mode not in MODES:
        raise BackendError(f"{VARIABLE}={mode!r} is none of {', '.join(MODES)}.")
    return NOW if mode == LATER and (cache_folder() is None or IS_FROZEN) else mode


@contextmanager
def compiling_now() -> Iterator[None]:
    """Compile what this thread needs in the block where it is needed: for measurements."""
    before, _THREAD.compiles = _THREAD.compiles, True
    try:
        yield
    finally:
        _THREAD.compiles = before


class Helper:
    """A helper process, as this process knows it: started when there is a task, and again when it has ended.

    Attributes:
        n_waiting: how many tasks are neither done nor failed.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._numbers: dict[Task, int] = {}
        self._asked: set[int] = set()  # tasks that are not answered
        self._answered: set[int] = set()
        self._messages: SimpleQueue[int | None] | None = None
        self._tasks: list[Task] = []
        self._failure = ""

    @property
    def n_waiting(self) -> int:
        return len(self._asked)

    def waits_for(self, task: Task) -> bool:
        """Ask for a task, unless that was done before; say whether the helper is at it."""
        with self._lock:
            number = self._numbers.get(task)
            if number is None:
                number = self._numbers[task] = len(self._tasks)
                self._tasks.append(task)
                NOTICE.waiting(lambda: (len(self._tasks) - self.n_waiting, len(self._tasks)))
            if self._failure:
                self._fail()
            elif number not in self._answered and number not in self._asked:
                self._asked.add(number)
                self._send(number)
            return number not in self._answered

    def wait(self) -> None:
        """Wait until all tasks are done, or have failed."""
        while self._asked and not self._failure:
            time.sleep(POLL_S)

    def _send(self, number: int) -> None:
        from queue import SimpleQueue

        if self._messages is None:
            self._messages = SimpleQueue()
            threading.Thread(target=self._run, args=(self._messages,), name="autobatch compiling", daemon=True).start()
        self._messages.put(number)

    def _run(self, messages: SimpleQueue[int | None]) -> None:
        """Start the process, and write to it what is asked; in a thread, as it reads nothing while it starts."""
        import subprocess
        import tempfile

        command = [sys.executable, "-P", "-m", "autobatch.jit.helper"]
        environment = {**os.environ, VARIABLE: NOW, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        said = tempfile.TemporaryFile()  # noqa: SIM115  # the other thread closes it
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
            )
        except OSError as error:
            said.close()
            self._failure = f"no process can be started ({error.strerror or error})"
            return
        listening = threading.Thread(target=self._listen, args=(process, said, messages), daemon=True)
        listening.start()
        assert process.stdin is not None
        with suppress(OSError), process.stdin as pipe:  # it may have ended, which the other thread finds too
            while (number := messages.get()) is not None:
                pickle.dump((number, self._tasks[number]), pipe)
                pipe.flush()

    def _listen(self, process: Any, said: IO[bytes], messages: SimpleQueue[int | None]) -> None:
        """Take the answers of the process until it ends; keep the last line that it said if it failed."""
        with suppress(EOFError, pickle.UnpicklingError, OSError), process.stdout as pipe:
            while True:
                number = pickle.load(pipe)
                with self._lock:
                    self._answered.add(number)
                    self._asked.discard(number)
        messages.put(None)
        status = process.wait()
        with said:
            said.seek(0)
            lines = said.read().decode(errors="replace").split("\n")
        last = next((f" ({line.strip()})" for line in reversed(lines) if line.strip()), "")
        with self._lock:
            self._messages = None
            if status:
                self._failure = f"the process that compiles ended with status {status}{last}"
            else:
                for number in sorted(self._asked):  # asked for while it ended
                    self._send(number)

    def _fail(self) -> None:
        """Have the caller compile all that was asked for; the next task starts a process again."""
        warnings.warn(f"compiling here, which mini-batches wait for: {self._failure}.", stacklevel=4)
        self._failure = ""
        self._answered |= self._asked
        self._asked.clear()


_helper = Helper()


def _renew() -> None:
    global _helper
    _helper = Helper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def waits_for(task: Task) -> bool:
    """Ask the helper of this process for a task; see `Helper.waits_for`."""
    return _helper.waits_for(task)


def n_waiting() -> int:
    """How many tasks are asked for and not answered: while there are any, times say little."""
    return _helper.n_waiting


def wait_for_helper() -> None:
    """Wait until nothing is compiled in another process: before something is measured."""
    _helper.wait()
