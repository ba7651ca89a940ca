"""The user's cache folder: what autobatch measured and laid out on this machine, for later processes.

An entry is a file, named by a digest of what it depends on. Files are written whole
(`autobatch.system.files.write_whole`), so of several processes that write one entry, one wins. Entries may be deleted
at any time: one that cannot be read counts as absent, and one that cannot be written is computed again by the next
process; a warning says so.

    AUTOBATCH_CACHE=path     keeps entries in this folder
    AUTOBATCH_CACHE=off      neither keeps nor reads entries; 0 and the empty string mean the same
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from autobatch.errors import AutobatchError

Entry = TypeVar("Entry")

VARIABLE = "AUTOBATCH_CACHE"
IS_WINDOWS = os.name == "nt"
OFF = ("", "0", "off")
UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors of reading JSON of any content."""


def cache_folder() -> Path | None:
    """Return the folder of entries; None if `AUTOBATCH_CACHE` is off or the user has no home folder."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return None if chosen.strip().lower() in OFF else Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "autobatch"
    if IS_WINDOWS:
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "autobatch"
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else home / ".cache") / "autobatch"


def find_entry(kind: str, signature: str, load: Callable[[Path], Entry]) -> Entry | None:
    """Read an entry.

    Args:
        kind: of entry.
        signature: names the entry within its kind.
        load: reads a file; AutobatchError if it is none that it can read.

    Returns:
        What it read; None if there is no entry, or none that can be read, of which a warning is given.
    """
    path = _place(kind, signature)
    if path is None or not os.path.exists(path):
        return None
    try:
        return load(path)
    except AutobatchError as error:
        warnings.warn(f"a cached file is left aside and will be replaced: {error}", stacklevel=2)
        return None


def keep_entry(kind: str, signature: str, save: Callable[[Path], None]) -> Path | None:
    """Write an entry, in place of what is there.

    Args:
        kind, signature: see `find_entry`.
        save: writes a file whole; AutobatchError or OSError if it cannot.

    Returns:
        Where it is; None if nothing is to be kept, or if it cannot be, of which a warning is given.
    """
    path = _place(kind, signature)
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path)
    except (OSError, AutobatchError) as error:
        warnings.warn(
            f"cannot keep {kind} in {str(path.parent)!r} ({error}); going on without. Set {VARIABLE} to a folder that "
            f"can be written, or to off.",
            stacklevel=2,
        )
        return None
    return path


def _place(kind: str, signature: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / kind / f"{signature}.json"
