"""What does a step ask of the device? Launches, copies and waits of a mini-batch whose kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import autobatch as ab
from autobatch.cli.workload import load_workload, record
from autobatch.models.registry import MODELS
from gpu.check import Check, Result, growth

COUNTED = ("launches", "products", "uploads", "uploaded_bytes", "downloads", "downloaded_bytes", "waits")


def count_traffic(check: Check) -> Result:
    """Count for all models, in inference and in training."""
    result = Result("traffic of a step", ("model", "mode", "nodes", "batches", *COUNTED, "launches per batch"))
    check.measure_each(result, [(model,) for model in MODELS], partial(count_model, check, result))
    return result


def count_model(check: Check, result: Result, model: str) -> None:
    """Count for one model."""
    workload = load_workload(model, None, check.choose(256, 5), check.seed)
    loss: Any = ab.batched(workload.model.loss, backend=check.backend(), plan_cache=0)
    graphs = record(loss, workload.first(check.choose(256, 3)))
    steps: dict[str, Callable[[], object]] = {
        "inference": lambda: loss(graphs),
        "training": lambda: loss.value_and_grad(graphs),
    }
    for mode, step in steps.items():
        step()
        before = vars(check.device.traffic).copy()
        step()
        counts = growth(before, vars(check.device.traffic))
        per_batch = (counts["launches"] + counts["products"]) / loss.last.batches
        result.add(model, mode, loss.last.nodes, loss.last.batches, *(counts[name] for name in COUNTED), per_batch)
