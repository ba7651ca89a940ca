"""What becomes of a cell, as text: its program as traced and as executed, its derivative, its layout, its kernels.

The kernels are those of the cpu backend, whichever runs: where they are not one, the reason stands beside each.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

import numpy as np

from autobatch.errors import DataError
from autobatch.graph import Graph
from autobatch.kernels.stage import compile_backward, compile_forward
from autobatch.plan import PlannedCell, Planner
from autobatch.typetable import TypeTable


def show_cells(graph: Graph, planner: Planner, name: str, training: bool) -> str:
    """Describe the types of a cell, one after the other.

    Args:
        graph: of a recorded mini-batch, merged and rewritten.
        planner: decides what is executed.
        name: of the cell, for all its types; or of a type as reports number them, such as `merge#2`.
        training: plan for backward too, and show it.

    Raises:
        DataError: no node of the mini-batch is of such a cell.

    Cost: that of planning and compiling each type, without what Numba makes of the source.
    """
    types = graph.types
    assert isinstance(types, TypeTable), "the graph was recorded"
    counts, names = np.bincount(graph.type_id, minlength=len(types)).tolist(), types.names
    used = [kind for kind, count in enumerate(counts) if count]
    found = [kind for kind in used if name in (types[kind].name, names[kind])]
    if not found:
        known = dict.fromkeys(types[kind].name for kind in used)
        raise DataError(f"there is no cell {name!r} in this mini-batch; there are {', '.join(known)}.")
    texts = []
    for kind in found:
        node_type = types[kind]
        head = f"{names[kind]}, {counts[kind]} {'node' if counts[kind] == 1 else 'nodes'}: {node_type.signature}"
        sections = _sections(planner.plan_cell(node_type, training))
        texts.append("\n".join([head, *(f"\n{title}\n{indent(text, '  ')}" for title, text in sections)]))
    return "\n\n".join(texts)


def _sections(cell: PlannedCell) -> Iterator[tuple[str, str]]:
    """Titles and texts, in the order in which one is made from the other."""
    traced, executed = str(cell.type.program), str(cell.program)
    yield "program, as traced", traced
    shown = "as traced" if executed == traced else executed
    yield "program, as executed: products joined, inner batches stacked", shown
    if cell.derivative is not None:
        yield "derivative", str(cell.derivative)
    yield "layout", str(cell.layout) or "no columns: nothing is read from other nodes or saved"
    stages = [compile_forward(cell)] if cell.derivative is None else [compile_forward(cell), compile_backward(cell)]
    yield "steps of the cpu backend", "\n".join(map(str, stages))
