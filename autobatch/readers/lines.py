"""Read text files line by line; errors have the line and the column."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from autobatch.errors import DataError
from autobatch.system.files import open_regular

T = TypeVar("T")

_WORD = re.compile(r"[^ \t()]{1,20}|.", re.DOTALL)  # the text shown in a message; a bracket is a word
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"  # the start of compressed files
_STRAY = re.compile("[\r\0\ufeff]")
_STRAYS = {
    "\r": "a carriage return is inside the line, but other lines end in a line feed; use one kind of line ending",
    "\0": "a zero byte suggests UTF-16; convert the file to UTF-8",
    "\ufeff": "a byte order mark is inside the line; remove it, and begin a line there if two files were joined",
}


class Line(NamedTuple):
    """A line of a file; `number` counts from 1, and `text` has no line ending."""

    path: Path
    number: int
    text: str

    @property
    def place(self) -> str:
        """Return the file and the line number, for messages."""
        return f"{self.path}, line {self.number}"

    def fault(self, what: str, position: int, expected: str) -> DataError:
        """Make the error that `expected` is missing at `position` (from 0) of the line, while reading `what`."""
        return fault(what, self.place, self.text, position, expected)


def read_lines(path: Path, what: str) -> Iterator[Line]:
    """Yield the lines of a UTF-8 text file, plain or compressed with gzip, without byte order marks at their starts.

    Lines end in a line feed, optionally after carriage returns; or in a carriage return, if the file has no line feed.

    Args:
        path: the file.
        what: its content, for messages, such as "trees".

    Raises:
        DataError: the file cannot be read, is not UTF-8, or holds zero bytes, or carriage returns or byte order marks
            inside a line; the message has file, line and column.
    """
    try:
        # `peek` looks at the first bytes without taking them.
        with open_regular(path) as raw, gzip.open(raw) if raw.peek(2)[:2] == _GZIP else raw as file:
            for number, content in enumerate(_split(file), start=1):
                yield Line(path, number, _decode(content, path, number, what))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"cannot read {what} from {path}: the gzip file is truncated or damaged; give the whole file."
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"cannot read {what} from {path}: {reason}; give a readable text file.") from error


def parse_lines(path: Path, what: str, parse: Callable[[Line], T], expected: str, blank: str | None = " \t") -> list[T]:
    """Parse each line of a file, skipping lines of `blank` characters (None: white space).

    Raises:
        DataError: the file cannot be read, or holds only such lines; errors of `parse` propagate.
    """
    read = [parse(line) for line in read_lines(path, what) if line.text.strip(blank)]
    return check_found(path, what, read, expected)


def check_found(path: Path, what: str, read: list[T], expected: str) -> list[T]:
    """Return the items read from a file; raise a DataError if there are none."""
    if not read:
        raise DataError(f"cannot read {what} from {path}: the file holds none; expected {expected}.")
    return read


def all_tagged(line: Line, what: str, tokens: Sequence[re.Match[str]], tagged: Sequence[bool], expected: str) -> bool:
    """Return whether the tokens of a line have tags; either all or none must have one.

    Raises:
        DataError: only some tokens have tags.
    """
    if not any(tagged):
        return False
    if all(tagged):
        return True
    raise line.fault(
        what, tokens[tagged.index(False)].start(), f"{expected}, like the other tokens of the line, or no tags at all"
    )


def to_number(text: str) -> float:
    """Parse a number of ASCII digits, without Python's underscores; return NaN if it is malformed or not finite.

    >>> [to_number(text) for text in ("-1.5e3", "1_000", "inf")]
    [-1500.0, nan, nan]
    """
    try:
        number = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def fault(what: str, place: str, text: str, position: int, expected: str) -> DataError:
    """Make the error for the expected and the actual text at a position (from 0) of a text."""
    word = _WORD.match(text, position)
    found = repr(word[0]) if word else "the end of the line"
    return DataError(f"cannot read {what} from {place}, column {position + 1}: expected {expected}, found {found}.")


def _split(file: Iterable[bytes]) -> Iterator[bytes]:
    """Split a file into lines without line endings."""
    for number, content in enumerate(file, start=1):
        # A first line without a line feed is the whole file, whose lines end in carriage returns, if it has several.
        if number == 1 and not content.endswith(b"\n"):
            yield from content.removesuffix(b"\r").split(b"\r")
        else:
            yield content.removesuffix(b"\n").rstrip(b"\r")


def _decode(content: bytes, path: Path, number: int, what: str) -> str:
    content = content.removeprefix(_BYTE_ORDER_MARK)
    doing = f"cannot read {what} from {path}, line {number}"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        # Columns count characters, and the bytes before the first fault are valid.
        column = len(content[: error.start].decode("utf-8")) + 1
        raise DataError(
            f"{doing}, column {column}: byte 0x{content[error.start]:02x} is not UTF-8; convert the file to UTF-8."
        ) from error
    if stray := _STRAY.search(text):
        raise DataError(f"{doing}, column {stray.start() + 1}: {_STRAYS[stray[0]]}.")
    return text
