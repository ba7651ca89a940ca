"""Files: atomic writes, reads that never block, and strings as files."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path

_unfinished: set[str] = set()  # temporary files of writes in progress


@contextmanager
def unfinished_beside(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a temporary name in the folder of a file, to be renamed to it; remove a leftover at the end."""
    folder, name = os.path.split(path)
    unfinished = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
    _unfinished.add(unfinished)
    try:
        yield unfinished
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        _unfinished.discard(unfinished)


def remove_unfinished() -> None:
    """Remove temporary files of writes in progress, before the process exits without cleanup."""
    for path in tuple(_unfinished):
        with suppress(OSError):
            os.remove(path)


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file to read its bytes; reject pipes, sockets and devices, which could block.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    # O_NONBLOCK: opening a pipe would wait for a writer. O_NOCTTY: a terminal would become the controlling one. The
    # type is read from the open file, so that nobody can exchange it in between. Only the file owns the descriptor, so
    # that it is closed once, whenever an interrupt comes.
    never_wait = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    with ExitStack() as stack:
        file = stack.enter_context(
            open(os.fspath(path), "rb", opener=lambda name, flags: os.open(name, flags | never_wait))
        )
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        stack.pop_all()
    return file


@contextmanager
def text_as_file(text: str) -> Iterator[Path]:
    """Yield the path of a file with this text, in memory where possible, so that a full disk is harmless."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("text"), "wb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
            file.flush()
            yield Path(f"/proc/self/fd/{file.fileno()}")
        return
    import tempfile  # loads compression modules

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        yield path


def write_whole(path: str | os.PathLike[str], content: bytes, mode: int | None = None) -> None:
    """Write a file atomically: readers, also after a crash, find the old content or the new.

    Args:
        mode: mode of the file before the umask; None for the default.

    Raises:
        OSError: the file cannot be written, or the path exists and is not a regular file.
    """
    # A link stays, and the file it leads to is replaced.
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(errno.EINVAL, "it exists and is not a regular file")
    with unfinished_beside(target) as unfinished:
        opener = None if mode is None else lambda name, flags: os.open(name, flags, mode)
        with open(unfinished, "xb", opener=opener) as file:
            file.write(content)
            file.flush()
            # Before the rename, or a crash could leave the new name with no content.
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    _sync_folder(os.path.dirname(target))


def _sync_folder(folder: str) -> None:
    """Flush a rename in a folder to disk; Windows cannot open folders."""
    if sys.platform == "win32":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
