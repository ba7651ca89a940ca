"""Count what a step requests from the device: launches, copies and waits, once kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import autobatch as ab
from autobatch.cli.gpu.check import Check, Result, growth
from autobatch.cli.workload import load_workload, record
from autobatch.models.registry import MODELS
from autobatch.params.module import shared_store

COUNTED = ("launches", "products", "uploads", "uploaded_bytes", "downloads", "downloaded_bytes", "waits")


def count_traffic(check: Check) -> Result:
    """Count for all models, in inference and in training."""
    result = Result("traffic of a step", ("model", "mode", "parameters on", "nodes", "batches", *COUNTED, "per batch"))
    check.measure_each(result, [(model,) for model in MODELS], partial(count_model, check, result))
    return result


def count_model(check: Check, result: Result, model: str) -> None:
    """Count for one model."""
    workload = load_workload(model, None, check.choose(256, 5), check.seed)
    loss: Any = ab.batched(workload.model.loss, backend=check.backend(), plan_cache=0)
    graphs = record(loss, workload.first(check.choose(256, 3)))
    optimizer = ab.optim.Adam(workload.model)
    steps: dict[str, Callable[[], object]] = {
        "inference": lambda: loss(graphs),
        "gradients": lambda: loss.value_and_grad(graphs),
        "training": lambda: optimizer.step(loss.value_and_grad(graphs)[1]),
    }
    for place in ("cpu", check.device):
        workload.model.to(place)
        for mode, step in steps.items():
            step()
            step()
            before = vars(check.device.traffic).copy()
            step()
            counts = growth(before, vars(check.device.traffic))
            per_batch = (counts["launches"] + counts["products"]) / loss.last.batches
            about = model, mode, shared_store(workload.model).kind, loss.last.nodes, loss.last.batches
            result.add(*about, *(counts[name] for name in COUNTED), per_batch)
