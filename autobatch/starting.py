"""Set up signals for the command `autobatch` before its packages are imported, which may take seconds.

Ctrl-C ends the command with a one-sentence message, even during the imports. A child process, such as a server's
worker, ends with its parent, no matter how the parent ends and what the child is doing.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

FIRST = "AUTOBATCH_FIRST"
"""Environment variable of a child process: the file descriptor of a pipe whose other end only its parent holds, and
the time in seconds between SIGTERM and a forced exit."""
INTERRUPTED = 130  # exit status that shells report after Ctrl-C
SAID = b"autobatch: interrupted.\n"


def _is_command() -> bool:
    """Return whether this process runs the command rather than a user's program."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return name in ("autobatch", "autobatch.exe") or (name == "-m" and "autobatch" in sys.orig_argv)


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Exit immediately, because an exception in an import might be swallowed, or shown with its traceback."""
    os.write(2, SAID)
    os._exit(INTERRUPTED)


def _end_with(pipe: int, seconds: float) -> None:
    """Wait until the process at the other end of the pipe has ended, then end this one; see `FIRST`."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os._exit(128 + signal.SIGTERM)


if _is_command() and threading.current_thread() is threading.main_thread():
    # Not if SIGINT is ignored, as in background jobs of a shell script.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    if FIRST in os.environ:
        _pipe, _seconds = os.environ[FIRST].split()
        threading.Thread(target=_end_with, args=(int(_pipe), float(_seconds)), daemon=True).start()
