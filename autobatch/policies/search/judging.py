"""How good a schedule is: what compaction would leave of it, and how far it is from a proven bound."""

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
    """What can be said of a schedule without running it.

    Attributes:
        compacted: batches that are left when the superfluous ones are deleted.
        bound: batches that no schedule can go below.
        bound_kind: "chain", or "pairs" for the better one, which takes a second or so.
    """

    compacted: int
    bound: int
    bound_kind: str


def judge(graph: Graph, schedule: Schedule, bound_kind: str = "chain") -> Judgement:
    """Compact a schedule, and bound what any schedule of the graph can reach.

    Raises:
        PolicyError: there is no such bound, or the better one needs SciPy, which is missing.
    """
    dag = to_dag(graph)
    shorter = compact(dag, schedule.batch_type)
    if bound_kind == "chain":
        bound = float(chains_ahead(dag).max(axis=0, initial=0).sum())
    elif bound_kind == "pairs":
        bound = pair_bound(dag, known=shorter).value
    else:
        raise PolicyError(f"bounding a schedule: bound={bound_kind!r} is neither 'chain' nor 'pairs'.")
    return Judgement(shorter.size, int(np.ceil(bound - 1e-6)), bound_kind)
