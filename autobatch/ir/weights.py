"""The stacks of parameters that a program reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autobatch.ir.program import Var
from autobatch.params.stacks import Stack


def stacks_in(vars: Iterable[Var]) -> Iterator[Stack]:
    """Yield the stacks that a program reads."""
    for var in vars:
        parameter = getattr(var.source, "parameter", None)
        if isinstance(parameter, Stack):
            yield parameter
