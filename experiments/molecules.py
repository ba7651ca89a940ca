"""Measure training on energies and forces, whose loss contains a derivative, compared with PyTorch.

A step trains `autobatch.models.molecule_forces` with Adam on mini-batches of molecules of 5 to 60 atoms. The loss
contains the forces, which are a gradient of the energy, so a step differentiates twice. PyTorch runs one molecule at a
time, with all of its atoms and pairs at once; and all molecules of a mini-batch at once, as an expert batches them by
hand, with tensors merged in each step or ahead of time. Ours runs molecules, which are recorded in each step;
pre-recorded graphs, which are planned in each step; and graphs with cached plans. All variants have the same
parameters, use one thread and take turns; losses and gradients are compared first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

import autobatch as ab
from autobatch.cli import racing
from autobatch.cli.results import format_table
from autobatch.models.data.conformation import Conformation
from autobatch.models.data.force_field import ELEMENTS, draw_conformations
from autobatch.models.molecule_forces import MoleculeForces
from baselines.baseline import Baseline
from baselines.molecule_forces import ExpertMoleculeForces, TorchMoleculeForces
from baselines.ways import LR, Way, assert_close, our_way, torch_way
from digest import RUNTIME
from harness import run
from records import Findings, Settings

ONE, EXPERT = "PyTorch, one molecule at a time", "PyTorch, batched by an expert"
AHEAD = "the same, put together ahead"
AFRESH, RECORDED, FOUND = "autobatch, recorded afresh", "autobatch, recorded graphs", "autobatch, plans found"
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-3  # of float32, relative to the largest number that is compared


@dataclass(frozen=True)
class Config(Settings):
    """The model, the mini-batches, and the number of repeats."""

    dims: tuple[int, ...] = (64,)
    batch_size: int = 32
    n_minibatches: int = 4
    min_atoms: int = 5
    max_atoms: int = 60
    repeats: int = 15
    quick: bool = False


def draw(config: Config) -> list[Conformation[int]]:
    """Draw molecules for all mini-batches."""
    symbols = [element.symbol for element in ELEMENTS]
    drawn = draw_conformations(
        config.batch_size * (1 if config.quick else config.n_minibatches),
        np.random.default_rng(config.seed),
        min_atoms=config.min_atoms,
        max_atoms=config.max_atoms,
    )
    return [molecule.map(symbols.index) for molecule in drawn]


def make_baselines(model: MoleculeForces) -> dict[str, Baseline]:
    """Build both PyTorch versions of the model."""
    n_elements, dim = model.elements.shape
    baselines: dict[str, Baseline] = {
        name: make(n_elements, dim, len(model.blocks))
        for name, make in ((ONE, TorchMoleculeForces), (EXPERT, ExpertMoleculeForces))
    }
    for baseline in baselines.values():
        baseline.copy_parameters(model.state_dict())
    return baselines


def their_ways(model: MoleculeForces, molecules: Sequence[Conformation[int]], size: int) -> dict[str, Way]:
    """Make all variants of PyTorch."""
    ways = dict[str, Way]()
    for kind, baseline in make_baselines(model).items():
        prepared = list(ab.minibatches([baseline.prepare(molecule) for molecule in molecules], size))
        merged = [baseline.merge(minibatch) for minibatch in prepared]
        optimizer = torch.optim.Adam(baseline.parameters(), lr=LR, fused=True)
        ways[kind] = torch_way(baseline, optimizer, prepared, len(merged), merges=True)
        if kind == EXPERT:
            ways[AHEAD] = torch_way(baseline, optimizer, merged, len(merged), merges=False)
    return ways


def our_ways(
    model: MoleculeForces, molecules: Sequence[Conformation[int]], size: int, threads: int
) -> tuple[dict[str, Way], Any]:
    """Make all variants of autobatch, and return the batched loss whose counts are shown."""
    model = deepcopy(model)
    optimizer = ab.optim.Adam(model, lr=LR)
    n_plans = 2 * len(molecules) // size
    afresh, found = (ab.batched(model.loss, backend="cpu", threads=threads, plan_cache=n) for n in (0, n_plans))
    ways = {
        AFRESH: our_way(afresh, optimizer, list(ab.minibatches(molecules, size))),
        RECORDED: our_way(afresh, optimizer, list(ab.minibatches(afresh.record_all(molecules), size))),
        FOUND: our_way(found, optimizer, list(ab.minibatches(found.record_all(molecules), size))),
    }
    return ways, afresh


def check_equal(model: MoleculeForces, molecules: Sequence[Conformation[int]]) -> None:
    """Check that losses and gradients are equal before they are timed.

    Raises:
        AssertionError: they differ; the message names what differs.
    """
    loss = ab.batched(model.loss, backend="cpu")
    expected = loss(molecules)
    _, grads = loss.value_and_grad(molecules)
    for who, baseline in make_baselines(model).items():
        losses, found = baseline.answer(baseline.merge([baseline.prepare(molecule) for molecule in molecules]))
        assert_close(losses, expected, LOSS_TOLERANCE, f"losses of {who}")
        assert found.keys() == grads.keys()
        for name, gradient in grads.items():
            assert_close(found[name], np.asarray(gradient), GRADIENT_TOLERANCE, f"gradients of {name} of {who}")


def measure(config: Config) -> Iterator[Findings]:
    """Compare, and time all variants, for each width."""
    torch.set_num_threads(config.threads)
    molecules, size = draw(config), config.batch_size
    for dim in config.dims:
        model = MoleculeForces(len(ELEMENTS), dim, np.random.default_rng(config.seed))
        check_equal(model, molecules[:size])
        theirs = their_ways(model, molecules, size)
        ours, loss = our_ways(model, molecules, size, config.threads)
        steps = {name: way.train for name, way in (theirs | ours).items()}
        timed = racing.take_turns(steps, len(molecules) // size, 2 if config.quick else config.repeats)
        last = loss.last
        assert last is not None
        counts = {name: getattr(last, name) for name in ("nodes", "batches", "launches", "copied_bytes")}
        yield show(config, dim, molecules, timed, counts)


def show(
    config: Config,
    dim: int,
    molecules: Sequence[Conformation[int]],
    timed: Mapping[str, Sequence[Sequence[float]]],
    counts: Mapping[str, int],
) -> Findings:
    """Show the mean over mini-batches of a step's median time, and the speed relative to PyTorch's variants."""
    ms = {way: 1e3 * fmean(map(median, minibatches)) for way, minibatches in timed.items()}
    head = ("way", "ms per step", "molecules/s", *(f"of: {other}" for other in (ONE, EXPERT, AHEAD)))
    rows = [
        (
            way,
            f"{found:.1f}",
            f"{1e3 * config.batch_size / found:,.0f}",
            *(f"{ms[other] / found:.2f}" for other in (ONE, EXPERT, AHEAD)),
        )
        for way, found in ms.items()
    ]
    sizes = {
        "atoms": fmean(len(molecule.elements) for molecule in molecules),
        "pairs": fmean(len(molecule.pairs) for molecule in molecules),
    }
    of_ours = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
    title = (
        f"dim {dim}, {config.batch_size} molecules of {sizes['atoms']:.1f} atoms and {sizes['pairs']:.1f} pairs in the "
        f"mean; a step of ours: {of_ours}\n\n"
    )
    seconds = {
        f"{way}, mini-batch {number}": times
        for way, minibatches in timed.items()
        for number, times in enumerate(minibatches)
    }
    figures = {"dim": dim, "ms": ms, "counts": counts, **sizes}
    return Findings(seconds, figures, title + format_table(head, rows), part=f"dim-{dim}")


if __name__ == "__main__":
    run(
        Config(),
        measure,
        modules=(*RUNTIME, "autobatch.models.molecule_forces", "autobatch.models.data.force_field"),
    )
