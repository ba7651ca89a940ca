"""Commands run in the process of a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autobatch.cli.ending import run_to_the_end
from autobatch.cli.main import dispatch

Command = Callable[..., tuple[int, str, str]]
"""Takes the words of a command; gives its exit status and what it printed."""


def make_command(capfd: pytest.CaptureFixture[str]) -> Command:
    """What runs a command; that scripts say how long they compile depends on the machine, and is left out."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run_to_the_end(lambda: dispatch([str(argument) for argument in arguments]))
        out, err = capfd.readouterr()
        told = [line for line in err.splitlines(keepends=True) if not line.startswith("autobatch: compiling")]
        return status, out, "".join(told)

    return call
