"""The parameters and tensors that results depend on. Only these get gradients, as in torch.

A zero gradient is different from None: optimizers with weight decay or momentum then update the parameter. So the
answer follows from the definitions of the ops, never from numbers. Gradients flow node by node, from the results that
have them, by the flows of each type (`autobatch.graph.marks`). Torch bodies are analyzed in more detail than in
`autobatch.ir.flows`: each output depends on only some arguments and parameters (`autobatch.torch.opaque.Body`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from autobatch._native import data_starts
from autobatch.graph.graph import Graph
from autobatch.graph.marks import Marks
from autobatch.ir.flows import arguments_of, join_flows, reach
from autobatch.ir.program import CellProgram, Instruction, Var, Weight
from autobatch.ops.shaping import slice_
from autobatch.plan.plan import PlannedTypes
from autobatch.torch.entering import TensorInputs
from autobatch.torch.opaque import DRAWING, FORWARD, Body

Array = NDArray[Any]


class Flow(NamedTuple):
    """The gradient flow of a program.

    Attributes:
        ports: whether an output depends on a port: bool[outputs, ports].
        weights: whether an output depends on a parameter: bool[outputs, parameters].
        parameters: the `id`s of the parameters.
    """

    ports: Array
    weights: Array
    parameters: list[int]


_FLOWS: WeakKeyDictionary[CellProgram, Flow] = WeakKeyDictionary()


class Reaching:
    """The finder of the dependencies of results, for one batched function; it reuses its marks between calls."""

    def __init__(self) -> None:
        self._marks = Marks()
        self._known: tuple[Any, Any] = None, None

    def parameters(self, graph: Graph, cells: PlannedTypes, slots: Collection[int]) -> set[int]:
        """Find the parameters, by `id`, that results depend on; mark the nodes for `numbers`.

        Args:
            graph: the graph, recorded or merged.
            cells: its types.
            slots: the slots of the results.
        """
        if self._known[0] is not cells:
            flows = [flow_of(cell.type.program) for cell in cells.cells]
            self._known = cells, (flows, join_flows([flow.ports for flow in flows]))
        flows, arrays = self._known[1]
        self._marks.mark(graph, arrays, len(cells.slot_shapes), slots)
        nodes, outputs = np.nonzero(self._marks.outputs)
        reached = np.zeros((len(flows), self._marks.outputs.shape[1]), bool)
        reached[graph.type_id[nodes], outputs] = True
        found = set[int]()
        for type_id in np.flatnonzero(reached.any(1)).tolist():
            flow = flows[type_id]
            by_parameter = flow.weights[reached[type_id, : len(flow.weights)]].any(0)
            found.update(p for p, is_reached in zip(flow.parameters, by_parameter.tolist(), strict=True) if is_reached)
        return found

    def numbers(self, graph: Graph, inputs: TensorInputs) -> Array:
        """Return whether results depend on each number of the instance tensors. Call `parameters` first."""
        is_reached = np.zeros(inputs.size, bool)
        of_source = np.isin(graph.type_id, [*inputs.source_types])
        if not of_source.any():
            return is_reached
        attributes, _ = data_starts(graph.type_id, graph.attr, graph.types.arrays())
        for number in graph.attr[attributes[:-1][of_source & self._marks.nodes]].tolist():
            is_reached[inputs.reads[number]] = True
        return is_reached


def flow_of(program: CellProgram) -> Flow:
    """Return the gradient flow of a program, cached."""
    found = _FLOWS.get(program)
    if found is None:
        weights = {k: var.source.parameter for k, var in enumerate(program.vars) if isinstance(var.source, Weight)}
        reached, n_ports = reach(program, [*program.ports, *weights], _arguments), len(program.ports)
        flow = Flow(reached[:, :n_ports], reached[:, n_ports:], [*map(id, weights.values())])
        found = _FLOWS[program] = flow
    return found


def _arguments(vars: Sequence[Var], index: int) -> Sequence[int]:
    """Return the values to which an instruction's gradients flow.

    For an output of a torch body, these are only the dependencies of this output.
    """
    source = vars[index].source
    if isinstance(source, Instruction) and source.op is slice_:
        of = vars[source.args[0]].source
        if isinstance(of, Instruction) and of.op in (FORWARD, DRAWING):
            body: Body = of.static["body"]
            return [of.args[place] for place in body.needed_by(source.static["index"])]
    return arguments_of(vars, index)
