"""Compare training on the device with training on the CPU: losses of the same steps of Adam."""

from __future__ import annotations

from functools import partial

import numpy as np

import autobatch as ab
from autobatch.cli.measuring.gpu.check import Check, Result
from autobatch.cli.workload import load_workload, record

SIZE = 64  # instances per mini-batch
FIRST, LAST = 1e-4, 0.02
"""Tolerances of the mean losses of the first and the last 10% of the steps, relative to the CPU's; float32 rounding
errors grow with the steps."""


def train_on_both(check: Check, trees: str | None = None) -> Result:
    """Train for an epoch.

    Args:
        trees: path of trees for the first model; None for generated ones.
    """
    header = ("model", "data", "dtype", "steps", "of these", "cpu", "cuda", "differ by")
    result = Result("mean losses of an epoch of training by Adam", header)
    settings = [
        ("tree-lstm", None if check.quick else trees, "float32"),
        ("tree-lstm", None, "float64"),
        ("lattice-lstm", None, "float32"),
    ]
    check.measure_each(result, settings, partial(train_model, check, result))
    return result


def train_model(check: Check, result: Result, model: str, data: str | None, dtype: str) -> None:
    """Train a model on both backends, from the same parameters, on the same mini-batches."""
    losses = {name: train(check, model, data, dtype, name) for name in ("cpu", "cuda")}
    n_steps = len(losses["cpu"])
    tenth = max(n_steps // 10, 1)
    about = model, "generated" if data is None else "sst", dtype, n_steps
    for name, part, limit in (("first tenth", slice(tenth), FIRST), ("last tenth", slice(-tenth, None), LAST)):
        expected, found = (float(np.mean(losses[backend][part])) for backend in ("cpu", "cuda"))
        error = abs(found - expected) / abs(expected)
        result.add(*about, name, expected, found, error)
        if not error <= limit:
            result.failures.append(f"{model}, {dtype}: the losses of the {name} differ by {error:.2g}")


def train(check: Check, model: str, data: str | None, dtype: str, backend: str) -> list[float]:
    """Train for an epoch; return the loss of each step."""
    workload = load_workload(model, data, check.choose(64, 4), check.seed)
    module = workload.model.astype(dtype)
    if backend == "cuda":
        module.to(check.device)
    loss = ab.batched(module.loss, backend=check.backend() if backend == "cuda" else backend)
    optimizer, losses = ab.optim.Adam(module, lr=1e-3), []
    graphs = record(loss, workload.up_to(check.choose(8192, 8)))
    for minibatch in ab.minibatches(graphs, check.choose(SIZE, 2), np.random.default_rng(check.seed)):
        value, gradients = loss.value_and_grad(minibatch)
        optimizer.step(gradients)
        losses.append(value)
    return [float(value) for value in losses]
