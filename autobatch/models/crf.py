"""Linear-chain conditional random field: scores whole sequences of tags, on top of any tagger.

The score of tags y of a sentence is s(y) = Σ P_i[y_i] + start[y_1] + Σ T[y_i, y_(i-1)] + end[y_n], with scores P_i (C,)
of single words from a network and learned transitions T between adjacent words. The loss is the negative
log-probability of the right tags, log Z - s(y), with Z = Σ exp s(y') over all sequences y'. The forward algorithm
computes log Z along the sentence; the Viterbi algorithm has maxima in place of sums, and finds the best sequence:

    paths_1 = start + P_1,    paths_i[t] = P_i[t] + log Σ_u exp(T[t, u] + paths_(i-1)[u])
    Z = Σ_t exp(paths_n[t] + end[t])

Source: Lafferty, McCallum and Pereira 2001, Conditional random fields; in the form of Lample et al. 2016, Neural
architectures for named entity recognition (arXiv:1603.01360), section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.vocabulary import UNKNOWN

BARRED = -1e9  # added to the score of a forbidden tag


class CRF(ab.Module):
    """Learned transitions between tags, with the loss and the best sequence of tags.

    Args:
        n_tags: C, tags are 0 to C - 1.
        rng: draws the initial parameters.
    """

    def __init__(self, n_tags: int, rng: np.random.Generator) -> None:
        self.transitions = ab.Parameter(0.1 * rng.standard_normal((n_tags, n_tags)))  # rows: to, columns: from
        self.start = ab.Parameter(0.1 * rng.standard_normal(n_tags))
        self.end = ab.Parameter(0.1 * rng.standard_normal(n_tags))
        self.barred = np.zeros(n_tags)
        self.barred[UNKNOWN] = BARRED

    @ab.cell
    def begin(self, scores: Any) -> Any:
        """Score the paths of one word, by its tag: (C,)."""
        return self.start + scores

    @ab.cell
    def begin_best(self, scores: Any) -> Any:
        """Score the allowed one-word paths by tag: (C,)."""
        return self.start + scores + self.barred

    @ab.cell
    def sum_paths(self, paths: Any, scores: Any) -> Any:
        """Extend all paths by a word with these scores; return the log of their sums, by its tag (C,)."""
        return scores + ab.logsumexp(self.transitions + paths, axis=1)  # paths by the tag before, the columns

    @ab.cell
    def pick_paths(self, paths: Any, scores: Any) -> Any:
        """Extend the best allowed paths by one word; return the best score by its tag (C,)."""
        return scores + self.barred + ab.max(self.transitions + paths, axis=1)

    @ab.cell
    def last_tag(self, paths: Any) -> Any:
        """Find the last tag of the best path: an int."""
        return ab.argmax(paths + self.end)

    @ab.cell
    def tag_before(self, paths: Any, tag: Any) -> Any:
        """Find the best tag before a tag of the next word: an int."""
        return ab.argmax(paths + ab.lookup(self.transitions, tag))

    @ab.cell
    def first_score(self, scores: Any, tag: int) -> Any:
        """Score the tag of the first word: a scalar."""
        return ab.lookup(self.start + scores, tag)

    @ab.cell
    def next_score(self, scores: Any, tag: int, before: int) -> Any:
        """Score the tag of a word after another one: a scalar."""
        return ab.lookup(scores, tag) + ab.lookup(ab.lookup(self.transitions, tag), before)

    @ab.cell
    def compare(self, paths: Any, tag: int, right: Sequence[Any]) -> Any:
        """Compute the loss from the sums over all paths and the scores of the right one, with last `tag`: a scalar."""
        return ab.logsumexp(paths + self.end) - ab.lookup(self.end, tag) - ab.sum_n(right)

    def loss(self, scores: Sequence[Any], tags: Sequence[int]) -> Any:
        """Compute the negative log-probability of the tags of a sentence: a scalar, 0 without words."""
        if not tags:
            return ab.sum_n([], shape=())
        paths, right = self.begin(scores[0]), [self.first_score(scores[0], tags[0])]
        for place in range(1, len(tags)):
            paths = self.sum_paths(paths, scores[place])
            right.append(self.next_score(scores[place], tags[place], tags[place - 1]))
        return self.compare(paths, tags[-1], right)

    def best(self, scores: Sequence[Any]) -> list[Any]:
        """Find the most likely tags of a sentence (Viterbi), excluding `UNKNOWN`: a list of ints."""
        best: list[Any] = []
        for word in scores:
            best.append(self.pick_paths(best[-1], word) if best else self.begin_best(word))
        tags: list[Any] = []
        for paths in reversed(best):
            tags.append(self.tag_before(paths, tags[-1]) if tags else self.last_tag(paths))
        return tags[::-1]
