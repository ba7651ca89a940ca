"""The translator without attention, reimplemented with PyTorch's multilayer LSTMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from helpers.twins.translator import TranslatorTwin


class LSTMNMTTwin(TranslatorTwin):
    """Encoder and decoder read all their words at once; the encoder's last state is the decoder's first."""

    def __init__(self, n_source_words: int, n_target_words: int, dim: int, n_layers: int) -> None:
        super().__init__()
        self.source_words = nn.Parameter(torch.zeros(n_source_words, dim))
        self.target_words = nn.Parameter(torch.zeros(n_target_words + 1, dim))
        self.encoder = nn.LSTM(dim, dim, n_layers)
        self.decoder = nn.LSTM(dim, dim, n_layers)
        self.output = nn.Linear(dim, n_target_words + 1)
        self.end = n_target_words

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> LSTMNMTTwin:
        n_source_words, dim = state["source_words"].shape
        n_layers = sum(name.startswith("encoder.") and name.endswith("weight_hh") for name in state)
        twin = cls(n_source_words, len(state["output.bias"]) - 1, dim, n_layers)
        twin = twin.to(torch.from_numpy(state["source_words"]).dtype)
        twin.load_state_dict({name_in_twin(name): torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, source: Sequence[int], before: Sequence[int]) -> Tensor:
        """Score the words that may follow each word of a translation, `before`: logits (N, V + 1)."""
        state = None  # zeros
        if len(source):
            _, state = self.encoder(self.source_words[torch.tensor(source).flip(0)])
        h, _ = self.decoder(self.target_words[torch.tensor(before)], state)
        logits: Tensor = self.output(h)
        return logits


def name_in_twin(name: str) -> str:
    """Translate a parameter's name: `decoder.1.weight_hh` is `decoder.weight_hh_l1`."""
    side, _, rest = name.partition(".")
    if side not in ("encoder", "decoder"):
        return name
    layer, _, parameter = rest.partition(".")
    return f"{side}.{parameter}_l{layer}"
