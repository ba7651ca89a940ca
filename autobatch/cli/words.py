"""Names on the command line, checked before any work begins, and command groups with help.

The error for an unknown name suggests the nearest valid one. Names of data are checked on loading, which needs the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from autobatch import policies
from autobatch.cli import completion
from autobatch.keywords import nearest
from autobatch.models.registry import MODELS, check_name

SOME = ("tree-lstm", "bilstm-tagger", "seq2seq", "graph-network")
"""Models suggested if the user names none."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Commands(click.Group):
    """A group that lists its commands in the order of addition, and shows its help if called without a command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments of the group."""
        return super().parse_args(ctx, args or ["--help"])


class Word(click.Choice):  # type: ignore[type-arg]
    """One of several words; the error for a wrong one suggests the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read it."""
        try:
            return str(super().convert(value, param, ctx))
        except click.BadParameter as error:
            meant = nearest(str(value), map(str, self.choices))
            self.fail(f"{error.message.rstrip('.')}{f'; did you mean {meant!r}?' if meant else ''}", param, ctx)


class ModelArgument(click.Argument):
    """The name of a model; if it is missing, the message lists some."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Read it."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter as error:
            message = f"Name one, such as {', '.join(SOME)}; `autobatch models` lists all {len(MODELS)}"
            raise click.MissingParameter(message, ctx, self) from error


def model_argument(name: str = "model", metavar: str = "MODEL", also: Sequence[str] = (), **options: Any) -> Decorator:
    """Make the argument that names a model, or several, or one of the words `also`."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        for model in value if isinstance(value, tuple) else (value,):
            if model is not None and model not in also:
                check_name(model)
        return value

    return click.argument(
        name, metavar=metavar, cls=ModelArgument, callback=check, shell_complete=completion.complete_model, **options
    )


def check_policy(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse an unknown policy and a file that holds no policy; a resumed run has its policy in its checkpoint."""
    if not ctx.params.get("resume"):
        policies.get(value)
    return value


def split_policies(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Split a comma-separated list of distinct policies, and check each."""
    names = tuple(name.strip() for name in value.split(","))
    if "" in names or len(set(names)) < len(names):
        raise click.BadParameter(f"{value!r} should be different names separated by commas, such as depth,agenda.")
    for name in names:
        policies.get(name)
    return names
