"""Types of the native core, `native/`: ints in, ints out. Each function checks the arrays that it is given.

Raises (all functions): TypeError, an argument of another type, or an array of another dtype; ValueError, an array that
is not contiguous, or numbers that do not fit each other.
"""

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.growth import Nodes, Results
from autobatch.ir.flows import FlowArrays
from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray, LongArray

# native/graph/: see `autobatch.graph`.

def merge_words(parts: IntArray) -> IntArray:
    """Merge encoded graphs that follow one another; nodes, edges and outputs are numbered consecutively."""

def crossing_node(words: IntArray) -> int:
    """Find the first node that another instance reads or returns; -1 if the instances are independent."""

def split_words(words: IntArray, types: TypeArrays) -> tuple[IntArray, LongArray, LongArray]:
    """Encode each instance of a graph as a graph of its own, all in one buffer.

    Returns:
        The buffer; ptr[B+1], by which instance i is `buffer[ptr[i]:ptr[i + 1]]`; the same of the float attributes.

    Raises:
        ValueError: an instance reads or returns a node of another, too.
    """

def data_starts(type_id: IntArray, attr: IntArray, types: TypeArrays) -> tuple[IntArray, IntArray]:
    """Find where the int attributes of each node begin in `attr`, and its float attributes: int32[N+1] each."""

def first_out_of_range(words: IntArray, types: TypeArrays) -> LongArray:
    """Find the first int attribute of each instance that is out of its range; edges may be of earlier phases.

    Returns:
        [instances that have one, 4] the node, the number of the range, the value, and the size of the range.
    """

def reverse_dag(type_id: IntArray, edge_ptr: IntArray, edge_src: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Reverse every edge, see `autobatch.graph.dag.reverse`."""

def find_depths(edge_ptr: IntArray, edge_src: IntArray) -> IntArray:
    """Count, per node, the edges on the longest path from a node without inputs: int32[N]."""

def count_chains(type_id: IntArray, edge_ptr: IntArray, edge_src: IntArray, n_types: int) -> IntArray:
    """Count, per node and type, the most nodes of the type on a path that starts at the node: int32[N, T]."""

def mark_outputs(words: IntArray, flows: FlowArrays, wanted: NDArray[np.bool_], marks: NDArray[np.bool_]) -> bool:
    """Mark the outputs that the values in wanted slots depend on; say whether that is an output of each node.

    Args:
        wanted: [slots] those whose values count.
        marks: [N, 1 + outputs] is written: whether a node has such an output, and which these are. It has as many
            columns as the type with most outputs needs, or more.
    """

def rewrite_words(
    words: IntArray, floats: FloatArray, types: TypeArrays, passes: int
) -> tuple[IntArray, FloatArray, tuple[int, ...]]:
    """Run the passes whose bits are set, bit k for that of `PASSES[k]`; give the arrays themselves if nothing applies.

    Returns:
        The words and floats of the new graph, and the fields of `Rewrites`.

    Raises:
        ValueError: an edge points backwards, too.
        OverflowError: the new graph has more words than int32 counts.
    """

def count_shared(
    words: IntArray, floats: FloatArray, types: TypeArrays, by_rule: bool
) -> tuple[LongArray, LongArray, NDArray[np.bool_]]:
    """Count by type the nodes that are looked up and those that equal an earlier one; say whether these are shared.

    Args:
        by_rule: as pass "share_products" does; "share" otherwise.
    """

# native/graph/growing/: the tables `nodes` and `values` of an `autobatch.graph.growing.GrowingGraph`. Raises ValueError
# where a number in them, or in an argument, names nothing; what was changed until then stays changed.

def count_values(words: IntArray, types: TypeArrays, rows: IntArray) -> int:
    """Count the values that the outputs of a phase have; `rows` is that of `OutputSlots`."""

def append_phase(
    nodes: Nodes,
    values: IntArray,
    words: IntArray,
    floats: FloatArray,
    types: TypeArrays,
    rows: IntArray,
    n_nodes: int,
    n_edges: int,
) -> tuple[int, int]:
    """Copy the nodes of a phase behind those of earlier ones, of which there are `n_nodes` with `n_edges` edges.

    Returns:
        How many outputs and values there are now. The tables must have room for them.
    """

def values_of(nodes: Nodes, values: IntArray, of: IntArray, words: IntArray) -> IntArray:
    """Find the numbers of the values that words name, of these nodes."""

def set_in_use(nodes: Nodes, values: IntArray, of: IntArray, in_use: int) -> None:
    """Set the flag IN_USE of all values of some nodes."""

def count_readers(nodes: Nodes, values: IntArray, of: IntArray, n: int) -> None:
    """Count n more readers of each of these values."""

def drop_pending(nodes: Nodes, values: IntArray, pending: IntArray, place: int) -> IntArray:
    """Drop the pending nodes of the instance at a place: nothing reads them; give the other pending nodes."""

def sketch_pending(nodes: Nodes, values: IntArray, wanted: IntArray, pending: IntArray) -> tuple[IntArray, IntArray]:
    """Find the pending nodes that wanted values depend on, and write the graph of their types and edges alone.

    Returns:
        The nodes, in order; and the words of the graph, of one instance, in which they are numbered from 0.
    """

def choose_nodes(
    nodes: Nodes,
    values: IntArray,
    out_ptr: IntArray,
    slot_of: IntArray,
    wanted: IntArray,
    pending: IntArray,
    round: int,
    run: int,
    n_instances: int,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Choose nodes, see `GrowingGraph.choose`.

    Returns:
        The nodes, the values that they read, the other pending nodes, and the kept values as `Results` has them.
    """

def emit_graph(
    nodes: Nodes, values: IntArray, source_type: IntArray, picked: IntArray, sources: IntArray, results: Results
) -> tuple[IntArray, FloatArray]:
    """Write the graph of the chosen nodes and sources, and note that the nodes are done; see `GrowingGraph.emit`."""

def move_rows(
    values: IntArray, of: IntArray, round: int, held: IntArray, free: IntArray, n_free: IntArray, size: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Take back rows and give rows, see `autobatch.graph.kept_rows`.

    Args:
        held, free: [slots, rows] the value in each row, and the free rows, of which there are `n_free`.
        size: [slots] the rows that tables have.

    Returns:
        What `Moved` has.
    """
