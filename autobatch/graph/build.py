"""Build graphs by hand, merge the graphs of instances into the graph of a mini-batch, and split it again."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np

from autobatch._native import crossing_node, first_out_of_range, split_words
from autobatch._native import merge_graphs as merge_arrays
from autobatch.arguments import RAW
from autobatch.errors import DataError, GraphError
from autobatch.graph.graph import MAX_WORDS, Graph, NamedTypes, Types
from autobatch.graph.graph_check import check_graph, refuse_backward_edges
from autobatch.graph.words import words_size, write_header
from autobatch.keywords import checked, refuse_arguments
from autobatch.system.unchecked import checking


@checked(types=GraphError, type_id=GraphError, edges=GraphError, outputs=GraphError, attr=GraphError)
def make_graph(
    types: Types,
    type_id: Sequence[int],
    edges: Iterable[Sequence[int]],
    outputs: Iterable[int] = (),
    attr: Sequence[int] = (),
    floats: Sequence[float] = (),
) -> Graph:
    """Make the graph of one instance by hand.

    Args:
        types: the table of types.
        type_id: the type of each node; nodes are numbered in topological order.
        edges: (source, reader), (source, reader, output) or (source, reader, output, port); output and port default to
            0. In any order, except that the edges of one port are in the order in which it reads them.
        outputs: the nodes whose first output is returned.
        attr, floats: the int and float attributes of all nodes, in node order.

    Raises:
        GraphError: a type, node or output does not exist, a number is not an integer, an edge points backwards (the
            message says whether the nodes are misnumbered or form a cycle), or the attributes do not fit the types.

    >>> print(make_graph(NamedTypes(("cell", "add")), [0, 0, 1], [(0, 2), (1, 2)], outputs=[2]))
    Graph(instances=1, nodes=3, edges=2, types=2, outputs=1)
    instance 0 returns 2
      0 = cell()
      1 = cell()
      2 = add([0, 1])
    """
    ids = _ids("type", type_id, len(types))
    n_nodes = len(ids)
    rows = [_edge(edge, n_nodes) for edge in edges]
    wanted = _ids("output node", outputs, n_nodes)
    refuse_backward_edges([types.names[t] for t in ids], [row[:2] for row in rows])
    # The sort is stable, so the edges of one port keep the order in which they were given.
    rows.sort(key=lambda row: (row[1], row[3]))
    table = np.array(rows, np.int32).reshape(-1, 4)
    words = np.empty(words_size(1, n_nodes, len(rows), len(attr), len(wanted)), np.int32)
    parts = write_header(words, 1, n_nodes, len(rows), len(attr), len(wanted), len(floats))
    parts.instance_ptr[1], parts.output_ptr[1] = n_nodes, len(wanted)
    parts.type_id[:] = ids
    parts.edge_ptr[:] = np.searchsorted(table[:, 1], np.arange(n_nodes + 1))
    parts.edge_src[:], parts.edge_out[:], parts.edge_in[:] = table[:, 0], table[:, 2], table[:, 3]
    parts.attr[:] = _integers("attribute", attr)
    parts.out_node[:], parts.out_port[:], parts.out_slot[:] = wanted, 0, np.arange(len(wanted))
    graph = Graph(words, np.array(floats, np.float64), types, (None,))
    check_graph(graph)
    return graph


def merge_graphs(graphs: Sequence[Graph], types: Types | None = None) -> Graph:
    """Merge graphs into one, with their nodes numbered consecutively; return a single graph unchanged.

    Args:
        graphs: graphs with one `types` table, each of any number of instances.
        types: the table, needed only where `graphs` may be empty.

    Raises:
        GraphError: the graphs have different tables, or more than 2**31 - 1 words in all.
        DataError: an int attribute is out of its range, see `check_ranges`.

    Cost: one native pass over the words.
    """
    try:
        listed = list(graphs)
        merged = merged_graph(listed, None if len(listed) == 1 else merge_arrays(listed), types)
    except OverflowError:
        raise _too_large(listed) from None
    except RAW:
        refuse_arguments(merge_graphs, (graphs, types), {})
        raise
    if checking():
        check_graph(merged)
    return merged


def merged_graph(graphs: list[Graph], merged: tuple[Any, ...] | None, types: Types | None) -> Graph:
    """Make a graph from the arrays that the core has merged (None for a single graph); see `merge_graphs`."""
    # A single graph has no new arrays, one table of types, and its own `in_range`.
    words, floats, structures, keys, are_alike, in_range = merged or (None,) * 4 + (True, graphs[0].in_range)
    # If all graphs have the same table, comparing the first one's with `types` is enough.
    if types is None or not are_alike or any(graph.types is not types for graph in graphs[:1]):
        types = _common_types(graphs, types)
    graph = graphs[0] if words is None else Graph(words, floats, types, structures, keys)
    if not in_range:
        check_ranges(graph)
        # Note on each graph that it has passed, so that later merges need not check it again.
        for one in graphs:
            one.in_range = True
    graph.in_range = True
    return graph


def _too_large(graphs: Sequence[Graph]) -> GraphError:
    n_words, n_floats = sum(graph.words.size for graph in graphs), sum(graph.floats.size for graph in graphs)
    return GraphError(
        f"merging {len(graphs)} graphs gives about {n_words} words and {n_floats} float attributes, but positions are "
        f"int32, so {MAX_WORDS} is the most; merge fewer instances at a time."
    )


def split_graph(graph: Graph) -> list[Graph]:
    """Return the instances of a graph as separate graphs, which undoes a merge of single instances.

    Their words are views of one new buffer, their floats views of `graph.floats`.

    Raises:
        GraphError: an instance reads or returns a node of another.
    """
    if type(graph) is not Graph:
        refuse_arguments(split_graph, (graph,), {})
    shared = crossing_node(graph.words)
    if shared >= 0:
        raise GraphError(
            f"splitting {graph!r} by instance: node {shared} ({graph.type_of(shared)!r}) is used by several "
            f"instances; split before nodes are shared between instances."
        )
    buffer, ptr, float_ptr = split_words(graph.words, graph.types.arrays())
    ends, cuts = ptr.tolist(), float_ptr.tolist()
    split = [
        Graph(
            buffer[ends[i] : ends[i + 1]],
            graph.floats[cuts[i] : cuts[i + 1]],
            graph.types,
            (structure,),
            graph.keys[i : i + 1],
        )
        for i, structure in enumerate(graph.structures)
    ]
    for part in split:
        part.in_range = graph.in_range
    return split


def check_ranges(graph: Graph) -> None:
    """Check that every limited int attribute (word id, label) lies within its range.

    Raises:
        DataError: an attribute is out of range; the message names the first one.
    """
    for error in find_out_of_range(graph).values():
        raise error
    graph.in_range = True


def find_out_of_range(graph: Graph) -> dict[int, DataError]:
    """Return, by instance, an error for each instance with a limited int attribute outside its range."""
    arrays, found = graph.types.arrays(), dict[int, DataError]()
    if not arrays.range_size.size:
        return found
    for node, r, value, size in first_out_of_range(graph.words, arrays).tolist():
        instance = int(np.searchsorted(graph.instance_ptr, node, side="right")) - 1
        # A negative size stands for the rows of a variadic group, whose number differs between nodes.
        if arrays.range_size[r] < 0:
            takes = (
                f"chooses one of {size} rows; give a position in 0..{size - 1}." if size else "has no row to choose."
            )
        else:
            takes = f"takes 0..{size - 1}; map unknown ids to one in that range, or enlarge what they index."
            if -size <= value < 0:
                takes += f" Ids do not count from the end: give {value + size} for the same element."
        found[instance] = DataError(
            f"merging instances: instance {instance}, node {node - graph.instance_ptr[instance]} "
            f"({graph.type_of(node)!r}) gives {value} as {graph.types.describe_range(r)}, which {takes}"
        )
    return found


def _common_types(graphs: Sequence[Graph], types: Types | None) -> Types:
    if types is None:
        types = graphs[0].types if graphs else NamedTypes(())
    for i, graph in enumerate(graphs):
        if graph.types is not types and graph.types != types:
            ours, theirs = list(types.names), list(graph.types.names)
            how = f"numbers its types by {theirs}, but the batch by {ours}"
            if ours in ([], theirs):
                how = "was recorded by another batched function, or by the original of this copy"
            raise GraphError(
                f"merging {len(graphs)} graphs: graph {i} {how}; record all instances with the same batched function."
            )
    return types


def _edge(edge: Sequence[int], n_nodes: int) -> tuple[int, int, int, int]:
    """Read one edge as (source, reader, output, port)."""
    if not 2 <= len(edge) <= 4:
        raise GraphError(
            f"making a graph: an edge must be (source, reader), with an output and a port where they are not 0, got "
            f"{edge!r}."
        )
    source, reader = _ids(f"node in edge {edge!r}", edge[:2], n_nodes)
    output, port = _integers(f"part of edge {edge!r}", [*edge[2:], 0, 0][:2])
    return source, reader, output, port


def _ids(what: str, values: Iterable[SupportsIndex], n_known: int) -> list[int]:
    """Convert to ints within 0..n_known-1; raise a GraphError for the first one outside."""
    numbers = _integers(what, values)
    for number in numbers:
        if not 0 <= number < n_known:
            raise GraphError(f"making a graph: {what} {number} does not exist; there are {n_known}, numbered from 0.")
    return numbers


def _integers(what: str, values: Iterable[SupportsIndex]) -> list[int]:
    numbers = []
    for value in values:
        try:
            numbers.append(operator.index(value))
        except TypeError:
            raise GraphError(f"making a graph: {what} must be an int, got {value!r}.") from None
    return numbers
