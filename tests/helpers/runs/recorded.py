"""Queries of what a batched function has recorded and planned so far, without a run."""

from __future__ import annotations

from typing import Any

import autobatch as ab
from autobatch.graph.graph import Graph
from autobatch.ir.typetable import NodeType
from autobatch.plan.plan import PlannedTypes


def record(loss: ab.Batched, instances: list[Any]) -> Graph:
    """Return the graph of a mini-batch, before the rewrites."""
    return loss.recorder.record(instances)


def module_of(loss: ab.Batched) -> Any:
    """Return the module whose parameters the function reads."""
    assert loss.recorder.module is not None
    return loss.recorder.module


def traced(loss: ab.Batched) -> int:
    """Count the traces of cells' bodies."""
    count: int = loss.recorder.calls.traces.n_traced
    return count


def guard_set_of(loss: ab.Batched) -> Any:
    """Return the guards of what the bodies of cells read from Python."""
    return loss.recorder.calls.traces.guard_set


def types_of(loss: ab.Batched) -> list[NodeType]:
    """Return all types met so far."""
    return loss.recorder.types.types


def types_of_nodes(loss: ab.Batched) -> list[str]:
    """Return the name of the type of each node of the last mini-batch."""
    assert loss.last is not None
    graph = loss.last.graph
    return [graph.type_of(node) for node in range(graph.n_nodes)]


def count_types(loss: ab.Batched, cell: str) -> int:
    """Count the types of the named cell."""
    return sum(kind.name == cell for kind in types_of(loss))


def planned_types(loss: ab.Batched, training: bool) -> PlannedTypes:
    """Return all types met so far, planned; in training, for the gradients of all trainable parameters."""
    module = loss.recorder.module
    names = [] if module is None else [name for name, p in module.parameters().items() if p.trainable]
    return loss.planning.cells(frozenset(names) if training else None)
