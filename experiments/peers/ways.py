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
from peers.bilstm_packed import PackedBiLSTMTagger
from peers.lattice_agenda import AgendaLatticeLSTM
from peers.lattice_expert import ExpertLatticeLSTM, OneDnnLatticeLSTM
from peers.peer import Peer
from peers.torch_models import TorchBiLSTMTagger, TorchLatticeLSTM, TorchTreeLSTM
from peers.tree_lstm_expert import ExpertTreeLSTM, OneDnnTreeLSTM
from peers.tree_lstm_levels import LevelTreeLSTM

if TYPE_CHECKING:
    from peers.tree_lstm_jax import JaxTreeLSTM

PER_INSTANCE = "one at a time"
PEERS: Mapping[str, Mapping[str, Callable[..., Peer]]] = {
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


def make_peers(model: str, workload: Workload) -> dict[str, Peer | JaxTreeLSTM]:
    """Build the same model in PyTorch, and in JAX if it is installed, with the parameters of a workload."""
    state = workload.model.state_dict()
    peers: dict[str, Peer | JaxTreeLSTM] = {
        name: make(dim=workload.dim, **workload.dataset.sizes) for name, make in PEERS[model].items()
    }
    if model == "tree-lstm" and find_spec("jax") is not None:
        from peers.tree_lstm_jax import JaxTreeLSTM

        peers["JAX"] = JaxTreeLSTM(LR)
    for peer in peers.values():
        peer.copy_parameters(state)
    return peers


def check_equal(
    workload: Workload, peers: Mapping[str, Peer | JaxTreeLSTM], backends: Sequence[str], instances: Sequence[Any]
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
    for who, peer in peers.items():
        losses, found = peer.answer(peer.merge([peer.prepare(instance) for instance in instances]))
        assert_close(losses, expected, LOSS_TOLERANCE, f"losses of {who}")
        here = peer.translate(grads)
        assert found.keys() == here.keys()
        for name, gradient in here.items():
            assert_close(found[name], gradient, GRADIENT_TOLERANCE, f"gradients of {name} of {who}")


def assert_close(found: Any, expected: Any, tolerance: float, what: str) -> None:
    """Compare arrays, relative to the largest expected number."""
    apart = float(np.max(np.abs(found - expected)))
    largest = float(np.max(np.abs(expected)))
    assert apart <= tolerance * largest, f"{what} are {apart} from autobatch's, of which the largest is {largest}"


def their_ways(
    peers: Mapping[str, Peer | JaxTreeLSTM], instances: Sequence[Any], size: int, n_slow: int
) -> dict[str, Way]:
    """Make all variants of PyTorch and JAX; one instance at a time runs the first `n_slow` mini-batches."""
    ways: dict[str, Way] = {}
    for name, peer in peers.items():
        if not isinstance(peer, Peer):
            ways |= jax_ways(peer, instances, size)
            continue
        prepared = list(ab.minibatches([peer.prepare(instance) for instance in instances], size))
        merged = [peer.merge(minibatch) for minibatch in prepared]
        optimizer = torch.optim.Adam(peer.parameters(), lr=LR, fused=True)  # several times as fast as the other Adams
        if name == PER_INSTANCE:
            ways[f"PyTorch, {name}"] = torch_way(peer, optimizer, merged, n_slow, merges=False)
        else:
            ways[f"PyTorch, {name}"] = torch_way(peer, optimizer, prepared, len(merged), merges=True)
            ways[f"PyTorch, {name}, merged ahead"] = torch_way(peer, optimizer, merged, len(merged), merges=False)
    return ways


def torch_way(
    peer: Peer, optimizer: torch.optim.Optimizer, minibatches: Sequence[Any], n_minibatches: int, merges: bool
) -> Way:
    """Run a peer on mini-batches that are merged or still have to be."""

    def minibatch(number: int) -> Any:
        return peer.merge(minibatches[number]) if merges else minibatches[number]

    def infer(number: int) -> None:
        with torch.inference_mode():
            peer.losses(minibatch(number))

    def train(number: int) -> None:
        peer.backward(minibatch(number))
        optimizer.step()

    return Way(infer, train, n_minibatches)


def jax_ways(peer: JaxTreeLSTM, instances: Sequence[Any], size: int) -> dict[str, Way]:
    """Make the variants of JAX. Levels get their final widths at the start, so the first round compiles for all."""
    prepared = list(ab.minibatches([peer.prepare(instance) for instance in instances], size))
    for minibatch in prepared:
        peer.merge(minibatch)
    merged = [peer.merge(minibatch) for minibatch in prepared]
    return {
        "JAX, levels": jax_way(peer, prepared, merges=True),
        "JAX, levels, merged ahead": jax_way(peer, merged, merges=False),
    }


def jax_way(peer: JaxTreeLSTM, minibatches: Sequence[Any], merges: bool) -> Way:
    """Run the peer on mini-batches that are merged or still have to be, with PyTorch's current number of threads."""

    def run(compute: Callable[[Any], object], number: int) -> None:
        peer.use_threads(torch.get_num_threads())
        compute(peer.merge(minibatches[number]) if merges else minibatches[number])

    return Way(partial(run, peer.losses), partial(run, peer.train), len(minibatches))


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
