"""Names on the command line, checked before any work begins, and command groups with help.

Errors for unknown names suggest the nearest valid one. Names of data are checked on loading, which needs the model.
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
"""Models suggested if MODEL is missing."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Commands(click.Group):
    """A group that lists its commands in the order of addition, and shows its help when called without a command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])


class Word(click.Choice):  # type: ignore[type-arg]
    """A choice whose error suggests the nearest valid value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return str(super().convert(value, param, ctx))
        except click.BadParameter as error:
            meant = nearest(str(value), map(str, self.choices))
            self.fail(f"{error.message.rstrip('.')}{f'; did you mean {meant!r}?' if meant else ''}", param, ctx)


class ModelArgument(click.Argument):
    """The name of a model; the error for a missing one lists some."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter as error:
            message = f"Give one, such as {', '.join(SOME)}; `autobatch models` lists all {len(MODELS)}"
            raise click.MissingParameter(message, ctx, self) from error


def model_argument(name: str = "model", metavar: str = "MODEL", also: Sequence[str] = (), **options: Any) -> Decorator:
    """Make the argument for the name of a model, or several; the words in `also` are allowed as well."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        for model in value if isinstance(value, tuple) else (value,):
            if model is not None and model not in also:
                check_name(model)
        return value

    return click.argument(
        name, metavar=metavar, cls=ModelArgument, callback=check, shell_complete=completion.complete_model, **options
    )


def check_policy(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Raise an error for an unknown policy or an invalid policy file, unless a run resumes with its stored policy."""
    if not ctx.params.get("resume"):
        policies.get(value)
    return value


def split_policies(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Split a comma-separated list of distinct policies, and check each."""
    names = tuple(name.strip() for name in value.split(","))
    if "" in names or len(set(names)) < len(names):
        raise click.BadParameter(f"must be distinct names separated by commas, such as depth,agenda, got {value!r}.")
    for name in names:
        policies.get(name)
    return names
