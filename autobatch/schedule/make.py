"""Ask a policy for a schedule, and check it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from autobatch.errors import ScheduleError
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.keywords import refuse_arguments
from autobatch.schedule.schedule import Policy, Schedule
from autobatch.schedule.schedule_check import check_schedule
from autobatch.system.unchecked import checking, is_unchecked


def make_schedule(graph: Graph, policy: Policy) -> Schedule:
    """Schedule `graph` with `policy`.

    The result is checked unless the policy's class is `@unchecked` and `AUTOBATCH_CHECK` is off.

    Raises:
        ScheduleError: the policy did not return a `Schedule`, or returned one that is invalid for this graph.
    """
    if type(graph) is not Graph or not hasattr(policy, "schedule"):
        refuse_arguments(make_schedule, (graph, policy), {})
    is_checked = checking()
    if is_checked:
        check_graph(graph)
    schedule = policy.schedule(graph)
    if is_checked or not is_unchecked(policy):
        return _read_schedule(graph, schedule, policy.name)
    return schedule


def _read_schedule(graph: Graph, made: object, name: str) -> Schedule:
    """Check the result of a policy, and copy it into arrays for compiled code."""
    doing = f"scheduling with policy {name!r}"
    if not isinstance(made, Schedule):
        raise ScheduleError(
            f"{doing}: schedule() must return an autobatch.schedule.Schedule, got {made!r} ({type(made).__name__})."
        )
    parts: list[Any] = [np.asarray(part) for part in (made.batch_type, made.batch_ptr, made.order)]
    for field, part in zip(fields(made), parts, strict=True):
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise ScheduleError(
                f"{doing}: {field.name} must be an int32[n], got dtype {part.dtype} and shape {part.shape}."
            )
    try:
        # Check as int64: in int32, a number that is too large would wrap around, and might then name a node.
        check_schedule(graph, Schedule(*(part.astype(np.int64) for part in parts)))
    except ScheduleError as error:
        raise ScheduleError(f"{doing}: {error}") from None
    return Schedule(*(part.astype(np.int32) for part in parts))
