"""How a command ends: what the user can cause ends in one sentence on standard error, never in a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click

from autobatch.errors import AutobatchError

USER_ERROR = 2
INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended


def run_to_the_end(work: Callable[[], object]) -> int:
    """Do the work; give the exit status: 2 after an error of the user's, 130 after Ctrl-C, else the int it returned."""
    try:
        status = work()
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted.", INTERRUPTED)
    except click.UsageError as error:
        hint = f"{error.ctx.command_path if error.ctx else 'autobatch'} --help"
        return _complain(f"{error.format_message().rstrip('.')}; see {hint}.", USER_ERROR)
    except click.ClickException as error:
        return _complain(error.format_message(), USER_ERROR)
    except AutobatchError as error:
        return _complain(str(error), USER_ERROR)
    except BrokenPipeError:  # whatever reads our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status if isinstance(status, int) else 0


def _complain(message: str, status: int) -> int:
    """Write one line to standard error; a terminal that shows ^C is still on that line."""
    start = "\n" if status == INTERRUPTED and sys.stderr.isatty() else ""
    click.echo(f"{start}autobatch: {' '.join(message.split())}", err=True)
    return status
