"""Read CSV: a row per instance, with the names of columns in the first line."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autobatch.arguments import RAW, refusal
from autobatch.errors import DataError
from autobatch.keywords import checked
from autobatch.readers.lines import check_found, read_lines, to_number


@checked()
def read_csv(
    path: str | os.PathLike[str],
    types: Mapping[str, Callable[[str], Any]] | None = None,
    *,
    delimiter: str = ",",
) -> list[dict[str, Any]]:
    """Read the rows of a CSV file, whose first line names the columns.

    Args:
        path: the file. Quoted values may contain delimiters and line endings; blank lines are skipped.
        types: the columns to read, with the function that converts a value, such as `str`, `int`, `float` or
            `str.split`; None for all columns as strings. If a function raises a ValueError, the error names the place
            in the file. `bool` is refused, as bool("False") is True: give `{"True": True, "False": False}.__getitem__`.
        delimiter: a character that separates values, such as a tab.

    Returns:
        A dict per row, from the name of a column to the value. `float` accepts finite numbers only.

    Raises:
        DataError: the file cannot be read, or holds no row; a column is missing or named twice, a row has a
            different number of values from the first line, or a value cannot be converted.
    """
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise refusal("delimiter of read_csv", "one character, neither a quote nor a line ending", delimiter)
    if types is not None and (not types or bool in types.values()):
        raise refusal(
            "types of read_csv", "None, or a dict with at least one column and functions other than bool", types
        )
    file = Path(path)
    rows = _rows(file, delimiter)
    place, names = next(rows, ("", []))
    for name in names if types is None else types:
        if names.count(name) != 1:
            raise DataError(f"cannot read rows from {place or file}: the first line must name {name!r} once; got "
                            f"{', '.join(names) or 'nothing'}.")  # fmt: skip
    columns = [
        (n, name, types[name] if types else str) for n, name in enumerate(names) if types is None or name in types
    ]
    read = []
    for place, row in rows:
        if len(row) != len(names):
            raise DataError(f"cannot read a row from {place}: expected {len(names)} values, got {len(row)}.")
        read.append({name: _convert(row[n], convert, place, n, name) for n, name, convert in columns})
    return check_found(file, "rows", read, "a line with the names of columns, then a row per line")


def _rows(path: Path, delimiter: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the place and the values of each row."""
    reader = csv.reader((f"{line.text}\n" for line in read_lines(path, "rows")), delimiter=delimiter, strict=True)
    while True:
        # `line_num` counts the lines taken, of which a row with quoted line endings takes several.
        first = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            begins = f"; the row begins in line {first}" if reader.line_num > first else ""
            raise DataError(f"cannot read a row from {path}, line {reader.line_num}: {error}{begins}.") from error
        if row is None:
            return
        if row:
            yield f"{path}, line {first}", row


def _convert(text: str, convert: Callable[[str], Any], place: str, n: int, name: str) -> Any:
    """Convert a value; a column in messages is counted in values, from 1."""
    try:
        value = to_number(text) if convert is float else convert(text)
        if convert is not float or not math.isnan(value):
            return value
        reason = "not a finite number"
    except RAW as error:
        reason = str(error)
    kind = getattr(convert, "__name__", "the given function")
    raise DataError(
        f"cannot read a row from {place}, column {n + 1} ({name}): expected a value for {kind}, found {text!r} "
        f"({reason})."
    )
