"""The implementations that are timed: all variants of running a model's mini-batches in PyTorch, JAX and autobatch.

Mini-batches of PyTorch and JAX are merged in each step, as autobatch merges, schedules and places recorded graphs; and
ahead of time, as autobatch may use cached plans. Recording in each step has no counterpart, because a user of PyTorch
prepares instances once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.cli.workload import Workload, record
from baselines.baseline import Baseline
from baselines.bilstm_packed import PackedBiLSTMTagger
from baselines.lattice_agenda import AgendaLatticeLSTM
from baselines.lattice_expert import ExpertLatticeLSTM, OneDnnLatticeLSTM
from baselines.torch_models import TorchBiLSTMTagger, TorchLatticeLSTM, TorchTreeLSTM
from baselines.tree_lstm_expert import ExpertTreeLSTM, OneDnnTreeLSTM
from baselines.tree_lstm_levels import LevelTreeLSTM

if TYPE_CHECKING:
    from baselines.tree_lstm_jax import JaxTreeLSTM

PER_INSTANCE = "one at a time"
BASELINES: Mapping[str, Mapping[str, Callable[..., Baseline]]] = {
    "tree-lstm": {
        PER_INSTANCE: TorchTreeLSTM,
        "levels": LevelTreeLSTM,
        "expert": ExpertTreeLSTM,
        "expert, oneDNN": OneDnnTreeLSTM,
    },
    "bilstm-tagger": {PER_INSTANCE: TorchBiLSTMTagger, "packed": PackedBiLSTMTagger},
    "lattice-lstm": {
        PER_INSTANCE: TorchLatticeLSTM,
        "agenda": AgendaLatticeLSTM,
        "expert": ExpertLatticeLSTM,
        "expert, oneDNN": OneDnnLatticeLSTM,
    },
}
DATA = {"tree-lstm": "sst", "bilstm-tagger": "wikiner", "lattice-lstm": "lattice"}
LR = 1e-4
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "equal nodes shared": {"rewrites": "all"},
    "NumPy multiplies": {"backend": Cpu(provider="numpy")},
}

LOSS_TOLERANCE = 2e-5  # of float32, relative to the largest number that is compared
GRADIENT_TOLERANCE = 2e-4


@dataclass(frozen=True)
class Way:
    """One implementation: functions that infer and train on a mini-batch by number."""

    infer: Callable[[int], object]
    train: Callable[[int], object]
    n_minibatches: int
    """Number of mini-batches to run, the first ones: one if it takes long."""


def make_baselines(model: str, workload: Workload) -> dict[str, Baseline | JaxTreeLSTM]:
    """Build the same model in PyTorch, and in JAX if it is installed, with the parameters of a workload."""
    state = workload.model.state_dict()
    baselines: dict[str, Baseline | JaxTreeLSTM] = {
        name: make(dim=workload.dim, **workload.dataset.sizes) for name, make in BASELINES[model].items()
    }
    if model == "tree-lstm" and find_spec("jax") is not None:
        from baselines.tree_lstm_jax import JaxTreeLSTM

        baselines["JAX"] = JaxTreeLSTM(LR)
    for baseline in baselines.values():
        baseline.copy_parameters(state)
    return baselines


def check_equal(
    workload: Workload,
    baselines: Mapping[str, Baseline | JaxTreeLSTM],
    backends: Sequence[str],
    instances: Sequence[Any],
) -> None:
    """Check that losses and gradients equal those of the reference backend before they are timed.

    Raises:
        AssertionError: they differ; the message names what differs.
    """
    loss = workload.batched("loss", "auto", "reference")
    expected = loss(instances)
    _, grads = loss.value_and_grad(instances)
    grads = {name: np.array(gradient) for name, gradient in grads.items()}
    for backend in backends:
        other = workload.batched("loss", "auto", backend)
        assert_close(other(instances), expected, LOSS_TOLERANCE, f"losses of {backend}")
        _, found = other.value_and_grad(instances)
        for name, gradient in grads.items():
            assert_close(np.asarray(found[name]), gradient, GRADIENT_TOLERANCE, f"gradients of {name} of {backend}")
    for who, baseline in baselines.items():
        losses, found = baseline.answer(baseline.merge([baseline.prepare(instance) for instance in instances]))
        assert_close(losses, expected, LOSS_TOLERANCE, f"losses of {who}")
        here = baseline.translate(grads)
        assert found.keys() == here.keys()
        for name, gradient in here.items():
            assert_close(found[name], gradient, GRADIENT_TOLERANCE, f"gradients of {name} of {who}")


def assert_close(found: Any, expected: Any, tolerance: float, what: str) -> None:
    """Compare arrays, relative to the largest expected number."""
    apart = float(np.max(np.abs(found - expected)))
    largest = float(np.max(np.abs(expected)))
    assert apart <= tolerance * largest, f"{what} are {apart} from autobatch's, of which the largest is {largest}"


def their_ways(
    baselines: Mapping[str, Baseline | JaxTreeLSTM], instances: Sequence[Any], size: int, n_slow: int
) -> dict[str, Way]:
    """Make all variants of PyTorch and JAX; one instance at a time runs the first `n_slow` mini-batches."""
    ways: dict[str, Way] = {}
    for name, baseline in baselines.items():
        if not isinstance(baseline, Baseline):
            ways |= jax_ways(baseline, instances, size)
            continue
        prepared = list(ab.minibatches([baseline.prepare(instance) for instance in instances], size))
        merged = [baseline.merge(minibatch) for minibatch in prepared]
        optimizer = torch.optim.Adam(baseline.parameters(), lr=LR, fused=True)  # several times as fast as other Adams
        if name == PER_INSTANCE:
            ways[f"PyTorch, {name}"] = torch_way(baseline, optimizer, merged, n_slow, merges=False)
        else:
            ways[f"PyTorch, {name}"] = torch_way(baseline, optimizer, prepared, len(merged), merges=True)
            ways[f"PyTorch, {name}, merged ahead"] = torch_way(baseline, optimizer, merged, len(merged), merges=False)
    return ways


def torch_way(
    baseline: Baseline, optimizer: torch.optim.Optimizer, minibatches: Sequence[Any], n_minibatches: int, merges: bool
) -> Way:
    """Run a baseline on mini-batches that are merged or still have to be."""

    def minibatch(number: int) -> Any:
        return baseline.merge(minibatches[number]) if merges else minibatches[number]

    def infer(number: int) -> None:
        with torch.inference_mode():
            baseline.losses(minibatch(number))

    def train(number: int) -> None:
        baseline.backward(minibatch(number))
        optimizer.step()

    return Way(infer, train, n_minibatches)


def jax_ways(baseline: JaxTreeLSTM, instances: Sequence[Any], size: int) -> dict[str, Way]:
    """Make the variants of JAX. Levels get their final widths at the start, so the first round compiles for all."""
    prepared = list(ab.minibatches([baseline.prepare(instance) for instance in instances], size))
    for minibatch in prepared:
        baseline.merge(minibatch)
    merged = [baseline.merge(minibatch) for minibatch in prepared]
    return {
        "JAX, levels": jax_way(baseline, prepared, merges=True),
        "JAX, levels, merged ahead": jax_way(baseline, merged, merges=False),
    }


def jax_way(baseline: JaxTreeLSTM, minibatches: Sequence[Any], merges: bool) -> Way:
    """Run a baseline on mini-batches that are merged or still have to be, with PyTorch's current number of threads."""

    def run(compute: Callable[[Any], object], number: int) -> None:
        baseline.use_threads(torch.get_num_threads())
        compute(baseline.merge(minibatches[number]) if merges else minibatches[number])

    return Way(partial(run, baseline.losses), partial(run, baseline.train), len(minibatches))


