"""Checkpoint files: arrays and JSON values in one safetensors file, written whole or not at all.

A file is written under another name in the same folder, synced and renamed, and the folder is synced. A reader, or a
process after a crash, therefore finds the old content or the new, never a part. A file holds no code, so it is safe to
read files from untrusted sources. The JSON is in the header of the safetensors file; other readers ignore it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autobatch.errors import CheckpointError
from autobatch.system.files import open_regular, write_whole

FORMAT = "autobatch checkpoint"
VERSION = 2
CHECKSUM = "checksum"
UNCHECKED = {(FORMAT, "1")}
"""Formats whose files had no checksum yet, each with the version."""
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_HEADER_LENGTH_BYTES = 8  # a safetensors file: the header's length, the header in JSON, the numbers


class Checkpoint(NamedTuple):
    """The content of a checkpoint file, as given to `save_checkpoint`."""

    arrays: dict[str, npt.NDArray[Any]]
    state: dict[str, Any]


def save_checkpoint(
    path: str | os.PathLike[str], arrays: Mapping[str, npt.NDArray[Any]], state: Mapping[str, Any]
) -> None:
    """Write arrays and state to one file; an existing file is replaced only once all is written.

    Unfinished files of an earlier process that was killed while writing are removed from the folder: a folder of
    checkpoints has one writer at a time.

    Args:
        path: in an existing folder.
        arrays: by name.
        state: any JSON value.

    Raises:
        CheckpointError: the state is not JSON, or the file cannot be written; what was at `path` is still there.
    """
    doing = f"cannot save {os.fspath(path)!r}"
    try:
        described = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{doing}: its state is not JSON ({error}); give arrays, and numbers that are not finite, among the arrays."
        ) from error
    with contextlib.suppress(OSError):  # writing meets it, too
        _remove_unfinished(path)
    write_arrays(path, arrays, {"format": FORMAT, "version": str(VERSION), "state": described}, doing)


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read what `save_checkpoint` wrote, in this version of autobatch or an earlier one.

    Raises:
        CheckpointError: the file is missing, unreadable, cut short, damaged, of another format or of a later version.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(f"{folder}/last", {"weight": np.ones(2)}, {"epoch": 3})
    ...     load_checkpoint(f"{folder}/last")
    Checkpoint(arrays={'weight': array([1., 1.])}, state={'epoch': 3})
    """
    arrays, metadata = read_arrays(path, "save_checkpoint", FORMAT, VERSION)
    try:
        state = json.loads(metadata["state"])
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"cannot load {os.fspath(path)!r}: its state is missing, or is no JSON that can be read; give a file "
            f"that save_checkpoint wrote."
        ) from error
    return Checkpoint(arrays, state)


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str], doing: str
) -> None:
    """Write a safetensors file with a checksum of its content among the metadata; see `save_checkpoint`.

    Args:
        doing: begins error messages.
    """
    import safetensors.numpy

    contiguous = {name: np.asarray(array, array.dtype.newbyteorder("="), order="C") for name, array in arrays.items()}
    checked = {**metadata, CHECKSUM: checksum_of(contiguous, metadata)}
    try:
        write_whole(path, safetensors.numpy.save(contiguous, checked))
    except OSError as error:
        raise CheckpointError(
            f"{doing}: {error.strerror}; give a file in a folder that exists, can be written and has room."
        ) from error


def read_arrays(
    path: str | os.PathLike[str], writer: str, kind: str, version: int
) -> tuple[dict[str, npt.NDArray[Any]], Mapping[str, str]]:
    """Read what `write_arrays` wrote, if its metadata names a format, and this version or an earlier one.

    Raises:
        CheckpointError: as for `read_safetensors`; or it is of another format, or of a later version.
    """
    arrays, metadata = read_safetensors(path, writer)
    doing = f"cannot load {os.fspath(path)!r}"
    if metadata.get("format") != kind:
        what = kind.removeprefix("autobatch ")
        raise CheckpointError(f"{doing}: it holds arrays but is no {what}; give a file that {writer} wrote.")
    found = metadata.get("version", "")
    if found not in map(str, range(1, version + 1)):
        raise CheckpointError(
            f"{doing}: its format has version {found!r} and this autobatch reads {version}; "
            "use the autobatch that wrote it, or a newer one."
        )
    if CHECKSUM not in metadata and (kind, found) not in UNCHECKED:
        raise CheckpointError(f"{doing}: its checksum is missing, so it is damaged; give a file that {writer} wrote.")
    return arrays, metadata


def checksum_of(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """The SHA-256 of arrays, with their names, dtypes and shapes, and of all metadata but a checksum, in hex."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        found.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    for name, text in sorted(metadata.items()):
        if name != CHECKSUM:
            found.update(f"{name}\0{len(text)}\0{text}\0".encode())
    return found.hexdigest()


def read_safetensors(
    path: str | os.PathLike[str], writer: str
) -> tuple[dict[str, npt.NDArray[Any]], Mapping[str, str]]:
    """Read the arrays and the metadata of a safetensors file; messages say that `writer` writes such files.

    Raises:
        CheckpointError: the file is missing, unreadable, cut short, of another format, or of a dtype that NumPy lacks;
            or it has a checksum, and another content.
    """
    import safetensors.numpy

    doing = f"cannot load {os.fspath(path)!r}"
    try:
        with open_regular(path) as file:
            content = file.read()
        arrays = safetensors.numpy.load(content)
    except OSError as error:
        raise CheckpointError(f"{doing}: {error.strerror}; give a file that {writer} wrote.") from error
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{doing}: it is cut short or no safetensors file ({error}); give a file that {writer} wrote."
        ) from error
    except KeyError as error:
        raise CheckpointError(
            f"{doing}: it holds numbers of type {error}, which NumPy lacks; store it as float32 or float64."
        ) from error
    header_end = _HEADER_LENGTH_BYTES + int.from_bytes(content[:_HEADER_LENGTH_BYTES], "little")
    metadata = json.loads(content[_HEADER_LENGTH_BYTES:header_end]).get("__metadata__") or {}
    if metadata.get(CHECKSUM, expected := checksum_of(arrays, metadata)) != expected:
        raise CheckpointError(
            f"{doing}: its content is not what was written, for its checksum is another; it is damaged, so give "
            f"another copy."
        )
    return arrays, metadata


def _remove_unfinished(path: str | os.PathLike[str]) -> None:
    folder = os.path.dirname(os.path.realpath(path))
    for name in os.listdir(folder):
        if _UNFINISHED.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(folder, name))
