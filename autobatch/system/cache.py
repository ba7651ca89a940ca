"""The user's cache folder: measurements, layouts and machine code of this machine, for later processes.

An entry is a file of JSON or machine code, named by a digest of its inputs, with a checksum of its content; the
checksum of machine code covers the name as well. Files are written atomically (`autobatch.system.files.write_whole`),
so when several processes write an entry, one wins. Entries may be deleted at any time. A damaged entry counts as
missing, and an entry that cannot be written is computed again by the next process, both with a warning. Folders and
entries are used only if nobody but the current user or the administrator can have written them.

    AUTOBATCH_CACHE=path     keep entries in this folder
    AUTOBATCH_CACHE=off      neither write nor read entries; 0 and the empty string do the same
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from autobatch.errors import AutobatchError, DataError
from autobatch.system.files import open_regular, write_whole

_TOLD: list[str] = []  # folders warned about
PUBLIC = 0o755, 0o644
"""Modes of folders and files that everyone can read and only the owner can write."""


def is_own(status: os.stat_result) -> bool:
    """Return whether only this user or the administrator can write the folder or file with this status."""
    if not hasattr(os, "geteuid"):  # Windows: a user's folders belong to that user
        return True
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read_own(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file that only this user can have written.

    It is opened before the check, so that it cannot be swapped in between.

    Raises:
        FileNotFoundError: it does not exist or, with a warning, others can write to it.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        if is_own(os.fstat(file.fileno())):
            return file.read()
    warn_of_others(os.path.dirname(os.path.abspath(path)))
    raise FileNotFoundError(errno.ENOENT, "other users can write to it", os.fspath(path))


def warn_of_others(folder: str) -> None:
    """Warn, once per process, that the files in a folder are ignored."""
    if not _TOLD:
        _TOLD.append(folder)
        warnings.warn(
            f"ignoring the cache {folder!r}: it belongs to another user, or other users can write to it. Set "
            f"AUTOBATCH_CACHE to a folder of your own, or remove their write permission with chmod -R go-w.",
            stacklevel=3,
        )


def make_own(folder: str | os.PathLike[str]) -> None:
    """Create a folder and its parents if missing.

    The folder and its parent, if they are created, are readable but not writable by others.
    """
    parent = os.path.dirname(os.path.abspath(folder))
    os.makedirs(os.path.dirname(parent), exist_ok=True)
    # `makedirs` would use the default mode, and with a umask of 002 let the group write.
    for path in (parent, folder):
        try:
            os.mkdir(path, PUBLIC[0])
        except FileExistsError:
            if not os.path.isdir(path):
                raise


Entry = TypeVar("Entry")

VARIABLE = "AUTOBATCH_CACHE"
IS_WINDOWS = os.name == "nt"
OFF = ("", "0", "off")
CHECKSUM = "checksum"  # field of an entry
DIGEST_BYTES = sha256().digest_size  # at the start of a file of machine code
MOST_CODE = 256 << 20  # bytes of machine code per kind
UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors that reading arbitrary JSON may raise."""


def cache_folder() -> Path | None:
    """Return the folder of entries, or None if `AUTOBATCH_CACHE` is off, there is no home folder, or others can write
    it."""
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
    """Return whether only this user can write or create a folder. Cached, as each file is checked as well."""
    try:
        trusted = is_own(os.stat(folder))
    except OSError:
        return True
    if not trusted:
        warn_of_others(folder)
    return trusted


def find_entry(kind: str, signature: str, parse: Callable[[Mapping[str, Any]], Entry]) -> Entry | None:
    """Read an entry of JSON.

    Args:
        kind: subfolder of the entry.
        signature: name of the entry within its kind.
        parse: converts the content to the result; raises one of `UNREADABLE`, or AutobatchError, on failure.

    Returns:
        Result of `parse`; None if the entry is missing or, with a warning, damaged.
    """
    path = _place(kind, signature)
    if path is None:
        return None
    try:
        return parse(_check(read_own(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (*UNREADABLE, AutobatchError) as error:
        warnings.warn(f"ignoring a damaged cache file, which will be replaced: {str(path)!r} ({error}).", stacklevel=2)
        return None


def keep_entry(kind: str, signature: str, content: Mapping[str, Any]) -> Path | None:
    """Write an entry of JSON, replacing an existing one.

    Args:
        kind, signature: see `find_entry`.
        content: JSON values.

    Returns:
        Path of the entry; None if the cache is off or, with a warning, cannot be written.
    """
    path = _place(kind, signature)
    if path is None:
        return None
    try:
        make_own(path.parent)
        write_whole(path, json.dumps({**content, CHECKSUM: _checksum(content)}, indent=1).encode(), PUBLIC[1])
    except OSError as error:
        warnings.warn(
            f"cannot cache {kind} in {str(path.parent)!r} ({error}); continuing without the cache. Set {VARIABLE} to "
            f"a writable folder, or to off.",
            stacklevel=2,
        )
        return None
    return path


def find_code(kind: str, signature: str) -> bytes | None:
    """Read an entry of machine code; return None if it is missing or, with a warning, damaged; see `find_entry`."""
    path = _place(kind, signature, ".o")
    if path is None:
        return None
    try:
        content = read_own(path)
        code = content[DIGEST_BYTES:]
        if _digest(signature, code) != content[:DIGEST_BYTES]:
            raise DataError("its checksum does not match")
        # `_shrink` takes the time of modification for that of the last use.
        with suppress(OSError):  # a read-only cache
            os.utime(path)
        return code
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, DataError) as error:
        warnings.warn(f"ignoring a damaged cache file, which will be replaced: {str(path)!r} ({error}).", stacklevel=2)
        return None


def keep_code(kind: str, signature: str, code: bytes) -> None:
    """Write an entry of machine code; above `MOST_CODE` bytes per kind, delete the least recently used entries.

    If it cannot be written, warn; the next process will compile it again.
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
            f"cannot cache compiled code in {str(path.parent)!r} ({error.strerror or error}); continuing "
            f"without the cache.",
            stacklevel=2,
        )


def _digest(signature: str, code: bytes) -> bytes:
    """Return a checksum that covers the name too: another kernel's code takes other arguments and would crash."""
    return sha256(signature.encode() + b"\0" + code).digest()


def _shrink(folder: Path) -> None:
    """Delete the least recently used files of a folder until the rest has at most `MOST_CODE` bytes."""
    files = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            status = entry.stat()
            files.append((status.st_mtime, status.st_size, entry.path))
    excess = sum(size for _, size, _ in files) - MOST_CODE
    for _, size, path in sorted(files):
        if excess <= 0:
            return
        with suppress(FileNotFoundError):  # another process may delete it as well
            os.remove(path)
        excess -= size


def _check(text: bytes) -> Mapping[str, Any]:
    """Parse an entry and verify its checksum; raise a DataError, or one of `UNREADABLE`, if it is damaged."""
    content = json.loads(text)
    if content.pop(CHECKSUM) != _checksum(content):
        raise DataError("its checksum does not match")
    found: Mapping[str, Any] = content
    return found


def _checksum(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _place(kind: str, signature: str, suffix: str = ".json") -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / kind / f"{signature}{suffix}"
