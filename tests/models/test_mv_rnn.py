"""Test the MV-RNN's initial values; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np

from autobatch.models.data.tree import Tree
from autobatch.models.tree_rnn import MVRNN


def test_matrices_of_words_begin_near_the_identity_and_nodes_near_the_mean() -> None:
    model = MVRNN(n_words=3, dim=8, n_classes=2, rng=np.random.default_rng(0)).astype("float64")
    states = [model.leaf(word) for word in range(3)]
    for number, (_, matrix) in enumerate(states):
        low_rank = np.asarray(matrix) - np.diag(model.diagonals.data[number])
        assert np.linalg.matrix_rank(low_rank) == 3
        assert 0 < np.max(np.abs(matrix - np.eye(8))) < 0.3
    (a, A), (b, B) = states[:2]
    vector, matrix = model.merge((a, A), (b, B))
    np.testing.assert_allclose(vector, (a + b) / 2, atol=0.2)
    np.testing.assert_allclose(matrix, (A + B) / 2, atol=0.2)


def test_the_matrix_of_a_word_changes_its_sibling_alone() -> None:
    model = MVRNN(n_words=3, dim=8, n_classes=2, rng=np.random.default_rng(0)).astype("float64")
    leaf, pair = Tree.leaf(0, 1), Tree.inner(1, Tree.leaf(0, 1), Tree.leaf(0, 2))
    before = [model.scores(tree)[1] for tree in (leaf, pair)]
    model.diagonals.data[1] = 2.0
    after = [model.scores(tree)[1] for tree in (leaf, pair)]
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1][:2], before[1][:2])
    assert np.max(np.abs(after[1][2] - before[1][2])) > 1e-3
