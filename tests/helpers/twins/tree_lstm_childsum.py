"""The child-sum Tree-LSTM, reimplemented in PyTorch with stacked children and separate gates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from helpers.twins.labelled_trees import LabelledTreeTwin


class ChildSumTreeLSTMTwin(LabelledTreeTwin):
    """The twin; its parameters have the names and shapes of the model's."""

    def __init__(self, n_words: int, dim: int, n_labels: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(n_words, dim))
        self.gates_x = nn.Linear(dim, 3 * dim)
        self.gates_h = nn.Linear(dim, 3 * dim, bias=False)
        self.forget_x = nn.Linear(dim, dim)
        self.forget_h = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, n_labels)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> ChildSumTreeLSTMTwin:
        n_words, dim = state["embedding"].shape
        twin = cls(n_words, dim, len(state["output.bias"])).to(torch.from_numpy(state["embedding"]).dtype)
        twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return twin

    def node(self, word: int, children: Tensor) -> Tensor:
        """Compute equations 2 to 8 of the paper; a state (2, H) is h above c, children are (K, 2, H)."""
        x = self.embedding[word]
        h_tilde = children[:, 0].sum(0)
        blocks = zip(
            self.gates_x.weight.chunk(3), self.gates_h.weight.chunk(3), self.gates_x.bias.chunk(3), strict=True
        )
        in_gate, out_gate, update = (w @ x + u @ h_tilde + b for w, u, b in blocks)
        forget = torch.sigmoid(self.forget_x(x) + self.forget_h(children[:, 0]))
        cell = torch.sigmoid(in_gate) * torch.tanh(update) + torch.einsum("kh,kh->h", forget, children[:, 1])
        return torch.stack((torch.sigmoid(out_gate) * torch.tanh(cell), cell))

    def hidden(self, state: Tensor) -> Tensor:
        return state[0]
