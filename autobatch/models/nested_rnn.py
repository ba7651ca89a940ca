"""RNN whose steps run an inner RNN for a number of steps given by the data, one instance at a time.

    u_0 = h_{t-1}
    u_k = tanh(W x_t + U u_{k-1} + b)          for k = 1 to n_t: the inner RNN, n_t is data
    h_t = GRU(u_{n_t}, h_{t-1})                the outer RNN, whose states are tagged

The number of inner steps differs from step to step, so instances are never in lockstep: the loops of one instance must
be batched with different loops of the others.

Source: the workload NestedRNN of Fegade, Chen, Gibbons and Mowry 2023, ACRoBat: Optimizing auto-batching of dynamic
deep learning at compile time (arXiv:2305.10611), an RNN loop in a GRU loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import REPEATS, load_repeats
from autobatch.models.data.repeats import Repeats
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_tags, pick_best, predict_tags, tag_probabilities
from autobatch.models.spec import Counts, ModelSpec


class NestedRNN(ab.Module):
    """A table of words, an inner RNN, an outer GRU with a learned first state, and one output layer.

    Args:
        n_words: V, word ids are 0 to V - 1.
        n_tags: C, tags are 0 to C - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, n_tags: int, dim: int, rng: np.random.Generator) -> None:
        self.words = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.read = ab.Linear(dim, dim, rng=rng)
        self.repeat = ab.Linear(dim, dim, rng=rng, bias=False)
        self.outer = ab.GRUCell(dim, dim, rng=rng)
        self.output = ab.Linear(dim, n_tags, rng=rng)
        self.first = ab.Parameter(0.1 * rng.standard_normal(dim))

    @ab.cell
    def inner_step(self, word: int, u: Any) -> Any:
        """Compute the next inner state (H,) of a word."""
        return ab.tanh(self.read(ab.lookup(self.words, word)) + self.repeat(u))

    @ab.cell
    def outer_step(self, u: Any, h: Any) -> Any:
        """Compute the next outer state (H,) from a word's last inner state."""
        return self.outer(u, h)

    @ab.cell
    def tag_loss(self, h: Any, tag: int) -> Any:
        """Compute the cross-entropy of the tag after a word: a scalar."""
        return ab.cross_entropy(self.output(h), tag)

    @ab.cell
    def tag_scores(self, h: Any) -> Any:
        """Score the tags after a word: logits (C,)."""
        return self.output(h)

    def states(self, text: Repeats[int]) -> list[Any]:
        """Compute the outer state after each word."""
        h, states = self.first, []
        for word, n_times in zip(text.words, text.counts, strict=True):
            u = h
            for _ in range(n_times):
                u = self.inner_step(word, u)
            h = self.outer_step(u, h)
            states.append(h)
        return states

    def loss(self, text: Repeats[int]) -> Any:
        """Sum the cross-entropies of all tags: a scalar."""
        return ab.sum_n([self.tag_loss(h, tag) for h, tag in zip(self.states(text), text.tags, strict=True)])

    def scores(self, text: Repeats[int]) -> Any:
        """Score the tags after every word: a list of (C,)."""
        return [self.tag_scores(h) for h in self.states(text)]


def count_correct(outputs: Any, texts: Sequence[Repeats[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count correct tags and all tags, from logits per text and word."""
    return {"tag_accuracy": count_tags(pick_best(outputs, vocabularies["tags"]), [text.tags for text in texts])}


SPEC = ModelSpec(
    name="nested-rnn",
    summary="RNN whose steps run an inner RNN for a number of steps given by the data (after Fegade et al. 2023)",
    model=NestedRNN,
    generators=tuple(REPEATS.generators),
    reads=REPEATS.reads,
    default_data="moves",
    load=load_repeats,
    load_inputs=load_repeats.inputs,
    count_correct=count_correct,
    predict=predict_tags,
    probabilities=tag_probabilities,
)
