"""Measure PyTorch modules batched by `abt.batched`, compared with our own API and with plain PyTorch.

The model is a Tree-LSTM of plain modules (`tests/helpers/models/torch_modules.py`), forward and backward over a
mini-batch of SST trees, or of drawn ones if those do not exist; autobatch or torch runs its cells. Our own API runs the
same model of `autobatch.models`. PyTorch runs the modules one tree at a time; a careful user's version, which computes
the leaves of a tree at once; a good user's version, with trees batched by level; and an expert's. Our variants record
the trees in the call, or use recorded graphs; the others merge trees that were prepared beforehand. In another version
of the model, cells apply a function that autobatch lacks: torch runs that op only, or the whole cells that contain it.
All use one thread and take turns, those of one tree at a time with the first trees only; losses are compared first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import autograd
from torch.nn import functional

import autobatch as ab
import autobatch.torch as abt
from autobatch.cli.results import format_table
from autobatch.models.tree_lstm import TreeLSTM
from baselines.baseline import Baseline
from baselines.torch_models import TorchTreeLSTM
from baselines.tree_lstm_expert import ExpertTreeLSTM
from baselines.tree_lstm_levels import LevelTreeLSTM
from digest import ROOT, STEP
from harness import load_sst_or_listops, run, take_turns
from records import Findings, Settings

sys.path.insert(0, str(ROOT / "tests"))
from helpers.models import torch_modules as plain

WARM_UP = 2
OWN, OURS, THEIRS = "autobatch's own API", "modules, run by autobatch", "modules, run by torch"
OP, CELLS = "a variant, with one op run by torch", "the variant, with cells that have it run by torch"
LEVELS, EXPERT = "PyTorch, by level", "PyTorch, by level, an expert's"
ONE, CAREFUL = "modules, one tree at a time", "PyTorch, one tree at a time, a careful user's"
NAMES = {  # of parameters: modules to our own model
    "leaf.embedding.weight": "embedding",
    "leaf.gates": "leaf_gates",
    "merge.left": "left_gates",
    "merge.right": "right_gates",
    "classify.output": "output",
}


@dataclass(frozen=True)
class Config(Settings):
    """The mini-batch, and the number of repeats."""

    dims: tuple[int, ...] = (64, 256)
    batch_size: int = 256
    n_slow: int = 32
    """Number of trees for running one at a time."""
    repeats: int = 15


class OddMerge(plain.Merge):
    """A cell that applies a function that autobatch lacks to the state."""

    def forward(self, left: plain.State, right: plain.State) -> plain.State:
        h, c = super().forward(left, right)
        return functional.mish(h), c


def make_variant(state: dict[str, Any], sizes: Mapping[str, int], dim: int, runs: str) -> plain.TreeLSTM:
    """Make the model with odd cells, which torch runs, or autobatch except for one op ("auto")."""
    model = make_modules(state, sizes, dim, "auto")
    merge = OddMerge(dim)
    merge.load_state_dict(model.merge.state_dict())
    model.merge = abt.cell(merge, runs=runs)
    return model


def make_modules(state: dict[str, Any], sizes: Mapping[str, int], dim: int, runs: str) -> plain.TreeLSTM:
    """Make the model of modules, with the parameters of ours."""
    model = plain.TreeLSTM(sizes["n_words"], dim, sizes["n_classes"], runs)
    named = {}
    for name in model.state_dict():
        prefix, last = name.rsplit(".", 1)
        named[name] = torch.from_numpy(state[NAMES[name] if name in NAMES else f"{NAMES[prefix]}.{last}"])
    model.load_state_dict(named)
    return model


def step_of(model: torch.nn.Module, loss: Callable[[Any], Any], batch: Any) -> Callable[[], None]:
    """Make a step without the optimizer."""

    def step() -> None:
        model.zero_grad()
        autograd.backward(loss(batch).mean())

    return step


def one_by_one(model: plain.TreeLSTM, trees: Sequence[Any]) -> Callable[[], None]:
    """Make a step that runs one tree at a time, without the optimizer."""

    def step() -> None:
        model.zero_grad()
        for tree in trees:
            autograd.backward(model.loss(tree) / len(trees))

    return step


def baseline_step(baseline: Baseline, trees: Sequence[Any]) -> Callable[[], None]:
    """Make a step of a baseline model, on trees that it has prepared."""
    prepared = [baseline.prepare(tree) for tree in trees]

    def step() -> None:
        baseline.backward(baseline.merge(prepared))

    return step


def measure(config: Config) -> Iterator[Findings]:
    """Compare the losses, and time all implementations, for each width."""
    torch.set_num_threads(config.threads)
    data = load_sst_or_listops(config.seed)
    trees, few = data.train[: config.batch_size], data.train[: config.n_slow]
    for dim in config.dims:
        own = TreeLSTM(dim=dim, rng=np.random.default_rng(config.seed), **data.sizes)
        state = own.state_dict()
        ours, theirs = (make_modules(state, data.sizes, dim, runs) for runs in ("autobatch", "torch"))
        baselines = {kind: kind(dim=dim, **data.sizes) for kind in (LevelTreeLSTM, ExpertTreeLSTM, TorchTreeLSTM)}
        for baseline in baselines.values():
            baseline.copy_parameters(state)
        loss = ab.batched(own.loss, threads=config.threads)
        of_ours, of_theirs = (abt.batched(model.loss, threads=config.threads) for model in (ours, theirs))
        expected = loss(few)
        for found in (of_ours(few), of_theirs(few), torch.stack([ours.loss(tree) for tree in few])):
            np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-3)
        odd, odder = (make_variant(state, data.sizes, dim, runs) for runs in ("auto", "torch"))
        of_odd, of_odder = (abt.batched(model.loss, threads=config.threads) for model in (odd, odder))
        torch.testing.assert_close(of_odd(few), of_odder(few), rtol=1e-3, atol=0.0)
        ways: dict[str, Callable[[], Any]] = {
            f"{OWN}, recorded": partial(loss.value_and_grad, loss.record_all(trees)),
            f"{OURS}, recorded": step_of(ours, of_ours, of_ours.record_all(trees)),
            f"{THEIRS}, recorded": step_of(theirs, of_theirs, of_theirs.record_all(trees)),
            f"{OP}, recorded": step_of(odd, of_odd, of_odd.record_all(trees)),
            f"{CELLS}, recorded": step_of(odder, of_odder, of_odder.record_all(trees)),
            OWN: partial(loss.value_and_grad, trees),
            OURS: step_of(ours, of_ours, trees),
            THEIRS: step_of(theirs, of_theirs, trees),
            LEVELS: baseline_step(baselines[LevelTreeLSTM], trees),
            EXPERT: baseline_step(baselines[ExpertTreeLSTM], trees),
            ONE: one_by_one(ours, few),
            CAREFUL: baseline_step(baselines[TorchTreeLSTM], few),
        }
        for way in [*ways.values()] * WARM_UP:
            way()
        seconds = take_turns(ways, config.repeats)
        yield show(config, dim, seconds)


def show(config: Config, dim: int, seconds: dict[str, list[float]]) -> Findings:
    """Show trees per second, and speeds relative to other implementations."""
    sizes = {way: config.n_slow if way in (ONE, CAREFUL) else config.batch_size for way in seconds}
    rates = {way: sizes[way] / float(np.median(times)) for way, times in seconds.items()}
    rows = [
        (way, f"{rate:,.0f}", *(f"{rate / rates[other]:.2f}" for other in (f"{OWN}, recorded", EXPERT, LEVELS, ONE)))
        for way, rate in rates.items()
    ]
    table = format_table(
        (
            f"dim {dim}",
            "trees/s",
            "of our own API, recorded",
            "of the expert's",
            "of that by level",
            "of one at a time",
        ),
        rows,
    )
    return Findings(seconds, {"dim": dim, "trees per second": rates}, table, part=f"dim-{dim}")


if __name__ == "__main__":
    run(Config(), measure, modules=(*STEP, "autobatch.torch"))
