"""Make a graph smaller before it is scheduled, without changing its results.

Six passes, in this order:

- forward: copy propagation: readers of a pass-through output read its source.
- dead: nodes that reach no returned output are dropped, including those left by the first pass.
- sums: a sum read once, by another sum of the same kind, dissolves into it, so that a chain or tree of additions
  becomes one sum of all its terms, left to right; every sum becomes the variadic one, so that all share a type.
- fold: a sum that only plain ports read is folded into them: each port then has the terms as edges.
- share_products: common-subexpression elimination where it pays: of equal nodes, in any instance, only the first is
  kept, for the types whose matrix products are worth the search.
- share: the same for nodes of all types. Off by default.

Each is one or two sweeps over the nodes in topological order; the dropped nodes are then removed in one sweep. A survey
comes first: a pass that cannot apply does not run. All of it is one call of the native core, `native/graph/rewrite/`,
which defines the conditions and rules of the passes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autobatch._native import count_shared, rewrite_words
from autobatch.arguments import show
from autobatch.arrays import FloatArray, IntArray
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.system.unchecked import checking

PASSES = ("forward", "dead", "sums", "fold", "share_products", "share")
DEFAULT = PASSES[:5]
UNSHARED = PASSES[:4]
"""The passes that do not merge equal nodes."""
NAMED = {"auto": DEFAULT, "all": PASSES}
DEFAULT_BITS = (1 << len(DEFAULT)) - 1


@dataclass(frozen=True)
class Rewrites:
    """Counts of the changes that `rewrite` made.

    Attributes:
        forwarded: edges and outputs that now read the source of a pass-through value.
        dropped: nodes cut because they reach no output.
        widened: sums of fixed arity that were replaced by the variadic sum.
        sums: sums that absorbed others.
        dissolved: sums that were absorbed, each one node less.
        folded: sums that were folded into their readers, each one node less.
        folded_edges: edges from the terms to these readers.
        shared: nodes cut because an earlier one computes the same.
    """

    forwarded: int = 0
    dropped: int = 0
    widened: int = 0
    sums: int = 0
    dissolved: int = 0
    folded: int = 0
    folded_edges: int = 0
    shared: int = 0

    def __str__(self) -> str:
        done = {
            f"{self.forwarded} edges forwarded": self.forwarded,
            f"{self.dropped} unused nodes dropped": self.dropped,
            f"{self.dissolved} sums dissolved into {self.sums}": self.dissolved,
            f"{self.widened} sums made variadic": self.widened,
            f"{self.folded} sums folded into {self.folded_edges} edges": self.folded,
            f"{self.shared} nodes shared": self.shared,
        }
        return "; ".join(text for text, count in done.items() if count) or "nothing"


NOTHING = Rewrites()


class Shared(NamedTuple):
    """The result of the search for equal nodes of one type.

    Attributes:
        type_id: the type.
        nodes: number of its nodes, before any are shared.
        looked_up: number of nodes looked up; the search ends early for a type where it does not pay.
        equal: number of nodes looked up that equal an earlier one.
        is_shared: whether the equal ones are computed once.
    """

    type_id: int
    nodes: int
    looked_up: int
    equal: int
    is_shared: bool


def rewrite(graph: Graph, passes: Collection[str] = DEFAULT) -> tuple[Graph, Rewrites]:
    """Apply the named passes; they run in the order of `PASSES`.

    Args:
        graph: the graph of one or more instances; it is not changed.
        passes: any of `PASSES`, or "auto" or "all". "dead" keeps everything in a graph that returns nothing. After the
            last two, a node belongs to the first instance that computes it, and others may read or return it.

    Returns:
        The new graph, or `graph` itself if nothing applied, and the counts of changes.

    Raises:
        GraphError: a pass is unknown.

    Cost: one sweep to find the passes that may apply, and O(N + E) for each of these.
    """
    result, done = rewritten(graph, *rewrite_words(graph.words, graph.floats, graph.types.arrays(), bits_of(passes)))
    if checking():
        check_graph(result)
    return result, done


def rewritten(graph: Graph, words: IntArray, floats: FloatArray, changes: tuple[int, ...]) -> tuple[Graph, Rewrites]:
    """Make a graph from the arrays that the core has rewritten; return `graph` itself if nothing applied."""
    if words is graph.words:
        return graph, NOTHING
    return Graph(words, floats, graph.types, graph.structures, graph.keys), Rewrites(*changes)


def explain_sharing(graph: Graph, passes: Collection[str]) -> list[Shared]:
    """Report, for each type whose nodes were looked up, how many equal an earlier one, and whether they are shared.

    Args:
        graph: the graph, before any pass.
        passes: as for `rewrite`; without a pass that shares, nothing is looked up.

    Cost: about the cost of all passes.
    """
    chosen = to_passes(passes)
    if "share" not in chosen and "share_products" not in chosen:
        return []
    # The passes before sharing change which nodes are equal, so search the graph that they leave.
    graph, _ = rewrite(graph, [name for name in chosen if name in UNSHARED])
    types = graph.types.arrays()
    by_type = count_shared(graph.words, graph.floats, types, "share" not in chosen)
    n_nodes = np.bincount(graph.type_id, minlength=len(by_type[0]))
    columns = zip(n_nodes, *by_type, strict=True)
    return [
        Shared(type_id, int(nodes), int(looked_up), int(equal), bool(is_shared))
        for type_id, (nodes, looked_up, equal, is_shared) in enumerate(columns)
        if looked_up
    ]


def to_passes(passes: Collection[str]) -> tuple[str, ...]:
    """List passes by name, with "auto" and "all" expanded; raise a GraphError for unknown names."""
    if isinstance(passes, str) and passes in NAMED:
        return NAMED[passes]
    wanted = f"rewriting a graph: passes must be 'auto', 'all', or a list of {list(PASSES)}, got"
    if isinstance(passes, str):
        raise GraphError(f"{wanted} {passes!r}.")
    if not isinstance(passes, Collection) or not all(isinstance(name, str) for name in passes):
        raise GraphError(f"{wanted} {show(passes)}.")
    unknown = sorted(set(passes) - set(PASSES))
    if unknown:
        raise GraphError(f"rewriting a graph: unknown passes {unknown}; the passes are {list(PASSES)}.")
    return tuple(passes)


def bits_of(passes: Collection[str]) -> int:
    """Return a set of passes as the bits of an int."""
    # A set, because the bit of a repeated name must not be added twice.
    return DEFAULT_BITS if passes is DEFAULT else sum(1 << PASSES.index(name) for name in set(to_passes(passes)))
