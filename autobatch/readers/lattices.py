"""Read lattices in the Python lattice format (PLF) of machine translation, or HTK's standard lattice format (SLF).

Both become instances of a fold, in which junctions and arcs are nodes, so that the number of edges is linear.

PLF has a lattice per line:

    ((('guten',0.7,1),('gut',0.3,2),),(('Tag',1.0,1),),)

A junction is a tuple of the arcs that leave it; an arc is a word, a score, and the number of junctions to its end.

Source of the format: Dyer, Muresan and Resnik 2008, Generalizing word lattice translation; the manual of Moses.

SLF has a lattice per file:

    VERSION=1.0
    N=3 L=3
    I=0 t=0.00
    I=1 t=0.31
    I=2 t=0.62
    J=0 S=0 E=1 W=guten a=-318.3 l=-1.5
    J=1 S=1 E=2 W=Tag   a=-210.1 l=-0.7
    J=2 S=0 E=2 W=Guttag a=-540.8 l=-6.0

Words are on links, or on nodes. Values may be quoted; a backslash quotes a character, or starts a byte in octal.

Source of the format: Young et al. 2006, The HTK Book, chapter 20.
"""

from __future__ import annotations

import ast
import math
import os
import re
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from autobatch.errors import DataError
from autobatch.keywords import checked
from autobatch.readers.lines import Line, check_found, parse_lines, read_lines, to_number


class Arc(NamedTuple):
    """An arc between two junctions, with a word and scores by name."""

    start: int
    end: int
    word: str
    scores: dict[str, float]


def to_instance(words: Sequence[str], arcs: Sequence[Arc], names: Sequence[str]) -> dict[str, Any]:
    """Make an instance for `autobatch.fold(edges="edges")`.

    Args:
        words: the word of each junction, or "".
        arcs: the arcs.
        names: the names of the scores; junctions, and arcs without such a score, have 0.0.
    """
    n = len(words)
    found: dict[str, Any] = {
        "word": [*words, *(arc.word for arc in arcs)],
        # Arc number k - n is node k: an edge leads to it from the junction at its start, and one from it to its end.
        "edges": [pair for k, arc in enumerate(arcs, start=n) for pair in ([arc.start, k], [k, arc.end])],
    }
    return found | {name: [0.0] * n + [arc.scores.get(name, 0.0) for arc in arcs] for name in names}


# `*+` does not backtrack: a quote that is not closed could not match with a shorter text either.
_TOKEN = re.compile(
    r"""(?P<mark>[(),])|(?P<text>'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")|(?P<number>[-+0-9.][-+.0-9eE]*+)|(?P<stray>\S)"""
)
_ESCAPE = re.compile(  # Python's escapes except surrogates and names; group 1 matches the start of any other
    r"""\\(?: [\\'"abfnrtv] | (?![4-7][0-7]{2})[0-7]{1,3} | x[0-9a-fA-F]{2} |
             (?:u|U0000)(?![dD][89a-fA-F])[0-9a-fA-F]{4} | U00(?:0[1-9a-fA-F]|10)[0-9a-fA-F]{4} ) | (\\)""",
    re.VERBOSE,
)
_WHAT = "a lattice"
_EXAMPLE = "(('guten',0.7,1),('gut',0.3,2),)"


