"""Conditional random fields: sums and maxima over all sequences, from the last word to the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class CRFTwin(nn.Module):
    """Transitions between tags; the parameters have the names of autobatch's."""

    def __init__(self, n_tags: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(n_tags, n_tags))
        self.start = nn.Parameter(torch.zeros(n_tags))
        self.end = nn.Parameter(torch.zeros(n_tags))

    def loss(self, scores: Tensor, tags: Sequence[int]) -> Tensor:
        """Return the negative log-probability of tags, given the scores of words (N, C): a scalar."""
        if not tags:
            return torch.zeros((), dtype=scores.dtype)
        right = self.start[tags[0]] + self.end[tags[-1]] + scores[range(len(tags)), list(tags)].sum()
        right = right + sum(self.transitions[tag, before] for before, tag in pairwise(tags))
        return self._reduce(scores, torch.logsumexp) - right

    def best(self, scores: Tensor) -> list[int]:
        """Find the likeliest tags except 0: for each place, the tag whose best sequence is the best of all."""
        scores = torch.cat((torch.full_like(scores[:, :1], -torch.inf), scores[:, 1:]), dim=1)
        return [
            max(range(1, len(self.start)), key=lambda tag: float(self._best_with(scores, place, tag)))
            for place in range(len(scores))
        ]

    def _best_with(self, scores: Tensor, place: int, tag: int) -> Tensor:
        """Score the best sequence with this tag in this place."""
        others = torch.full_like(scores[0], -torch.inf)
        others[tag] = 0.0
        return self._reduce(
            torch.cat((scores[:place], scores[place : place + 1] + others, scores[place + 1 :])), torch.amax
        )

    def _reduce(self, scores: Tensor, over: Callable[..., Tensor]) -> Tensor:
        """Reduce the scores of all sequences to a scalar, beginning with the last word."""
        after: Tensor = self.end
        for word in scores.flip(0)[:-1]:
            after = over(self.transitions + (word + after)[:, None], dim=0)
        return over(self.start + scores[0] + after, dim=0)
