"""Whose files are trusted: those that nobody but this user, or the administrator, may have written."""

from __future__ import annotations

import errno
import os
import stat
import warnings

from autobatch.system.files import open_regular

_TOLD: list[str] = []  # the folder that was warned of
PUBLIC = 0o755, 0o644
"""The modes of folders and files that all may read and only their owner may write, whatever the umask is."""


def is_own(status: os.stat_result) -> bool:
    """Whether only this user, or the administrator, may write the folder or file that has this status."""
    if not hasattr(os, "geteuid"):  # Windows: folders of a user belong to this user
        return True
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read_own(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file that `is_own`; the file is opened first, so that it cannot be exchanged after the look.

    Raises:
        FileNotFoundError: there is none; or others may have written it, of which one warning is given per folder.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        if is_own(os.fstat(file.fileno())):
            return file.read()
    warn_of_others(os.path.dirname(os.path.abspath(path)))
    raise FileNotFoundError(errno.ENOENT, "it may have been written by others", os.fspath(path))


def warn_of_others(folder: str) -> None:
    """Warn, once in a process, that what is in a folder is not used."""
    if not _TOLD:
        _TOLD.append(folder)
        warnings.warn(
            f"what the cache {folder!r} holds is ignored: it belongs to another user, or others may write it. Set "
            f"AUTOBATCH_CACHE to a folder that is yours alone, or take the right to write there from others, with "
            f"chmod -R go-w.",
            stacklevel=3,
        )


def make_own(folder: str | os.PathLike[str]) -> None:
    """Make a folder, and the one that it is in, if they are not there, which others may read and not write."""
    parent = os.path.dirname(os.path.abspath(folder))
    os.makedirs(os.path.dirname(parent), exist_ok=True)
    for path in (parent, folder):
        try:
            os.mkdir(path, PUBLIC[0])
        except FileExistsError:
            if not os.path.isdir(path):
                raise
