"""Make a graph smaller before it is scheduled, without changing what it computes.

Six passes, in this order:

- forward: copy propagation: readers of a pass-through output read its source.
- dead: nodes that reach no returned output are dropped, including those left by the first pass.
- sums: a sum read once, by another sum of the same kind, dissolves into it, so that a chain or tree of additions
  becomes one sum of all its terms, left to right; every sum becomes the variadic one, so that all share a type.
- fold: a sum that only plain ports read is folded into them: each port then has the terms as edges.
- share_products: common-subexpression elimination where it pays: of the nodes that compute the same, in any instance,
  only the first is kept, if they are of a type whose products with matrices are worth looking for equal nodes.
- share: the same for nodes of all types. Off by default.

Each is one or two compiled sweeps over the nodes in topological order; the dropped nodes are then removed in one sweep.
A survey comes first: a pass that cannot apply neither runs nor is compiled.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import show
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.graph.rewrite.fold import fold_sums
from autobatch.graph.rewrite.share import find_shared, share_equal
from autobatch.graph.words import (
    OUTPUT,
    Sections,
    copy_attributes,
    copy_outputs,
    data_starts,
    sections,
    words_size,
    write_header,
)
from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray, indices
from autobatch.jit.loops import compiled
from autobatch.system.trust import checking

PASSES = ("forward", "dead", "sums", "fold", "share_products", "share")
DEFAULT = PASSES[:5]
UNSHARED = PASSES[:4]
"""The passes that leave equal nodes apart."""
NAMED = {"auto": DEFAULT, "all": PASSES}
FEW = 32
"""With fewer nodes that multiply matrices no equal ones are looked for: sharing some would not pay for asking."""
SEVERAL = -2
READ, ASKED_FOR = 1, 2
DROPPED, KEPT, DISSOLVED = 0, 1, 2  # the fate of a node: uint8[N]
Fate: TypeAlias = NDArray[np.uint8]


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
            f"{self.dropped} nodes without use dropped": self.dropped,
            f"{self.dissolved} sums dissolved into {self.sums}": self.dissolved,
            f"{self.widened} sums made variadic": self.widened,
            f"{self.folded} sums folded into {self.folded_edges} edges": self.folded,
            f"{self.shared} nodes shared": self.shared,
        }
        return "; ".join(text for text, count in done.items() if count) or "nothing"


NOTHING = Rewrites()


class Shared(NamedTuple):
    """What looking for equal nodes of one type gave.

    Attributes:
        type_id: of the type.
        nodes: in the graph, before nodes are shared.
        looked_up: of these; a type that is not worth it is given up.
        equal: nodes looked up that equal an earlier one.
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
        graph: of one or many instances; it is not changed.
        passes: any of `PASSES`, or "auto" or "all". "dead" keeps everything in a graph that returns nothing. After the
            last two a node, which belongs to the first instance that computes it, may be read or returned by others.

    Returns:
        The new graph, or `graph` itself if nothing applied, and the counts of changes.

    Raises:
        GraphError: there is no pass of that name.

    Cost: one sweep to find the passes that may apply, and O(N + E) for each of these.
    """
    chosen, types = passes if passes is DEFAULT else to_passes(passes), graph.types.arrays()
    words, floats, done = graph.words, graph.floats, NOTHING
    ports, may_forward, may_drop, may_take, may_widen, may_share = _survey(words, types)
    if may_forward and "forward" in chosen:
        words, forwarded = _forward(words, types.out_ptr, ports)
        if forwarded:
            done, may_drop, may_take = Rewrites(forwarded), True, True
    dead, sums = may_drop and "dead" in chosen, (may_take or may_widen) and "sums" in chosen
    if dead or sums:
        words, floats, dropped, widened, taking, dissolved = _shrink(words, floats, types, dead, sums)
        done = replace(done, dropped=dropped, widened=widened, sums=taking, dissolved=dissolved)
    if may_take and "fold" in chosen:
        words, floats, folded, folded_edges = fold_sums(words, floats, types, ports)
        done = replace(done, folded=folded, folded_edges=folded_edges)
    if "share" in chosen or (may_share and "share_products" in chosen):
        words, floats, shared = share_equal(words, floats, types, "share" not in chosen)
        done = replace(done, shared=shared)
    if done is NOTHING or done == NOTHING:
        return graph, NOTHING
    result = Graph(words, floats, graph.types, graph.structures, graph.keys)
    if checking():
        check_graph(result)
    return result, done


def explain_sharing(graph: Graph, passes: Collection[str]) -> list[Shared]:
    """Say of each type whose nodes were looked up how many equal an earlier one, and whether they are shared.

    Args:
        graph: before any pass.
        passes: as for `rewrite`; without a pass that shares, nothing is looked up.

    Cost: of all passes, again.
    """
    chosen, types = to_passes(passes), graph.types.arrays()
    by_rule = "share" not in chosen
    graph, _ = rewrite(graph, [name for name in chosen if name in UNSHARED])
    n_multiplying = np.count_nonzero(types.product_work[graph.type_id])
    if by_rule and ("share_products" not in chosen or n_multiplying < FEW):
        return []
    found = find_shared(graph.words, graph.floats, types, by_rule)
    n_nodes = np.bincount(graph.type_id, minlength=found.tried.size)
    columns = zip(n_nodes, found.tried, found.found, found.chosen, strict=True)
    return [
        Shared(type_id, int(nodes), int(looked_up), int(equal), bool(is_shared))
        for type_id, (nodes, looked_up, equal, is_shared) in enumerate(columns)
        if looked_up
    ]


def to_passes(passes: Collection[str]) -> tuple[str, ...]:
    """List passes by name, with "auto" and "all" expanded; raise a GraphError for unknown names."""
    if isinstance(passes, str) and passes in NAMED:
        return NAMED[passes]
    given = f"give 'auto', 'all', or a list of {list(PASSES)}."
    if isinstance(passes, str):
        raise GraphError(f"rewriting a graph: {passes!r} is one text; {given}")
    if not isinstance(passes, Collection) or not all(isinstance(name, str) for name in passes):
        raise GraphError(f"rewriting a graph: {show(passes)} names no passes; {given}")
    unknown = sorted(set(passes) - set(PASSES))
    if unknown:
        raise GraphError(f"rewriting a graph: {unknown} are no passes; the passes are {list(PASSES)}.")
    return tuple(passes)


@compiled
def _survey(words: IntArray, types: TypeArrays) -> tuple[IntArray, bool, bool, bool, bool, bool]:
    """Look for nodes that a pass may change, before any has run.

    Returns:
        The port that each output passes through, or -1; then five flags, whether there is: a node that may pass through
        its only edge; a node that is neither read nor returned; a sum that is not returned, and may be absorbed or
        folded; a sum that is not the variadic one; enough nodes that multiply matrices to look for equal ones.
    """
    graph, ports = sections(words), _passed_ports(types)
    type_ids, edge_src, out_node = indices(graph.type_id), indices(graph.edge_src), indices(graph.out_node)
    used = np.zeros(type_ids.size, np.uint8)
    for source in edge_src:
        used[source] = READ
    for node in out_node:
        used[node] = ASKED_FOR
    sums, widens = np.zeros(types.sum_type.size, np.bool_), np.zeros(types.sum_type.size, np.bool_)
    for type_id in range(sums.size):
        widens[type_id] = types.sum_type[type_id] >= 0 and types.sum_type[type_id] != type_id
        sums[type_id] = types.sum_type[type_id] >= 0 or _any_id(
            ports[types.out_ptr[type_id] : types.out_ptr[type_id + 1]]
        )
    multiplies = types.product_work > 0
    n_used = n_multiplying = 0
    may_forward = may_take = may_widen = False
    for node in range(type_ids.size):
        n_used += used[node] > 0
        n_multiplying += multiplies[type_ids[node]]
        if sums[type_ids[node]]:
            may_take |= used[node] < ASKED_FOR
            may_widen |= widens[type_ids[node]]
            first, end = graph.edge_ptr[node], graph.edge_ptr[node + 1]
            for e in range(first, end):
                starts = e == first or graph.edge_in[e - 1] != graph.edge_in[e]
                may_forward |= starts and (e + 1 == end or graph.edge_in[e + 1] != graph.edge_in[e])
    return ports, may_forward, n_used < type_ids.size, may_take, may_widen, n_multiplying >= FEW


@compiled
def _shrink(
    words: IntArray, floats: FloatArray, types: TypeArrays, dead: bool, sums: bool
) -> tuple[IntArray, FloatArray, int, int, int, int]:
    """Run the passes that drop or merge nodes, and write a new graph if they found any.

    Returns:
        The words and float attributes, and the counts of dropped nodes, widened sums, sums that absorb others, and
        dissolved ones.
    """
    graph = sections(words)
    fate = np.full(graph.type_id.size, KEPT, np.uint8)
    dropped = widened = taking = dissolved = 0
    if dead and graph.out_node.size > 0:
        dropped = _drop_dead(graph, fate)
    n_terms = _n_edges(graph.edge_ptr)
    if sums and _any_id(types.sum_type):
        widened, taking, dissolved = _dissolve_sums(graph, types.sum_type, fate, n_terms)
    if dropped + widened + dissolved > 0:
        words, floats = _cut(graph, floats, types, fate, n_terms, sums)
    return words, floats, dropped, widened, taking, dissolved


@compiled
def _any_id(values: IntArray) -> bool:
    """Say whether any value is set, that is, not -1."""
    found = False
    for value in values:
        found |= value >= 0
    return bool(found)


@compiled
def _passed_ports(types: TypeArrays) -> IntArray:
    """Find the port that each output passes through, or -1; a variadic sum of a single value passes that through."""
    ports = types.pass_port.copy()
    for type_id in range(types.sum_type.size):
        if types.sum_type[type_id] == type_id:
            ports[types.out_ptr[type_id]] = 0
    return ports


@compiled
def _forward(words: IntArray, out_ptr: IntArray, ports: IntArray) -> tuple[IntArray, int]:
    """Redirect edges and outputs, in a copy; count them. Sources are final before their readers are visited."""
    forwarded = words.copy()
    graph, n_forwarded = sections(forwarded), 0
    type_id, edge_ptr, edge_src, edge_out = graph.type_id, graph.edge_ptr, graph.edge_src, graph.edge_out
    for e in range(edge_src.size):
        node = edge_src[e]
        port = ports[out_ptr[type_id[node]] + (edge_out[e] & OUTPUT)]
        if port >= 0:
            origin = _only_edge(graph.edge_in, edge_ptr[node], edge_ptr[node + 1], port)
            if origin >= 0:
                edge_src[e], edge_out[e] = edge_src[origin], edge_out[origin]
                n_forwarded += 1
    for o in range(graph.out_node.size):
        node = graph.out_node[o]
        port = ports[out_ptr[type_id[node]] + (graph.out_port[o] & OUTPUT)]
        if port >= 0:
            origin = _only_edge(graph.edge_in, edge_ptr[node], edge_ptr[node + 1], port)
            if origin >= 0:
                graph.out_node[o], graph.out_port[o] = edge_src[origin], edge_out[origin]
                n_forwarded += 1
    return forwarded, n_forwarded


@compiled
def _only_edge(edge_in: IntArray, first: int, end: int, port: int) -> int:
    """Find the edge of a port, among the edges first:end of a node; -1 if the port has none or several."""
    e = first + np.searchsorted(edge_in[first:end], port)
    if e == end or edge_in[e] != port or (e + 1 < end and edge_in[e + 1] == port):
        return -1
    return int(e)


@compiled
def _drop_dead(graph: Sections, fate: Fate) -> int:
    """Mark nodes that reach no output as dropped; return how many."""
    fate[:] = DROPPED
    for node in graph.out_node:
        fate[node] = KEPT
    n_dropped = 0
    edge_ptr, edge_src = graph.edge_ptr, graph.edge_src
    for node in range(fate.size - 1, -1, -1):
        if fate[node] == DROPPED:
            n_dropped += 1
        else:
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                fate[edge_src[e]] = KEPT
    return n_dropped


@compiled
def _n_edges(edge_ptr: IntArray) -> IntArray:
    """Count the edges that each node reads."""
    count = np.empty(edge_ptr.size - 1, np.int32)
    for node in range(count.size):
        count[node] = edge_ptr[node + 1] - edge_ptr[node]
    return count


@compiled
def _dissolve_sums(graph: Sections, sum_type: IntArray, fate: Fate, n_terms: IntArray) -> tuple[int, int, int]:
    """Mark sums that dissolve into their reader, and count in `n_terms` what each node then reads.

    An empty sum is kept: without it, its reader might be left with one term, which only another forward pass would
    remove.

    Returns:
        The counts of widened sums, of sums that absorb others, and of dissolved ones.
    """
    only_reader = _only_readers(graph, fate)
    type_ids, edge_ptr, edge_src = graph.type_id, graph.edge_ptr, graph.edge_src
    n_widened = n_folded = n_dissolved = 0
    for node in range(fate.size):
        type_id = sum_type[type_ids[node]]
        if type_id < 0 or fate[node] == DROPPED:
            continue
        n_taken = 0
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            source = edge_src[e]
            if fate[source] == DISSOLVED:
                n_terms[node] += n_terms[source] - 1
                n_taken += 1
        reader = only_reader[node]
        if reader >= 0 and sum_type[type_ids[reader]] == type_id and n_terms[node] > 0:
            fate[node] = DISSOLVED
            n_dissolved += 1
        else:
            n_folded += n_taken > 0
            n_widened += type_ids[node] != type_id
    return n_widened, n_folded, n_dissolved


@compiled
def _only_readers(graph: Sections, fate: Fate) -> IntArray:
    """Find each node's only reader, ignoring dropped nodes; negative if it has none, several, or is returned."""
    reader = np.full(fate.size, -1, np.int32)
    edge_ptr, edge_src = graph.edge_ptr, graph.edge_src
    for node in range(fate.size):
        if fate[node] != DROPPED:
            for e in range(edge_ptr[node], edge_ptr[node + 1]):
                source = edge_src[e]
                reader[source] = node if reader[source] == -1 else SEVERAL
    for node in graph.out_node:
        reader[node] = SEVERAL
    return reader


