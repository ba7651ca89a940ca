"""Test the correct brackets and edges of trees against manual counts."""

from __future__ import annotations

from autobatch.models.data.ordered_tree import DescribedTree, OrderedTree
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_brackets, count_edges, predict_parses, predict_trees
from autobatch.models.registry import find_model


def test_counting_right_brackets() -> None:
    """One of two brackets is correct, including its label. A text of one word has no brackets."""
    a, b, c = (Tree.leaf(0, word) for word in (1, 2, 3))
    trees = [Tree.inner(1, Tree.inner(-1, a, b), c), Tree.leaf(2, 3)]  # -1: a label not in training
    outputs = [[0, 0, 2, 0, 2], [0]]
    assert count_brackets(outputs, trees, {}) == {"bracket_f1": (2, 4), "exact": (1, 2)}
    names = {"words": Vocabulary(["x", "y", "("]), "classes": Vocabulary.of_labels(["NP", "S"])}
    assert predict_parses(outputs, trees, names) == [{"tree": "(S (S x y) -LRB-)"}, {"tree": "-LRB-"}]
    spec = find_model("stack-lstm-parser")
    assert (spec.count_correct, spec.predict) == (count_brackets, predict_parses)


def test_counting_right_edges() -> None:
    """Two of three edges are correct. Repeated edges count separately."""
    grown = [OrderedTree(1, [OrderedTree(2), OrderedTree(2)]), OrderedTree(3)]
    meant = [OrderedTree(1, [OrderedTree(2), OrderedTree(2), OrderedTree(3)]), OrderedTree(3)]
    described = [DescribedTree([1], tree) for tree in meant]
    assert count_edges(grown, described, {}) == {"edge_f1": (4, 5), "exact": (1, 2)}
    names = {"labels": Vocabulary(["a", "b", "c"])}
    assert predict_trees(grown, described, names) == [{"tree": "(a b b)"}, {"tree": "c"}]
    spec = find_model("doubly-recurrent")
    assert (spec.count_correct, spec.predict) == (count_edges, predict_trees)
