"""Compare the throughput of autobatch with PyTorch: one instance at a time, batched by hand, and written by an expert.

Trees are also compared with JAX, batched by hand, if it is installed. All run the same models on the same data from the
same parameters, and take turns on every mini-batch in one process. Losses and gradients are first checked against
autobatch's. Rates are instances divided by the sum of the mini-batches' median times. Training is forward, backward and
a step of the same dense Adam. `autobatch bench --baselines` runs this; to run a small part of it:

    python experiments/against_torch.py models=tree-lstm dims=64, batch_sizes=64, threads=1
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from threadpoolctl import threadpool_limits

from autobatch.cli.progress import show_progress
from autobatch.cli.racing import MODES, take_turns
from autobatch.cli.results import format_table
from autobatch.cli.workload import Workload, load_workload
from autobatch.errors import AutobatchError
from autobatch.release import pip_install
from baselines.ways import BASELINES, DATA, Way, check_equal, make_baselines, our_ways, their_ways
from harness import find_data, name_of, run
from records import QUICK, Findings, Settings

LIBRARIES = ("OPENBLAS_", "MKL_", "OMP_", "KMP_", "DNNL_", "ONEDNN_", "ATEN_")  # prefixes of variables
N_CHECKED = 16  # instances whose losses and gradients are compared


@dataclass(frozen=True)
class Config(Settings):
    """Settings. The mini-batches are the first ones of the data's files."""

    threads: int = 2
    """Everything is measured with one thread and with this many."""
    models: str = ",".join(BASELINES)
    dims: tuple[int, ...] = (64, 256)
    batch_sizes: tuple[int, ...] = (64, 256)
    """Sizes for trees; other models are measured with the first only."""
    backends: str = "reference,cpu"
    policy: str = "auto"
    modes: str = ",".join(MODES)
    data: str = ""
    """A name or path that replaces the real data beside the checkout, or else the model's built-in data."""
    minibatches: int = 8
    slow_minibatches: int = 1
    """Number of these for running one instance at a time."""
    repeats: int = 5


class Setting(NamedTuple):
    """The setting of one table."""

    dim: int
    batch_size: int
    n_threads: int

    def __str__(self) -> str:
        return f"dim {self.dim}, mini-batches of {self.batch_size}, {self.n_threads} thread{'s'[: self.n_threads > 1]}"


Rates = Mapping[str, Mapping[str, float]]
"""Instances per second, by implementation and mode."""


def measure(config: Config) -> Iterator[Findings]:
    """Measure each model: a table for every setting, and one record."""
    names = config.models.split(",")
    if unknown := [name for name in names if name not in BASELINES]:
        raise AutobatchError(f"models must be some of {', '.join(BASELINES)}, got {unknown[0]!r}.")
    for model in names:
        yield measure_model(model, config)


def measure_model(model: str, config: Config) -> Findings:
    """Run all implementations of one model, in all settings."""
    data = config.data or find_data(DATA[model])
    seconds: dict[str, list[float]] = {}
    found: dict[Setting, Rates] = {}
    loads: dict[Setting, float] = {}
    for dim in config.dims:
        workload = load_workload(model, data, dim, config.seed)
        for size in config.batch_sizes if model == "tree-lstm" else config.batch_sizes[:1]:
            ways = make_ways(model, workload, size, config)
            for n_threads in sorted({1, config.threads}):
                setting = Setting(dim, size, n_threads)
                loads[setting] = os.getloadavg()[0]
                rates: dict[str, dict[str, float]] = {name: {} for name in ways}
                for mode in config.modes.split(","):
                    with threads_limited(n_threads):
                        times = time_ways(ways, mode, config, f"{model}, {setting}, {mode}")
                    for name, minibatches in times.items():
                        seconds[f"{setting}, {mode}: {name}"] = [t for times in minibatches for t in times]
                        rates[name][mode] = size * len(minibatches) / sum(map(statistics.median, minibatches))
                found[setting] = rates
    title = f"{model}, {name_of(workload.dataset)}, policy {config.policy}; instances per second\n\n"
    table = title + "\n\n".join(format_setting(setting, rates) for setting, rates in found.items())
    if model == "tree-lstm" and find_spec("jax") is None:
        table += f"\n\nJAX is left out, because the package jax is not installed; {pip_install('jax')}."
    return Findings(seconds, figures_of(model, workload, found, loads), table, part=model)


def make_ways(model: str, workload: Workload, size: int, config: Config) -> dict[str, Way]:
    """Build, check and prepare all implementations."""
    backends, instances = config.backends.split(","), workload.first(size * config.minibatches)
    baselines = make_baselines(model, workload)
    check_equal(workload, baselines, backends, instances[:N_CHECKED])
    return {
        **their_ways(baselines, instances, size, min(config.slow_minibatches, config.minibatches)),
        **our_ways(workload, backends, config.policy, instances, size, config.threads),
    }


def time_ways(ways: Mapping[str, Way], mode: str, config: Config, task: str) -> dict[str, list[list[float]]]:
    """Let all implementations take turns in one mode."""
    limits = {name: way.n_minibatches for name, way in ways.items()}
    with show_progress((config.repeats + 1) * sum(limits.values())) as progress:
        return take_turns(
            {name: getattr(way, mode) for name, way in ways.items()},
            limits,
            config.repeats,
            lambda name, repeat: progress.advance(task, name),
        )


@contextmanager
def threads_limited(n_threads: int) -> Iterator[None]:
    """Limit PyTorch and NumPy to this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        with threadpool_limits(n_threads):
            yield
    finally:
        torch.set_num_threads(before)


def ratios_of(rates: Rates) -> dict[str, dict[str, dict[str, float]]]:
    """Return the speed of each of our implementations relative to each of the others, by mode."""
    ours = [name for name in rates if name.startswith("autobatch")]
    return {
        our: {
            their: {mode: rates[our][mode] / rate for mode, rate in rates[their].items()}
            for their in rates
            if their not in ours
        }
        for our in ours
    }


def format_setting(setting: Setting, rates: Rates) -> str:
    """Format the rates of all implementations, and our speed relative to the others that merge in each step."""
    modes = list(next(iter(rates.values())))
    speed = format_table(
        (str(setting), *modes), [(name, *(f"{rate:,.0f}" for rate in by.values())) for name, by in rates.items()]
    )
    ratios = ratios_of(rates)
    theirs = [name for name in next(iter(ratios.values())) if not name.endswith("merged ahead")]
    rows = [
        (our, *(" / ".join(f"{ratio:.2f}" for ratio in by[their].values()) for their in theirs))
        for our, by in ratios.items()
    ]
    return speed + "\n\n" + format_table((f"times as fast, {' / '.join(modes)}, as", *theirs), rows)


def figures_of(
    model: str, workload: Workload, found: Mapping[Setting, Rates], loads: Mapping[Setting, float]
) -> dict[str, Any]:
    """Return the figures of a record."""
    return {
        "model": model,
        "data": name_of(workload.dataset),
        "torch_cpu": torch.backends.cpu.get_cpu_capability(),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(LIBRARIES)},
        "settings": [
            {
                **setting._asdict(),
                "load_before": round(loads[setting], 2),
                "instances_per_s": {way: {m: round(r, 1) for m, r in by.items()} for way, by in rates.items()},
                "ratios": {
                    our: {their: {m: round(r, 3) for m, r in by.items()} for their, by in to.items()}
                    for our, to in ratios_of(rates).items()
                },
            }
            for setting, rates in found.items()
        ],
    }


if __name__ == "__main__":
    run(Config(), measure, name="baselines", folder=QUICK)
