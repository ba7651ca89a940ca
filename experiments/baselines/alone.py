"""Models in PyTorch that predict one instance at a time, as a careful user would serve them without batching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autobatch.cli.workload import Workload
from baselines.ways import BASELINES, PER_INSTANCE
from digest import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from helpers.twins.early_exit import EarlyExitTwin
from helpers.twins.seq2seq import Seq2SeqTwin


class Decoder(Seq2SeqTwin):
    """The translator of the tests, with a decoder that keeps its state."""

    def translate(self, source: Sequence[int]) -> list[int]:
        """Translate greedily, one word after the other."""
        first = torch.zeros(1, self.combine.out_features, dtype=self.source_words.dtype)
        memory, state = first[:0], (first, first)
        if len(source):
            memory, state = self.encoder(self.source_words[torch.tensor(source)])
        word, words = self.end, list[int]()
        while len(words) < 10 + 2 * len(source):
            h, state = self.decoder(self.target_words[word][None], state)
            weights = torch.softmax(self.attention(h) @ memory.T, dim=1)
            word = int(self.output(torch.tanh(self.combine(torch.cat((weights @ memory, h), dim=1)))).argmax())
            if word == self.end:
                break
            words.append(word)
        return words


DECODERS: dict[str, Any] = {"seq2seq": Decoder, "early-exit": EarlyExitTwin}


def make_predictor(workload: Workload) -> Callable[[Any], Any]:
    """Make a workload's model in PyTorch; it takes the arguments of our predictor."""
    name, state = workload.spec.name, workload.model.state_dict()
    if name in DECODERS:
        decoder = DECODERS[name].with_state(state)
        return _without_gradients(getattr(decoder, workload.spec.predictor))
    baseline: Any = BASELINES[name][PER_INSTANCE](dim=workload.dim, **workload.dataset.sizes)
    baseline.copy_parameters(state)
    return _without_gradients(lambda instance: baseline.scores(baseline.prepare(instance)).numpy())


def _without_gradients(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return torch.no_grad()(function)
