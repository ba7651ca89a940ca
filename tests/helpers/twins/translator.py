"""Shared code of the twins of translators: the loss of a pair, and greedy translation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from autobatch.models.data.pair import Pair


class TranslatorTwin(nn.Module):
    """Base class of twins, which add parameters and `scores`."""

    end: int

    def scores(self, source: Sequence[int], before: Sequence[int]) -> Tensor:
        """Score the words that may follow each word of a translation, `before`: logits (N, V + 1)."""
        raise NotImplementedError

    def loss(self, pair: Pair[int]) -> Tensor:
        """Sum the cross-entropies of the words of the translation and of its end: a scalar."""
        logits = self.scores(pair.source, [self.end, *pair.target])
        return nn.functional.cross_entropy(logits, torch.tensor([*pair.target, self.end]), reduction="sum")

    def translate(self, source: Sequence[int]) -> list[int]:
        """Translate greedily, reading all earlier words again for each word."""
        words: list[int] = []
        while len(words) < 10 + 2 * len(source):
            word = 1 + int(self.scores(source, [self.end, *words])[-1, 1:].argmax())  # 0 is the unknown word
            if word == self.end:
                break
            words.append(word)
        return words
