"""Paths on the command line, and checks that output files can be written before the work begins."""

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
