"""The end of a command: user errors print one sentence on standard error, without a traceback.

Ctrl-C ends the process at once, from the signal handler. A KeyboardInterrupt, which Python may raise between any two
instructions, can be swallowed in a destructor or corrupt the compiler: of 50 commands interrupted in their first
second, 3 hung or crashed. Training with checkpoints handles the signal itself, in `keeping`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, TextIO

import click

from autobatch.errors import AutobatchError
from autobatch.starting import INTERRUPTED, SAID
from autobatch.system.files import remove_unfinished
from autobatch.tracebacks import hide_frames

USER_ERROR = 2
CRASHED = 1
FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO
"""Errors of a full disk, which any write may raise."""
_SHOW_CURSOR = b"\x1b[?25h\n"  # progress bars hide the cursor; the newline ends the line that shows ^C


def run_process(work: Callable[[], object]) -> NoReturn:
    """Run `work` as the whole process, and exit; show an error of the user's code with the user's lines only."""
    signal.signal(signal.SIGINT, _exit_now)
    warnings.showwarning = _warn
    try:
        status = run_to_the_end(work)
    except Exception as error:
        hide_frames(error)
        sys.excepthook(type(error), error, error.__traceback__)
        status = CRASHED
    sys.exit(status)


def run_to_the_end(work: Callable[[], object]) -> int:
    """Run `work`; return the exit status: 2 after a user error, else the int that `work` returned, or 0."""
    try:
        status = work()
        sys.stdout.flush()  # errors of buffered output occur here, not at exit
    except click.UsageError as error:
        hint = f"{error.ctx.command_path if error.ctx else 'autobatch'} --help"
        message = error.format_message().rstrip(".")
        return _complain(f"{message} See {hint}." if message.endswith("?") else f"{message}; see {hint}.")
    except click.ClickException as error:
        return _complain(error.format_message())
    except AutobatchError as error:
        return _complain(str(error))
    except MemoryError as error:
        found = f" ({error})" if str(error) else ""
        return _complain(f"cannot continue: out of memory{found}; reduce --dim, --batch-size or --max-bytes.")
    except BrokenPipeError:  # the reader of our output, such as head, has closed it
        _print_no_more()
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        _print_no_more()
        where = "the output" if error.filename is None else repr(error.filename)
        return _complain(f"cannot write {where}: {(error.strerror or str(error)).lower()}; free some space there.")
    return status if isinstance(status, int) else 0


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning in the format of errors, without its source line."""
    click.echo(f"autobatch: {' '.join(str(message).split())}", err=True)


def _complain(message: str) -> int:
    with contextlib.suppress(OSError):  # on a full disk, only the exit status can report it
        click.echo(f"autobatch: {' '.join(message.split())}", err=True)
    return USER_ERROR


def _print_no_more() -> None:
    """Discard further standard output, which cannot be written."""
    # Python flushes standard output once more at exit, which must not fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_now(signal_number: int, frame: FrameType | None) -> NoReturn:
    """Report the interrupt, remove partial files and end the process."""
    remove_unfinished()
    with contextlib.suppress(RuntimeError, OSError):  # the signal may have interrupted a write to standard output
        sys.stdout.flush()
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), _SHOW_CURSOR)
    os.write(sys.stderr.fileno(), SAID)
    os._exit(INTERRUPTED)


def describe_end(status: int) -> str:
    """Describe the end of a process by its exit status; a negative one is a signal."""
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
