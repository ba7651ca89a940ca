"""Metrics of predicted trees: F1 of brackets or edges, and the fraction of correct trees.

A bracket is an inner node with its label and the span of its words; an edge is the labels of a node and its child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autobatch.models.data.actions import brackets_in, brackets_of, write_tree
from autobatch.models.data.ordered_tree import DescribedTree, OrderedTree
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_common
from autobatch.models.spec import Counts


def count_brackets(
    outputs: Sequence[list[int]], trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]
) -> Counts:
    """Count brackets for F1, as in `count_common`, and correct trees and all trees.

    Args:
        outputs: results of batched `StackLSTMParser.parse`: actions per text.
        trees: one per output.
        vocabularies: not used.
    """
    found, meant = list(map(brackets_of, outputs)), list(map(brackets_in, trees))
    right = sum(brackets == others for brackets, others in zip(found, meant, strict=True))
    return {"bracket_f1": count_common(found, meant), "exact": (right, len(trees))}


def predict_parses(
    outputs: Sequence[list[int]], trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Write the tree of each text, {"tree": "(3 good film)"}; a `ModelSpec.predict`."""
    texts = ([vocabularies["words"].word(word) for word in tree.words()] for tree in trees)
    labels = vocabularies["classes"].words
    return [{"tree": write_tree(actions, words, labels)} for actions, words in zip(outputs, texts, strict=True)]


def count_edges(
    outputs: Sequence[OrderedTree[int]], described: Sequence[DescribedTree[int]], vocabularies: Mapping[str, Vocabulary]
) -> Counts:
    """Count edges for F1, as in `count_common`, and correct trees and all trees.

    Args:
        outputs: results of batched `DoublyRecurrent.grow`: a tree per text.
        described: one per output.
        vocabularies: not used.
    """
    grown, meant = [tree.edges() for tree in outputs], [one.tree.edges() for one in described]
    right = sum(tree == one.tree for tree, one in zip(outputs, described, strict=True))
    return {"edge_f1": count_common(grown, meant), "exact": (right, len(described))}


def predict_trees(
    outputs: Sequence[OrderedTree[int]], described: Sequence[DescribedTree[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Write the tree of each text, {"tree": "(turn left)"}; a `ModelSpec.predict`."""
    return [{"tree": repr(tree.map(vocabularies["labels"].word))} for tree in outputs]
