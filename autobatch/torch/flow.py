"""The dependencies of an instance's recorded values, and the values that would share memory in torch.

The call log is read incrementally and on demand, so each call is read at most once.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self, TypeGuard
from weakref import WeakKeyDictionary

import torch

from autobatch.errors import GraphError
from autobatch.graph.words import OUTPUT_BITS
from autobatch.ir.program import CellProgram, Instruction, Port, Weight, dtype_of, int_limit
from autobatch.ops.operators import OPS
from autobatch.torch.cells import FunctionCell
from autobatch.torch.kinds import dtype_of_name, is_float
from autobatch.torch.opaque import DRAWING, FORWARD
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
        """Read the log before the recording clears it."""
        if self._is_async:
            self._read()
            self._read_up_to = 0, 0

    def _is_view_in_use(self, form: int) -> bool:
        """Return whether values made by calls of a form may share memory with others."""
        shares = any(
            reach.shared or reach.is_twin for reach in reaches(self._calls.specializations[form].node_type.program)
        )
        return shares and self._calls.log.uses_form(form)

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
            for output, reach in enumerate(reaches(program)):
                if refs is None and (reach.leaves or reach.shared):
                    refs = tape.refs_of(k)
                found = refs or {}
                if (
                    origin[0] == "input"
                    or any(parameter.trainable for parameter in reach.parameters)
                    or any(not self._with_gradient.isdisjoint(found.get(leaf, ())) for leaf in reach.leaves)
                ):
                    self._with_gradient.add(first + output)
                if not is_copy and (reach.shared or reach.is_shared):
                    self._shared.add(first + output)
                    for leaf in reach.shared:
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
