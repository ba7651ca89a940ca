"""The user's cache folder: what autobatch measured and laid out on this machine, for later processes.

An entry is a file of JSON or machine code, named by a digest of what it depends on, with a checksum of its content;
that of machine code covers the name.
Files are written whole (`autobatch.system.files.write_whole`), so of several processes that write one entry, one wins.
Entries may be deleted at any time: one that is damaged counts as absent, and one that cannot be written is computed
again by the next process; a warning says so. Folders and entries that others can write are not used
(`autobatch.system.owners`).

    AUTOBATCH_CACHE=path     keeps entries in this folder
    AUTOBATCH_CACHE=off      neither keeps nor reads entries; 0 and the empty string mean the same
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from autobatch.errors import AutobatchError, DataError
from autobatch.system.files import write_whole
from autobatch.system.owners import PUBLIC, is_own, make_own, read_own, warn_of_others

Entry = TypeVar("Entry")

VARIABLE = "AUTOBATCH_CACHE"
IS_WINDOWS = os.name == "nt"
OFF = ("", "0", "off")
CHECKSUM = "checksum"  # field of an entry
DIGEST_BYTES = sha256().digest_size  # before machine code
MOST_CODE = 256 << 20  # bytes of machine code of a kind
UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors of reading JSON of any content."""


def cache_folder() -> Path | None:
    """Return the folder of entries.

    Returns:
        None if `AUTOBATCH_CACHE` is off, the user has no home folder, or others can write the folder.
    """
    folder = _chosen()
    return folder if folder is not None and _is_trusted(str(folder)) else None


def _chosen() -> Path | None:
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


@cache
def _is_trusted(folder: str) -> bool:
    """Whether only this user can write or make a folder. Cached, because each file is checked as well."""
    try:
        trusted = is_own(os.stat(folder))
    except OSError:
        return True
    if not trusted:
        warn_of_others(folder)
    return trusted


def find_entry(kind: str, signature: str, parse: Callable[[Mapping[str, Any]], Entry]) -> Entry | None:
    """Read an entry.

    Args:
        kind: of entry.
        signature: names the entry within its kind.
        parse: converts the content to the result; raises one of `UNREADABLE`, or AutobatchError, if it cannot.

    Returns:
        Result of `parse`; None if the entry is missing, or damaged, which gives a warning.
    """
    path = _place(kind, signature)
    if path is None:
        return None
    try:
        return parse(_check(read_own(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (*UNREADABLE, AutobatchError) as error:
        warnings.warn(
            f"a cached file is left aside and will be replaced: {str(path)!r} is damaged ({error}).", stacklevel=2
        )
        return None


def keep_entry(kind: str, signature: str, content: Mapping[str, Any]) -> Path | None:
    """Write an entry, in place of what is there.

    Args:
        kind, signature: see `find_entry`.
        content: JSON values.

    Returns:
        Where it is; None if nothing is to be kept, or if it cannot be, of which a warning is given.
    """
    path = _place(kind, signature)
    if path is None:
        return None
    try:
        make_own(path.parent)
        write_whole(path, json.dumps({**content, CHECKSUM: _checksum(content)}, indent=1).encode(), PUBLIC[1])
    except OSError as error:
        warnings.warn(
            f"cannot keep {kind} in {str(path.parent)!r} ({error}); going on without. Set {VARIABLE} to a folder that "
            f"can be written, or to off.",
            stacklevel=2,
        )
        return None
    return path


def find_code(kind: str, signature: str) -> bytes | None:
    """Read machine code; None if the entry is missing, or damaged, which gives a warning.

    Args:
        kind, signature: see `find_entry`.
    """
    path = _place(kind, signature, ".o")
    if path is None:
        return None
    try:
        content = read_own(path)
        code = content[DIGEST_BYTES:]
        if _digest(signature, code) != content[:DIGEST_BYTES]:
            raise DataError("its checksum is another")
        with suppress(OSError):  # a cache that can only be read
            os.utime(path)
        return code
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, DataError) as error:
        warnings.warn(
            f"a cached file is left aside and will be replaced: {str(path)!r} is damaged ({error}).", stacklevel=2
        )
        return None


def keep_code(kind: str, signature: str, code: bytes) -> None:
    """Write machine code; beyond `MOST_CODE` bytes of its kind, the entries that were not used for longest are deleted.

    What cannot be written is compiled again by the next process; a warning says so.
    """
    path = _place(kind, signature, ".o")
    if path is None:
        return
    try:
        make_own(path.parent)
        write_whole(path, _digest(signature, code) + code, PUBLIC[1])
        _shrink(path.parent)
    except OSError as error:
        warnings.warn(
            f"cannot keep compiled code in {str(path.parent)!r} ({error.strerror or error}); going on without.",
            stacklevel=2,
        )


def _digest(signature: str, code: bytes) -> bytes:
    """The checksum of machine code under its own name: another kernel's code takes other arguments, and would crash."""
    return sha256(signature.encode() + b"\0" + code).digest()


def _shrink(folder: Path) -> None:
    """Delete the files of a folder that were not used for longest, until the rest is small enough."""
    files = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            status = entry.stat()
            files.append((status.st_mtime, status.st_size, entry.path))
    excess = sum(size for _, size, _ in files) - MOST_CODE
    for _, size, path in sorted(files):
        if excess <= 0:
            return
        with suppress(FileNotFoundError):  # another process may be at it, too
            os.remove(path)
        excess -= size


def _check(text: bytes) -> Mapping[str, Any]:
    """Return the content of an entry; DataError, or one of `UNREADABLE`, if it is damaged."""
    content = json.loads(text)
    if content.pop(CHECKSUM) != _checksum(content):
        raise DataError("its checksum is another")
    found: Mapping[str, Any] = content
    return found


def _checksum(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _place(kind: str, signature: str, suffix: str = ".json") -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / kind / f"{signature}{suffix}"
