"""What models that classify every node of a tree have in common: losses, scores, metrics and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import TREES, load_trees
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import predict_labels
from autobatch.models.spec import Counts, ModelSpec


class NodeClassifier(ab.Module):
    """Classifies nodes by their states; a model derives from it and has a layer `output`."""

    output: ab.Linear

    def hidden(self, state: Any) -> Any:
        """Find the vector h (H,) by which a node is classified, inside a cell: here all of its state."""
        return state

    @ab.cell
    def node_loss(self, state: Any, label: int) -> Any:
        """Compare a node with its label: a scalar."""
        return ab.cross_entropy(self.output(self.hidden(state)), label)

    @ab.cell
    def node_scores(self, state: Any) -> Any:
        """Score the classes of a node: logits (C,)."""
        return self.output(self.hidden(state))


class TreeClassifier(NodeClassifier):
    """Classifies every node of a binary tree; a model derives from it and has cells `leaf` and `merge`."""

    leaf: Callable[[int], Any]
    merge: Callable[[Any, Any], Any]

    def loss(self, tree: Tree[int]) -> Any:
        """Sum the cross-entropies of all nodes: a scalar."""
        losses = []

        def visit(t: Tree[int]) -> Any:
            state = self.leaf(t.word) if t.is_leaf else self.merge(visit(t.left), visit(t.right))
            losses.append(self.node_loss(state, t.label))
            return state

        visit(tree)
        return ab.sum_n(losses)

    def scores(self, tree: Tree[int]) -> Any:
        """Score the classes at the root (C,), and at every node in postorder: a list of (C,)."""
        scores = []

        def visit(t: Tree[int]) -> Any:
            state = self.leaf(t.word) if t.is_leaf else self.merge(visit(t.left), visit(t.right))
            scores.append(self.node_scores(state))
            return state

        visit(tree)
        return scores[-1], scores


def count_correct(outputs: Any, trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count right and all classifications, at roots and at all nodes.

    Args:
        outputs: of batched `TreeClassifier.scores`: root logits (B, C), and per tree the logits of its nodes.
        trees: the B trees.
        vocabularies: not used; labels are numbers.
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


def describe(name: str, summary: str, model: Callable[..., TreeClassifier], default_data: str = "listops") -> ModelSpec:
    """Describe a model that classifies the nodes of binary trees."""
    return ModelSpec(
        name=name,
        summary=summary,
        model=model,
        generators=tuple(TREES.generators),
        reads=TREES.reads,
        default_data=default_data,
        load=load_trees,
        count_correct=count_correct,
        predict=predict_labels,
    )
