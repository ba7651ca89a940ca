"""The process that compiles for another one: python -m autobatch.jit.helper; see `autobatch.jit.later`.

It reads (number, task) from standard input, does one task after the other, and writes the number when that is done or
has failed. It ends when it had nothing to do for some seconds. When its parent ended, however that
was, it ends with the task that it is at, some seconds later: so programs that run for a second find more compiled each
time. Only one such process compiles at a time, however many processes want something compiled in one cache: the others
wait, and then find what it made. An interrupt from the keyboard is its parent's.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, NoReturn, TextIO

from autobatch.jit.later import Task
from autobatch.jit.progress import untold
from autobatch.system.cache import cache_folder
from autobatch.system.owners import make_own

IDLE_S = 5.0
SLEEP_S = 0.02  # between two looks at whether another process still compiles


class Inbox:
    """The tasks that were asked for and not begun; filled by a thread.

    Attributes:
        is_closed: whether the process that asks has ended.
    """

    def __init__(self, pipe: BinaryIO) -> None:
        self._tasks: SimpleQueue[tuple[int, Task] | None] = SimpleQueue()
        self.is_closed = False
        threading.Thread(target=self._fill, args=(pipe,), daemon=True).start()

    def _fill(self, pipe: BinaryIO) -> None:
        with suppress(EOFError):
            while True:
                self._tasks.put(pickle.load(pipe))
        self.is_closed = True
        self._tasks.put(None)

    def take(self) -> tuple[int, Task] | None:
        """Return the next task, or None if there are no more."""
        try:
            task = self._tasks.get(timeout=IDLE_S)
        except Empty:
            return None
        return None if self.is_closed else task


@contextmanager
def alone(is_over: Callable[[], bool]) -> Iterator[None]:
    """Let no other process compile for this cache in the block, where the system has locks of files.

    Args:
        is_over: whether the program that asked has ended: while another process compiles, this one then ends too.
    """
    folder = cache_folder()
    try:
        import fcntl
    except ImportError:
        folder = None
    if folder is None:
        yield
        return

    def has_lock(file: TextIO) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    make_own(folder)
    with (folder / "compiling.lock").open("w", encoding="utf-8") as file:
        while not has_lock(file):
            if is_over():
                end()
            time.sleep(SLEEP_S)
        yield


def do(task: Task, is_over: Callable[[], bool]) -> None:
    """Do a task; what it raises shows where its process does it again."""
    with suppress(Exception), alone(is_over):
        getattr(import_module(task.module), task.function)(*task.args)


def end() -> NoReturn:
    """End this process, although a thread is reading standard input, which Python would wait for."""
    os._exit(0)


def main() -> None:
    """Do what standard input asks for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers: Any = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a task prints, from C too, is no answer
    inbox = Inbox(sys.stdin.buffer)
    with untold():
        while (taken := inbox.take()) is not None:
            number, task = taken
            do(task, lambda: inbox.is_closed)
            pickle.dump(number, answers)
            answers.flush()
    end()


if __name__ == "__main__":
    main()
