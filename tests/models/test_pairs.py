"""Test sentences with translations: read from two aligned files, or refused with the reason."""

from __future__ import annotations

import gzip
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.models.data.dataset import load_pairs
from autobatch.models.data.pair import make_pair, read_pairs
from autobatch.models.data.vocabulary import UNKNOWN
from helpers.data.datasets import REAL, SMALL, needs_real
from helpers.runs.ways import each


def write_pairs(folder: Path, name: str, source: str, target: str) -> Path:
    (folder / f"{name}.vi").write_text(target)
    path = folder / f"{name}.en"
    path.write_text(source)
    return path


def test_lines_are_aligned(tmp_path: Path) -> None:
    """Either file may be the source. A no-break space separates no words. Lines that are blank in both are skipped."""
    path = write_pairs(tmp_path, "train", "a  b\nc\u00a0d\n\t\n", " e\t\nf\n\n")
    pairs = [make_pair("a b", "e"), make_pair("c\u00a0d", "f")]
    assert read_pairs(path) == pairs
    assert [(pair.target, pair.source) for pair in read_pairs(tmp_path / "train.vi")] == [
        (pair.source, pair.target) for pair in pairs
    ]
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_pairs(path) == pairs


@each(
    "source, target, message",
    [
        ("a\nb\n", "c\n", "cannot align {}/train.en with train.vi: train.en has a line 2,"),
        ("a\n", "c\n\n", "cannot align {}/train.en with train.vi: train.vi has a line 2,"),
        ("\n", "\n", "cannot read sentences from {}/train.en: the file holds none; expected one per line."),
    ],
)
def test_what_cannot_be_aligned_is_refused(tmp_path: Path, source: str, target: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message.format(tmp_path))):
        read_pairs(write_pairs(tmp_path, "train", source, target))


@each("beside, found", [((), "no file"), (("train.vi", "train.de"), "2 files")])
def test_one_file_lies_beside_another(tmp_path: Path, beside: tuple[str, ...], found: str) -> None:
    for name in ("train.en", "dev.vi", *beside):
        (tmp_path / name).write_text("a\n")
    with pytest.raises(DataError, match=rf"translations of {re.escape(str(tmp_path))}/train\.en: .* got {found}\."):
        read_pairs(tmp_path / "train.en")


def test_names_of_files_are_no_patterns(tmp_path: Path) -> None:
    assert read_pairs(write_pairs(tmp_path, "train[1]", "a\n", "b\n")) == [make_pair("a", "b")]


def test_words_that_training_had_once_are_unknown_but_in_the_reference(tmp_path: Path) -> None:
    write_pairs(tmp_path, "train", "a a b\n", "c d d\n")
    write_pairs(tmp_path, "dev", "e a\n", "f d\n")
    data = load_pairs(str(tmp_path), np.random.default_rng(0))
    assert dict(data.sizes) == {"n_source_words": 2, "n_target_words": 2}
    assert (data.train[0].source, data.train[0].target) == ([1, 1, UNKNOWN], [UNKNOWN, 1, 1])
    assert (data.dev[0].source, data.dev[0].target, data.dev[0].reference) == ([UNKNOWN, 1], [UNKNOWN, 1], "f d")


def test_the_small_files_are_read() -> None:
    data = load_pairs(str(SMALL / "iwslt15"), np.random.default_rng(0))
    assert (len(data.train), len(data.dev)) == (64, 8)


@needs_real
def test_talks_are_read() -> None:
    data = load_pairs(str(REAL / "iwslt15"), np.random.default_rng(0))
    assert (len(data.train), len(data.dev)) == (1200, 353)
    assert sum(len(pair.source) for pair in data.train) == 21780
    assert sum(len(pair.target) for pair in data.train) == 26307


@each(
    "source, target, told",
    [
        (
            "a\n\nb\n",
            "c\nd\ne\n",
            "1 line is blank in only one of {}/train.en and train.vi",
        ),
        (
            "a\n\nb\n\t\n",
            "c\nd\n \nf\n",
            "3 lines are blank in only one of {}/train.en and train.vi",
        ),
        ("a\n\nb\n\n", "c\n\nd\n \n", None),
    ],
)
def test_pairs_with_one_blank_side_are_left_out_and_counted(
    tmp_path: Path, source: str, target: str, told: str | None
) -> None:
    path = write_pairs(tmp_path, "train", source, target)
    with pytest.warns(UserWarning, match=re.escape(told.format(tmp_path))) if told else nullcontext():
        pairs = read_pairs(path)
    assert all(pair.source and pair.target for pair in pairs)
    assert [pair.source for pair in pairs] == [["a"], ["b"]][: len(pairs)]


def test_lines_keep_their_numbers_where_no_translations_are_needed(tmp_path: Path) -> None:
    """Other files of the same name are not read."""
    for name in ("new.vi", "new.de"):
        (tmp_path / name).write_bytes(b"\xff")
    (tmp_path / "new.en").write_text("a b\n\n \t\nc\td\n\n")
    pairs = read_pairs(tmp_path / "new.en", answered=False)
    assert [pair.source for pair in pairs] == [["a", "b"], [], [], ["c", "d"], []]
    assert not any(pair.target or pair.reference for pair in pairs)
