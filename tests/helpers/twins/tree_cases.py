"""Models of trees, each with its PyTorch twin and instances."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from autobatch.models.dag_rnn import DagRNN
from autobatch.models.data import listops, reviews
from autobatch.models.data.labelled_tree import LabelledTree
from autobatch.models.data.picture import Picture, draw_scenes
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.tree_lstm import ChildSumTreeLSTM
from autobatch.models.tree_rnn import MVRNN, TreeFC, TreeGRU
from autobatch.models.tree_transformer import TreeTransformer
from helpers.twins import dag_rnn
from helpers.twins.case import Case
from helpers.twins.dag_rnn import DagRNNTwin
from helpers.twins.mv_rnn import MVRNNTwin
from helpers.twins.tree_fc import TreeFCTwin
from helpers.twins.tree_gru import TreeGRUTwin
from helpers.twins.tree_lstm_childsum import ChildSumTreeLSTMTwin
from helpers.twins.tree_transformer import TreeTransformerTwin


def draw_reviews_case(seed: int, n_instances: int, dim: int, make: Callable[..., Any]) -> tuple[Any, list[Tree[int]]]:
    """Draw reviews, one of them a single word."""
    rng = np.random.default_rng(seed)
    drawn = [Tree.leaf(reviews.GOOD, "moving"), *reviews.draw_reviews(n_instances - 1, rng, max_plain=3)]
    vocabulary = Vocabulary.count(word for tree in drawn for word in tree.words())
    model = make(len(vocabulary), n_classes=reviews.N_CLASSES, dim=dim, rng=rng).astype("float64")
    return model, [vocabulary.encode(tree) for tree in drawn]


def draw_listops_case(seed: int, n_instances: int, dim: int, make: Callable[..., Any]) -> tuple[Any, list[Tree[int]]]:
    """Draw trees, one of them a single leaf."""
    rng = np.random.default_rng(seed)
    drawn = [Tree.leaf(3, "3"), *listops.draw_trees(n_instances - 1, rng, max_depth=3)]
    vocabulary = Vocabulary.count(word for tree in drawn for word in tree.words())
    model = make(len(vocabulary), dim, listops.N_CLASSES, rng)
    return model.astype("float64"), [vocabulary.encode(tree) for tree in drawn]


def draw_operations_case(
    seed: int, n_instances: int, dim: int, make: Callable[..., Any]
) -> tuple[Any, list[LabelledTree[int]]]:
    """Draw trees, one of them a single node; rare words are unknown."""
    rng = np.random.default_rng(seed)
    drawn = [LabelledTree("3", label="3"), *listops.draw_operations(n_instances - 1, rng, max_depth=3)]
    nodes = [node for tree in drawn for node in tree.postorder()]
    words = Vocabulary.count((node.word for node in nodes), min_count=2)
    labels = Vocabulary.count(node.label for node in nodes if node.label is not None)
    model = make(len(words), len(labels), dim, rng).astype("float64")
    return model, [tree.map(words.id, labels.id) for tree in drawn]


def draw_scenes_case(seed: int, n_instances: int, dim: int) -> tuple[DagRNN, list[Picture[int]]]:
    """Draw pictures, one of them a single pixel, another one a single row."""
    rng = np.random.default_rng(seed)
    small = Picture([Sentence(["red"], ["balloon"])]), Picture([Sentence(["blue", "white"], ["sky", "sky"])])
    drawn = [*small, *draw_scenes(n_instances - 2, rng, min_size=2, max_size=4)]
    words = Vocabulary.count((word for picture in drawn for word in picture.words()), min_count=2)
    tags = Vocabulary.count(tag for picture in drawn for tag in picture.tags())
    model = DagRNN(len(words), len(tags), dim, rng).astype("float64")
    return model, [picture.map(words.id, tags.id) for picture in drawn]


def scores_of_nodes(outputs: Any) -> Any:
    """Return the logits of all nodes, without those of roots."""
    return outputs[1]


CASES = [
    Case("mv-rnn", partial(draw_reviews_case, make=MVRNN), MVRNNTwin.with_state, place_scores=scores_of_nodes),
    Case("tree-lstm-childsum", partial(draw_operations_case, make=ChildSumTreeLSTM), ChildSumTreeLSTMTwin.with_state),
]
"""Models with special cells: values that are matrices, and maps over any number of children."""

MORE = [
    Case("tree-transformer", partial(draw_operations_case, make=TreeTransformer), TreeTransformerTwin.with_state),
    Case("tree-gru", partial(draw_listops_case, make=TreeGRU), TreeGRUTwin.with_state, place_scores=scores_of_nodes),
    Case("tree-fc", partial(draw_listops_case, make=TreeFC), TreeFCTwin.with_state, place_scores=scores_of_nodes),
    Case("dag-rnn", draw_scenes_case, DagRNNTwin.with_state, dag_rnn.name_in_twin),
]
