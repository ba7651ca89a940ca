"""Mini-batches that need more memory than they may have run in parts.

A plan says how large its buffer is before anything runs. Where that is too large, the instances are cut into runs of
about equally many nodes, as many as should fit, and each is planned by itself; what still does not fit is cut again.
Random numbers depend on keys that instances keep, so parts compute what the whole would.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from autobatch.errors import PlanError
from autobatch.graph import Graph, merge_graphs, split_graph
from autobatch.plan import Plan
from autobatch.rewrite import Rewrites

HEADROOM = 1.05  # runs of equal nodes differ in bytes; of 1, 1.05, 1.1 and 1.2 it led to the fewest parts in total


@dataclass(frozen=True, eq=False)
class Part:
    """Instances that run together, planned.

    Attributes:
        graph: as recorded or merged, before the rewrites.
        rewrites: what was done to it before it was planned.
        n_bytes: what its values take.
        unseen_share: see `autobatch.schedule.Policy`; None for policies that do not learn.
    """

    graph: Graph
    rewrites: Rewrites
    plan: Plan
    n_bytes: int
    unseen_share: float | None = None

    @property
    def n_batches(self) -> int:
        """Batches of its schedule."""
        return self.plan.schedule.n_batches


def fit_parts(whole: Part, make_part: Callable[[Graph], Part], max_bytes: int | None, first: int = 0) -> list[Part]:
    """Cut a mini-batch into parts, in order, whose values take `max_bytes` or less each; `[whole]` if it fits.

    Args:
        whole: the mini-batch, planned.
        make_part: plans some of its instances.
        max_bytes: None for no limit.
        first: the position of its first instance, for messages.

    Raises:
        PlanError: an instance does not fit alone.
        GraphError: nodes are shared between the instances already.

    Cost: planning again, in most cases once; splitting and merging take a compiled pass each.
    """
    if max_bytes is None or whole.n_bytes <= max_bytes:
        return [whole]
    if whole.graph.n_instances == 1:
        purpose = "train on" if whole.plan.mirror else "run"
        raise PlanError(
            f"cannot {purpose} instance {first}: its {whole.graph.n_nodes} nodes need {whole.n_bytes} bytes and "
            f"max_bytes is {max_bytes}; allow as many, make the model narrower, or leave the instance out."
        )
    parts = []
    n_runs = max(2, math.ceil(HEADROOM * whole.n_bytes / max_bytes))
    for run in cut(split_graph(whole.graph), n_runs):
        parts += fit_parts(make_part(merge_graphs(run)), make_part, max_bytes, first)
        first += len(run)
    return parts


def cut(instances: Sequence[Graph], n_runs: int) -> list[list[Graph]]:
    """Cut two or more instances into two to `n_runs` runs, none empty, of about equally many nodes.

    Each goes where its middle falls; an instance counts as a node more than it has, so that none counts nothing.
    """
    weights = np.array([instance.n_nodes + 1 for instance in instances], np.int64)
    doubled_middles = 2 * np.cumsum(weights) - weights
    places = (doubled_middles * n_runs // (2 * weights.sum())).tolist()
    placed = zip(places, instances, strict=True)
    return [[instance for _, instance in run] for _, run in groupby(placed, key=operator.itemgetter(0))]


def check_max_bytes(max_bytes: int | None) -> None:
    """Refuse what is no number of bytes, with a PlanError."""
    if max_bytes is not None and (not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 1):
        raise PlanError(f"max_bytes={max_bytes!r} is no number of bytes; give an int, such as 2 * 1024**3, or None.")
