"""Names and paths on the command line, checked before any work begins; tab completion; command groups with help.

Errors for unknown names suggest the nearest valid one. Names of data are checked on loading, which needs the model.

The shell runs the command at each completion, so heavy imports are avoided, and others are local. Options with a fixed
set of values are a `click.Choice`, which has its own completion.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from autobatch import policies
from autobatch.errors import DataError
from autobatch.keywords import nearest
from autobatch.models.registry import MODELS, check_name
from autobatch.release import pip_install


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Suggest the models of autobatch with their summaries."""
    from autobatch.models import MODELS, find_model

    return [CompletionItem(name, help=find_model(name).summary) for name in MODELS if name.startswith(incomplete)]


def complete_data(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Suggest generators and paths."""
    from autobatch.models.data.dataset import GENERATORS

    path = CompletionItem(incomplete, type="file")
    return [*click.Choice(list(GENERATORS)).shell_complete(ctx, param, incomplete), path]


def complete_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Suggest policies with the libraries that they come from; after a comma, only those not listed before it."""
    from autobatch import policies
    from autobatch.policies.rules.rules import ORIGINS

    before, comma, last = incomplete.rpartition(",")
    left = [name for name in ("auto", *policies.names()) if name not in before.split(",")]
    found = click.Choice(left).shell_complete(ctx, param, last)
    return [CompletionItem(f"{before}{comma}{item.value}", help=ORIGINS.get(item.value)) for item in found]


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
        for model in value if isinstance(value, tuple) else (value,):  # a tuple with nargs=-1
            if model is not None and model not in also:
                check_name(model)
        return value

    return click.argument(
        name, metavar=metavar, cls=ModelArgument, callback=check, shell_complete=complete_model, **options
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


PICTURES = (".png", ".pdf", ".svg")


class PathType(click.Path):
    """A path that must not be empty, as it is when a shell variable is unset."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("must be a path, got ''", param, ctx)
        return super().convert(value, param, ctx)


class DataType(click.types.StringParamType):
    """The name of a generator or a path, which must not be empty; see `PathType`."""

    name = "data"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("must be a generator or a path, got ''", param, ctx)
        return value


PATH = PathType(path_type=Path)
FILE = PathType(path_type=Path, dir_okay=False)
FOLDER = PathType(path_type=Path, file_okay=False)
DATA = DataType()


def require_place(path: Path, doing: str) -> None:
    """Check that a file can be written.

    Args:
        path: the file, which may exist.
        doing: verb of the error message, as in "cannot draw FILE".

    Raises:
        DataError: its folder does not exist, or it or its folder is not writable.
    """
    folder = path.parent
    if not folder.is_dir():
        raise DataError(f"cannot {doing} {str(path)!r}: the folder {str(folder)!r} does not exist; make it first.")
    if path.is_dir():
        raise DataError(f"cannot {doing} {str(path)!r}: it is a folder; name a file in it.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise DataError(f"cannot {doing} {str(path)!r}: it is not writable; name a file in a writable folder.")


def require_picture(path: Path, doing: str, kinds: tuple[str, ...] = PICTURES) -> None:
    """Check that a picture can be drawn and written.

    Args:
        path, doing: see `require_place`.
        kinds: allowed file extensions; empty for any. All but .dot need Matplotlib.

    Raises:
        DataError: as for `require_place`; or the extension is not allowed, or Matplotlib is not installed.
    """
    require_place(path, doing)
    if kinds and path.suffix.lower() not in kinds:
        raise DataError(
            f"cannot {doing} {str(path)!r}: the extension must be one of {', '.join(kinds)}, got {path.suffix!r}."
        )
    if path.suffix != ".dot" and find_spec("matplotlib") is None:
        raise DataError(
            f"cannot {doing} {str(path)!r}: matplotlib is not installed; {pip_install('plot')}."
        )  # fmt: skip
