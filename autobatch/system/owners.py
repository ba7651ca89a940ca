"""Trusted files: only this user or the administrator can have written them."""

from __future__ import annotations

import errno
import os
import stat
import warnings

from autobatch.system.files import open_regular

_TOLD: list[str] = []  # folders already warned about
PUBLIC = 0o755, 0o644
"""Modes of folders and files that all can read and only the owner can write, whatever the umask."""


def is_own(status: os.stat_result) -> bool:
    """Whether only this user or the administrator can write the folder or file with this status."""
    if not hasattr(os, "geteuid"):  # Windows: a user's folders belong to that user
        return True
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read_own(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file that `is_own`; it is opened before the check, so that it cannot be swapped in between.

    Raises:
        FileNotFoundError: it does not exist; or others can have written it, with one warning per folder.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        if is_own(os.fstat(file.fileno())):
            return file.read()
    warn_of_others(os.path.dirname(os.path.abspath(path)))
    raise FileNotFoundError(errno.ENOENT, "it may have been written by others", os.fspath(path))


def warn_of_others(folder: str) -> None:
    """Warn, once per process, that the files in a folder are ignored."""
    if not _TOLD:
        _TOLD.append(folder)
        warnings.warn(
            f"what the cache {folder!r} holds is ignored: it belongs to another user, or others may write it. Set "
            f"AUTOBATCH_CACHE to a folder that is yours alone, or take the right to write there from others, with "
            f"chmod -R go-w.",
            stacklevel=3,
        )


def make_own(folder: str | os.PathLike[str]) -> None:
    """Make a folder and its parent, if missing, readable by others but not writable."""
    parent = os.path.dirname(os.path.abspath(folder))
    os.makedirs(os.path.dirname(parent), exist_ok=True)
    for path in (parent, folder):
        try:
            os.mkdir(path, PUBLIC[0])
        except FileExistsError:
            if not os.path.isdir(path):
                raise