@compiled
def _cut(
    graph: Sections, floats: FloatArray, types: TypeArrays, fate: Fate, n_terms: IntArray, sums: bool
) -> tuple[IntArray, FloatArray]:
    """Write a new graph with the kept nodes only, dissolved sums expanded and, if `sums`, sums widened."""
    n_outputs, (int_starts, float_starts) = graph.out_node.size, data_starts(graph.type_id, graph.attr, types)
    number = np.zeros(fate.size + 1, np.int32)
    n_edges = n_attr = n_floats = 0
    for node in range(fate.size):
        number[node + 1] = number[node]
        if fate[node] == KEPT:
            number[node + 1] += 1
            n_edges += n_terms[node]
            n_attr += int_starts[node + 1] - int_starts[node]
            n_floats += float_starts[node + 1] - float_starts[node]
    n_instances, n_nodes = graph.instance_ptr.size - 1, number[fate.size]
    words = np.empty(words_size(n_instances, n_nodes, n_edges, n_attr, n_outputs), np.int32)
    result = write_header(words, n_instances, n_nodes, n_edges, n_attr, n_outputs, n_floats)
    for i in range(n_instances + 1):
        result.instance_ptr[i] = number[graph.instance_ptr[i]]
    copy_outputs(graph, result, number)
    _write_nodes(graph, result, _final_types(types.sum_type, sums), fate, number, n_terms)
    kept_floats = np.empty(n_floats, np.float64)
    copy_attributes(graph.attr, result.attr, int_starts, number)
    copy_attributes(floats, kept_floats, float_starts, number)
    return words, kept_floats


