"""Which trained model a command is given: one in checkpoints by its name, or one that was exported to a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from autobatch.cli import options
from autobatch.cli.places import FILE
from autobatch.cli.training.stored import BEST, LAST, StoredModel, read_exported, read_run
from autobatch.cli.words import model_argument
from autobatch.errors import CheckpointError


class Trained(NamedTuple):
    """A trained model, as a command was given it.

    Attributes:
        name: of the model; None if only the exported file names it.
        path: the folder of checkpoints, one of its files, or the exported file.
        is_exported: whether `path` is an exported file.
    """

    name: str | None
    path: Path
    is_exported: bool = False

    @property
    def file(self) -> Path:
        """The file to read: of a folder its best checkpoint, or its last if no epoch was measured."""
        if self.is_exported or not self.path.is_dir():
            return self.path
        return self.path / (BEST if (self.path / BEST).exists() else LAST)

    def read(self) -> StoredModel:
        """Read the file.

        Raises:
            CheckpointError: there is none, it cannot be read, or it is of another model.
        """
        if self.is_exported:
            stored: StoredModel = read_exported(self.path, () if self.name is None else (self.name,))
            if self.name is not None:
                stored.refuse_model(self.name)
            return stored
        assert self.name is not None
        path = self.file
        if not path.exists():
            lacking = f"it holds neither {BEST} nor {LAST}" if self.path.is_dir() else "there is no such folder or file"
            raise CheckpointError(
                f"cannot find a checkpoint in {str(self.path)!r}: {lacking}; name a folder that autobatch train "
                f"--checkpoint wrote."
            )
        stored = read_run(path)
        stored.refuse_model(self.name)
        return stored


def checkpoint_option(required: bool) -> options.Decorator:
    """Make the option that names checkpoints of a run."""
    return options.checkpoint_option(
        "The folder that `autobatch train --checkpoint` wrote, for the best checkpoint in it; or one of its files.",
        required=required,
    )


def trained_model(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument and the options that say which trained model; it is called with `trained`."""

    @model_argument("name", metavar="[MODEL]", required=False)
    @checkpoint_option(required=False)
    @click.option(
        "--model",
        "exported",
        metavar="FILE",
        type=FILE,
        help="A file that `autobatch export` wrote, instead of --checkpoint; MODEL is needed for one of your own.",
    )
    @wraps(command)
    def given(name: str | None, checkpoint: Path | None, exported: Path | None, **others: Any) -> Any:
        if exported is not None and checkpoint is None:
            return command(trained=Trained(name, exported, is_exported=True), **others)
        if exported is None and name is not None and checkpoint is not None:
            return command(trained=Trained(name, checkpoint), **others)
        raise click.UsageError("give MODEL and --checkpoint DIR, or --model FILE.")

    return given
