"""Draw reviews whose opinion is in a few of their words, as left-branching trees.

    the film with that old cast is not dull and the rest of it runs on

A review has one deciding opinion, which "not" reverses. "although" begins an opinion that the next one outweighs, so a
reader must continue after it; the words after the last opinion are neutral. The label of a node is the opinion of its
words so far: 0 for bad, 1 for none yet, 2 for good; the label of a leaf is that of the word alone.
"""

from __future__ import annotations

import numpy as np

from autobatch.models.data.tree import Tree

N_CLASSES = 3
BAD, OPEN, GOOD = range(N_CLASSES)
OPINIONS = {
    "dull": BAD, "clumsy": BAD, "tiresome": BAD, "hollow": BAD,
    "witty": GOOD, "moving": GOOD, "graceful": GOOD, "daring": GOOD,
}  # fmt: skip
PLAIN = ("the", "film", "with", "that", "cast", "and", "its", "music", "of", "a", "long", "night", "in", "town")
NOT, ALTHOUGH = "not", "although"


def draw_reviews(n_reviews: int, rng: np.random.Generator, *, max_plain: int = 4) -> list[Tree[str]]:
    """Draw reviews with up to `max_plain` neutral words before each opinion, and up to twice as many after the last.

    Returns:
        Trees over about 8 words on average, by default.

    >>> draw_reviews(1, np.random.default_rng(4), max_plain=2)
    [(0 (0 (0 (1 (1 (1 music) (1 town)) (1 not)) (2 daring)) (1 of)) (1 that))]
    """
    return [_draw_review(rng, max_plain) for _ in range(n_reviews)]


def _draw_review(rng: np.random.Generator, max_plain: int) -> Tree[str]:
    words: list[tuple[str, int]] = []
    if rng.random() < 0.25:
        words += [(ALTHOUGH, OPEN), *_draw_plain(rng, max_plain)]
        words += [(word, OPEN) for word, _ in _draw_opinion(rng)]
    words += [*_draw_plain(rng, max_plain), *_draw_opinion(rng)]
    opinion = words[-1][1]
    words += [(word, opinion) for word, _ in _draw_plain(rng, 2 * max_plain)]
    first, *others = (Tree.leaf(OPINIONS.get(word, OPEN), word) for word, _ in words)
    tree = first
    for leaf, (_, said) in zip(others, words[1:], strict=True):
        tree = Tree.inner(said, tree, leaf)
    return tree


def _draw_opinion(rng: np.random.Generator) -> list[tuple[str, int]]:
    """Draw an opinion, perhaps reversed: words with the opinion after each."""
    word = list(OPINIONS)[rng.integers(len(OPINIONS))]
    if rng.random() < 0.25:
        return [(NOT, OPEN), (word, GOOD if OPINIONS[word] == BAD else BAD)]
    return [(word, OPINIONS[word])]


def _draw_plain(rng: np.random.Generator, max_plain: int) -> list[tuple[str, int]]:
    return [(PLAIN[rng.integers(len(PLAIN))], OPEN) for _ in range(rng.integers(max_plain + 1))]