@compiled
def _final_types(sum_type: IntArray, sums: bool) -> IntArray:
    """Find the final type of nodes of each type: for sums, that of the variadic sum."""
    final = sum_type.copy()
    for type_id in range(final.size):
        if not sums or final[type_id] < 0:
            final[type_id] = type_id
    return final


@compiled
def _write_nodes(
    graph: Sections, result: Sections, final_type: IntArray, fate: Fate, number: IntArray, n_terms: IntArray
) -> None:
    """Write types and edges, readers first, so that a reader sets the places of the terms of the sums it absorbs."""
    type_ids, edge_ptr, edge_src = graph.type_id, graph.edge_ptr, graph.edge_src
    place = np.empty(fate.size, np.int32)  # where the edges of a node begin
    end = result.edge_src.size
    for node in range(fate.size - 1, -1, -1):
        if fate[node] == DROPPED:
            continue
        type_id = final_type[type_ids[node]]
        if fate[node] == KEPT:
            result.type_id[number[node]] = type_id
            result.edge_ptr[number[node] + 1] = end
            end -= n_terms[node]
            place[node] = end
        at = place[node]
        for e in range(edge_ptr[node], edge_ptr[node + 1]):
            source = edge_src[e]
            if fate[source] == DISSOLVED:
                place[source] = at
                at += n_terms[source]
            else:
                result.edge_src[at] = number[source]
                result.edge_out[at] = graph.edge_out[e]
                result.edge_in[at] = graph.edge_in[e] if type_id == type_ids[node] else 0
                at += 1
