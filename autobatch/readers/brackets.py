r"""Read trees of any shape in brackets, as in the Penn Treebank: `(S (NP (DT The) (NN film)) (VP (VBZ ends)))`.

A node is a label with any number of child nodes, or with a word. Labels are optional: `(film)` is a word without one.
The unlabelled outer brackets that the treebank puts around each tree are dropped. Words and labels contain neither
blanks nor brackets; in words, `-LRB-` reads as `(` and `\/` as `/`. Parsing does not recurse, so any depth works.

Source of the format: Marcus, Santorini and Marcinkiewicz 1993, Building a large annotated corpus of English.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from autobatch.keywords import checked
from autobatch.readers.lines import Line, check_found, read_lines

BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
_NUMBER = re.compile("0|[1-9][0-9]{0,8}", re.ASCII)
_ESCAPES = {bracket: escape for escape, bracket in BRACKETS.items()}


def to_label(text: str) -> int | str:
    """Parse a label: an int if it has no sign or leading zeros, else the text.

    >>> to_label("3"), to_label("NP"), to_label("03")
    (3, 'NP', '03')
    """
    return int(text) if _NUMBER.fullmatch(text) else text


def escape(word: object) -> str:
    """Escape brackets and slashes of a word, as in the treebank.

    >>> escape("("), escape("comedy/thriller"), unescape("-LRB-")
    ('-LRB-', 'comedy\\\\/thriller', '(')
    """
    text = str(word)
    return _ESCAPES.get(text) or text.replace("/", "\\/").replace("*", "\\*")


def unescape(text: str) -> str:
    """Undo `escape`."""
    return BRACKETS.get(text) or text.replace("\\/", "/").replace("\\*", "*")


T = TypeVar("T")

_TOKEN = re.compile(r"[^ \t()]+|[()]")
_WHAT = "a labelled tree"
_EXAMPLE = "such as (NP (DT the) (NN film))"


class _Open(Generic[T]):
    """A node whose bracket is still open: its words, then its child nodes."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.children: list[T] = []

    def parts(self) -> tuple[str | None, str, list[T]]:
        """Return label, word and children. The label is the first of two words, or a single word before children."""
        *labels, last = [*self.words, ""] if self.children else self.words or [""]
        return labels[0] if labels else None, unescape(last), self.children


def parse_brackets(line: Line, make: Callable[[str | None, str, list[T]], T]) -> T:
    """Read one tree.

    Args:
        line: the line, which must contain one tree and nothing else.
        make: makes a node from its label or None, its word or "", and its children.

    Raises:
        DataError: malformed text; the message has the place, the column, and the expected and actual text.

    >>> from pathlib import Path
    >>> parse_brackets(Line(Path("x.txt"), 1, "(NP (DT the) (film))"), lambda *parts: parts)
    ('NP', '', [('DT', 'the', []), (None, 'film', [])])
    """
    tree, end = next(_parse([line], make))
    if rest := _TOKEN.search(line.text, end):
        raise line.fault(_WHAT, rest.start(), "the end of the line after a whole tree")
    return tree


def parse_bracketed_lines(lines: Iterable[Line], make: Callable[[str | None, str, list[T]], T]) -> Iterator[T]:
    """Yield the trees of lines, each of which may hold several trees or part of one; see `parse_brackets`."""
    return (tree for tree, _ in _parse(lines, make))


def _parse(lines: Iterable[Line], make: Callable[[str | None, str, list[T]], T]) -> Iterator[tuple[T, int]]:
    """Yield each tree, and the position after it in its last line."""
    open_nodes, first = list[_Open[T]](), 0
    for line in lines:
        for token in _TOKEN.finditer(line.text):
            text, here = token[0], token.start()
            if text == "(":
                if open_nodes and len(open_nodes[-1].words) > 1:
                    raise line.fault(_WHAT, here, "')' after a word")
                first = first if open_nodes else line.number
                open_nodes.append(_Open())
            elif not open_nodes:
                raise line.fault(_WHAT, here, f"'(' to open a tree, {_EXAMPLE}")
            elif text == ")":
                label, word, children = open_nodes.pop().parts()
                if not word and not children:
                    raise line.fault(_WHAT, here, f"a label or a word after '(', {_EXAMPLE}")
                is_wrapping = not open_nodes and label is None and len(children) == 1
                node = children[0] if is_wrapping else make(label, word, children)
                if open_nodes:
                    open_nodes[-1].children.append(node)
                else:
                    yield node, token.end()
            elif open_nodes[-1].children or len(open_nodes[-1].words) > 1:
                raise line.fault(_WHAT, here, "'(' to open a node, or ')', because each word needs its own brackets")
            else:
                open_nodes[-1].words.append(text)
    if open_nodes:
        raise line.fault(_WHAT, len(line.text), f"')' for every '(' of the tree that begins in line {first}")


@checked()
def read_brackets(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read trees in brackets: `(S (NP-SBJ (DT The) (NN film)) (VP (VBZ ends)))` or `(3 (2 good) (2 film))`.

    Args:
        path: the file; a tree may span lines, and a line may hold several. A label may be any text; unary chains and
            traces such as `(-NONE- *T*-1)` are ordinary nodes; unlabelled brackets around a tree are dropped. In words,
            `-LRB-` reads as `(`, and `\\/` as `/`.

    Returns:
        The root of each tree, for `autobatch.fold("children", ...)`. A node is a dict with an optional `label`, and a
        `word` or a list of `children`. Trees may have any depth.

    Raises:
        DataError: the file cannot be read, or holds no tree; brackets do not match, or a bracket holds several words.
    """
    trees = parse_bracketed_lines(read_lines(Path(path), "trees"), _make_node)
    return check_found(Path(path), "trees", list(trees), "trees such as (NP (DT the) (NN film))")


def _make_node(label: str | None, word: str, children: list[dict[str, Any]]) -> dict[str, Any]:
    node: dict[str, Any] = {} if label is None else {"label": label}
    return node | ({"children": children} if children else {"word": word})
