"""Check that a graph is well formed, from the definition and not from the code that builds one."""

from __future__ import annotations

import graphlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import IntArray
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.graph.words import HEADER, MOST_ROWS, OUTPUT, OUTPUT_BITS, words_size
from autobatch.keywords import checked


@checked()
def check_graph(graph: Graph) -> None:
    """Check that sizes, pointers, ids, ports and attributes agree, and that every edge points forward.

    A node has edges only at the ports of its type, and at least one edge at each plain port. Several edges of a plain
    port are a folded sum: the port reads the sum of their values, and the values that come from nodes of one type are
    all the same output, or rows of it. Types without known ports, such as `NamedTypes`, may have any.

    Raises:
        GraphError: the graph is malformed; the message names the first violation.

    Cost: O(N + E), in NumPy.
    """
    _check_sizes(graph)
    _check_pointer("instance_ptr", graph.instance_ptr, graph.n_nodes)
    _check_pointer("output_ptr", graph.output_ptr, graph.n_outputs)
    _check_pointer("edge_ptr", graph.edge_ptr, graph.n_edges)
    _check_within("type_id", graph.type_id, graph.n_types)
    _check_attributes(graph)
    _check_within("edge_src", graph.edge_src, graph.n_nodes)
    _check_within("out_node", graph.out_node, graph.n_nodes)
    n_outputs = np.diff(graph.types.arrays().out_ptr)[graph.type_id]
    _check_within("edge_out", graph.edge_out & OUTPUT, n_outputs[graph.edge_src])
    _check_within("out_port", graph.out_port & OUTPUT, n_outputs[graph.out_node])
    for name, words in (("edge_out", graph.edge_out), ("out_port", graph.out_port)):
        _check_within(f"the row of {name}", words >> OUTPUT_BITS, MOST_ROWS)
    check_order(graph)
    _check_ports(graph)


@contextmanager
def naming_cycles(graph: Graph) -> Iterator[None]:
    """Replace the core's ValueError about the edges of a graph by the GraphError of `check_order`.

    So the planner needs no separate pass to check edges.
    """
    try:
        yield
    except ValueError:
        check_order(graph)
        raise


def check_order(graph: Graph) -> None:
    """Check that every edge points from a node to a later one.

    Raises:
        GraphError: an edge does not; the message names the first one.
    """
    reader = _readers(graph)
    for e in np.flatnonzero(graph.edge_src >= reader):
        edge = (int(graph.edge_src[e]), int(reader[e]))
        raise _broken(f"{_edge_text({node: graph.type_of(node) for node in edge}, *edge)} points backwards")


