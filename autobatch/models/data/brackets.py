"""Draw nested lists and sets of letters, as trees for a parser.

    list a set b c end d end

A list or set is the word "list" or "set", one or more items and the word "end"; an item is a letter, a list or a set.
Every inner node appends an item or the end, `((((list a) (((set b) c) end)) d) end)`. Labels: 0 is a word, 1 an
unfinished list or set, 2 a list, 3 a set. Both end with the same word, so a parser must remember which one is open.
"""

from __future__ import annotations

import numpy as np

from autobatch.models.data.tree import Tree

N_CLASSES = 4
WORD, OPEN = 0, 1
KINDS = {"list": 2, "set": 3}
END = "end"
LETTERS = "abcdef"


def draw_brackets(
    n_trees: int, rng: np.random.Generator, *, max_depth: int = 4, max_items: int = 3, nesting: float = 0.4
) -> list[Tree[str]]:
    """Draw lists and sets.

    Args:
        n_trees: number of trees.
        rng: draws all choices.
        max_depth: largest number of lists and sets on a path from the root; 1 for no nesting.
        max_items: largest number of items; numbers from 1 on are equally likely.
        nesting: the probability that an item is a list or a set, if depth allows; otherwise it is a letter.

    Returns:
        Trees over about 10 words on average, by default.

    >>> draw_brackets(1, np.random.default_rng(1), max_depth=1)
    [(2 (1 (1 (0 list) (0 e)) (0 f)) (0 end))]
    """
    return [_draw_item(rng, max_depth, max_items, nesting) for _ in range(n_trees)]


def _draw_item(rng: np.random.Generator, depth: int, max_items: int, nesting: float) -> Tree[str]:
    kind = list(KINDS)[rng.integers(len(KINDS))]
    tree = Tree.leaf(WORD, kind)
    for _ in range(rng.integers(1, max_items, endpoint=True)):
        if depth > 1 and rng.random() < nesting:
            item = _draw_item(rng, depth - 1, max_items, nesting)
        else:
            item = Tree.leaf(WORD, LETTERS[rng.integers(len(LETTERS))])
        tree = Tree.inner(OPEN, tree, item)
    return Tree.inner(KINDS[kind], tree, Tree.leaf(WORD, END))
