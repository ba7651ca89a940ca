"""The trained model of a command: a folder of checkpoints with the model's name, or an exported file."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from autobatch.cli import options
from autobatch.cli.places import FILE
from autobatch.cli.training.exported_fold import read_model_file
from autobatch.cli.training.stored import BEST, LAST, StoredModel, read_run
from autobatch.cli.words import model_argument
from autobatch.errors import CheckpointError


class Trained(NamedTuple):
    """A trained model as given on the command line.

    Attributes:
        name: name of the model; None to use the one in the exported file.
        path: the folder of checkpoints, one of its files, or the exported file.
        is_exported: whether `path` is an exported file.
    """

    name: str | None
    path: Path
    is_exported: bool = False

    @property
    def file(self) -> Path:
        """Return the file to read: in a folder the best checkpoint, or the last one before the first epoch's end."""
        if self.is_exported or not self.path.is_dir():
            return self.path
        return self.path / (BEST if (self.path / BEST).exists() else LAST)

    def read(self) -> StoredModel:
        """Read the model from the file.

        Raises:
            CheckpointError: the file is missing or unreadable, or holds another model.
        """
        if self.is_exported:
            stored: StoredModel = read_model_file(self.path, () if self.name is None else (self.name,))
            if self.name is not None:
                stored.refuse_model(self.name)
            return stored
        assert self.name is not None
        path = self.file
        if not path.exists():
            lacking = f"it holds neither {BEST} nor {LAST}" if self.path.is_dir() else "it does not exist"
            raise CheckpointError(
                f"cannot find a checkpoint in {str(self.path)!r}: {lacking}; give a folder written by autobatch train "
                f"--checkpoint."
            )
        stored = read_run(path)
        stored.refuse_model(self.name)
        return stored


def checkpoint_option(required: bool) -> options.Decorator:
    """Make the option for the checkpoints of a run."""
    return options.checkpoint_option(
        "Folder of `autobatch train --checkpoint`, for its best checkpoint; or one of its files.",
        required=required,
    )


def trained_model(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument and options for a trained model to a command, which gets them as `trained`."""

    @model_argument("name", metavar="[MODEL]", required=False)
    @checkpoint_option(required=False)
    @click.option(
        "--model",
        "exported",
        metavar="FILE",
        type=FILE,
        help="A file from `autobatch export`, or from ab.export with a fold, instead of --checkpoint; MODEL is needed "
        "only for other models of your own.",
    )
    @wraps(command)
    def given(name: str | None, checkpoint: Path | None, exported: Path | None, **others: Any) -> Any:
        if exported is not None and checkpoint is None:
            return command(trained=Trained(name, exported, is_exported=True), **others)
        if exported is None and name is not None and checkpoint is not None:
            return command(trained=Trained(name, checkpoint), **others)
        raise click.UsageError("give either MODEL and --checkpoint DIR, or --model FILE.")

    return given
