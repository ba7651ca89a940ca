"""BiLSTM tagger with PyTorch's own LSTM over packed sentences: one call for all words of a mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from baselines.torch_models import Example, TorchBiLSTMTagger


class Sentences(NamedTuple):
    """All words of B sentences, first words first, with tags and numbers of sentences in the same order."""

    words: PackedSequence
    tags: Tensor
    sentences: Tensor
    n_sentences: int


class PackedBiLSTMTagger(TorchBiLSTMTagger):
    """The model of `TorchBiLSTMTagger`, over mini-batches."""

    def merge(self, prepared: Sequence[Example]) -> Sentences:  # type: ignore[override]
        """Pack the words of all sentences."""
        words, tags, numbers = (
            pack_sequence(rows, enforce_sorted=False)
            for rows in (
                [example.ids[0] for example in prepared],
                [example.labels for example in prepared],
                [torch.full_like(example.labels, number) for number, example in enumerate(prepared)],
            )
        )
        return Sentences(words, tags.data, numbers.data, len(prepared))

    def losses(self, minibatch: Sentences) -> Tensor:  # type: ignore[override]
        """Sum the cross-entropies of the words of each sentence: (B,)."""
        inputs = minibatch.words._replace(data=self.embedding.index_select(0, minibatch.words.data))
        states, _ = self.lstm(inputs)
        losses = nn.functional.cross_entropy(self.output(states.data), minibatch.tags, reduction="none")
        return losses.new_zeros(minibatch.n_sentences).index_add(0, minibatch.sentences, losses)

    def backward(self, minibatch: Sentences) -> None:  # type: ignore[override]
        """Compute the gradients of the mean loss."""
        self.zero_grad()
        torch.autograd.backward(self.losses(minibatch).mean())
