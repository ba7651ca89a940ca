"""The arrays of a growing graph, see `autobatch.graph.growing`; the loops over them are `native/graph/growing/`."""

from __future__ import annotations

from typing import NamedTuple

from autobatch.jit.arrays import FloatArray, IntArray

PENDING, CHOSEN, DONE = 0, 1, 2  # the states of nodes
NOWHERE = -1
TYPE_ID, STATE, OWNER, EDGE_PTR, ATTR_PTR, FLOAT_PTR, OUTPUT_PTR, N_OF_NODES = range(8)
SOURCE, OUTPUT_WORD, PORT, N_OF_EDGES = range(4)
MADE_BY, WORD, IN_USE, READERS, RUN, SLOT, ROW, KEPT, MARK, NUMBER, N_OF_VALUES = range(11)
"""The rows of the table of values, which are the outputs of nodes, or the rows of outputs of any number of rows:

- MADE_BY: the node; WORD: names the output and the row, as in graphs.
- IN_USE: 1 while the program may use it; READERS: how many edges of pending nodes, and results, read it.
- RUN, SLOT, ROW: the run that computed it, and the row of a slot of its results; NOWHERE if it is not kept.
- KEPT: its row in the table of kept values of its shape, or NOWHERE.
- MARK: the last round that wanted it, or minus the last one that it was a source of.
- NUMBER: of the node that gives it in the graph of a round, or -1 minus that of its source.
"""


class Nodes(NamedTuple):
    """The nodes of a growing graph; arrays have spare room at their ends.

    Attributes:
        table: [7, N+1] the rows that constants name: TYPE_ID, STATE, and OWNER, the instance; and where the edges,
            attributes and outputs of a node begin: EDGE_PTR, ATTR_PTR, FLOAT_PTR and OUTPUT_PTR.
        first_value: [outputs+1] the number of an output's value, or of that of its first row.
        edges: [3, E] SOURCE, OUTPUT_WORD and PORT, as in graphs, of nodes of any phase.
        attr, floats: the attributes, in node order.
    """

    table: IntArray
    first_value: IntArray
    edges: IntArray
    attr: IntArray
    floats: FloatArray


class OutputSlots(NamedTuple):
    """What is known of the outputs of all types, and of the slots in which they are kept.

    Attributes:
        slot: in which an output is kept; outputs are numbered as `TypeArrays.out_ptr` does.
        rows: the variadic group of the type whose edges are the rows of an output; NOWHERE for a single value.
        source: for each slot, the type of the nodes that read a row of its table, or NOWHERE.
    """

    slot: IntArray
    rows: IntArray
    source: IntArray


class Results(NamedTuple):
    """What a round gives.

    Attributes:
        values, slots: what is returned, and in which slot; ptr: where the results of each instance begin.
    """

    values: IntArray
    slots: IntArray
    ptr: IntArray
