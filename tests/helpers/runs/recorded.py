"""What a batched function has recorded and planned so far, without running it."""

from __future__ import annotations

from typing import Any

import autobatch as ab
from autobatch.graph.graph import Graph
from autobatch.plan.plan import PlannedTypes


def record(loss: ab.Batched, instances: list[Any]) -> Graph:
    """The graph of a mini-batch, before the rewrites."""
    return loss.recorder.record(instances)


def planned_types(loss: ab.Batched, training: bool) -> PlannedTypes:
    """All types met so far, planned; in training for the gradients of all trainable parameters."""
    module = loss.recorder.module
    names = [] if module is None else [name for name, p in module.parameters().items() if p.trainable]
    return loss.planning.cells(frozenset(names) if training else None)
