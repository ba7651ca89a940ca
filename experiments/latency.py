"""Measure the cost of small mini-batches, compared with eager PyTorch.

The program is one step of an LSTM with an output layer, on the cpu backend and one thread, for mini-batches of 1 to 64
instances; in training it also computes the gradients of a cross-entropy. PyTorch computes it one instance at a time,
and batched by hand: states stacked, one call of the layers. autobatch runs instances, which are recorded in every call;
pre-recorded graphs, which are planned in every call; and graphs with cached plans. All variants take turns. The figures
are the shortest time of each, which other work on the machine disturbs least, and the number of function calls, in
Python and C, which does not depend on the machine. Results are first compared with PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from cProfile import Profile
from dataclasses import dataclass
from functools import partial
from pstats import Stats
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

import autobatch as ab
from autobatch.cli.results import format_table
from harness import run, take_turns
from records import Findings, Settings

QUICK = 3
"""Repeats of a quick run."""
WARM_UP = 3
"""Calls until everything is compiled and buffers have grown."""
N_COUNTED = 15
"""Number of counted calls; the median is reported."""
Ways: TypeAlias = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Config(Settings):
    """Sizes of the step and the mini-batches."""

    dim: int = 64
    batch_sizes: tuple[int, ...] = (1, 4, 16, 64)
    repeats: int = 400
    quick: bool = False


class Instance(NamedTuple):
    """The input of a step, the state before it, and the right class after it."""

    x: NDArray[np.float32]
    h: NDArray[np.float32]
    c: NDArray[np.float32]
    label: int


class Step(ab.Module):
    """A step of an LSTM, and logits of its state."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.lstm = ab.LSTMCell(dim, dim, rng=rng)
        self.output = ab.Linear(dim, dim, rng=rng)

    @ab.cell
    def step(self, x: Any, h: Any, c: Any) -> Any:
        """Compute the logits and the next state."""
        h, c = self.lstm(x, (h, c))
        return self.output(h), h, c

    @ab.cell
    def step_loss(self, x: Any, h: Any, c: Any, label: int) -> Any:
        """Compute the cross-entropy of the logits."""
        h, _ = self.lstm(x, (h, c))
        return ab.cross_entropy(self.output(h), label)

    def infer(self, instance: Instance) -> Any:
        return self.step(instance.x, instance.h, instance.c)

    def loss(self, instance: Instance) -> Any:
        return self.step_loss(*instance)


