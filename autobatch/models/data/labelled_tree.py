"""Trees whose nodes have a word, any number of children and perhaps a label; a line of JSON each.

    {"word": "MAX", "label": 9, "children": [{"word": "2"}, {"word": "9"}]}

All three may be left out: a node without a word has the word "", one without a label is not asked for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from autobatch.errors import DataError
from autobatch.models.data.lines import Line, parse_lines

V = TypeVar("V")
W = TypeVar("W")

_WHAT = "a labelled tree"
_EXAMPLE = '{"word": "MAX", "label": "9", "children": [{"word": "2"}, {"word": "9"}]}'


class LabelledTree(Generic[W]):
    """A node with a `word`, a list of `children` and a `label` or None: strings as read, ints after encoding.

    >>> tree = LabelledTree("MAX", [LabelledTree("2"), LabelledTree("9")], label="9")
    >>> tree
    {"word": "MAX", "label": "9", "children": [{"word": "2"}, {"word": "9"}]}
    >>> [node.word for node in tree.postorder()]
    ['2', '9', 'MAX']
    """

    __slots__ = ("children", "label", "word")

    def __init__(self, word: W, children: list[LabelledTree[W]] | None = None, label: W | None = None) -> None:
        self.word, self.children, self.label = word, children or [], label

    def postorder(self) -> Iterator[LabelledTree[W]]:
        """Visit every node once, children before their parent and in their order."""
        waiting, parents_first = [self], []
        while waiting:
            tree = waiting.pop()
            parents_first.append(tree)
            waiting += tree.children
        return reversed(parents_first)

    def map(self, replace_word: Callable[[W], V], replace_label: Callable[[W], V]) -> LabelledTree[V]:
        """Copy the tree with other words and labels.

        >>> LabelledTree("MAX", [LabelledTree("10")], label="0").map(len, int)
        {"word": 3, "label": 0, "children": [{"word": 2}]}
        """

        def copy(node: LabelledTree[W], children: list[LabelledTree[V]]) -> LabelledTree[V]:
            label = None if node.label is None else replace_label(node.label)
            return LabelledTree(replace_word(node.word), children, label)

        copied: LabelledTree[V] = self._fold(copy)
        return copied

    def _fold(self, make: Callable[[LabelledTree[W], list[Any]], Any]) -> Any:
        """Make something of every node and of what was made of its children."""
        done: list[Any] = []
        for node in self.postorder():
            first = len(done) - len(node.children)
            done[first:] = [make(node, done[first:])]
        return done[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LabelledTree):
            return NotImplemented
        return _outline(self) == _outline(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        text: str = self._fold(_describe)
        return text


def read_labelled_trees(path: Path) -> list[LabelledTree[str]]:
    """Read every tree of a file; words and labels may also be numbers, which are read as their digits.

    Args:
        path: a UTF-8 text file, one tree a line, in JSON; blank lines are skipped.

    Raises:
        DataError: the file cannot be read, holds no tree, or a line is malformed; names file, line and place.
    """
    return parse_lines(path, "labelled trees", parse_labelled_tree, f"one a line, such as {_EXAMPLE}", blank=None)


def parse_labelled_tree(line: Line) -> LabelledTree[str]:
    """Read one tree.

    Raises:
        DataError: the text is no JSON, or no tree; the message says where.

    >>> parse_labelled_tree(Line(Path("x.json"), 1, '{"children": [{"word": 2}]}')).children
    [{"word": "2"}]
    """
    try:
        found = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        expected = f"JSON, nested no deeper than Python reads it, such as {_EXAMPLE}"
        raise line.fault(_WHAT, getattr(error, "pos", 0), expected) from error
    root = LabelledTree("")
    waiting = [(found, root, "the root")]
    while waiting:
        node, tree, where = waiting.pop()
        if not isinstance(node, dict) or node.keys() - {"word", "label", "children"}:
            raise _fault(line, where, node, 'expected an object with "word", "label" and "children" or some of them')
        children = node.get("children", [])
        if not isinstance(children, list):
            raise _fault(line, f"children of {where}", children, "expected a list")
        tree.word = _read_word(line, f"word of {where}", node.get("word", ""))
        tree.label = None if node.get("label") is None else _read_word(line, f"label of {where}", node["label"])
        tree.children = [LabelledTree("") for _ in children]
        places = (f"child {number} of {where}" for number in range(1, len(children) + 1))
        waiting += zip(children, tree.children, places, strict=True)
    return root


def _read_word(line: Line, where: str, found: object) -> str:
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise _fault(line, where, found, "expected a string or a whole number")
    text = str(found)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _fault(line, where, found, "expected whole characters, not halves of a surrogate pair")
    return text


def _fault(line: Line, where: str, found: object, expected: str) -> DataError:
    text = json.dumps(found)
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    column = 1 + len(line.text) - len(line.text.lstrip())
    return DataError(
        f"cannot read {_WHAT} from {line.place}, column {column}: {where} is {shown}; {expected}, such as {_EXAMPLE}."
    )


def _describe(node: LabelledTree[Any], children: list[str]) -> str:
    """Write a node as JSON, its children written already."""
    parts = [f'"word": {json.dumps(node.word, ensure_ascii=False)}']
    parts += [] if node.label is None else [f'"label": {json.dumps(node.label, ensure_ascii=False)}']
    parts += [f'"children": [{", ".join(children)}]'] if children else []
    return f"{{{', '.join(parts)}}}"


def _outline(tree: LabelledTree[W]) -> list[tuple[W, W | None, int]]:
    """List words, labels and numbers of children in postorder; equal lists mean equal trees."""
    return [(node.word, node.label, len(node.children)) for node in tree.postorder()]
