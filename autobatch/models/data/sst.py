r"""Read labelled binary trees, one s-expression a line, as in the Stanford Sentiment Treebank.

    (3 (2 An) (3 (4 imaginative) (3 (2 comedy\/thriller) (2 .))))

Words may hold any character but plain spaces and brackets (three lines of the treebank hold no-break spaces), so the
plain space alone separates. `-LRB-` reads as `(` and `\/` as `/`. Blank lines are skipped. Reading is one pass over
each line, with a stack of open nodes instead of recursion.

Source of the data: Socher et al. 2013, Recursive deep models for semantic compositionality over a sentiment treebank.
"""

from __future__ import annotations

import re
from pathlib import Path

from autobatch.errors import DataError
from autobatch.models.data.lines import fault, parse_lines
from autobatch.models.data.tree import Tree, unescape

N_CLASSES = 5  # very negative, negative, neutral, positive, very positive

# Possessive quantifiers: a token that does not match fails at once, so that reading is linear in the line's length.
_SPACES = re.compile(" *+")
_LEAF = re.compile(r"\( *+([^ ()]++) ++([^ ()]++) *+\)")
_OPEN = re.compile(r"\( *+([^ ()]++)")
_EXAMPLE = "such as (3 (2 good) (2 film))"


def read_trees(path: Path, n_classes: int = N_CLASSES) -> list[Tree[str]]:
    """Read every tree of a file.

    Args:
        path: a UTF-8 text file, one tree a line.
        n_classes: labels are 0 to n_classes - 1.

    Raises:
        DataError: the file cannot be read, holds no tree, or a line is malformed; names file, line and column.
    """
    return parse_lines(
        path, "trees", lambda line: parse_tree(line.text, n_classes, line.place), f"one tree a line, {_EXAMPLE}"
    )


def parse_tree(text: str, n_classes: int = N_CLASSES, place: str = "text") -> Tree[str]:
    """Read one tree.

    Args:
        text: one s-expression.
        n_classes: labels are 0 to n_classes - 1.
        place: where the text is from, for messages.

    Raises:
        DataError: malformed text; names the place, the column (from 1), what was expected and what was found.

    >>> parse_tree("(3 (2 good) (2 film))").right.word
    'film'
    >>> parse_tree("(3 (2 good) (7 film))")
    Traceback (most recent call last):
    ...
    autobatch.errors.DataError: cannot read a tree from text, column 14: expected a label from 0 to 4, found '7'.
    """
    labels = {str(label): label for label in range(n_classes)}
    open_nodes: list[tuple[int, Tree[str] | None]] = []  # label and, once read, left child
    position = _skip_spaces(text, 0)
    while True:
        if token := _LEAF.match(text, position):
            tree = Tree.leaf(_label(labels, token, place), unescape(token[2]))
            position = _skip_spaces(text, token.end())
        elif token := _OPEN.match(text, position):
            open_nodes.append((_label(labels, token, place), None))
            position = _skip_spaces(text, token.end())
            continue
        else:
            raise _missing_subtree(text, position, place, open_nodes, n_classes)
        while open_nodes:
            label, left = open_nodes.pop()
            if left is None:
                open_nodes.append((label, tree))
                break
            tree = Tree.inner(label, left, tree)
            if not text.startswith(")", position):
                raise _fault(text, position, place, "')' after the second of a node's two subtrees")
            position = _skip_spaces(text, position + 1)
        else:
            if position < len(text):
                raise _fault(text, position, place, "the end of the line after a whole tree")
            return tree


def _skip_spaces(text: str, position: int) -> int:
    spaces = _SPACES.match(text, position)
    return spaces.end() if spaces else position


def _label(labels: dict[str, int], token: re.Match[str], place: str) -> int:
    label = labels.get(token[1])
    if label is None:
        raise _fault(token.string, token.start(1), place, f"a label from 0 to {len(labels) - 1}")
    return label


def _missing_subtree(
    text: str, position: int, place: str, open_nodes: list[tuple[int, Tree[str] | None]], n_classes: int
) -> DataError:
    """The error for a position where neither a leaf nor an inner node begins."""
    if text.startswith("(", position):
        return _fault(text, _skip_spaces(text, position + 1), place, f"a label from 0 to {n_classes - 1} after '('")
    if not open_nodes:
        return _fault(text, position, place, f"'(' to open a tree {_EXAMPLE}")
    if open_nodes[-1][1] is None:
        return _fault(text, position, place, "one word and ')', or two subtrees")
    return _fault(text, position, place, "'(' to open the second of a node's two subtrees")


def _fault(text: str, position: int, place: str, expected: str) -> DataError:
    return fault("a tree", place, text, position, expected)
