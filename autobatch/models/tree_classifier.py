"""The common part of models that classify every node of a tree: losses, scores, metrics and data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import LABELLED_TREES, TREES, load_labelled_trees, load_trees
from autobatch.models.data.labelled_tree import LabelledTree
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import (
    count_tags,
    label_of,
    name_tags,
    pick_best,
    predict_labels,
    root_probabilities,
    to_probabilities,
)
from autobatch.models.spec import Counts, ModelSpec


class NodeClassifier(ab.Module):
    """The base of models that classify nodes by their states; a subclass has a layer `output`."""

    output: ab.Linear

    def hidden(self, state: Any) -> Any:
        """Return the vector h (H,) that classifies a node, inside a cell; by default its whole state."""
        return state

    @ab.cell
    def node_loss(self, state: Any, label: int) -> Any:
        """Compute the cross-entropy of a node's label: a scalar."""
        return ab.cross_entropy(self.output(self.hidden(state)), label)

    @ab.cell
    def node_scores(self, state: Any) -> Any:
        """Score the classes of a node: logits (C,)."""
        return self.output(self.hidden(state))


class TreeClassifier(NodeClassifier):
    """The base of models that classify every node of a binary tree; a subclass has cells `leaf` and `merge`."""

    leaf: Callable[[int], Any]
    merge: Callable[[Any, Any], Any]

    def loss(self, tree: Tree[int]) -> Any:
        """Sum the cross-entropies of all nodes: a scalar."""
        return ab.sum_n([self.node_loss(state, node.label) for node, state in tree.fold(self.leaf, self.merge)])

    def scores(self, tree: Tree[int]) -> Any:
        """Score the classes at the root (C,), and at every node in postorder: a list of (C,)."""
        scores = [self.node_scores(state) for _, state in tree.fold(self.leaf, self.merge)]
        return scores[-1], scores


class LabelledTreeClassifier(NodeClassifier):
    """The base of models that classify nodes with any number of children; a subclass has a cell `node`."""

    node: Callable[[int, Sequence[Any]], Any]

    def loss(self, tree: LabelledTree[int]) -> Any:
        """Sum the cross-entropies of all nodes that have labels: a scalar."""
        losses = [self.node_loss(state, node.label) for node, state in self.states(tree) if node.label is not None]
        return ab.sum_n(losses, shape=())

    def scores(self, tree: LabelledTree[int]) -> Any:
        """Score the classes of every node in postorder, the root's last: a list of (C,)."""
        return [self.node_scores(state) for _, state in self.states(tree)]

    def states(self, tree: LabelledTree[int]) -> Iterator[tuple[LabelledTree[int], Any]]:
        """Compute the state of every node; return nodes and states in postorder."""
        return tree.fold(lambda node, children: self.node(node.word, children))


def count_correct(outputs: Any, trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count correct and all classifications, at roots and at all nodes.

    Args:
        outputs: results of batched `TreeClassifier.scores`: root logits (B, C), and per tree the logits of its nodes.
        trees: the B trees, with ids as labels; labels unseen in training are never correct.
        vocabularies: not used.
    """
    root_logits, node_logits = outputs
    roots = np.argmax(root_logits, axis=1) == [tree.label for tree in trees]
    nodes = [
        np.argmax(logits, axis=1) == [node.label for node in tree.postorder()]
        for logits, tree in zip(node_logits, trees, strict=True)
    ]
    return {
        "root_accuracy": (int(roots.sum()), len(trees)),
        "nodes_accuracy": (sum(int(right.sum()) for right in nodes), sum(len(right) for right in nodes)),
    }


def count_labels(
    outputs: Sequence[Any], trees: Sequence[LabelledTree[int]], vocabularies: Mapping[str, Vocabulary]
) -> Counts:
    """Count correct and all labels, at roots and at all nodes with labels; metrics without labels are left out.

    Args:
        outputs: results of batched `LabelledTreeClassifier.scores`: per tree the logits of its nodes.
        trees: one per output.
        vocabularies: the names of the labels.
    """
    pairs = [
        [(found, node.label) for found, node in zip(labels, tree.postorder(), strict=True) if node.label is not None]
        for labels, tree in zip(pick_best(outputs, vocabularies["labels"]), trees, strict=True)
    ]
    roots = [of_tree[-1:] for of_tree, tree in zip(pairs, trees, strict=True) if tree.label is not None]
    found, meant = (
        [[[pair[side] for pair in of_tree] for of_tree in part] for part in (roots, pairs)] for side in (0, 1)
    )
    counts = {"root_accuracy": count_tags(found[0], meant[0]), "nodes_accuracy": count_tags(found[1], meant[1])}
    return {metric: counted for metric, counted in counts.items() if counted[1]}


def name_labels(
    outputs: Sequence[Any], trees: Sequence[LabelledTree[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Name the best label of each root, and of all nodes in postorder, {"label": "9", "labels": [...]}."""
    labels = vocabularies["labels"]
    return [{"label": names[-1], "labels": names} for names in name_tags(pick_best(outputs, labels), labels)]


def describe(name: str, summary: str, model: Callable[..., TreeClassifier], default_data: str = "listops") -> ModelSpec:
    """Make the spec of a model of binary trees."""
    return ModelSpec(
        name=name,
        summary=summary,
        model=model,
        generators=tuple(TREES.generators),
        reads=TREES.reads,
        default_data=default_data,
        load=load_trees,
        load_inputs=load_trees.inputs,
        count_correct=count_correct,
        predict=predict_labels,
        label=label_of,
        probabilities=root_probabilities,
    )


def describe_labelled(name: str, summary: str, model: Callable[..., LabelledTreeClassifier]) -> ModelSpec:
    """Make the spec of a model of trees with any number of children."""
    return ModelSpec(
        name=name,
        summary=summary,
        model=model,
        generators=tuple(LABELLED_TREES.generators),
        reads=LABELLED_TREES.reads,
        default_data="operations",
        load=load_labelled_trees,
        load_inputs=load_labelled_trees.inputs,
        count_correct=count_labels,
        predict=name_labels,
        label=lambda tree, names: None if tree.label is None else names["labels"].word(tree.label),
        probabilities=lambda outputs, trees, names: [to_probabilities(nodes[-1], names["labels"]) for nodes in outputs],
    )
