"""Judge a schedule without running it: its length after compaction, and its distance from a proven bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from autobatch.errors import PolicyError
from autobatch.graph.dag import chains_ahead, to_dag
from autobatch.graph.graph import Graph
from autobatch.policies.search.bounds import pair_bound
from autobatch.policies.sequences.compaction import compact
from autobatch.schedule.schedule import Schedule

BoundKind: TypeAlias = Literal["chain", "pairs"]


@dataclass(frozen=True)
class Judgement:
    """The quality of a schedule.

    Attributes:
        compacted: number of batches after deletion of superfluous ones.
        bound: lower bound on the batches of any schedule.
        bound_kind: "chain", or "pairs" for the better bound, which takes about a second.
    """

    compacted: int
    bound: int
    bound_kind: str


def judge(graph: Graph, schedule: Schedule, bound_kind: str = "chain") -> Judgement:
    """Compact a schedule, and bound the batches of any schedule of the graph.

    Raises:
        PolicyError: `bound_kind` is unknown, or SciPy, which "pairs" needs, is missing.
    """
    dag = to_dag(graph)
    shorter = compact(dag, schedule.batch_type)
    if bound_kind == "chain":
        bound = float(chains_ahead(dag).max(axis=0, initial=0).sum())
    elif bound_kind == "pairs":
        bound = pair_bound(dag, known=shorter).value
    else:
        raise PolicyError(f"bounding a schedule: bound must be 'chain' or 'pairs', got {bound_kind!r}.")
    return Judgement(shorter.size, int(np.ceil(bound - 1e-6)), bound_kind)
