"""Paths on the command line: read them, and check that files can be written before the work for them begins."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from autobatch.errors import DataError
from autobatch.release import pip_install

PICTURES = (".png", ".pdf", ".svg")


class PathType(click.Path):
    """A path that is not empty, as one is where a variable of the shell has no value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        if value == "":
            self.fail("must be a path, got ''", param, ctx)
        return super().convert(value, param, ctx)


class DataType(click.types.StringParamType):
    """The name of a generator or a path, which is not empty; see `PathType`."""

    name = "data"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        if value == "":
            self.fail("must be a generator or a path, got ''", param, ctx)
        return value


PATH = PathType(path_type=Path)
FILE = PathType(path_type=Path, dir_okay=False)
FOLDER = PathType(path_type=Path, file_okay=False)
DATA = DataType()


def require_place(path: Path, doing: str) -> None:
    """Refuse a file that cannot be written.

    Args:
        path: of the file, which may exist.
        doing: begins the message: what is to be done to the file.

    Raises:
        DataError: its folder is not there, or it or its folder cannot be written.
    """
    folder = path.parent
    if not folder.is_dir():
        raise DataError(f"cannot {doing} {str(path)!r}: there is no folder {str(folder)!r}; make it first.")
    if path.is_dir():
        raise DataError(f"cannot {doing} {str(path)!r}: it is a folder; name a file in it.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise DataError(f"cannot {doing} {str(path)!r}: it cannot be written; name a file in a folder that can.")


def require_picture(path: Path, doing: str, kinds: tuple[str, ...] = PICTURES) -> None:
    """Refuse a picture that cannot be written or drawn.

    Args:
        path, doing: see `require_place`.
        kinds: the endings that there are; none if any will do. What is no .dot is drawn with Matplotlib.

    Raises:
        DataError: as `require_place`, or its name has another ending, or Matplotlib is not installed.
    """
    require_place(path, doing)
    if kinds and path.suffix.lower() not in kinds:
        raise DataError(
            f"cannot {doing} {str(path)!r}: its name ends in none of {', '.join(kinds)}; name a file that does."
        )
    if path.suffix != ".dot" and find_spec("matplotlib") is None:
        raise DataError(
            f"cannot {doing} {str(path)!r}: matplotlib is not installed; {pip_install('plot')}."
        )  # fmt: skip