class TorchStep(torch.nn.Module):
    """The same step in PyTorch, with the same parameters."""

    def __init__(self, model: Step, dim: int) -> None:
        super().__init__()
        self.lstm, self.output = torch.nn.LSTMCell(dim, dim), torch.nn.Linear(dim, dim)
        self.load_state_dict({name: torch.from_numpy(data) for name, data in model.state_dict().items()})

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute the logits and the next states of all rows."""
        h, c = self.lstm(x, (h, c))
        return self.output(h), h, c


def measure(config: Config) -> Findings:
    """Time all variants for every size, and count calls."""
    torch.set_num_threads(config.threads)
    rng = np.random.default_rng(config.seed)
    model = Step(config.dim, rng)
    seconds: dict[str, list[float]] = {}
    figures, tables = dict[str, Any](), list[str]()
    for mode, make_ways in (("inference", inference), ("training", training)):
        rows = []
        for size in config.batch_sizes:
            ways = make_ways(model, config.dim, draw(config.dim, size, rng))
            for way in (*ways.values(),) * WARM_UP:
                way()
            timed = take_turns(ways, QUICK if config.quick else config.repeats)
            seconds |= {f"{mode}, {size}, {way}": times for way, times in timed.items()}
            shortest = {way: round(1e6 * min(times), 1) for way, times in timed.items()}
            calls = {way: count_calls(run_once) for way, run_once in ways.items()}
            figures[f"{mode}, {size}"] = {"us": shortest, "calls": calls}
            rows.append((str(size), *(f"{shortest[way]:.0f} ({calls[way]})" for way in ways)))
        title = f"{mode}, dim {config.dim}; microseconds of the shortest call (calls of Python functions)\n\n"
        tables.append(title + format_table(("instances", *ways), rows))
    return Findings(seconds, figures, "\n\n".join(tables))


def draw(dim: int, size: int, rng: np.random.Generator) -> list[Instance]:
    """Draw the instances of a mini-batch."""
    rows = rng.standard_normal((size, 3, dim)).astype(np.float32)
    labels = rng.integers(0, dim, size)
    return [Instance(x, h, c, int(label)) for (x, h, c), label in zip(rows, labels, strict=True)]


def inference(model: Step, dim: int, instances: list[Instance]) -> Ways:
    """Make all variants of a step, and check that their results are equal."""
    twin = TorchStep(model, dim)
    states = [tuple(map(torch.from_numpy, instance[:3])) for instance in instances]

    @torch.no_grad()
    def one_by_one() -> Any:
        return [twin(*(part[None] for part in state)) for state in states]

    @torch.no_grad()
    def batched() -> Any:
        return twin(*(torch.stack(parts) for parts in zip(*states, strict=True)))

    ways = name_ways(one_by_one, batched, model.infer, ab.Batched.__call__, instances)
    for part, expected in zip(ways["instances"](), batched(), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-5)
    return ways


def training(model: Step, dim: int, instances: list[Instance]) -> Ways:
    """Make all variants of a step's mean loss and its gradients, and check that their results are equal."""
    twin = TorchStep(model, dim)
    states = [tuple(map(torch.from_numpy, instance[:3])) for instance in instances]
    labels = [torch.tensor(instance.label) for instance in instances]

    def one_by_one() -> Any:
        twin.zero_grad(set_to_none=False)
        for state, label in zip(states, labels, strict=True):
            logits, _, _ = twin(*(part[None] for part in state))
            torch.autograd.backward(torch.nn.functional.cross_entropy(logits, label[None]) / len(states))

    def batched() -> Any:
        twin.zero_grad(set_to_none=False)
        logits, _, _ = twin(*(torch.stack(parts) for parts in zip(*states, strict=True)))
        loss = torch.nn.functional.cross_entropy(logits, torch.stack(labels))
        torch.autograd.backward(loss)
        return loss

    ways = name_ways(one_by_one, batched, model.loss, ab.Batched.value_and_grad, instances)
    value, grads = ways["instances"]()
    np.testing.assert_allclose(value, batched().item(), rtol=1e-4)
    for name, parameter in twin.named_parameters():
        np.testing.assert_allclose(grads[name], np.asarray(parameter.grad), rtol=1e-3, atol=1e-5)
    return ways


def name_ways(
    one_by_one: Callable[[], Any],
    batched: Callable[[], Any],
    function: Callable[[Instance], Any],
    call: Callable[[ab.Batched, Any], Any],
    instances: list[Instance],
) -> Ways:
    """Name PyTorch's two variants and our three; ours apply `call` to the batched function."""
    planned, found = (ab.batched(function, backend="cpu", plan_cache=size) for size in (0, 1))
    return {
        "PyTorch, each": one_by_one,
        "PyTorch, batched": batched,
        "instances": partial(call, planned, instances),
        "recorded": partial(call, planned, planned.record_all(instances)),
        "plan found": partial(call, found, found.record_all(instances)),
    }


def count_calls(way: Callable[[], Any]) -> int:
    """Return the number of function calls, in Python and C, that a call makes: the median of several."""
    counts = []
    for _ in range(N_COUNTED):
        profile = Profile()
        profile.runcall(way)
        counts.append(int(Stats(profile).total_calls))  # type: ignore[attr-defined]
    return int(np.median(counts))


if __name__ == "__main__":
    run(Config(), measure)
