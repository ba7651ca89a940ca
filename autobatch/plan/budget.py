"""Split a mini-batch into parts if it needs more memory than allowed.

A plan knows the size of its buffer before anything runs, and the backend knows how much scratch memory it takes. If the
two together exceed the limit, the instances are split into runs of about equal numbers of nodes, as many runs as should
be needed, and each run is planned separately; a run that still does not fit is split again. Random numbers depend on
keys that instances keep, so parts compute the same values as the whole.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from autobatch.arguments import show
from autobatch.errors import PlanError
from autobatch.graph.build import split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite import Rewrites
from autobatch.plan.plan import Plan

# Runs with equally many nodes differ in bytes. Of 1, 1.05, 1.1 and 1.2, this gave the fewest parts in total.
HEADROOM = 1.05


class Figures(NamedTuple):
    """The figures of a part that remain when its plan is gone.

    Attributes:
        graph: the graph as scheduled, after the rewrites.
        n_batches: the batches of its schedule.
        n_bytes: bytes of its values and of the scratch memory of the backend.
        unseen_share: see `autobatch.schedule.schedule.BasePolicy`; None for policies that do not learn.
    """

    graph: Graph
    n_batches: int
    n_bytes: int
    unseen_share: float | None


class Part(NamedTuple):
    """Instances that run together, planned.

    Attributes:
        graph: as recorded or merged, before the rewrites.
        rewrites: the changes made to it before planning.
        executable: the plan, prepared by the backend; it knows its memory, see `autobatch.backends.base.Executable`.
        figures: for reports after its run.
    """

    graph: Graph
    rewrites: Rewrites
    plan: Plan
    executable: Any
    figures: Figures

    @property
    def n_bytes(self) -> int:
        return self.figures.n_bytes


def fit_parts(whole: Part, make_part: Callable[[list[Graph]], Part], max_bytes: int | None) -> list[Part]:
    """Split a mini-batch into parts, in order, that take at most `max_bytes` each; `[whole]` if it fits.

    Args:
        whole: the mini-batch, planned.
        make_part: merges and plans some of its instances.
        max_bytes: the limit; None for no limit.

    Raises:
        PlanError: some instances do not fit on their own; the message names the one that needs most.
        GraphError: the instances share nodes already.

    Cost: planning once more, in most cases; splitting and merging take a native pass each.
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


def _cut_to_fit(whole: Part, make_part: Callable[[list[Graph]], Part], max_bytes: int) -> Iterator[Part]:
    """Split until each part fits or has a single instance."""
    if whole.n_bytes <= max_bytes or whole.graph.n_instances == 1:
        yield whole
        return
    n_runs = max(2, math.ceil(HEADROOM * whole.n_bytes / max_bytes))
    for run in cut(split_graph(whole.graph), n_runs):
        yield from _cut_to_fit(make_part(run), make_part, max_bytes)


def _refusal(part: Part, position: int, n_too_large: int, max_bytes: int) -> PlanError:
    """Return the error that names the instance that needs most, and the number of those that do not fit."""
    purpose = "train on" if part.plan.gradient_offset else "run"
    among = f", the largest of {n_too_large} that need too much" if n_too_large > 1 else ""
    return PlanError(
        f"cannot {purpose} instance {position}{among}: its {part.graph.n_nodes} nodes need {part.n_bytes} bytes, but "
        f"max_bytes is {max_bytes}; raise it, make the model narrower, or leave "
        f"{'such instances' if among else 'the instance'} out."
    )


def cut(instances: Sequence[Graph], n_runs: int) -> list[list[Graph]]:
    """Split two or more instances into two to `n_runs` non-empty runs of about equal numbers of nodes.

    An instance belongs to the run that contains its middle node. It counts as one node more than it has, so that empty
    instances count too.
    """
    weights = np.array([instance.n_nodes + 1 for instance in instances], np.int64)
    doubled_middles = 2 * np.cumsum(weights) - weights
    # The first and the last place differ by at least n_runs / 2 before they are rounded down, so there are two runs or
    # more, and repeated splitting ends.
    places = (doubled_middles * n_runs // (2 * weights.sum())).tolist()
    placed = zip(places, instances, strict=True)
    return [[instance for _, instance in run] for _, run in groupby(placed, key=operator.itemgetter(0))]


def check_max_bytes(max_bytes: int | None) -> int | None:
    """Return the limit as a Python int; raise a PlanError unless it is a positive int or None."""
    if max_bytes is None:
        return None
    if not isinstance(max_bytes, int | np.integer) or isinstance(max_bytes, bool) or max_bytes < 1:
        raise PlanError(f"max_bytes must be a positive int, such as 2 * 1024**3, or None, got {show(max_bytes)}.")
    return int(max_bytes)