def our_ways(
    workload: Workload, backends: Sequence[str], policy: str, instances: Sequence[Any], size: int, threads: int
) -> dict[str, Way]:
    """Make three variants for each backend: recorded in each step, recorded graphs, and cached plans.

    The cpu backend's recorded graphs have three more variants: equal nodes computed once, updates of looked-up rows
    only, and all matrix products by NumPy.
    """
    ways: dict[str, Way] = {}
    options: dict[str, Any] = {"policy": policy, "threads": threads}
    raw = list(ab.minibatches(instances, size))
    for backend in backends:
        model = deepcopy(workload.model)
        optimizer = ab.optim.Adam(model, lr=LR)
        afresh = ab.batched(model.loss, backend=backend, plan_cache=0, **options)
        cached = ab.batched(model.loss, backend=backend, plan_cache=2 * len(raw), **options)
        graphs = list(ab.minibatches(record(afresh, instances), size))
        again = list(ab.minibatches(record(cached, instances), size))
        ways[f"autobatch {backend}, recorded afresh"] = our_way(afresh, optimizer, raw)
        ways[f"autobatch {backend}, recorded graphs"] = our_way(afresh, optimizer, graphs)
        ways[f"autobatch {backend}, cached plans"] = our_way(cached, optimizer, again)
        if backend == "cpu":
            ways["autobatch cpu, lazy rows"] = our_way(afresh, ab.optim.Adam(model, lr=LR, lazy=True), graphs)
            for name, other in OTHERS.items():
                loss = ab.batched(model.loss, **{"backend": backend, "plan_cache": 0, **options, **other})
                recorded = list(ab.minibatches(record(loss, instances), size))
                ways[f"autobatch cpu, {name}"] = our_way(loss, optimizer, recorded)
    return ways


def our_way(loss: Any, optimizer: Any, minibatches: Sequence[Any]) -> Way:
    """Run autobatch on mini-batches of instances or graphs."""

    def infer(number: int) -> None:
        loss(minibatches[number])

    def train(number: int) -> None:
        _, grads = loss.value_and_grad(minibatches[number])
        optimizer.step(grads)

    return Way(infer, train, len(minibatches))
