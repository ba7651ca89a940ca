"""PyTorch on a GPU: the models that are batched by hand in `baselines`, and the fastest of them as CUDA graphs.

A CUDA graph replays a mini-batch that was captured earlier, so it is compared with autobatch's cached plans; no user of
PyTorch has one for each mini-batch. `torch.compile` is left out, because it compiles a program for every forest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import autobatch as ab
from autobatch.cli.workload import Workload
from baselines.baseline import Baseline
from baselines.tree_lstm_expert import ExpertTreeLSTM
from baselines.ways import BASELINES, PER_INSTANCE, check_equal

N_CHECKED = 16  # instances whose losses and gradients are compared with autobatch's
WARM_UPS = 3  # before a capture, as in PyTorch's documentation
CAPTURED = {"tree-lstm": "expert", "lattice-lstm": "expert", "bilstm-tagger": "packed"}
NO_COMPILE = "torch.compile is left out: it compiles a program per mini-batch, and CUDA graphs save the same launches"

Run = Callable[[int], object]
Step = Callable[[Any], object]


def has_gpu() -> bool:
    """Return whether PyTorch finds a GPU."""
    return torch.cuda.is_available()


def make_ways(
    workload: Workload, instances: Sequence[Any], size: int, lr: float, on_gpu: bool
) -> tuple[dict[str, list[Run]], list[str]]:
    """Make functions by name that infer and train on a mini-batch by number; list what is left out, and why."""
    baselines = make_baselines(workload, torch.device("cuda" if on_gpu else "cpu"))
    ways: dict[str, list[Run]] = {}
    reasons = [NO_COMPILE] if on_gpu else [NO_COMPILE, "CUDA graphs are left out, because there is no GPU"]
    for name, baseline in baselines.items():
        prepared = list(ab.minibatches([baseline.prepare(instance) for instance in instances], size))
        merged = [baseline.placed(baseline.merge(minibatch)) for minibatch in prepared]
        steps = make_steps(baseline, lr, on_gpu)
        ways[name] = [merging(baseline, step, prepared) for step in steps]
        ways[f"{name}, merged ahead"] = [merged_ahead(step, merged) for step in steps]
        if on_gpu and name == CAPTURED[workload.spec.name]:
            try:
                ways[f"{name}, CUDA graph"] = [capture(step, merged) for step in steps]
            except RuntimeError as error:
                reasons.append(f"{workload.spec.name}, {name}: no CUDA graph: {str(error).splitlines()[0]}")
    return ways, reasons


def find_difference(workload: Workload, instances: Sequence[Any], on_gpu: bool) -> str | None:
    """Return how losses and gradients differ from those of autobatch, None if they do not."""
    try:
        baselines = make_baselines(workload, torch.device("cuda" if on_gpu else "cpu"))
        check_equal(workload, baselines, ["cuda"], instances[:N_CHECKED])
    except AssertionError as error:
        return str(error)
    return None


def make_baselines(workload: Workload, device: torch.device) -> dict[str, Baseline]:
    """Make the same models in PyTorch with a workload's parameters, except those that need a processor."""
    torch.backends.cudnn.allow_tf32 = False
    baselines = {}
    for name, make in BASELINES[workload.spec.name].items():
        if name != PER_INSTANCE and "oneDNN" not in name:
            baseline = baselines[name] = make(dim=workload.dim, **workload.dataset.sizes).to(device)
            baseline.copy_parameters(workload.model.state_dict())
            if isinstance(baseline, ExpertTreeLSTM) and device.type == "cuda":
                baseline.block = 1 << 40  # a whole level at once
    return baselines


def make_steps(baseline: Baseline, lr: float, on_gpu: bool) -> list[Step]:
    """Make functions that infer and train on a merged mini-batch."""
    optimizer = torch.optim.Adam(baseline.parameters(), lr=lr, fused=True, capturable=on_gpu)

    def infer(minibatch: Any) -> None:
        with torch.inference_mode():
            baseline.losses(minibatch)

    def train(minibatch: Any) -> None:
        baseline.backward(minibatch)
        optimizer.step()

    return [infer, train]


def merging(baseline: Baseline, step: Step, prepared: Sequence[Any]) -> Run:
    """Make a function that merges prepared instances, moves them to the GPU, and runs them."""
    return lambda number: step(baseline.placed(baseline.merge(prepared[number])))


def merged_ahead(step: Step, merged: Sequence[Any]) -> Run:
    """Make a function that runs what is merged and on the GPU."""
    return lambda number: step(merged[number])


def capture(step: Step, merged: Sequence[Any]) -> Run:
    """Capture a graph of each mini-batch, after all have run, so that the model's arrays are no longer reallocated."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for minibatch in [*merged] * WARM_UPS:
            step(minibatch)
    torch.cuda.current_stream().wait_stream(stream)
    graphs = []
    for minibatch in merged:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(minibatch)
        graphs.append(graph)
    return lambda number: graphs[number].replay()
