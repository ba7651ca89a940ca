"""The Tree Transformer, reimplemented in PyTorch, with its attention and all heads at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from helpers.twins.labelled_trees import LabelledTreeTwin

N_HEADS = 4


class TreeTransformerTwin(LabelledTreeTwin):
    """The twin; its parameters have the names and shapes of the model's."""

    n_parts = 1

    def __init__(self, n_words: int, dim: int, width: int, n_labels: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.query, self.value = nn.Linear(dim, width), nn.Linear(dim, width)
        self.key = nn.Linear(dim, width, bias=False)
        self.attended = nn.Linear(width, dim)
        self.widen, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.norm_attended, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.output = nn.Linear(dim, n_labels)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> TreeTransformerTwin:
        n_words, dim = state["embedding"].shape
        twin = cls(n_words, dim, len(state["query.bias"]), len(state["output.bias"]))
        twin = twin.to(torch.from_numpy(state["embedding"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def node(self, word: int, children: Tensor) -> Tensor:
        """Apply one block to the word and its children (K, 1, H); return a state (1, H)."""
        x = self.embedding[word].unsqueeze(0)
        members = torch.cat((x, children.flatten(0, 1)))
        heads = (part.unflatten(1, (N_HEADS, -1)).transpose(0, 1) for part in (self.key(members), self.value(members)))
        query = self.query(x).unflatten(1, (N_HEADS, -1)).transpose(0, 1)
        seen = nn.functional.scaled_dot_product_attention(query, *heads)
        y = self.norm_attended(x + self.attended(seen.transpose(0, 1).flatten(1)))
        state: Tensor = self.norm(y + self.narrow(torch.relu(self.widen(y))))
        return state

    def hidden(self, state: Tensor) -> Tensor:
        return state[0]
