"""Damaged files of every format are read or refused, in a sentence that names the file; none crashes a reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch import readers
from autobatch.errors import DataError
from helpers.data.files import WRITERS

READERS: Mapping[str, Callable[[Path], list[Any]]] = {
    "brackets": readers.read_brackets,
    "conll": lambda path: readers.read_conll(path, {"word": 0, "tag": -1}),
    "conllu": readers.read_conllu,
    "csv": lambda path: readers.read_csv(path, {"text": str.split, "label": str, "price": float}),
    "jsonl": readers.read_jsonl,
    "penman": readers.read_penman,
    "plf": readers.read_plf,
    "slf": readers.read_slf,
    "smiles": readers.read_smiles,
    "sst": readers.read_brackets,
    "tu": readers.read_tu,
}
NEEDS = {"conllu": "conllu", "penman": "penman", "smiles": "rdkit"}
ODD = (b"\0", b"\xff", b"\r", b"\n", b"\t", b"(", b")", b'"', b"'", b"\\", b"=", b",", b"-", b"0", b"9" * 30,
       b"\xc2\xa0", b"1e999", b"nan", "\ufeff\u2028\U0001f600".encode())  # fmt: skip


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Insert, replace, remove or repeat parts at up to three places."""
    for _ in range(rng.integers(1, 4)):
        start = int(rng.integers(len(content) + 1))
        end = start + int(rng.integers(0, 5))
        odd = ODD[rng.integers(len(ODD))]
        content = (
            content[:start] + odd + content[start:],
            content[:start] + odd + content[end:],
            content[:start] + content[end:],
            content[:start],
            content[:end] + content[start:],
        )[rng.integers(5)]
    return content


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="needs the extra readers")
    rng, path = np.random.default_rng(0), tmp_path / name
    WRITERS[name](path, rng, 3)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    told = list[str]()
    for _ in range(150):
        file = files[rng.integers(len(files))]
        content = file.read_bytes()
        file.write_bytes(damage(content, rng))
        try:
            json.dumps(READERS[name](path))
        except DataError as error:
            told.append(str(error))
        file.write_bytes(content)
    assert len(told) > 30
    assert [text for text in told if str(path) not in text or "\n" in text] == []


@pytest.mark.parametrize("name", READERS)
def test_files_that_do_not_exist_or_are_empty_are_refused(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="needs the extra readers")
    with pytest.raises(DataError, match=str(tmp_path / "none")):
        READERS[name](tmp_path / "none")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DataError, match=str(tmp_path / "empty")):
        READERS[name](tmp_path / "empty")
