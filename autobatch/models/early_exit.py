"""LSTM that classifies a text and stops reading early, one instance at a time.

Training classifies after every word. In prediction, the program awaits the highest probability after each word, and
stops as soon as it is above a threshold.

Source: the exits of Teerapittayanon, McDanel and Kung 2016, BranchyNet (arXiv:1709.01686), along a text instead of
layers, and by the highest probability instead of the entropy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import TREES, load_texts_of_trees
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import label_of
from autobatch.models.spec import Counts, ModelSpec
from autobatch.readers.brackets import to_label


class EarlyExit(ab.Module):
    """An embedding, an LSTM and an output layer that is used after every word.

    Args:
        n_words: V, word ids are 0 to V - 1.
        n_classes: C, labels are 0 to C - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
        threshold: probability above which reading stops.
    """

    def __init__(
        self, n_words: int, n_classes: int, dim: int, rng: np.random.Generator, threshold: float = 0.9
    ) -> None:
        self.embedding = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.lstm = ab.LSTMCell(dim, dim, rng=rng)
        self.output = ab.Linear(dim, n_classes, rng=rng)
        self.zeros = np.zeros(dim)
        self.threshold = threshold

    @ab.cell
    def read(self, word: int, state: Any) -> Any:
        """Return the state, h (H,) and c (H,), after reading a word."""
        return self.lstm(ab.lookup(self.embedding, word), state)

    @ab.cell
    def word_loss(self, state: Any, label: int) -> Any:
        """Compute the cross-entropy of the label after a word: a scalar."""
        h, _ = state
        return ab.cross_entropy(self.output(h), label)

    @ab.cell
    def guess(self, state: Any) -> Any:
        """Classify after a word; return the most likely label, an int, and its probability."""
        h, _ = state
        logits = self.output(h)
        return ab.argmax(logits), ab.max(ab.softmax(logits))

    def loss(self, tree: Tree[int]) -> Any:
        """Sum the cross-entropies of the label of a whole text after each of its words: a scalar."""
        state, losses = (self.zeros, self.zeros), []
        for word in tree.words():
            state = self.read(word, state)
            losses.append(self.word_loss(state, tree.label))
        return ab.sum_n(losses)

    async def classify(self, words: Sequence[int]) -> tuple[int, int]:
        """Read one or more words until the threshold or the end; return the label and the number of words read."""
        state, label, n_read = (self.zeros, self.zeros), 0, 0
        for word in words:
            state, n_read = self.read(word, state), n_read + 1
            label, probability = await ab.value(self.guess(state))
            if probability > self.threshold:
                break
        return int(label), n_read


def count_correct(outputs: Any, trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count correct labels and all labels, and words read and all words.

    Args:
        outputs: results of batched `EarlyExit.classify`: labels of the B texts (B,), and numbers of words read (B,).
        trees: one per output.
        vocabularies: not used.
    """
    labels, n_read = outputs
    right = int(np.sum(labels == [tree.label for tree in trees]))
    n_words = sum(len(tree.words()) for tree in trees)
    return {"accuracy": (right, len(trees)), "words_read": (int(np.sum(n_read)), n_words)}


def predict(outputs: Any, trees: Sequence[Tree[int]], vocabularies: Mapping[str, Vocabulary]) -> list[dict[str, Any]]:
    """Return the label of each text, and the number of words read, {"label": 2, "words_read": 7}."""
    labels, n_read = outputs
    name = vocabularies["classes"].word
    return [{"label": to_label(name(label)), "words_read": int(n)} for label, n in zip(labels, n_read, strict=True)]


SPEC = ModelSpec(
    name="early-exit",
    summary="LSTM that classifies a text, and stops reading when it is confident (after Teerapittayanon et al. 2016)",
    model=EarlyExit,
    generators=tuple(TREES.generators),
    reads=TREES.reads,
    default_data="reviews",
    load=load_texts_of_trees,
    load_inputs=load_texts_of_trees.inputs,
    count_correct=count_correct,
    predict=predict,
    predictor="classify",
    given=lambda tree: tree.words(),
    label=label_of,
)
