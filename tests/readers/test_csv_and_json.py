"""Test CSV and JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.readers import read_csv, read_jsonl
from helpers.data.files import write_csv, write_jsonl
from helpers.runs.ways import each

TABLE = 'text,label,price\n"a, b",yes,1.5\n\n"two\nlines",no,-2\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file to write."""
    return tmp_path / "file"


def test_rows_are_read_as_drawn_and_as_by_pandas(path: Path) -> None:
    drawn = write_csv(path, np.random.default_rng(0), 50)
    read = read_csv(path, {"text": str, "label": str, "price": float})
    assert read == [{**row, "text": row["text"]} for row in drawn]
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    assert read == pandas.read_csv(path).to_dict("records")


def test_values_are_converted_and_columns_chosen(path: Path) -> None:
    path.write_text(TABLE.replace("\n", "\r\n"), newline="")
    assert read_csv(path) == [
        {"text": "a, b", "label": "yes", "price": "1.5"}, {"text": "two\nlines", "label": "no", "price": "-2"},
    ]  # fmt: skip
    assert read_csv(path, {"price": float, "text": str.split}) == [
        {"text": ["a,", "b"], "price": 1.5}, {"text": ["two", "lines"], "price": -2.0},
    ]  # fmt: skip
    path.write_text("\ufeffa\tb\n1\t8\u00a0m\n", encoding="utf-8")
    assert read_csv(path, {"a": int, "b": str}, delimiter="\t") == [{"a": 1, "b": "8\u00a0m"}]


@each(
    "text, types, told",
    [
        (TABLE, {"price": int}, r"line 2, column 3 \(price\): expected a value for int, found '1.5' \(invalid literal"),
        (TABLE.replace("-2", "nan"), {"price": float}, r"line 4, column 3 \(price\): .* found 'nan' \(not a finite"),
        (TABLE, {"cost": float}, r"line 1: the first line must name 'cost' once; got text, label, price"),
        (TABLE.replace("label", "text"), {"text": str}, "must name 'text' once; got text, text"),
        (TABLE.replace("label", "text"), None, "must name 'text' once; got text, text"),
        (TABLE + "x,y\n", None, "line 6: expected 3 values, got 2"),
        (TABLE + '"x,y\n', None, "line 6: unexpected end of data"),
        (TABLE + '"x\n\n', None, "line 7: unexpected end of data; the row begins in line 6"),
        (TABLE + '"x"y,1,2\n', None, r"line 6: '.' expected after '\"'"),
        ("", None, "the file holds none"),
        ("a,b\n", None, "the file holds none"),
    ],
)
def test_malformed_rows_are_named_with_their_place(path: Path, text: str, types: Any, told: str) -> None:
    path.write_text(text)
    with pytest.raises(DataError, match=told) as error:
        read_csv(path, types)
    assert str(path) in str(error.value)


@each("types", [{}, {"text": str, "label": bool}])
def test_types_name_columns_and_no_bool(path: Path, types: Any) -> None:
    path.write_text(TABLE)
    with pytest.raises(DataError, match="types of read_csv must be None, or a dict with at least one column"):
        read_csv(path, types)
    truth = {"yes": True, "no": False}.__getitem__
    assert read_csv(path, {"label": truth}) == [{"label": True}, {"label": False}]


@each("delimiter", ["", ",,", '"', "\n"])
def test_a_delimiter_is_one_character(path: Path, delimiter: str) -> None:
    path.write_text(TABLE)
    with pytest.raises(DataError, match="delimiter of read_csv must be one character"):
        read_csv(path, delimiter=delimiter)


def test_json_lines_are_read_as_drawn_and_may_be_deep(path: Path) -> None:
    drawn = write_jsonl(path, np.random.default_rng(0), 20)
    path.write_text("\ufeff" + path.read_text("utf-8").replace("\n", "\r\n\r\n"), "utf-8", newline="")
    assert read_jsonl(path) == drawn
    n = 100_000
    path.write_text('{"children": [' * n + "{}" + "]}" * n)
    (node,) = read_jsonl(path)
    for _ in range(n):
        (node,) = node["children"]
    assert node == {}


def test_malformed_json_is_named_with_its_place(path: Path) -> None:
    path.write_text('{"word": 1}\n\n{"word": }\n')
    with pytest.raises(DataError, match="line 3, column 10: expected JSON, an instance per line"):
        read_jsonl(path)
