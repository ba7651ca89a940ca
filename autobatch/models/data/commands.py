"""Draw commands of a few words, with trees of the robot actions that they describe.

    twice hop salute        (do (twice (hop bend rise)) (salute (raise arm) nod))

A command is one to three actions, which become the children of "do". Each action stands for a fixed small tree, and may
follow an adverb that becomes its parent. Siblings with the same label have the same children, because a network that
only knows the labels above a node could not distinguish them.
"""

from __future__ import annotations

import numpy as np

from autobatch.models.data.ordered_tree import DescribedTree, OrderedTree

ROOT = "do"
ADVERBS = ("twice", "slowly", "backwards")
ACTIONS: dict[str, list[str | tuple[str, str]]] = {
    "hop": ["bend", "rise"],
    "salute": [("raise", "arm"), "nod"],
    "wait": [],
    "turn": ["left"],
    "dance": ["left", ("raise", "leg"), "right"],
    "fetch": [("go", "there"), ("take", "ball"), ("come", "back")],
    "bow": [("bend", "head")],
    "leave": ["right", ("go", "there")],
}
"""The children of each action: labels, or a label with the label of its only child."""


def draw_commands(n_commands: int, rng: np.random.Generator, *, max_actions: int = 3) -> list[DescribedTree[str]]:
    """Draw commands of 1 to `max_actions` actions, with their trees.

    Returns:
        Commands of about 3 words on average, by default, and trees of about 9 nodes.

    >>> draw_commands(1, np.random.default_rng(1))[0].tree
    (do (salute (raise arm) nod))
    """
    return [_draw_command(rng, max_actions) for _ in range(n_commands)]


def _draw_command(rng: np.random.Generator, max_actions: int) -> DescribedTree[str]:
    words: list[str] = []
    trees = []
    adverbs = rng.permutation(ADVERBS).tolist()
    for _ in range(rng.integers(1, max_actions, endpoint=True)):
        action = list(ACTIONS)[rng.integers(len(ACTIONS))]
        parts = [OrderedTree(*_split(part)) for part in ACTIONS[action]]
        tree = OrderedTree(action, parts)
        if rng.random() < 0.4:
            adverb = adverbs.pop()
            words.append(adverb)
            tree = OrderedTree(adverb, [tree])
        words.append(action)
        trees.append(tree)
    return DescribedTree(words, OrderedTree(ROOT, trees))


def _split(part: str | tuple[str, str]) -> tuple[str, list[OrderedTree[str]]]:
    label, *below = (part,) if isinstance(part, str) else part
    return label, [OrderedTree(word) for word in below]
