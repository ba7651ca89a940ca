"""Atomic writes: readers, also after a crash, find the old content of a file or the new, never a part."""

from __future__ import annotations

import errno
import os
import secrets
import sys


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new, never a part.

    Raises:
        OSError: it cannot be written, or something that is no regular file is there.
    """
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(errno.EINVAL, "it is there and is no regular file")
    folder, name = os.path.split(target)
    unfinished = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(unfinished, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    """Flush a rename in a folder to disk; Windows does not open folders."""
    if sys.platform == "win32":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
