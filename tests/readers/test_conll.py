"""Test CoNLL and CoNLL-U: what the library conllu reads, and malformed lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.readers import read_conll, read_conllu
from helpers.data.files import write_conll, write_conllu
from helpers.runs.ways import each

WORD = "1\tfilm\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file to write."""
    return tmp_path / "file.conllu"


@pytest.mark.parametrize("seed", range(5))
def test_conllu_is_read_as_drawn_and_as_by_conllu(path: Path, seed: int) -> None:
    conllu = pytest.importorskip("conllu", reason="needs the extra readers")
    drawn = write_conllu(path, np.random.default_rng(seed), 20)
    read = read_conllu(path)
    assert [{name: x[name] for name in ("word", "upos", "parent")} for x in read] == drawn
    for sentence, expected in zip(read, conllu.parse(path.read_text("utf-8")), strict=True):
        words = expected.filter(id=lambda number: isinstance(number, int))
        assert sentence["parent"] == [word["head"] - 1 for word in words]
        for name, of in (("word", "form"), ("lemma", "lemma"), ("upos", "upos"), ("deprel", "deprel")):
            assert sentence[name] == [word[of] for word in words]
        assert sentence["feats"] == ["|".join(f"{k}={v}" for k, v in word["feats"].items()) for word in words]


def test_conll_is_read_as_drawn(path: Path) -> None:
    drawn = write_conll(path, np.random.default_rng(0), 30)
    assert read_conll(path, {"word": 0, "tag": -1}) == drawn


def test_columns_may_be_heads_separators_and_comments(path: Path) -> None:
    path.write_text("#begin\na b\t2\nfilm\t0\n\n\n#end\nx\t0\n")
    read = read_conll(path, {"word": 0, "parent": 1}, separator="\t", comment="#")
    assert read == [{"word": ["a b", "film"], "parent": [1, -1]}, {"word": ["x"], "parent": [-1]}]
    path.write_text("a 2\n")
    with pytest.raises(DataError, match=r"line 1, column 3: expected the number of the head, from 0 to 1, found '2'"):
        read_conll(path, {"word": 0, "parent": 1})


def test_line_ends_byte_order_marks_and_no_break_spaces(path: Path) -> None:
    path.write_bytes(("\ufeff8\u00a0m\tA\n\nb\u2028c\tB\n").replace("\n", "\r\n").encode())
    assert read_conll(path, {"word": 0, "tag": 1}) == [
        {"word": ["8\u00a0m"], "tag": ["A"]},
        {"word": ["b\u2028c"], "tag": ["B"]},
    ]
    pytest.importorskip("conllu", reason="needs the extra readers")
    path.write_bytes(("\ufeff# x\n" + WORD.replace("film", "8\u00a0m") + "\n").replace("\n", "\r\n").encode())
    assert read_conllu(path)[0]["word"] == ["8\u00a0m"]


def test_heads_may_be_missing_altogether(path: Path) -> None:
    pytest.importorskip("conllu", reason="needs the extra readers")
    path.write_text(WORD.replace("\t0\t", "\t_\t"))
    assert "parent" not in read_conllu(path)[0]
    path.write_text(WORD.replace("\t0\t", "\t_\t") + WORD.replace("1", "2", 1))
    with pytest.raises(DataError, match=r"line 1, column 19: expected the number of the head, from 0 to 2, found '_'"):
        read_conllu(path)


@each(
    "text, line, column",
    [
        (WORD.replace("\t", " "), 1, len(WORD)),
        (WORD[:-1] + "\tx\n", 1, len(WORD) + 1),
        ("\n" + WORD.replace("1", "2", 1), 2, 1),
        (WORD + WORD, 2, 1),
        (WORD.replace("1", "_", 1), 1, 1),
        (WORD.replace("1", "1-", 1), 1, 1),
        (WORD.replace("1", "2-1", 1) + WORD, 1, 1),
        (WORD.replace("\t0", "\t1"), 1, 19),
        (WORD.replace("\t0", "\t-1"), 1, 19),
        ("1" * 5000 + WORD[1:], 1, 1),
        (f"1-{'2' * 5000}" + WORD[1:], 1, 1),
        (WORD.replace("\t0", "\t" + "1" * 5000), 1, 19),
        (WORD.replace("root\t_", f"root\t{'1' * 5000}:x"), 1, 26),
        (WORD.replace("\t0", "\tx"), 1, 19),
        (WORD.replace("\t0", "\t2") + WORD.replace("1", "2", 1).replace("\t0", "\t1"), 1, 19),
        (WORD.replace("film", "a  b"), 1, 3),
        (WORD.replace("film", ""), 1, 3),
        ("1-2\tx" + "\t_" * 8 + "\n", 1, 1),
    ],
)
def test_malformed_conllu_is_named_with_its_place(path: Path, text: str, line: int, column: int) -> None:
    pytest.importorskip("conllu", reason="needs the extra readers")
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_conllu(path)
    assert str(error.value).startswith(f"cannot read a sentence from {path}, line {line}, column {column}: expected ")


@each(
    "columns, options, told",
    [
        ({"word": 0, "tag": 2}, {}, "line 2, column 4: expected column 2 with the tag"),
        ({"word": -3}, {}, "line 2, column 4"),
        ({"word": 0}, {"separator": "x"}, "line 2, column 1: expected the word in column 0"),
        ({}, {}, "columns of read_conll must be a dict with at least one field"),
        *[
            ({"word": 0, "tag": place}, {}, "the column of 'tag' in read_conll must be an int, got")
            for place in ("b", 0.0, True, None)
        ],
        ({"word": 0}, {"comment": ""}, "comment of read_conll must be None or a str of at least one character"),
        ({"word": 0}, {"comment": "x"}, "the file holds none"),
    ],
)
def test_malformed_columns_are_named(path: Path, columns: Any, options: Any, told: str) -> None:
    path.write_text("\nx y\n")
    with pytest.raises(DataError, match=told):
        read_conll(path, columns, **options)


def test_lines_of_a_sentence_have_equal_columns(path: Path) -> None:
    path.write_text("a b\n\nx y z\nx y\n")
    with pytest.raises(DataError, match="line 4, column 3: expected 3 columns, as in the first line of the sentence"):
        read_conll(path, {"word": 0, "tag": -1})


def test_a_long_chain_is_read(path: Path) -> None:
    n = 100_000
    path.write_text("".join(f"w {number}\n" for number in range(n)))
    assert read_conll(path, {"parent": 1})[0]["parent"] == list(range(-1, n - 1))
