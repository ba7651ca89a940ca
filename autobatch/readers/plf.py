"""Read lattices in the Python lattice format (PLF) of machine translation, a lattice per line.

    ((('guten',0.7,1),('gut',0.3,2),),(('Tag',1.0,1),),)

A junction is a tuple of the arcs that leave it; an arc is a word, a score, and the number of junctions to its end.

Source of the format: Dyer, Muresan and Resnik 2008, Generalizing word lattice translation; the manual of Moses.
"""

from __future__ import annotations

import ast
import math
import os
import re
from pathlib import Path
from typing import Any

from autobatch.keywords import checked
from autobatch.readers.lattice_items import Arc, to_instance
from autobatch.readers.lines import Line, parse_lines, to_number

_TOKEN = re.compile(
    r"""(?P<mark>[(),])|(?P<text>'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")|(?P<number>[-+0-9.][-+.0-9eE]*+)|(?P<stray>\S)"""
)
_ESCAPE = re.compile(  # of Python, without surrogates and names; group 1 is the start of anything else
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
        """The position of the token before the next one."""
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
        """Make the error for a missing token."""
        return self._line.fault(_WHAT, self.here, expected)

    def _advance(self) -> None:
        token = next(self._tokens, None)
        self.last = getattr(self, "here", 0)
        self.here = len(self._line.text) if token is None else token.start()
        self._text = "" if token is None else token[0]
        self.kind = "end" if token is None else self._text if token["mark"] else str(token.lastgroup)
