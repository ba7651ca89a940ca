"""The first moments of the command `autobatch`, before its packages are imported, which may take seconds.

Ctrl-C ends it with a sentence from its first moment on. A process that another one has started, such as a worker of a
server, ends with that one, however it ends and whatever this one does.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

FIRST = "AUTOBATCH_FIRST"
"""The environment of a started process has the number of a pipe whose other end only the process that started it holds,
and the seconds that it has to end after SIGTERM."""
INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended
SAID = b"autobatch: interrupted.\n"


def _is_command() -> bool:
    """Whether this process runs the command, and not a user's program."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return name in ("autobatch", "autobatch.exe") or (name == "-m" and "autobatch" in sys.orig_argv)


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End the process: an exception in an import might be swallowed, or shown with its traceback."""
    os.write(2, SAID)
    os._exit(INTERRUPTED)


def _end_with(pipe: int, seconds: float) -> None:
    """End this process when the one that holds the other end of a pipe has ended."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os._exit(128 + signal.SIGTERM)


if _is_command() and threading.current_thread() is threading.main_thread():
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    if FIRST in os.environ:
        _pipe, _seconds = os.environ[FIRST].split()
        threading.Thread(target=_end_with, args=(int(_pipe), float(_seconds)), daemon=True).start()
