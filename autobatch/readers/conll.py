"""Read CoNLL and CoNLL-U: a token per line, in columns, and a blank line after each sentence.

Sources of the formats: Tjong Kim Sang and De Meulder 2003, Introduction to the CoNLL-2003 shared task; Buchholz and
Marsi 2006, CoNLL-X shared task; https://universaldependencies.org/format.html.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from autobatch.arguments import is_int, refusal
from autobatch.keywords import checked
from autobatch.readers.extra import import_parser
from autobatch.readers.lines import Line, check_found, read_lines

PARENT = "parent"
_WHAT, _PLURAL = "a sentence", "sentences"
_COLUMN = re.compile("[^ \\t]+")
_HEAD = re.compile("0|[1-9][0-9]{0,8}")
_HUGE = re.compile("[0-9]{10}")
_DOCUMENT = "-DOCSTART-"


class Token(NamedTuple):
    """The columns of a line, and their positions in its text."""

    line: Line
    columns: list[str]
    starts: list[int]


@checked()
def read_conll(
    path: str | os.PathLike[str],
    columns: Mapping[str, int],
    *,
    separator: str | None = None,
    comment: str | None = None,
) -> list[dict[str, Any]]:
    """Read sentences in columns, such as those of CoNLL-2000, -2003, -2009 and -2012.

    Args:
        path: the file; a line is a token, and blank lines separate sentences. Lines of `-DOCSTART-` are skipped.
        columns: the column of each field, from 0, or from -1 backwards: `{"word": 0, "tag": -1}`. Name a column of
            heads, counted from 1, with 0 for a root, `parent`: `{"word": 1, "parent": 6}` for CoNLL-X.
        separator: the text between columns, such as a tab; None for spaces and tabs.
        comment: the beginning of lines to skip, such as "#".

    Returns:
        A dict per sentence, with a list of strings for each field. `parent` is a list of ints, the index of each
        token's head, or -1, for `autobatch.fold(parents="parent")`. Trees may be non-projective.

    Raises:
        DataError: the file cannot be read, or holds no sentence; a line lacks a column, or has a different number of
            columns from others of its sentence, or the heads do not form a forest.
    """
    if not columns:
        raise refusal("columns of read_conll", "a dict with at least one field", columns)
    for name, place in columns.items():
        if not is_int(place):
            raise refusal(f"the column of {name!r} in read_conll", "an int", place)
    for name, given in (("separator", separator), ("comment", comment)):
        if given == "":
            raise refusal(f"{name} of read_conll", "None or a str of at least one character", given)
    read = []
    for sentence in _sentences(Path(path), comment):
        tokens = [_split(line, separator) for line in sentence]
        for token in tokens:
            if len(token.columns) != len(tokens[0].columns):
                expected = f"{len(tokens[0].columns)} columns, as in the first line of the sentence"
                raise token.line.fault(_WHAT, token.starts[-1], expected)
        fields: dict[str, Any] = {name: [_column(x, name, place)[1] for x in tokens] for name, place in columns.items()}
        if PARENT in columns:
            fields[PARENT] = _find_parents([(x.line, *_column(x, PARENT, columns[PARENT])) for x in tokens])
        read.append(fields)
    return check_found(Path(path), _PLURAL, read, "a token per line, in columns")


@checked()
def read_conllu(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read sentences in CoNLL-U, with the library conllu (`pip install 'autobatch-nn[readers]'`).

    Args:
        path: the file. Multiword tokens, whose words follow, and empty nodes are skipped, as are comments.

    Returns:
        A dict per sentence of the lists `word` (forms), `lemma`, `upos`, `xpos`, `feats` and `deprel`, of strings, "_"
        where unspecified, and `parent`, of ints: the index of each word's head, or -1, for
        `autobatch.fold(parents="parent")`. Trees may be non-projective. `parent` is missing if all heads are "_".

    Raises:
        DataError: conllu is not installed; the file cannot be read, or holds no sentence; a line is malformed, or the
            heads do not form a forest.
    """
    parser = import_parser("conllu.parser", "CoNLL-U")
    names = {"word": 1, "lemma": 2, "upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
    read = []
    for sentence in _sentences(Path(path), "#"):
        words = [x for x in (_split(line, "\t") for line in sentence) if isinstance(_parse_id(x, parser), int)]
        for number, word in enumerate(words, start=1):
            if word.columns[0] != str(number):
                raise word.line.fault(_WHAT, 0, f"{number}, the id of the next word")
        if not words:
            raise sentence[0].fault(_WHAT, 0, "a sentence with at least one word")
        fields: dict[str, Any] = {name: [word.columns[place] for word in words] for name, place in names.items()}
        if any(word.columns[6] != "_" for word in words):
            fields[PARENT] = _find_parents([(word.line, word.starts[6], word.columns[6]) for word in words])
        read.append(fields)
    return check_found(Path(path), _PLURAL, read, "a word per line, in ten columns separated by tabs")


def _parse_id(token: Token, parser: Any) -> Any:
    """Check a line of CoNLL-U; return its id: an int for words, a tuple for multiword tokens and empty nodes."""
    fields = parser.DEFAULT_FIELDS
    n_columns = len(token.columns)
    if n_columns != len(fields):
        position = token.starts[len(fields)] if n_columns > len(fields) else len(token.line.text)
        raise token.line.fault(_WHAT, position, f"{len(fields)} columns separated by tabs")
    for column, start in zip(token.columns, token.starts, strict=True):
        # The library conllu also splits lines at two spaces, which would shift the columns.
        if not column.strip(" ") or "  " in column:
            raise token.line.fault(_WHAT, start, "a value without repeated spaces, or '_'")
    for name in ("id", "head", "deps"):
        column = fields.index(name)
        if _HUGE.search(token.columns[column]):  # Python refuses to convert thousands of digits
            raise token.line.fault(_WHAT, token.starts[column], f"a valid {name}, with numbers below 10 ** 9")
    try:
        found = parser.parse_line(token.line.text, fields)
    except parser.ParseException as error:
        name = next(name for name in fields if f"'{name}'" in str(error))
        position = token.starts[fields.index(name)]
        raise token.line.fault(_WHAT, position, f"a valid {name} of CoNLL-U, or '_'") from error
    if found["id"] is None:
        raise token.line.fault(_WHAT, 0, "the id of a word")
    return found["id"]


def _sentences(path: Path, comment: str | None) -> Iterator[list[Line]]:
    sentence: list[Line] = []
    for line in read_lines(path, _PLURAL):
        if not line.text.strip(" \t"):
            if sentence:
                yield sentence
            sentence = []
        elif not line.text.startswith(_DOCUMENT) and not (comment and line.text.startswith(comment)):
            sentence.append(line)
    if sentence:
        yield sentence


def _split(line: Line, separator: str | None) -> Token:
    if separator is None:
        found = list(_COLUMN.finditer(line.text))
        return Token(line, [column[0] for column in found], [column.start() for column in found])
    columns, starts, start = line.text.split(separator), list[int](), 0
    for column in columns:
        starts.append(start)
        start += len(column) + len(separator)
    return Token(line, columns, starts)


def _column(token: Token, name: str, place: int) -> tuple[int, str]:
    """Return the position and the text of a column, which must not be empty."""
    n_columns = len(token.columns)
    if not -n_columns <= place < n_columns:
        raise token.line.fault(_WHAT, len(token.line.text), f"column {place} with the {name}")
    if not token.columns[place]:
        raise token.line.fault(_WHAT, token.starts[place], f"the {name} in column {place}")
    return token.starts[place], token.columns[place]


def _find_parents(heads: Sequence[tuple[Line, int, str]]) -> list[int]:
    """Return the index of each token's head, or -1, from lines, positions and texts; they must form a forest."""
    parents = []
    for line, position, text in heads:
        if not _HEAD.fullmatch(text) or int(text) > len(heads):
            raise line.fault(_WHAT, position, f"the number of the head, from 0 to {len(heads)}")
        parents.append(int(text) - 1)
    try:
        # A root's head, -1, has no head itself, so it is in no cycle.
        TopologicalSorter({n: [parent] for n, parent in enumerate(parents)}).prepare()
    except CycleError as error:
        line, position, _ = heads[min(error.args[1])]
        raise line.fault(_WHAT, position, "a head outside the words below this one; heads must form a tree") from None
    return parents
