"""A neural module network in PyTorch: each question is a tree that combines modules in its own way.

    python examples/module_network.py        # needs the extra torch

The script prints the loss, the accuracy on new questions about pictures, and how many batches their nodes took:

    new questions: 100.0% right; 64.0% of the answers are yes
    1272 nodes ran in 12 batches
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import autobatch.torch as abt

WORDS = ("red", "green", "blue", "ball", "cube", "cone")
N_PARTS = {"and": 2, "or": 2, "not": 1}


def draw_question(rng: np.random.Generator, depth: int, things: Any) -> tuple[Any, Any]:
    """Draw a question, such as "red" or ("and", "red", ("not", "ball")), and a mask of the things that it matches."""
    if depth == 0 or rng.random() < 0.2:
        word = int(rng.integers(len(WORDS)))
        return WORDS[word], things[:, word] > 0
    kind = str(rng.choice([*N_PARTS]))
    parts, meant = zip(*(draw_question(rng, depth - 1, things) for _ in range(N_PARTS[kind])), strict=True)
    return (kind, *parts), ~meant[0] if kind == "not" else (np.all if kind == "and" else np.any)(meant, axis=0)


def draw_item(rng: np.random.Generator) -> tuple[Any, Tensor, float]:
    """Draw a question, a picture of two things (2, 6), and 1.0 if the question matches any of them, else 0.0."""
    things = np.eye(3, dtype=np.float32)[rng.integers(3, size=(2, 2))].reshape(2, 6)
    question, meant = draw_question(rng, 3, things)
    return question, torch.from_numpy(things), float(meant.any())


class Find(nn.Module):
    """Scores how well each thing matches a word: (2,)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.words, self.things = nn.Embedding(len(WORDS), dim), nn.Linear(len(WORDS), dim)

    def forward(self, things: Tensor, word: Tensor) -> Any:
        return self.things(things) @ self.words(word)


class Combine(nn.Module):
    """Combines the scores (2,) of one or two questions into scores (2,)."""

    def __init__(self, n_parts: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_parts, dim), nn.Tanh(), nn.Linear(dim, 1))

    def forward(self, *parts: Tensor) -> Any:
        return self.layers(torch.stack(parts, dim=1))[:, 0]


class ModuleNetwork(nn.Module):
    """One module for words and one for each kind of question, combined as the question requires."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.find = abt.cell(Find(dim))
        self.kinds = nn.ModuleDict({kind: abt.cell(Combine(n, dim)) for kind, n in N_PARTS.items()})

    def forward(self, question: Any, things: Tensor) -> Any:
        if isinstance(question, str):
            return self.find(things, WORDS.index(question))
        return self.kinds[question[0]](*(self(part, things) for part in question[1:]))


def main() -> None:
    """Train on 800 questions and answer 200 others."""
    torch.manual_seed(0)
    rng, model = np.random.default_rng(0), ModuleNetwork(16)
    items = [draw_item(rng) for _ in range(1000)]
    answers = torch.tensor([answer for _, _, answer in items])
    score = abt.batched(lambda item: model(item[0], item[1]).amax(), module=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(1, 9):
        for picked in rng.permutation(800).reshape(-1, 40):
            loss = nn.functional.binary_cross_entropy_with_logits(score([items[k] for k in picked]), answers[picked])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.2f}")
    right = (score(items[800:]) > 0) == (answers[800:] > 0)
    print(f"new questions: {right.float().mean():.1%} right; {answers[800:].mean():.1%} of the answers are yes")
    print("{0.nodes} nodes ran in {0.batches} batches".format(score.explain(items[800:])))


if __name__ == "__main__":
    main()
