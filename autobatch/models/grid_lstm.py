"""Grid LSTM that compares two texts, one instance at a time.

Block (i, j) of a grid combines word i of one text and word j of the other with an LSTM along each side:

    (h_i, c_i) ← LSTM_across([h_i, h_j], c_i)        the state of row i, updated by each column
    (h_j, c_j) ← LSTM_down([h_i, h_j], c_j)          the state of column j, updated by each row

where both use the states before the block. Initial states are looked up by word. The label is computed from h of the
last row and column, at the far corner.

Source: Kalchbrenner, Danihelka and Graves 2015, Grid long short-term memory (arXiv:1507.01526), section 3.1 in two
dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.comparison import Comparison
from autobatch.models.data.dataset import COMPARISONS, load_comparisons
from autobatch.models.metric import class_probabilities, count_classes, label_of, predict_classes
from autobatch.models.spec import ModelSpec


class GridLSTM(ab.Module):
    """Tables of words for both sides, an LSTM cell along each, and one output layer.

    Args:
        n_words: V, word ids are 0 to V - 1.
        n_classes: C, labels are 0 to C - 1.
        dim: H, width of states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, n_classes: int, dim: int, rng: np.random.Generator) -> None:
        self.left_words = ab.Parameter(0.5 * rng.standard_normal((n_words, 2 * dim)))
        self.right_words = ab.Parameter(0.5 * rng.standard_normal((n_words, 2 * dim)))
        self.across = ab.LSTMCell(dim, dim, rng=rng)
        self.down = ab.LSTMCell(dim, dim, rng=rng)
        self.output = ab.Linear(2 * dim, n_classes, rng=rng)

    @ab.cell
    def begin_row(self, word: int) -> Any:
        """Look up the state of a word of the left text, h (H,) and c (H,)."""
        return tuple(ab.split(ab.lookup(self.left_words, word), 2))

    @ab.cell
    def begin_column(self, word: int) -> Any:
        """Look up the state of a word of the right text."""
        return tuple(ab.split(ab.lookup(self.right_words, word), 2))

    @ab.cell
    def block(self, row: Any, column: Any) -> Any:
        """Combine a row and a column at their crossing; return the next state of each."""
        (h_i, _), (h_j, _) = row, column
        return self.across(h_j, row), self.down(h_i, column)

    @ab.cell
    def label_loss(self, row: Any, column: Any, label: int) -> Any:
        """Compute the cross-entropy of the label at the far corner: a scalar."""
        return ab.cross_entropy(self.read(row, column), label)

    @ab.cell
    def label_scores(self, row: Any, column: Any) -> Any:
        """Score the labels at the far corner: logits (C,)."""
        return self.read(row, column)

    def read(self, row: Any, column: Any) -> Any:
        """Score the labels, inside a cell: logits (C,)."""
        (h_i, _), (h_j, _) = row, column
        return self.output(ab.concat((h_i, h_j)))

    def corner(self, pair: Comparison[int]) -> Any:
        """Process the grid; return the states of the last row and of the last column."""
        columns = [self.begin_column(word) for word in pair.right]
        for word in pair.left:
            row = self.begin_row(word)
            for j, column in enumerate(columns):
                row, columns[j] = self.block(row, column)
        return row, columns[-1]

    def loss(self, pair: Comparison[int]) -> Any:
        """Compute the cross-entropy of the label of a pair: a scalar."""
        row, column = self.corner(pair)
        return self.label_loss(row, column, pair.label)

    def scores(self, pair: Comparison[int]) -> Any:
        """Score the labels of a pair: logits (C,)."""
        return self.label_scores(*self.corner(pair))


SPEC = ModelSpec(
    name="grid-lstm",
    summary="LSTMs along both sides of a grid, to compare two texts (Kalchbrenner, Danihelka and Graves 2015)",
    model=GridLSTM,
    generators=tuple(COMPARISONS.generators),
    reads=COMPARISONS.reads,
    default_data="edits",
    load=load_comparisons,
    load_inputs=load_comparisons.inputs,
    count_correct=count_classes,
    predict=predict_classes,
    label=label_of,
    probabilities=class_probabilities,
)
