r"""Trees of any shape in brackets, as in the Penn Treebank: `(S (NP (DT The) (NN film)) (VP (VBZ ends)))`.

A node is a label with any number of child nodes, or with a word. Labels are optional: `(film)` is a word without one.
The unlabelled outer brackets that the treebank puts around each tree are dropped. Words and labels contain neither
blanks nor brackets; in words, `-LRB-` reads as `(` and `\/` as `/`. Parsing does not recurse, so any depth works.

Source of the format: Marcus, Santorini and Marcinkiewicz 1993, Building a large annotated corpus of English.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from autobatch.readers.lines import Line
from autobatch.readers.node_text import unescape

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
        line: contains only the tree.
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
                raise line.fault(_WHAT, here, "'(' to open a node, or ')': a word has brackets of its own")
            else:
                open_nodes[-1].words.append(text)
    if open_nodes:
        raise line.fault(_WHAT, len(line.text), f"')' for every '(' of the tree that begins in line {first}")
