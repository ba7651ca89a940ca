"""Compare results of the device with the CPU: all models in both dtypes, all policies on lattices, and training.

Training compares the losses of the same steps of Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.cli.gpu.check import Check, Result
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.devices.store import Store
from autobatch.models.registry import MODELS
from autobatch.params.module import shared_store

TOLERANCES = {"float64": 1e-10, "float32": 2e-5}
POLICIES = (
    "unbatched",
    "depth",
    "agenda",
    "sufficient",
    "critical",
    "score",
    "score+both+compact",
    "network",
    "search",
)
BACKENDS = {"reference": Reference, "cpu": Cpu}


def check_correctness(check: Check, cases: Sequence[tuple[str, str, str, str]] = ()) -> Result:
    """Compare losses and gradients, relative to the largest number of each array.

    Args:
        cases: model, policy, dtype and comparison backend of each case; empty for all cases.
    """
    result = Result(
        "correctness",
        ("model", "policy", "dtype", "parameters on", "against", "losses differ by", "gradients differ by"),
    )
    load = cache(partial(load_workload, data=None, dim=check.choose(64, 5), seed=check.seed))
    check.measure_each(result, cases or _all_cases(check), partial(compare, check, result, load))
    return result


def _all_cases(check: Check) -> list[tuple[str, str, str, str]]:
    cases = [(model, "auto", dtype, "reference") for model in MODELS for dtype in TOLERANCES]
    cases += [("lattice-lstm", policy, "float64", "reference") for policy in POLICIES]
    return cases + [
        (model, "auto", dtype, "cpu") for dtype in check.choose(TOLERANCES, ("float64",)) for model in MODELS
    ]


def compare(check: Check, result: Result, load: Any, model: str, policy: str, dtype: str, against: str) -> None:
    """Run a model on the device and on another backend; add a failure for differences above the tolerance."""
    workload: Workload = load(model)
    instances = workload.first(check.choose(24, 3))
    module = workload.model.astype(dtype).to("cpu")  # an earlier case has moved it
    expected = answer(module, instances, "agenda", BACKENDS[against]())
    for place in ("cpu", check.device):
        found = answer(module.to(place), instances, policy, check.backend(poison=True))
        about = model, policy, dtype, shared_store(module).kind
        errors = {name: error_of(found[name], expected[name]) for name in expected}
        losses = errors.pop("losses")
        worst = max(errors, key=lambda name: errors[name])
        result.add(*about, against, losses, errors[worst])
        for name, error in (("losses", losses), (f"gradients of {worst}", errors[worst])):
            if error > TOLERANCES[dtype]:
                result.failures.append(f"{', '.join(about)}: {name} differ from {against} by {error:.2g}")


def answer(model: Any, instances: list[Any], policy: str, backend: Any) -> dict[str, Any]:
    """Compute the losses of inference with the training loss appended, and gradients by name."""
    loss = ab.batched(model.loss, policy=policy, backend=backend)
    graphs = record(loss, instances)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(instances))
    losses = loss(graphs)
    value, gradients = loss.value_and_grad(graphs, reduce=weights)
    return {
        "losses": np.append(losses, float(value)),
        **{name: on_host(gradient, shared_store(model)) for name, gradient in gradients.items()},
    }


def on_host(gradient: Any, store: Store) -> Any:
    """Copy a gradient to a dense NumPy array."""
    return np.array(gradient if isinstance(gradient, ab.Rows) else store.get(gradient))


def error_of(found: Any, expected: Any) -> float:
    """Compute the largest difference relative to the largest expected number; infinite with a NaN."""
    error = np.max(np.abs(found - expected)) / max(np.max(np.abs(expected)), 1e-3)
    return float(np.nan_to_num(error, nan=np.inf))  # a comparison with NaN would pass


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
        if not error <= limit:  # NaN fails too
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
