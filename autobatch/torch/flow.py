"""The dependencies of an instance's recorded values; the parameters and tensors that results depend on.

The call log is read incrementally and on demand, so each call is read at most once. Values that would share memory in
torch are found in it, too.

Only parameters and tensors that results depend on get gradients, as in torch.

A zero gradient is different from None: given a zero, optimizers with weight decay or momentum update the parameter. So
whether there is a gradient follows from the definitions of the ops, never from numbers. Gradients flow node by node,
from the results that have them, by the flows of each type (`autobatch.graph.marks`). Torch bodies are analyzed in more
detail than in `autobatch.ir.flows`: each output depends on only some arguments and parameters
(`autobatch.torch.opaque.Body`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Self, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from autobatch._native import data_starts
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.graph.marks import Marks
from autobatch.graph.words import OUTPUT_BITS
from autobatch.ir.flows import arguments_of, join_flows, reach
from autobatch.ir.program import CellProgram, Instruction, Port, Var, Weight, dtype_of, int_limit
from autobatch.ops.operators import OPS
from autobatch.ops.shaping import slice_
from autobatch.plan.plan import PlannedTypes
from autobatch.torch.cells import FunctionCell
from autobatch.torch.entering import TensorInputs
from autobatch.torch.kinds import dtype_of_name, is_float
from autobatch.torch.opaque import DRAWING, FORWARD, Body
from autobatch.trace.handles import Value

COPIES = (torch.clone, torch.Tensor.clone)
"""Functions that copy a value to other memory."""


class Reach(NamedTuple):
    """The sources of a program's output.

    Attributes:
        parameters: the parameters that get gradients, if trained.
        leaves: the input leaves that gradients flow to.
        shared: the input leaves whose memory the output may share.
        is_shared: whether it may share other memory, such as that of data, a parameter or another output.
        is_twin: whether it may share memory with another output.
    """

    parameters: tuple[Any, ...]
    leaves: frozenset[int]
    shared: frozenset[int]
    is_shared: bool
    is_twin: bool


class Flow:
    """The calls of the instance being recorded, as far as they have been read.

    Args:
        calls: the calls of the recording.
        instance: the number of the instance being recorded; None for an async function.
    """

    def __init__(self, calls: Any, instance: int | None) -> None:
        self._calls, self.instance, self._is_async = calls, instance, instance is None
        self._read_up_to = calls.begun or (0, 0)
        # The log lacks calls before the last wait. If one of their values in use may share memory, any value may.
        self._has_views = self._is_async and any(map(self._is_view_in_use, range(len(calls.forms))))
        self._with_gradient: set[int] = set()
        self._shared: set[int] = set()

    @classmethod
    def of(cls, calls: Any) -> Flow:
        """Return the flow of the instance being recorded.

        For an async function it is the flow of all instances since they last waited.
        """
        instance = None if calls.begun is None else calls.log.n_instances
        if calls.noted is None or calls.noted.instance != instance:
            calls.noted = cls(calls, instance)
        found: Self = calls.noted
        return found

    def has_gradient(self, value: Value) -> bool:
        """Return whether a value depends on a trained parameter, or on a tensor that requires a gradient.

        Raises:
            GraphError: in an async function, whose calls are discarded when it waits.
        """
        if self._is_async:
            raise GraphError(
                "requires_grad of a recorded value is not available in an async function, whose calls are discarded "
                "when it waits; read it in a function that awaits nothing."
            )
        self._read()
        return any(ref in self._with_gradient for ref in getattr(value, "refs", (value.ref,)))

    def is_shared(self, value: Value) -> bool:
        """Return whether other tensors may share the memory of a value in torch: it is a view, or has views."""
        self._read()
        return self._has_views or value.ref in self._shared

    def replace(self, value: Value, new: Value) -> None:
        """Rebind a handle, under all its names, to another value."""
        value.rebind(new)

    def forget(self) -> None:
        """Read the rest of the log before the recording clears it, and continue at the beginning of the cleared log."""
        if self._is_async:
            self._read()
            self._read_up_to = 0, 0

    def _is_view_in_use(self, form: int) -> bool:
        """Return whether values made by calls of a form may share memory with others."""
        if not self._calls.log.uses_form(form):  # it may be a retired form, which has no type
            return False
        return any(
            reach.shared or reach.is_twin for reach in reaches(self._calls.specializations[form].node_type.program)
        )

    def _read(self) -> None:
        calls = self._calls
        tape = calls.open_tape(self._read_up_to)
        self._read_up_to = len(calls.log), calls.log.n_floats
        calls.close_tape(tape)
        for k, (form, number) in enumerate(tape.calls):
            specialization = calls.specializations[form]
            origin, program = specialization.entry.origin, specialization.node_type.program
            first = number << OUTPUT_BITS
            refs: dict[int, list[int]] | None = None
            is_copy = origin[0] == "cell" and isinstance(origin[1], FunctionCell) and origin[1].eager in COPIES
            for output, reached in enumerate(reaches(program)):
                if refs is None and (reached.leaves or reached.shared):
                    refs = tape.refs_of(k)
                found = refs or {}
                if (
                    origin[0] == "input"
                    or any(parameter.trainable for parameter in reached.parameters)
                    or any(not self._with_gradient.isdisjoint(found.get(leaf, ())) for leaf in reached.leaves)
                ):
                    self._with_gradient.add(first + output)
                if not is_copy and (reached.shared or reached.is_shared):
                    self._shared.add(first + output)
                    for leaf in reached.shared:
                        self._shared.update(found.get(leaf, ()))


def reaches(program: CellProgram) -> tuple[Reach, ...]:
    """Find the sources of each result of a program."""
    found = REACHES.get(program)
    if found is None:
        roots = [_root(program, output) for output in program.results]
        found = REACHES[program] = tuple(
            _reach(program, output, root.source, roots.count(root) > 1)
            for output, root in zip(program.results, roots, strict=True)
        )
    return found


REACHES: WeakKeyDictionary[CellProgram, tuple[Reach, ...]] = WeakKeyDictionary()


class Root(NamedTuple):
    """The variable that a view reaches back to, and the part of it that holds the tensor.

    Attributes:
        source: the source of the variable.
        part: the variable itself, or one part of the result vector of an opaque body: each of its results is a tensor
            with memory of its own, unless some share a storage.
    """

    source: Any
    part: int


def _root(program: CellProgram, output: int) -> Root:
    """Walk back from an output through views to the variable whose memory it shares."""
    at, part = output, output
    while isinstance(source := program.vars[at].source, Instruction) and (
        source.op.view or source.op is OPS["stop_gradient"]
    ):
        at, part = source.args[0], at
    has_parts = _is_opaque(source) and not source.static["body"].analysis.results_share
    return Root(source, part if has_parts else at)


def _is_opaque(source: Any) -> TypeGuard[Instruction]:
    """Return whether torch runs the code that computes a variable."""
    return isinstance(source, Instruction) and source.op in (FORWARD, DRAWING)


def _reach(program: CellProgram, output: int, root: Any, is_twin: bool) -> Reach:
    vars, parameters, leaves = program.vars, list[Any](), set[int]()
    left, seen = [output], {output}
    while left:
        at = left.pop()
        source = vars[at].source
        if not _is_float(program, at):
            continue
        if isinstance(source, Weight):
            parameters.append(source.parameter)
        elif isinstance(source, Port):
            leaves.add(source.leaf)
        elif isinstance(source, Instruction) and source.op is not OPS["stop_gradient"]:
            args = [arg for arg in source.args if arg not in seen]
            left, seen = left + args, seen.union(args)
    is_shared = root.static["body"].analysis.may_share if _is_opaque(root) else not isinstance(root, Instruction)
    if isinstance(root, Port):
        shared = frozenset([root.leaf])
    else:
        shared = frozenset(leaves) if is_shared and _is_opaque(root) else frozenset()
    return Reach(tuple(parameters), frozenset(leaves), shared, is_shared or is_twin, is_twin)


def _is_float(program: CellProgram, at: int) -> bool:
    """Return whether a value of a program is differentiable."""
    name = dtype_of(program.vars, at)
    return not int_limit(program.vars, at) and (not name or is_float(dtype_of_name(name)))


Array = NDArray[Any]


class ProgramFlow(NamedTuple):
    """The gradient flow of a program.

    Attributes:
        ports: whether an output depends on a port: bool[outputs, ports].
        weights: whether an output depends on a parameter: bool[outputs, parameters].
        parameters: the `id`s of the parameters.
    """

    ports: Array
    weights: Array
    parameters: list[int]


_FLOWS: WeakKeyDictionary[CellProgram, ProgramFlow] = WeakKeyDictionary()


class Reaching:
    """Find the dependencies of one batched function's results; marks are reused between calls."""

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
        """Return, for each number of the instance tensors, whether results depend on it. Call `parameters` first."""
        is_reached = np.zeros(inputs.size, bool)
        of_source = np.isin(graph.type_id, [*inputs.source_types])
        if not of_source.any():
            return is_reached
        attributes, _ = data_starts(graph.type_id, graph.attr, graph.types.arrays())
        # The data of a source begin with the number of its read.
        for number in graph.attr[attributes[:-1][of_source & self._marks.nodes]].tolist():
            is_reached[inputs.reads[number]] = True
        return is_reached


def flow_of(program: CellProgram) -> ProgramFlow:
    """Return the gradient flow of a program, cached."""
    found = _FLOWS.get(program)
    if found is None:
        weights = {k: var.source.parameter for k, var in enumerate(program.vars) if isinstance(var.source, Weight)}
        reached, n_ports = reach(program, [*program.ports, *weights], _arguments), len(program.ports)
        flow = ProgramFlow(reached[:, :n_ports], reached[:, n_ports:], [*map(id, weights.values())])
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
