"""Compare results of the device with the CPU: all models in both dtypes, and all policies on lattices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.cli.measuring.gpu.check import Check, Result
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
    module = workload.model.astype(dtype).to("cpu")
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
    return float(np.nan_to_num(error, nan=np.inf))
