"""Mini-batches that need more memory than they may have run in parts.

A plan says how large its buffer is before anything runs, and the backend how much scratch memory it takes. Where both
are too large together, the instances are cut into runs of about equally many nodes, as many as should fit, and each is
planned by itself; what still does not fit is cut again. Random numbers depend on keys that instances keep, so parts
compute what the whole would.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from autobatch.errors import PlanError
from autobatch.graph.build import merge_graphs, split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite.passes import Rewrites
from autobatch.plan.plan import Plan

HEADROOM = 1.05  # runs of equal nodes differ in bytes; of 1, 1.05, 1.1 and 1.2 it led to the fewest parts in total


@dataclass(frozen=True, eq=False)
class Part:
    """Instances that run together, planned.

    Attributes:
        graph: as recorded or merged, before the rewrites.
        rewrites: what was done to it before it was planned.
        executable: what the backend made of the plan, which says how many bytes running it takes; see
            `autobatch.runtime.backend.Executable`.
        unseen_share: see `autobatch.schedule.schedule.Policy`; None for policies that do not learn.
    """

    graph: Graph
    rewrites: Rewrites
    plan: Plan
    executable: Any
    unseen_share: float | None = None

    @property
    def n_bytes(self) -> int:
        """What its values take, with the scratch memory of the backend."""
        return int(self.executable.n_bytes)

    @property
    def n_batches(self) -> int:
        """Batches of its schedule."""
        return self.plan.schedule.n_batches


def fit_parts(whole: Part, make_part: Callable[[Graph], Part], max_bytes: int | None) -> list[Part]:
    """Cut a mini-batch into parts, in order, whose values take `max_bytes` or less each; `[whole]` if it fits.

    Args:
        whole: the mini-batch, planned.
        make_part: plans some of its instances.
        max_bytes: None for no limit.

    Raises:
        PlanError: instances do not fit alone; names the one that needs most.
        GraphError: nodes are shared between the instances already.

    Cost: planning again, in most cases once; splitting and merging take a compiled pass each.
    """
    if max_bytes is None:
        return [whole]
    parts = list(_cut_to_fit(whole, make_part, max_bytes))
    too_large = [part for part in parts if part.n_bytes > max_bytes]
    if too_large:
        largest = max(too_large, key=lambda part: part.n_bytes)
        before = parts[: parts.index(largest)]
        raise _refusal(largest, sum(part.graph.n_instances for part in before), len(too_large), max_bytes)
    return parts


def _cut_to_fit(whole: Part, make_part: Callable[[Graph], Part], max_bytes: int) -> Iterator[Part]:
    """Cut until parts fit or have a single instance."""
    if whole.n_bytes <= max_bytes or whole.graph.n_instances == 1:
        yield whole
        return
    n_runs = max(2, math.ceil(HEADROOM * whole.n_bytes / max_bytes))
    for run in cut(split_graph(whole.graph), n_runs):
        yield from _cut_to_fit(make_part(merge_graphs(run)), make_part, max_bytes)


def _refusal(part: Part, position: int, n_too_large: int, max_bytes: int) -> PlanError:
    """Say which instance needs more than it may, and how many do."""
    purpose = "train on" if part.plan.mirror else "run"
    among = f", the largest of {n_too_large} that need too much" if n_too_large > 1 else ""
    return PlanError(
        f"cannot {purpose} instance {position}{among}: its {part.graph.n_nodes} nodes need {part.n_bytes} bytes and "
        f"max_bytes is {max_bytes}; allow as many, make the model narrower, or leave "
        f"{'such instances' if among else 'the instance'} out."
    )


def cut(instances: Sequence[Graph], n_runs: int) -> list[list[Graph]]:
    """Cut two or more instances into two to `n_runs` runs, none empty, of about equally many nodes.

    Each goes where its middle falls; an instance counts as a node more than it has, so that none counts nothing.
    """
    weights = np.array([instance.n_nodes + 1 for instance in instances], np.int64)
    doubled_middles = 2 * np.cumsum(weights) - weights
    places = (doubled_middles * n_runs // (2 * weights.sum())).tolist()
    placed = zip(places, instances, strict=True)
    return [[instance for _, instance in run] for _, run in groupby(placed, key=operator.itemgetter(0))]


def check_max_bytes(max_bytes: int | None) -> int | None:
    """The number of bytes, as Python's int; a PlanError refuses what is none."""
    if max_bytes is None:
        return None
    if not isinstance(max_bytes, int | np.integer) or isinstance(max_bytes, bool) or max_bytes < 1:
        raise PlanError(f"max_bytes={max_bytes!r} is no number of bytes; give an int, such as 2 * 1024**3, or None.")
    return int(max_bytes)
