"""Run commands in the process of a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autobatch.cli.ending import run_to_the_end
from autobatch.cli.main import dispatch

Command = Callable[..., tuple[int, str, str]]
"""A function of the words of a command that returns its exit status, its output and its errors."""


def make_command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Make a `Command`; it drops progress lines about compilation, which depend on the machine."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run_to_the_end(lambda: dispatch([str(argument) for argument in arguments]))
        out, err = capfd.readouterr()
        told = [line for line in err.splitlines(keepends=True) if not line.startswith("autobatch: compiling")]
        return status, out, "".join(told)

    return call
