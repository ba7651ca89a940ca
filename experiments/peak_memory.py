"""Measure how much memory training steps take, beyond what the process held before.

Each implementation of each model runs in its own process: autobatch on recorded graphs that are planned in each step,
and the same model in PyTorch, batched by hand and by an expert, on mini-batches that are merged in each step. All train
with Adam. A first step on a few instances loads libraries and compiles kernels. The figure is the peak resident memory
during the steps minus the resident memory before them. It includes values, gradients, scratch memory, plans, and free
memory that the allocators hold. Linux only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.cli.workload import load_workload, record
from autobatch.errors import AutobatchError
from baselines.baseline import Baseline
from baselines.ways import BASELINES, DATA, LR, PER_INSTANCE, make_baselines, our_way, torch_way
from harness import find_data, run
from records import Findings, Settings

OURS = "autobatch"
N_WARM = 8  # instances of the first step
MIB = 2**20


@dataclass(frozen=True)
class Config(Settings):
    """Models have width `dim`; `steps` mini-batches of `batch` instances are run."""

    models: str = ",".join(DATA)
    dim: int = 256
    batch: int = 256
    steps: int = 4


def measure(config: Config) -> Findings:
    """Measure all implementations, each in its own process."""
    if not Path("/proc/self/clear_refs").exists():
        raise AutobatchError("peak_memory needs Linux, whose /proc/self/clear_refs resets the peak of a process.")
    figures: dict[str, dict[str, float]] = {}
    for model in config.models.split(","):
        ways = [OURS, *(name for name in BASELINES[model] if name != PER_INSTANCE)]
        figures[model] = {way: round(in_a_process(model, way, config) / MIB, 1) for way in ways}
    rows = [(model, way, f"{mib:.1f}") for model, by in figures.items() for way, mib in by.items()]
    return Findings({}, figures, format_table(("", "", "MiB"), rows))


def in_a_process(model: str, way: str, config: Config) -> int:
    """Return the bytes that one implementation's steps take, in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(peak_of, model, way, config).result()


def peak_of(model: str, way: str, config: Config) -> int:
    """Run the steps. Return the bytes of their peak minus those before."""
    torch.set_num_threads(config.threads)
    workload = load_workload(model, find_data(DATA[model]), config.dim, config.seed)
    instances = workload.first(config.batch * config.steps)
    train = ours(workload, instances, config) if way == OURS else theirs(workload, way, model, instances, config)
    train(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    for number in range(1, config.steps + 1):
        train(number)
    return status("VmHWM") - before


def ours(workload: Any, instances: list[Any], config: Config) -> Callable[[int], object]:
    """Make the step of autobatch, which takes a mini-batch's number; mini-batch 0 has few instances."""
    loss = ab.batched(workload.model.loss, plan_cache=0, threads=config.threads)
    graphs = record(loss, instances)
    minibatches = [graphs[:N_WARM], *ab.minibatches(graphs, config.batch)]
    return our_way(loss, ab.optim.Adam(workload.model, lr=LR), minibatches).train


def theirs(workload: Any, way: str, model: str, instances: list[Any], config: Config) -> Callable[[int], object]:
    """Make the same step in PyTorch."""
    baseline = make_baselines(model, workload)[way]
    assert isinstance(baseline, Baseline)
    prepared = [baseline.prepare(instance) for instance in instances]
    optimizer = torch.optim.Adam(baseline.parameters(), lr=LR, fused=True)
    minibatches = [prepared[:N_WARM], *ab.minibatches(prepared, config.batch)]
    return torch_way(baseline, optimizer, minibatches, len(minibatches), merges=True).train


def status(name: str) -> int:
    """Read a field of this process from Linux, in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None, "Linux says so of each process"
    return 1024 * int(found[1])


if __name__ == "__main__":
    run(Config(), measure)