@checked()
def read_plf(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read lattices in the Python lattice format of Moses and WMT, one per line.

    Args:
        path: the file; an arc is a word in quotes, a score and a distance: `((('guten',0.7,1),('gut',0.3,2),),...)`.

    Returns:
        A dict per lattice, for `autobatch.fold(edges="edges")`: its junctions, from the first to the last, and then its
        arcs, are nodes. `word` lists the words of arcs, "" for junctions; `score` their scores, 0.0 for junctions;
        `edges` pairs (earlier, later) of an arc and its junctions. The last junction is the root.

    Raises:
        DataError: the file cannot be read, or holds no lattice; a line is malformed, or an arc leads out of it.
    """
    return parse_lines(Path(path), "lattices", _parse, f"one per line, such as ({_EXAMPLE},(('Tag',1.0,1),),)")


def _parse(line: Line) -> dict[str, Any]:
    tokens = _Tokens(line)
    arcs, far, starts = list[Arc](), list[int](), 0
    tokens.take("(", "'(' to open a lattice")
    while not tokens.skip(")"):
        tokens.take("(", f"'(' to open the arcs of a junction, such as {_EXAMPLE}")
        while not tokens.skip(")"):
            tokens.take("(", f"'(' to open an arc, such as {_EXAMPLE}")
            word = tokens.text("a word in quotes")
            tokens.take(",", "','")
            score = tokens.number("a score")
            tokens.take(",", "','")
            far.append(tokens.here)
            distance = tokens.number("a distance of 1 or more")
            if distance < 1 or distance != int(distance):
                raise line.fault(_WHAT, far[-1], "a distance of 1 or more")
            arcs.append(Arc(starts, starts + int(distance), word, {"score": score}))
            tokens.skip(",")
            tokens.take(")", "')' after a word, a score and a distance")
            if not tokens.skip(",") and tokens.kind != ")":
                raise tokens.fault("',' or ')' after an arc")
        if not arcs or arcs[-1].start != starts:
            raise line.fault(_WHAT, tokens.last, "an arc that leaves the junction")
        starts += 1
        if not tokens.skip(",") and tokens.kind != ")":
            raise tokens.fault("',' or ')' after the arcs of a junction")
    if not arcs:
        raise line.fault(_WHAT, tokens.last, f"'(' to open the arcs of a junction, such as {_EXAMPLE}")
    if tokens.kind != "end":
        raise tokens.fault("the end of the line after a whole lattice")
    for arc, position in zip(arcs, far, strict=True):
        if arc.end > starts:
            raise line.fault(_WHAT, position, f"a distance of at most {starts - arc.start}, to the last junction")
    return to_instance([""] * (starts + 1), arcs, ["score"])


class _Tokens:
    """The tokens of a line; `kind` is the next mark, "text", "number", "stray" or "end"."""

    def __init__(self, line: Line) -> None:
        self._line, self._tokens = line, _TOKEN.finditer(line.text)
        self.last = 0
        """The position of the last token taken."""
        self._advance()

    def take(self, kind: str, expected: str) -> str:
        """Return the next token, which must be of a kind."""
        if self.kind != kind:
            raise self.fault(expected)
        text = self._text
        self._advance()
        return text

    def skip(self, mark: str) -> bool:
        """Skip the next token if it is this mark; return whether it was."""
        if self.kind != mark:
            return False
        self._advance()
        return True

    def number(self, expected: str) -> float:
        """Return the next token as a number."""
        position, number = self.here, to_number(self.take("number", expected))
        if math.isnan(number):
            raise self._line.fault(_WHAT, position, expected)
        return number

    def text(self, expected: str) -> str:
        """Return the text of the next token, which must be in quotes; its escapes are those of Python."""
        position, token = self.here, self.take("text", expected)
        for escape in _ESCAPE.finditer(token):
            if escape[1]:
                raise self._line.fault(_WHAT, position + escape.start(), "an escape of Python, such as \\' or \\u00fc")
        return str(ast.literal_eval(token))

    def fault(self, expected: str) -> Exception:
        return self._line.fault(_WHAT, self.here, expected)

    def _advance(self) -> None:
        token = next(self._tokens, None)
        self.last = getattr(self, "here", 0)
        self.here = len(self._line.text) if token is None else token.start()
        self._text = "" if token is None else token[0]
        self.kind = "end" if token is None else self._text if token["mark"] else str(token.lastgroup)


SUFFIXES = (".slf", ".lat", ".slf.gz", ".lat.gz")
SCORES = {"a": "acoustic", "l": "language", "p": "posterior"}
SHORT = {
    "NODES": "N", "LINKS": "L", "WORD": "W", "START": "S", "END": "E", "time": "t", "acoustic": "a", "language": "l",
    "var": "v",
}  # fmt: skip
_FIELD = re.compile(r"""([A-Za-z_]+)=("(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|(?:[^\\ \t"']|\\.)(?:[^\\ \t]|\\.)*+|)""")
_BYTES = re.compile(r"((?:\\[0-7]{3})+)|\\(.)")  # several bytes may be one character
_NUMBER = re.compile("[0-9]{1,9}")
_SPACES = re.compile("[ \t]*")


class _Fields:
    """The fields of a line, by their short names, and their positions."""

    def __init__(self, line: Line) -> None:
        self.line, self.texts, self.positions = line, dict[str, str](), dict[str, int]()
        position = len(line.text) - len(line.text.lstrip(" \t"))
        while position < len(line.text):
            field = _FIELD.match(line.text, position)
            end = _SPACES.match(line.text, field.end()) if field else None
            # Fields end at a space or at the end of the line.
            if not field or not end or (end.start() == end.end() < len(line.text)):
                raise line.fault(_WHAT, position, "a field such as W=word")
            name = SHORT.get(field[1], field[1])
            if name in self.texts:
                raise line.fault(_WHAT, position, f"one field {field[1]} in the line")
            self.texts[name], self.positions[name] = field[2], field.start(2)
            position = end.end()

    def number(self, name: str, below: int = 10**9) -> int:
        """Return the value of a field, a number below a limit."""
        text, position = self.texts.get(name), self.positions.get(name, len(self.line.text))
        if text is None or not _NUMBER.fullmatch(text) or int(text) >= below:
            raise self.line.fault(_WHAT, position, f"{name}= with a number below {below}")
        return int(text)

    def score(self, name: str) -> float:
        """Return the value of a field, a finite number."""
        number = to_number(self.texts[name])
        if math.isnan(number):
            raise self.line.fault(_WHAT, self.positions[name], "a finite number")
        return number

    def word(self) -> str:
        """Return the word, or "" if the line has no field W."""
        text = self.texts.get("W", "")
        is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""

        def unescape(found: re.Match[str]) -> str:
            if found[2]:
                return found[2]
            try:
                return bytes(int(code, 8) for code in re.findall("[0-7]{3}", found[1])).decode()
            except ValueError as error:
                position = self.positions["W"] + is_quoted + found.start()
                raise self.line.fault(_WHAT, position, "octal codes of bytes in UTF-8, such as \\303\\274") from error

        return _BYTES.sub(unescape, text[1:-1] if is_quoted else text)


@checked()
def read_slf(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read lattices in HTK's standard lattice format (SLF), one per file.

    Args:
        path: a file, or a folder with files *.slf, *.lat, *.slf.gz and *.lat.gz, read in order of their names.

    Returns:
        A dict per lattice, for `autobatch.fold(edges="edges")`: the nodes of the SLF file, by number, and then its
        links all become nodes. `word` lists their words, "" if missing; `acoustic`, `language` and `posterior` the
        scores of links (a=, l=, p=), 0.0 for nodes, if links have them; `edges` pairs (earlier, later) of a link and
        its nodes. The last node of the lattice is the root.

    Raises:
        DataError: a file cannot be read or is malformed; links form a cycle, or several nodes have no successors. Or
            the folder holds no lattice.
    """
    place = Path(path)
    if not place.is_dir():
        return [_read(place)]
    files = sorted(file for file in place.iterdir() if file.name.endswith(SUFFIXES))
    return check_found(place, "lattices", [_read(file) for file in files], f"files {', '.join(SUFFIXES)}")


def _read(path: Path) -> dict[str, Any]:
    size: dict[str, int] = {}
    nodes, links = dict[int, _Fields](), dict[int, _Fields]()
    for line in read_lines(path, "lattices"):
        if not line.text.strip(" \t") or line.text.lstrip(" \t").startswith("#"):
            continue
        fields = _Fields(line)
        if "SUBLAT" in fields.texts or ("I" in fields.texts and "L" in fields.texts):
            raise line.fault(_WHAT, 0, "a lattice without sublattices; expand them with HLRescore")
        kind = "I" if "I" in fields.texts else "J" if "J" in fields.texts else ""
        if {"I", "J"} <= fields.texts.keys():
            raise line.fault(_WHAT, fields.positions["J"], "a node I= or a link J=, each in a line of its own")
        if kind and len(size) < 2:
            raise line.fault(_WHAT, 0, "N= and L=, the numbers of nodes and links, before the first node or link")
        if not kind:
            if nodes or links:
                raise line.fault(_WHAT, 0, "a node I= or a link J=, as the header has ended")
            for name in ("N", "L"):
                if name in fields.texts and (name in size or (name == "N" and not fields.number("N"))):
                    raise line.fault(_WHAT, fields.positions[name], f"one {name}= in the file, and at least one node")
            size |= {name: fields.number(name) for name in ("N", "L") if name in fields.texts}
            continue
        found, number = (
            (nodes, fields.number("I", size["N"])) if kind == "I" else (links, fields.number("J", size["L"]))
        )
        if number in found:
            raise line.fault(_WHAT, fields.positions[kind], f"a number {kind}= that no earlier line has")
        found[number] = fields
    if len(size) < 2:
        raise DataError(f"cannot read {_WHAT} from {path}: expected N= and L=, the numbers of nodes and links.")
    if (len(nodes), len(links)) != (size["N"], size["L"]):
        raise DataError(
            f"cannot read {_WHAT} from {path}: expected N={size['N']} nodes and L={size['L']} links, found "
            f"{len(nodes)} and {len(links)}."
        )
    return _to_instance([nodes[n] for n in range(size["N"])], [links[n] for n in range(size["L"])])


def _to_instance(nodes: list[_Fields], links: list[_Fields]) -> dict[str, Any]:
    arcs = [
        Arc(
            link.number("S", len(nodes)),
            link.number("E", len(nodes)),
            link.word(),
            {name: link.score(short) for short, name in SCORES.items() if short in link.texts},
        )
        for link in links
    ]
    _check_order(nodes, links, arcs)
    names = [name for name in SCORES.values() if any(name in arc.scores for arc in arcs)]
    return to_instance([node.word() for node in nodes], arcs, names)


def _check_order(nodes: list[_Fields], links: list[_Fields], arcs: list[Arc]) -> None:
    """Raise an error if links form a cycle, or if several nodes have no successors."""
    sorter = TopologicalSorter[int]()
    for arc in arcs:
        sorter.add(arc.end, arc.start)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = {*error.args[1]}
        link = next(link for link, arc in zip(links, arcs, strict=True) if {arc.start, arc.end} <= cycle)
        raise link.line.fault(_WHAT, link.positions["E"], "links without a cycle") from None
    # Without cycles, there is at least one node without successors; a fold needs a single one, its root.
    ends = {*range(len(nodes))} - {arc.start for arc in arcs}
    if len(ends) > 1:
        late = nodes[sorted(ends)[1]]
        raise late.line.fault(_WHAT, 0, "only one node without successors")
