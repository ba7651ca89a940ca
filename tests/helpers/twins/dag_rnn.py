"""The DAG-RNN, reimplemented in PyTorch: it flips pictures and pads them with zeros."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from autobatch.models.data.picture import Picture


class DagRNNTwin(nn.Module):
    """The twin; its parameters have the names and shapes of the model's."""

    def __init__(self, n_words: int, n_tags: int, dim: int) -> None:
        super().__init__()
        self.sweeps = nn.ModuleList(
            nn.ModuleDict({"table": nn.Embedding(n_words, dim), "weigh": nn.Linear(dim, dim)}) for _ in range(4)
        )
        self.output = nn.Linear(4 * dim, n_tags)

    @classmethod
    def with_state(cls, state: Mapping[str, npt.NDArray[np.floating]]) -> DagRNNTwin:
        n_words, dim = state["sweeps.0.words"].shape
        twin = cls(n_words, len(state["output.bias"]), dim).to(torch.from_numpy(state["output.bias"]).dtype)
        twin.load_state_dict({name_in_twin(name): torch.from_numpy(array) for name, array in state.items()})
        return twin

    def scores(self, picture: Picture[int]) -> Tensor:
        """Score the tags of all pixels, row by row: logits (N, C)."""
        words = torch.tensor([row.words for row in picture.rows])
        turns: list[tuple[int, ...]] = [(), (1,), (0,), (0, 1)]
        states = [self.read(words.flip(turn), number).flip(turn) for number, turn in enumerate(turns)]
        logits: Tensor = self.output(torch.cat(states, dim=2)).flatten(0, 1)
        return logits

    def read(self, words: Tensor, number: int) -> Tensor:
        """Read a picture (H, W) from its upper left corner in a sweep: states (H, W, dim)."""
        table, weigh = (self.get_submodule(f"sweeps.{number}.{name}") for name in ("table", "weigh"))
        height, width = words.shape
        x = table(words)
        frame = [[x.new_zeros(x.shape[2]) for _ in range(width + 1)] for _ in range(height + 1)]
        for row in range(height):
            for column in range(width):
                total = frame[row][column] + frame[row][column + 1] + frame[row + 1][column]
                frame[row + 1][column + 1] = torch.tanh(x[row, column] + weigh(total))
        return torch.stack([torch.stack(states[1:]) for states in frame[1:]])

    def loss(self, picture: Picture[int]) -> Tensor:
        """Sum the cross-entropies of all pixels: a scalar."""
        tags = torch.tensor([row.tags for row in picture.rows]).flatten()
        return nn.functional.cross_entropy(self.scores(picture), tags, reduction="sum")


def name_in_twin(name: str) -> str:
    """Translate a parameter's name: `sweeps.0.words` is `sweeps.0.table.weight`."""
    return name.replace(".words", ".table.weight")
