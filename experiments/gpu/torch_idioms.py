"""Ten idioms of PyTorch on a device, each by a batched function and by PyTorch itself, one instance at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, autograd, nn
from torch.nn import functional

import autobatch.torch as abt

DIM, N_STEPS = 8, 3


class Chain(nn.Module):
    """An LSTM over the rows of an instance; `odd` adds an op that torch runs."""

    def __init__(self, odd: bool = False) -> None:
        super().__init__()
        self.below, self.step = nn.Linear(3, 3), abt.cell(nn.LSTMCell(3, DIM))
        self.out = abt.cell(nn.Linear(DIM, 1))
        self.odd = odd

    @abt.cell
    def squash(self, h: Tensor) -> Tensor:
        return torch.cumsum(functional.mish(h), 0) if self.odd else torch.tanh(h)

    def loss(self, rows: Tensor) -> Tensor:
        h = c = rows.new_zeros(DIM)
        for row in rows:
            h, c = self.step(row, (h, c))
        return self.out(self.squash(h)).sum()  # type: ignore[no-any-return]


class Run(NamedTuple):
    """A model, the losses of instances, and instances."""

    model: Chain
    losses: Callable[[Sequence[Tensor]], Tensor]
    rows: list[Tensor]


Idiom = Callable[[Run], Iterable[Any]]


def compare(idiom: Idiom, tensors: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the pairs of tensors that an idiom gives, batched and one instance at a time."""
    torch.manual_seed(0)
    model = Chain(odd=idiom is torch_runs).double()
    tensors.hold(model)
    alone = deepcopy(model)
    rows = [torch.randn(n, 3, dtype=torch.float64).to(tensors.place) for n in (2, 4, 1, 3)]
    batched = Run(model, abt.batched(model.loss, module=model), rows)
    by_hand = Run(alone, lambda rows: torch.stack([alone.loss(x) for x in rows]), rows)
    return [*zip(idiom(batched), idiom(by_hand), strict=True)]


def train(
    run: Run, kind: Callable[..., torch.optim.Optimizer], most: float | None = None, **options: Any
) -> Iterable[Any]:
    """Train by a few steps; return the parameters."""
    optimizer = kind(run.model.parameters(), lr=0.01, **options)
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        autograd.backward(run.losses(run.rows).mean())
        if most is not None:
            nn.utils.clip_grad_norm_(run.model.parameters(), most)
        optimizer.step()
    return [p.detach() for p in run.model.parameters()]


def gradients(run: Run) -> list[Any]:
    """Return the gradients of the parameters that have some."""
    return [p.grad for p in run.model.parameters() if p.grad is not None]


def accumulate(run: Run) -> Iterable[Any]:
    """Add up the gradients of two mini-batches."""
    for part in (run.rows[:2], run.rows[2:]):
        autograd.backward(run.losses(part).sum())
    return gradients(run)


def infer(run: Run) -> Iterable[Any]:
    """Compute losses without gradients."""
    with torch.no_grad():
        return [run.losses(run.rows)]


def freeze(run: Run) -> Iterable[Any]:
    """Differentiate by some parameters only."""
    run.model.step.requires_grad_(False)
    autograd.backward(run.losses(run.rows).sum())
    return gradients(run)


def load(run: Run) -> Iterable[Any]:
    """Load other parameters after the first call."""
    run.losses(run.rows)
    run.model.load_state_dict({name: x / 2 for name, x in run.model.state_dict().items()})
    return [run.losses(run.rows).detach()]


def below(run: Run) -> Iterable[Any]:
    """Differentiate a layer whose outputs are the instances."""
    autograd.backward(run.losses([run.model.below(x) for x in run.rows]).sum())
    return gradients(run)


def torch_runs(run: Run) -> Iterable[Any]:
    """Differentiate ops that torch runs."""
    autograd.backward(run.losses(run.rows).sum())
    return gradients(run)


def second(run: Run) -> Iterable[Any]:
    """Differentiate the norm of a gradient."""
    weight = run.model.step.weight_hh
    (g,) = autograd.grad(run.losses(run.rows).sum(), [weight], create_graph=True)
    return autograd.grad(g.pow(2).sum(), [weight])


IDIOMS: dict[str, Idiom] = {
    "AdamW": lambda run: train(run, torch.optim.AdamW),
    "fused Adam": lambda run: train(run, torch.optim.Adam, fused=True),
    "clipped gradients": lambda run: train(run, torch.optim.SGD, most=0.1),
    "accumulated gradients": accumulate,
    "no_grad": infer,
    "frozen parameters": freeze,
    "load_state_dict": load,
    "instances with gradients": below,
    "ops that torch runs": torch_runs,
    "second derivatives": second,
}
