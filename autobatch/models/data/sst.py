r"""Read labelled binary trees, one s-expression per line, as in the Stanford Sentiment Treebank.

    (3 (2 An) (3 (4 imaginative) (3 (2 comedy\/thriller) (2 .))))

A label is a number or text, such as `NP`. Words and labels may contain any character except plain spaces, tabs and
brackets (three lines of the treebank contain no-break spaces). `-LRB-` reads as `(` and `\/` as `/`. Blank lines are
skipped. Reading is one pass over each line, with a stack of open nodes instead of recursion.

If answers are not required, any or all labels may be left out: `((An) ((imaginative) (comedy)))`.

Source of the data: Socher et al. 2013, Recursive deep models for semantic compositionality over a sentiment treebank.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

from autobatch.errors import DataError
from autobatch.models.data.tree import Tree
from autobatch.readers.brackets import to_label, unescape
from autobatch.readers.lines import Line, fault, parse_lines

# Possessive quantifiers do not backtrack, so reading is linear in the line's length.
_SPACES = re.compile(r"[ \t]*+")
_LEAF = re.compile(r"\([ \t]*+([^ \t()]++)[ \t]++([^ \t()]++)[ \t]*+\)")
_OPEN = re.compile(r"\([ \t]*+([^ \t()]++)")
_LEAF_ALONE = re.compile(r"\([ \t]*+([^ \t()]++)[ \t]*+\)")
_OPEN_ALONE = re.compile(r"\([ \t]*+(?=\()")
_LAST_WORD = re.compile(r"[^ \t()]++[ \t]*+")
_WORD = re.compile(r"[^ \t]+")
_EXAMPLE = "such as (3 (2 good) (2 film))"
_OTHERS = " (tree-lstm-childsum reads trees of any shape)"


def read_trees(path: Path, answered: bool = True) -> list[Tree[str]]:
    """Read every tree of a file.

    Args:
        path: a UTF-8 text file, one tree per line.
        answered: whether every node must have a label.

    Raises:
        DataError: the file cannot be read, holds no tree, or a line is malformed; names file, line and column.
    """
    return _read(path, lambda line: parse_tree(line.text, line.place, answered))


def read_texts_of_trees(path: Path, answered: bool = True) -> list[Tree[str]]:
    """Read every tree of a file, for models that read only the words.

    If answers are not required, a line without a leading bracket is plain text, read as an unlabelled left-branching
    tree.

    Raises:
        DataError: as for `read_trees`.
    """

    def parse(line: Line) -> Tree[str]:
        if answered or line.text.lstrip(" \t").startswith("("):
            return parse_tree(line.text, line.place, answered)
        leaves = [Tree.leaf(None, unescape(word)) for word in _WORD.findall(line.text)]
        return reduce(partial(Tree.inner, None), leaves)

    return _read(path, parse)


def _read(path: Path, parse: Callable[[Line], Tree[str]]) -> list[Tree[str]]:
    return parse_lines(path, "trees", parse, f"one tree per line, {_EXAMPLE}")


def parse_tree(text: str, place: str = "text", answered: bool = True) -> Tree[str]:
    """Read one tree.

    Args:
        text: one s-expression.
        place: origin of the text, for messages.
        answered: whether every node must have a label.

    Raises:
        DataError: malformed text; the message has the place, the column from 1, and the expected and actual text.

    >>> parse_tree("(3 (2 good) (NN film))").right.label
    'NN'
    >>> parse_tree("((good) (film))", answered=False).right.label
    >>> parse_tree("(3 (2 good) (film))")
    Traceback (most recent call last):
    ...
    autobatch.errors.DataError: cannot read a tree from text, column 18: expected one word and ')', or two subtrees, \
found ')'.
    """
    open_nodes: list[tuple[Any, Tree[str] | None]] = []  # label and, once read, left child
    position = _skip_spaces(text, 0)
    while True:
        if token := _LEAF.match(text, position):
            tree = Tree.leaf(to_label(token[1]), unescape(token[2]))
        elif not answered and (token := _LEAF_ALONE.match(text, position)):
            tree = Tree.leaf(None, unescape(token[1]))
        elif token := _OPEN.match(text, position):
            open_nodes.append((to_label(token[1]), None))
            position = _skip_spaces(text, token.end())
            continue
        elif not answered and (token := _OPEN_ALONE.match(text, position)):
            open_nodes.append((None, None))
            position = token.end()
            continue
        else:
            raise _missing_subtree(text, position, place, open_nodes)
        position = _skip_spaces(text, token.end())
        # A finished tree is the left child of the last open node, or its right child, which finishes that node too.
        while open_nodes:
            label, left = open_nodes.pop()
            if left is None:
                open_nodes.append((label, tree))
                break
            tree = Tree.inner(label, left, tree)
            if not text.startswith(")", position):
                raise _fault(text, position, place, f"')' after the second of a node's two subtrees{_OTHERS}")
            position = _skip_spaces(text, position + 1)
        else:
            if position < len(text):
                raise _fault(text, position, place, "the end of the line after a whole tree")
            return tree


def _skip_spaces(text: str, position: int) -> int:
    spaces = _SPACES.match(text, position)
    return spaces.end() if spaces else position


def _missing_subtree(text: str, position: int, place: str, open_nodes: list[tuple[Any, Tree[str] | None]]) -> DataError:
    """Make the error for a position where neither a leaf nor an inner node begins."""
    if text.startswith("(", position):
        after = _skip_spaces(text, position + 1)
        return _fault(text, after, place, f"a label after '('{_OTHERS if text.startswith('(', after) else ''}")
    if not open_nodes:
        return _fault(text, position, place, f"'(' to open a tree {_EXAMPLE}")
    if open_nodes[-1][1] is None:
        last_word = _LAST_WORD.fullmatch(text, position)
        if last_word:
            return _fault(text, last_word.end(), place, "')' after the word of a node")
        return _fault(text, position, place, "one word and ')', or two subtrees")
    return _fault(text, position, place, f"'(' to open the second of a node's two subtrees{_OTHERS}")


def _fault(text: str, position: int, place: str, expected: str) -> DataError:
    return fault("a tree", place, text, position, expected)
