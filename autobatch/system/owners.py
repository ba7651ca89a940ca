"""Files that only the current user or the administrator can have written."""

from __future__ import annotations

import errno
import os
import stat
import warnings

from autobatch.system.files import open_regular

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
        FileNotFoundError: it does not exist or, with a warning, others can write it.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        if is_own(os.fstat(file.fileno())):
            return file.read()
    warn_of_others(os.path.dirname(os.path.abspath(path)))
    raise FileNotFoundError(errno.ENOENT, "other users can write it", os.fspath(path))


def warn_of_others(folder: str) -> None:
    """Warn, once per process, that the files in a folder are ignored."""
    if not _TOLD:
        _TOLD.append(folder)
        warnings.warn(
            f"ignoring the cache {folder!r}: it belongs to another user, or other users can write it. Set "
            f"AUTOBATCH_CACHE to a folder of your own, or remove their write permission with chmod -R go-w.",
            stacklevel=3,
        )


def make_own(folder: str | os.PathLike[str]) -> None:
    """Create a folder and its parents if missing; the folder and its parent are readable but not writable by others."""
    parent = os.path.dirname(os.path.abspath(folder))
    os.makedirs(os.path.dirname(parent), exist_ok=True)
    for path in (parent, folder):
        try:
            os.mkdir(path, PUBLIC[0])
        except FileExistsError:
            if not os.path.isdir(path):
                raise
