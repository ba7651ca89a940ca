"""Trees whose nodes have a word, any number of children and an optional label, one per line in JSON or brackets.

    {"word": "MAX", "label": 9, "children": [{"word": "2"}, {"word": "9"}]}
    (NP (DT the) (JJ old) (NN film))

All three fields are optional. A node without a word has the word ""; a node without a label is not scored. Trees may
have any depth, as no function recurses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from autobatch.errors import DataError
from autobatch.readers.brackets import parse_brackets
from autobatch.readers.lines import Line, parse_lines
from autobatch.system.nested_json import parse_json, show_json

T = TypeVar("T")
V = TypeVar("V")
W = TypeVar("W")

MOST_STEPS = 6  # steps of a path in a message

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
            # The last child is visited next, so the list is the reverse of postorder.
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

        *_, (_, copied) = self.fold(copy)
        return copied

    def fold(self, make: Callable[[LabelledTree[W], list[T]], T]) -> Iterator[tuple[LabelledTree[W], T]]:
        """Compute a value for every node from the node and its children's values; yield each node with its value.

        Nodes come in postorder, the root last. Does not recurse, so any depth works.

        >>> tree = LabelledTree("MAX", [LabelledTree("2"), LabelledTree("9")])
        >>> [n_nodes for _, n_nodes in tree.fold(lambda node, below: 1 + sum(below))]
        [1, 1, 3]
        """
        waiting: list[T] = []
        for node in self.postorder():
            first = len(waiting) - len(node.children)  # the values of the children are on top
            value = make(node, waiting[first:])
            waiting[first:] = [value]
            yield node, value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LabelledTree):
            return NotImplemented
        return _outline(self) == _outline(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        *_, (_, text) = self.fold(_describe)
        return text


def read_labelled_trees(path: Path) -> list[LabelledTree[str]]:
    """Read every tree of a file; words and labels in JSON may also be numbers, which are read as their digits.

    Args:
        path: a UTF-8 text file, one tree per line, in JSON or in brackets; blank lines are skipped.

    Raises:
        DataError: the file cannot be read, holds no tree, or a line is malformed; names file, line and place.
    """
    return parse_lines(path, "labelled trees", parse_labelled_tree, f"one per line, such as {_EXAMPLE}", blank=None)


def parse_labelled_tree(line: Line) -> LabelledTree[str]:
    """Read one tree: in brackets if the line begins with one, else in JSON.

    Raises:
        DataError: the text is neither JSON nor brackets, or not a tree; the message has the place.

    >>> parse_labelled_tree(Line(Path("x.json"), 1, '{"children": [{"word": 2}]}')).children
    [{"word": "2"}]
    """
    if line.text.lstrip().startswith("("):
        return parse_brackets(line, lambda label, word, children: LabelledTree(word, children, label))
    try:
        found = parse_json(line.text)
    except ValueError as error:
        raise line.fault(_WHAT, getattr(error, "pos", 0), f"JSON, such as {_EXAMPLE}") from error
    root = LabelledTree("")
    waiting = [(found, root, _ROOT)]
    while waiting:
        node, tree, place = waiting.pop()
        if not isinstance(node, dict) or node.keys() - {"word", "label", "children"}:
            expected = 'expected an object with the optional fields "word", "label" and "children"'
            raise _fault(line, "", place, node, expected)
        children = node.get("children", [])
        if not isinstance(children, list):
            raise _fault(line, "children of ", place, children, "expected a list")
        tree.word = _read_word(line, "word of ", place, node.get("word", ""))
        tree.label = None if node.get("label") is None else _read_word(line, "label of ", place, node["label"])
        tree.children = [LabelledTree("") for _ in children]
        places = (_Place(number, place) for number in range(1, len(children) + 1))
        waiting += zip(children, tree.children, places, strict=True)
    return root


class _Place(NamedTuple):
    """The position of a node in a tree: its index among its parent's children; formatted only in messages."""

    number: int
    parent: _Place | None

    def __str__(self) -> str:
        steps, place = list[str](), self
        while place.parent is not None:
            steps.append(f"child {place.number} of ")
            place = place.parent
        n_left_out = len(steps) - MOST_STEPS
        if n_left_out > 0:
            steps[MOST_STEPS:] = [f"a node {n_left_out} levels below "]
        return "".join([*steps, "the root"])


_ROOT = _Place(1, None)


def _read_word(line: Line, part: str, place: _Place, found: object) -> str:
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise _fault(line, part, place, found, "expected a string or an int")
    text = str(found)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _fault(line, part, place, found, "expected no halves of surrogate pairs")
    return text


def _fault(line: Line, part: str, place: _Place, found: object, expected: str) -> DataError:
    column = 1 + len(line.text) - len(line.text.lstrip())
    return DataError(
        f"cannot read {_WHAT} from {line.place}, column {column}: {part}{place} is {show_json(found)}; {expected}, "
        f"such as {_EXAMPLE}."
    )


def _describe(node: LabelledTree[Any], children: list[str]) -> str:
    """Write a node as JSON, from the JSON of its children."""
    parts = [f'"word": {json.dumps(node.word, ensure_ascii=False)}']
    parts += [] if node.label is None else [f'"label": {json.dumps(node.label, ensure_ascii=False)}']
    parts += [f'"children": [{", ".join(children)}]'] if children else []
    return f"{{{', '.join(parts)}}}"


def _outline(tree: LabelledTree[W]) -> list[tuple[W, W | None, int]]:
    """List words, labels and numbers of children in postorder; equal lists mean equal trees."""
    return [(node.word, node.label, len(node.children)) for node in tree.postorder()]
