"""Load the files that a user's own model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from autobatch.errors import DataError
from autobatch.models.data.dataset import Dataset, Found, hold_out
from autobatch.readers.encoding import encode
from autobatch.readers.files import Files
from autobatch.readers.vocabulary import Vocabulary

PARTS = ("train", "dev")


@dataclass(frozen=True)
class FilesLoader:
    """A `Load` of the files that a user's own model reads.

    A folder with one `train` or `train.*`, and one `dev` or `dev.*`, holds training and development data. Of any other
    path, a share of the instances is development data.

    Attributes:
        files: the reader of the files.
        dev: path of the development data; None to find it, or hold it out.
        share: share of a single file that is development data; by default `SHARE`.
    """

    files: Files
    dev: str | None = None
    share: float | None = None

    def __call__(
        self, data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None, /
    ) -> Dataset:
        if not data or not Path(data).exists():
            reason = f"there is no {data!r}" if data else "the model has no data of its own"
            raise DataError(f"cannot load data: {reason}; give a file or a folder with --data.")
        train_path, beside = _parts_of(Path(data))
        dev_path = beside if self.dev is None else Path(self.dev)
        if self.share is not None and dev_path is not None:
            raise DataError(
                f"cannot hold out {self.share:g} of {data!r}: it has development data of its own; leave out the share."
            )
        read = list(self.files.read(train_path))
        if dev_path is None:
            found = hold_out(read, data, rng, self.share)
        else:
            found = Found(read, list(self.files.read(dev_path)))
        known = self.files.collect(found.train) if vocabularies is None else vocabularies
        train, dev = ([_encode(x, known, data) for x in part] for part in (found.train, found.dev))
        sizes = {f"n_{name}": len(vocabulary) for name, vocabulary in known.items()}
        return Dataset(data, train, dev, known, sizes, found.dev_places, _digest(train_path))


def _parts_of(path: Path) -> tuple[Path, Path | None]:
    """Return the paths of training and development data; None for the latter if it must be held out."""
    inside = sorted(path.iterdir()) if path.is_dir() else []
    found = [[one for one in inside if one.name.partition(".")[0] == part] for part in PARTS]
    return (found[0][0], found[1][0]) if [len(paths) for paths in found] == [1, 1] else (path, None)


def _encode(instance: Any, vocabularies: Mapping[str, Vocabulary], data: str) -> Any:
    try:
        return encode(instance, vocabularies)
    except DataError as error:
        raise DataError(f"cannot encode an instance of {data}: {error}") from error


def _digest(path: Path) -> str:
    """Compute `Dataset.digest` of a file, or of all files of a folder."""
    paths = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    return sha256(b"".join(sha256(one.read_bytes()).digest() for one in paths)).hexdigest()
