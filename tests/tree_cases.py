"""Models of trees, each with its PyTorch twin and instances to compare them on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from autobatch.models.data import reviews
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.mv_rnn import MVRNN
from twin_case import Case
from twins.mv_rnn import MVRNNTwin


def draw_reviews_case(seed: int, n_instances: int, dim: int, make: Callable[..., Any]) -> tuple[Any, list[Tree[int]]]:
    """One of the reviews is a single word."""
    rng = np.random.default_rng(seed)
    drawn = [Tree.leaf(reviews.GOOD, "moving"), *reviews.draw_reviews(n_instances - 1, rng, max_plain=3)]
    vocabulary = Vocabulary.count(word for tree in drawn for word in tree.words())
    model = make(len(vocabulary), n_classes=reviews.N_CLASSES, dim=dim, rng=rng).astype("float64")
    return model, [vocabulary.encode(tree) for tree in drawn]


def scores_of_nodes(outputs: Any) -> Any:
    """The logits of all nodes, without those of roots."""
    return outputs[1]


CASES = [
    Case("mv-rnn", partial(draw_reviews_case, make=MVRNN), MVRNNTwin.with_state, place_scores=scores_of_nodes),
]
