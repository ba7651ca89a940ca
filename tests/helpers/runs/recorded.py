"""What a batched function has recorded so far, and what is planned of it: questions to one object, without a run."""

from __future__ import annotations

from typing import Any

import autobatch as ab
from autobatch.graph.graph import Graph
from autobatch.ir.typetable import NodeType
from autobatch.plan.plan import PlannedTypes


def record(loss: ab.Batched, instances: list[Any]) -> Graph:
    """The graph of a mini-batch, before the rewrites."""
    return loss.recorder.record(instances)


def module_of(loss: ab.Batched) -> Any:
    """The module whose parameters it reads."""
    assert loss.recorder.module is not None
    return loss.recorder.module


def traced(loss: ab.Batched) -> int:
    """How many times a body of a cell was traced."""
    count: int = loss.recorder.calls.traces.n_traced
    return count


def guard_set_of(loss: ab.Batched) -> Any:
    """The guards of what the bodies of cells read from Python."""
    return loss.recorder.calls.traces.guard_set


def types_of(loss: ab.Batched) -> list[NodeType]:
    """All types met so far."""
    return loss.recorder.types.types


def types_of_nodes(loss: ab.Batched) -> list[str]:
    """For each node of the last mini-batch, the name of its type."""
    assert loss.last is not None
    graph = loss.last.graph
    return [graph.type_of(node) for node in range(graph.n_nodes)]


def count_types(loss: ab.Batched, cell: str) -> int:
    """How many types the cell of this name has."""
    return sum(kind.name == cell for kind in types_of(loss))


def planned_types(loss: ab.Batched, training: bool) -> PlannedTypes:
    """All types met so far, planned; in training for the gradients of all trainable parameters."""
    module = loss.recorder.module
    names = [] if module is None else [name for name, p in module.parameters().items() if p.trainable]
    return loss.planning.cells(frozenset(names) if training else None)
