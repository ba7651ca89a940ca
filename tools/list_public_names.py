"""Write `docs/public_names.txt`: the public names of Python and of the command line, one per line.

A test compares the file with the package, so a removed name also appears in the file's diff, where a reviewer sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType

import click

from autobatch.cli.main import commands
from checkout import ROOT

FILE = ROOT / "docs" / "public_names.txt"
MODULES = (
    "autobatch", "autobatch.distributed", "autobatch.errors", "autobatch.graph", "autobatch.memplan",
    "autobatch.models", "autobatch.ops", "autobatch.optim", "autobatch.policies", "autobatch.policies.env",
    "autobatch.readers", "autobatch.schedule", "autobatch.serving", "autobatch.testing", "autobatch.torch",
)  # fmt: skip


def list_public_names() -> list[str]:
    """List the names of each public module, then commands and options."""
    names = [f"{module}.{name}" for module in MODULES for name in sorted(names_of(import_module(module)))]
    return [*names, *_list_command("autobatch", commands)]


def names_of(module: ModuleType) -> Sequence[str]:
    """Return a module's `__all__`; for the module of errors, which has none, its public names."""
    return getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]


def _list_command(name: str, command: click.Command) -> Iterator[str]:
    """List a command with each of its options, and its subcommands."""
    yield name
    options = (parameter.opts for parameter in command.params if isinstance(parameter, click.Option))
    yield from (f"{name} {option}" for option in sorted(max(names, key=len) for names in options))
    if isinstance(command, click.Group):
        for below in sorted(command.commands):
            yield from _list_command(f"{name} {below}", command.commands[below])


if __name__ == "__main__":
    FILE.write_text("".join(f"{name}\n" for name in list_public_names()), encoding="utf-8")
