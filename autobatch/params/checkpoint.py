"""Checkpoint files: arrays and JSON values in one safetensors file, written atomically.

The content is written to a temporary file in the same folder, synced and renamed, and the folder is synced. A reader,
or a process after a crash, finds either the old content or the new. Files hold no code, so files from untrusted sources
are safe to read. The JSON is in the header of the safetensors file, where other readers ignore it.
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
MODEL_FORMAT = "autobatch model"
"""The format of files that `autobatch.export` writes."""
CHECKSUM = "checksum"
UNCHECKED = {(FORMAT, "1")}
"""(format, version) of files written before checksums were introduced."""
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")
_HEADER_LENGTH_BYTES = 8  # a safetensors file: the header's length, the header in JSON, the numbers


class Checkpoint(NamedTuple):
    """The content of a checkpoint file, as given to `save_checkpoint`."""

    arrays: dict[str, npt.NDArray[Any]]
    state: dict[str, Any]


def save_checkpoint(
    path: str | os.PathLike[str], arrays: Mapping[str, npt.NDArray[Any]], state: Mapping[str, Any]
) -> None:
    """Write arrays and state to one file, atomically replacing an existing one.

    Also remove the temporary files of processes killed while writing from the folder, so a folder of checkpoints must
    have one writer at a time.

    Args:
        path: file to write, in an existing folder.
        arrays: the arrays, by name.
        state: any JSON value.

    Raises:
        CheckpointError: the state is not JSON, or the file cannot be written; `path` is unchanged.
    """
    doing = f"cannot save {os.fspath(path)!r}"
    try:
        described = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{doing}: state must be a JSON value ({error}); pass arrays and non-finite numbers in the arrays."
        ) from error
    with contextlib.suppress(OSError):  # writing reports the same error
        _remove_unfinished(path)
    write_arrays(path, arrays, {"format": FORMAT, "version": str(VERSION), "state": described}, doing)


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a file that `save_checkpoint` wrote, in this version of autobatch or an earlier one.

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
            f"cannot load {os.fspath(path)!r}: its state is missing or is not valid JSON; pass a file written by "
            f"save_checkpoint."
        ) from error
    return Checkpoint(arrays, state)


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str], doing: str
) -> None:
    """Write a safetensors file atomically, with a checksum of its content in the metadata.

    Args:
        doing: start of error messages.

    Raises:
        CheckpointError: the file cannot be written; `path` is unchanged.
    """
    import safetensors.numpy

    # Converted before hashing, so that the checksum is of the bytes that are written.
    contiguous = {name: np.asarray(array, array.dtype.newbyteorder("="), order="C") for name, array in arrays.items()}
    checked = {**metadata, CHECKSUM: checksum_of(contiguous, metadata)}
    try:
        write_whole(path, safetensors.numpy.save(contiguous, checked))
    except OSError as error:
        raise CheckpointError(
            f"{doing}: {error.strerror}; choose an existing, writable folder with free space."
        ) from error


def read_arrays(
    path: str | os.PathLike[str], writer: str, kind: str, version: int
) -> tuple[dict[str, npt.NDArray[Any]], Mapping[str, str]]:
    """Read a file that `write_arrays` wrote with metadata "format" `kind` and "version" at most `version`.

    Raises:
        CheckpointError: as for `read_safetensors`; or the format differs, or the version is later.
    """
    arrays, metadata = read_safetensors(path, writer)
    doing = f"cannot load {os.fspath(path)!r}"
    if metadata.get("format") != kind:
        noun = kind.removeprefix("autobatch ")
        raise CheckpointError(f"{doing}: it holds arrays but not a {noun}; pass a file written by {writer}.")
    found = metadata.get("version", "")
    if found not in map(str, range(1, version + 1)):
        raise CheckpointError(
            f"{doing}: format version must be at most {version}, got {found!r}; "
            "use the version of autobatch that wrote it, or a newer one."
        )
    if CHECKSUM not in metadata and (kind, found) not in UNCHECKED:
        raise CheckpointError(f"{doing}: its checksum is missing; pass a file written by {writer}.")
    return arrays, metadata


def checksum_of(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """Return the hex SHA-256 of arrays with their names, dtypes and shapes, and of the metadata except the checksum."""
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
    """Read the arrays and the metadata of a safetensors file, and verify its checksum if it has one.

    Args:
        writer: function that writes such files, for error messages.

    Raises:
        CheckpointError: the file is missing, unreadable, truncated, damaged, of another format, or holds a dtype that
            NumPy lacks.
    """
    import safetensors.numpy

    doing = f"cannot load {os.fspath(path)!r}"
    try:
        with open_regular(path) as file:
            content = file.read()
        arrays = safetensors.numpy.load(content)
    except OSError as error:
        raise CheckpointError(f"{doing}: {error.strerror}; pass a file written by {writer}.") from error
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{doing}: it is truncated or not a safetensors file ({error}); pass a file written by {writer}."
        ) from error
    except KeyError as error:
        raise CheckpointError(
            f"{doing}: it holds numbers of type {error}, which NumPy lacks; store them as float32 or float64."
        ) from error
    header_end = _HEADER_LENGTH_BYTES + int.from_bytes(content[:_HEADER_LENGTH_BYTES], "little")
    metadata = json.loads(content[_HEADER_LENGTH_BYTES:header_end]).get("__metadata__") or {}
    if metadata.get(CHECKSUM, expected := checksum_of(arrays, metadata)) != expected:  # other libraries write none
        raise CheckpointError(f"{doing}: its checksum does not match its content; use another copy of the file.")
    return arrays, metadata


def _remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove checkpoints that killed processes left; temporary files of other kinds may be in use."""
    folder, own = os.path.split(os.path.realpath(path))
    kinds = {".safetensors", os.path.splitext(own)[1]}
    for name in os.listdir(folder):
        found = _UNFINISHED.fullmatch(name)
        if found and os.path.splitext(found[1])[1] in kinds:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(folder, name))
