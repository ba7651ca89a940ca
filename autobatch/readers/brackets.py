"""Read trees in brackets, such as those of the Penn Treebank and the Stanford Sentiment Treebank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autobatch.keywords import checked
from autobatch.readers.bracketed_tree import parse_bracketed_lines
from autobatch.readers.lines import check_found, read_lines


@checked()
def read_brackets(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read trees in brackets: `(S (NP-SBJ (DT The) (NN film)) (VP (VBZ ends)))` or `(3 (2 good) (2 film))`.

    Args:
        path: the file; a tree may span lines, and a line may hold several. Labels are any text, unary chains and
            traces such as `(-NONE- *T*-1)` are nodes like others, and unlabelled brackets around a tree are dropped.
            In words, `-LRB-` reads as `(`, and `\\/` as `/`.

    Returns:
        The root of each tree, for `autobatch.fold("children", ...)`. A node is a dict with a `label`, unless it has
        none, and a `word` or a list of `children`. Trees may have any depth.

    Raises:
        DataError: the file cannot be read, or holds no tree; brackets do not match, or a bracket holds several words.
    """
    trees = parse_bracketed_lines(read_lines(Path(path), "trees"), _make_node)
    return check_found(Path(path), "trees", list(trees), "trees such as (NP (DT the) (NN film))")


def _make_node(label: str | None, word: str, children: list[dict[str, Any]]) -> dict[str, Any]:
    node: dict[str, Any] = {} if label is None else {"label": label}
    return node | ({"children": children} if children else {"word": word})