def refuse_backward_edges(names: Sequence[str], edges: Sequence[tuple[int, int]]) -> None:
    """Raise a GraphError unless all edges (source, reader) go to higher nodes; `names` are the types of the nodes.

    Raises:
        GraphError: the nodes form a cycle, which the message names, or are numbered in a wrong order.
    """
    backward = next(((source, reader) for source, reader in edges if source >= reader), None)
    if backward is None:
        return
    claim = f"making a graph: {_edge_text(names, *backward)} points backwards"
    # Start with all nodes, because those without edges also have a place in the order.
    readers: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter(dict.fromkeys(range(len(names)), ()))
    for source, reader in edges:
        readers.add(reader, source)
    try:
        order = list(readers.static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(f"{node} ({names[node]!r})" for node in error.args[1])
        raise GraphError(f"{claim}, and there is a cycle {cycle}; remove one of its edges.") from None
    shown = ", ".join(map(str, order[:20])) + (", ..." if len(order) > 20 else "")
    raise GraphError(f"{claim}, although there is no cycle; number the nodes in a topological order, such as {shown}.")


def _check_sizes(graph: Graph) -> None:
    b, n, e, a, o, f = graph.words[:HEADER].tolist()
    size = words_size(b, n, e, a, o)
    if min(b, n, e, a, o, f) < 0 or graph.words.size != size:
        raise _broken(f"the header {[b, n, e, a, o, f]} requires {size} words, but there are {graph.words.size}")
    if graph.floats.size != f:
        raise _broken(f"the header requires {f} float attributes, but there are {graph.floats.size}")
    if len(graph.structures) != b:
        raise _broken(f"there are {b} instances, but {len(graph.structures)} structures")


def _check_attributes(graph: Graph) -> None:
    arrays = graph.types.arrays()
    n_ints = n_floats = 0
    for type_id in graph.type_id.tolist():
        n_ints, n_floats = n_ints + int(arrays.int_width[type_id]), n_floats + int(arrays.float_width[type_id])
        for number in range(arrays.data_ptr[type_id], arrays.data_ptr[type_id + 1]):
            # Attributes may end too early; the counts below then differ from the sizes.
            length = int(graph.attr[n_ints]) if n_ints < graph.attr.size else 0
            n_ints += 1 + length * int(arrays.data_ints[number])
            n_floats += length * int(arrays.data_floats[number])
    if (n_ints, n_floats) != (graph.attr.size, graph.floats.size):
        raise _broken(
            f"the nodes' types take {n_ints} int and {n_floats} float attributes, "
            f"but there are {graph.attr.size} and {graph.floats.size}"
        )


def _readers(graph: Graph) -> NDArray[np.int64]:
    return np.repeat(np.arange(graph.n_nodes), np.diff(graph.edge_ptr))


def _check_ports(graph: Graph) -> None:
    reader = _readers(graph)
    falls = (reader[1:] == reader[:-1]) & (np.diff(graph.edge_in) < 0)
    for e in np.flatnonzero(falls):
        raise _broken(f"node {reader[e]} reads port {graph.edge_in[e]} before port {graph.edge_in[e + 1]}")
    if (graph.edge_in < 0).any():
        raise _broken(f"an edge has port {graph.edge_in.min()}, but ports start at 0")
    arrays = graph.types.arrays()
    if arrays.port_plain.size:
        _check_within("edge_in", graph.edge_in, np.diff(arrays.port_ptr)[graph.type_id[reader]])
        _check_plain_ports(graph, reader, arrays.port_ptr, arrays.port_plain)


def _check_plain_ports(graph: Graph, reader: NDArray[np.int64], port_ptr: IntArray, port_plain: IntArray) -> None:
    """Check that every plain port has an edge, and that several edges of one are a valid sum."""
    plain = port_plain[port_ptr[graph.type_id[reader]] + graph.edge_in] == 1
    starts = np.ones(graph.n_edges, np.bool_)  # whether an edge is the first of its port
    starts[1:] = (np.diff(reader) > 0) | (np.diff(graph.edge_in) > 0)
    n_read = np.bincount(reader[starts & plain], minlength=graph.n_nodes)
    # Sums over the ports of each type, as differences of prefix sums.
    n_plain = np.diff(np.concatenate(([0], np.cumsum(port_plain)))[port_ptr])[graph.type_id]
    for node in np.flatnonzero(n_read < n_plain).tolist():
        type_id, ports = graph.type_id[node], graph.edge_in[reader == node]
        port = next(p for p in np.flatnonzero(port_plain[port_ptr[type_id] : port_ptr[type_id + 1]]) if p not in ports)
        raise _broken(f"node {node} ({graph.type_of(node)!r}) has no edge at port {port}, which needs one")
    of_port = np.cumsum(starts) - 1
    sums = plain & (np.bincount(of_port)[of_port] > 1)
    values = np.stack((reader, graph.edge_in, graph.type_id[graph.edge_src], graph.edge_out & OUTPUT))
    # The columns are sorted, so two outputs of one type in one port are neighbors that differ only in the last row.
    terms = np.unique(values[:, sums], axis=1)
    for k in np.flatnonzero((terms[:3, 1:] == terms[:3, :-1]).all(axis=0)):
        node, port, type_id, output = terms[:, k].tolist()
        raise _broken(
            f"port {port} of node {node} ({graph.type_of(node)!r}) adds up outputs {output} and {terms[3, k + 1]} of "
            f"nodes of type {graph.types.names[type_id]!r}, but the values of one type in a sum must all be the "
            f"same output, or rows of it"
        )


def _check_pointer(name: str, pointer: IntArray, end: int) -> None:
    if pointer[0] != 0 or pointer[-1] != end or (np.diff(pointer) < 0).any():
        raise _broken(f"{name} must rise from 0 to {end}, got {pointer}")


def _check_within(name: str, values: IntArray, stop: int | IntArray) -> None:
    """Check that 0 <= values < stop, element by element."""
    for k in np.flatnonzero((values < 0) | (values >= stop)):
        limit = np.broadcast_to(stop, values.shape)[k]
        raise _broken(f"{name}[{k}] must lie in 0..{limit - 1}, got {values[k]}")


def _edge_text(names: Sequence[str] | dict[int, str], source: int, reader: int) -> str:
    return f"edge {source} ({names[source]!r}) -> {reader} ({names[reader]!r})"


def _broken(claim: str) -> GraphError:
    return GraphError(f"checking a graph: {claim}; record the instance again, or make the graph with make_graph.")
