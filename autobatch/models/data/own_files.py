"""Load the files that a user's own model reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple

import numpy as np

from autobatch.errors import AutobatchError, DataError
from autobatch.models.data.dataset import Dataset, Found, hold_out
from autobatch.readers.files import Files
from autobatch.readers.vocabulary import Vocabulary, encode


class Numbered(NamedTuple):
    """An instance as read, with its file and its number there, from 1."""

    path: Path
    number: int
    instance: Any

    def encode(self, vocabularies: Mapping[str, Vocabulary]) -> Any:
        """Return the instance with ids; the error of a closed vocabulary names the place."""
        try:
            return encode(self.instance, vocabularies)
        except DataError as error:
            raise DataError(f"cannot encode instance {self.number} of {self.path}: {error}") from error


@dataclass(frozen=True)
class FilesLoader:
    """A `Load` of the files that a user's own model reads.

    In a folder, `train` or `train.*` is the training data, and `dev` or `dev.*` the development data; backups that end
    in "~" are ignored. A folder with neither is read as a whole. Without development data, a share of the training data
    is held out.

    Attributes:
        files: the reader of the files.
        dev: path of the development data; None to find it, or hold it out.
        share: share of the training data to hold out; by default `SHARE`.
    """

    files: Files
    dev: str | None = None
    share: float | None = None

    def __call__(
        self, data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None, /
    ) -> Dataset:
        if not data or not os.path.exists(data):
            reason = f"{data!r} does not exist" if data else "this model has no default data"
            raise DataError(f"cannot load data: {reason}; give a file or a folder with --data.")
        train_path = _part_of(Path(data), "train")
        dev_path = _part_of(Path(data), "dev") if self.dev is None else Path(self.dev)
        # A file, or a folder without a training part, is training data as a whole, unless its own development part has
        # been found.
        if train_path is None and (dev_path is None or self.dev is not None):
            train_path = Path(data)
        elif train_path is None and vocabularies is None:
            raise DataError(f"cannot train on {data!r}: it holds development data, but neither train nor train.*.")
        if self.share is not None and dev_path is not None:
            raise DataError(
                f"cannot hold out {self.share:g} of {data!r}: it has development data of its own; leave out the share."
            )
        read = self._read(train_path)
        found = hold_out(read, data, rng, self.share) if dev_path is None else Found(read, self._read(dev_path))
        known = vocabularies
        if known is None:
            known = self.files.collect([one.instance for one in found.train], [one.instance for one in read])
        train, dev = ([one.encode(known) for one in part] for part in (found.train, found.dev))
        sizes = {f"n_{name}": len(vocabulary) for name, vocabulary in known.items()}
        digest, dev_digest = _digest(train_path), _digest(dev_path)
        return Dataset(data, train, dev, known, sizes, found.dev_places, digest, dev_digest=dev_digest)

    def _read(self, path: Path | None) -> list[Numbered]:
        """Read the instances of a path; return an empty list without a path.

        Raises:
            DataError: the user's reader raised an error; the message has its line.
        """
        if path is None:
            return []
        try:
            return [Numbered(path, *one) for one in enumerate(self.files.read(path), start=1)]
        except (AutobatchError, MemoryError):
            raise
        except Exception as error:
            last = extract_tb(error.__traceback__)[-1]
            raise DataError(
                f"cannot read {path}: the reader of `files` failed in {last.filename}, line {last.lineno} "
                f"({type(error).__name__}: {error})."
            ) from error


def _part_of(path: Path, part: str) -> Path | None:
    """Return the path of a part, such as "train", in a folder; None if it is missing.

    Raises:
        DataError: several match.
    """
    inside = sorted(path.iterdir()) if path.is_dir() else []
    found = [one for one in inside if one.name.partition(".")[0] == part and not one.name.endswith("~")]
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise DataError(f"cannot load data: {path} must hold one {part} or {part}.*, got {names}; move the others.")
    return found[0] if found else None


def _digest(path: Path | None) -> str:
    """Compute `Dataset.digest` of a file, or of all files of a folder, because only the reader knows which it reads."""
    if path is None:
        return ""
    paths = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    return sha256(b"".join(sha256(one.read_bytes()).digest() for one in paths)).hexdigest()
