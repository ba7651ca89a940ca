"""Checks of programs and derivatives against their definitions, independent of the code that builds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from autobatch.errors import AutobatchError, GraphError
from autobatch.ir.derivative import Derivative
from autobatch.ir.program import (
    NODE,
    SHARED,
    Attribute,
    CellProgram,
    Constant,
    Incoming,
    Instruction,
    Port,
    Var,
    Weight,
    int_limit,
    origin,
    show_lines,
    show_var,
)  # fmt: skip
from autobatch.ops.define import Op, Shape
from autobatch.params.stacks import parts_of

Ties = Iterable[tuple[int, int]]
MADE_AGAIN = frozenset({"one_hot", "spread"})  # ops that backward may recompute, besides element-wise ones


def check_cell(program: CellProgram) -> None:
    """Check that every value follows from earlier ones, and that ports, attributes and outputs are in order.

    Raises:
        GraphError: the program is invalid; the message names the first line concerned.

    Cost: one shape rule per instruction.
    """
    vars, name = program.vars, program.name
    check_values(name, vars, program.ties)
    for index, var in enumerate(vars):
        if isinstance(var.source, Incoming):
            raise _broken(name, vars, index, "it is a gradient, which only the backward stages have")
    _check_ports(name, vars)
    for domain in (NODE, *program.data_groups):
        _check_columns(name, vars, domain, is_float=False)
        _check_columns(name, vars, domain, is_float=True)
    if not program.outputs or not all(0 <= output < len(vars) for output in program.outputs):
        raise _refused(name, f"its outputs are {program.outputs}, but must name some of its {len(vars)} values")
    needed = set(program.outputs)
    for index in reversed(range(len(vars))):
        source = vars[index].source
        if index not in needed:
            raise _broken(name, vars, index, "no output needs it")
        needed.update(source.args if isinstance(source, Instruction) else ())


def check_rewritten(before: CellProgram, after: CellProgram) -> None:
    """Check that a program can replace another: it is valid and has the same leaves, outputs and domains.

    Raises:
        GraphError: it cannot; the message names the first difference.
    """
    check_cell(after)
    for what, of in (("ports and attributes", _leaves), ("outputs", _outputs), ("names and draws", _head)):
        was, now = of(before), of(after)
        if was != now:
            raise _refused(before.name, f"its {what} must stay {was} in a rewrite, got {now}")
    parts = [{id(part) for parameter in p.parameters for part in parts_of(parameter)} for p in (before, after)]
    if not parts[1] <= parts[0]:
        raise _refused(before.name, "its rewrite reads parameters that it does not read")


def _leaves(program: CellProgram) -> list[tuple[Any, ...]]:
    found = [(v.source, v.shape, v.domain) for v in program.vars if isinstance(v.source, (Port, Attribute))]
    return sorted(found, key=repr)


def _outputs(program: CellProgram) -> list[tuple[Shape, int]]:
    return [(program.vars[output].shape, program.vars[output].domain) for output in program.outputs]


def _head(program: CellProgram) -> tuple[Any, ...]:
    return program.name, program.draws, set(map(frozenset, program.ties))


def check_derivative(derivative: Derivative) -> None:
    """Check that gradients have the shapes and rows of their values, and that every stage has the values it reads.

    The backward stage can read the saved values, the inputs, and the gradients of the outputs; the weight stage the
    saved values and the inputs. Values that backward rematerialises are neither random nor matrix products.

    Raises:
        GraphError: the derivative is invalid; the message names the first violation.
    """
    program, vars = derivative.program, derivative.vars
    check_values(program.name, vars, program.ties)
    if any(before is not after for before, after in zip(program.vars, vars, strict=False)):
        raise _refused(program.name, "its derivative must begin with the values of the program")
    for number, index in enumerate(derivative.incoming):
        output, var = vars[program.outputs[number]], vars[index]
        domain = NODE if output.domain == SHARED else output.domain
        if var.source != Incoming(number) or (var.shape, var.domain) != (output.shape, domain):
            raise _broken(program.name, vars, index, f"it is not the gradient of output {number}")
    pairs = [pair for pair in zip(program.ports, derivative.ports, strict=True) if pair[1] is not None]
    for of, gradient in (*pairs, *derivative.parameters):
        if gradient is not None and vars[of].shape != vars[gradient].shape:
            raise _broken(program.name, vars, gradient, f"it must have the shape of %{of}, whose gradient it is")
    saved = {*derivative.saved, *derivative.kept}
    for index in derivative.again:
        source = vars[index].source
        if index not in derivative.backward or index in saved or not may_be_made_again(source):
            raise _broken(program.name, vars, index, "it must not be computed again")
    for stage, known in ((derivative.backward, {*saved, *derivative.incoming}), (derivative.weights, saved)):
        found = set(known)
        for index in stage:
            source = vars[index].source
            for arg in source.args if isinstance(source, Instruction) else ():
                if isinstance(vars[arg].source, Incoming) and arg not in found:
                    raise _broken(program.name, vars, index, f"it reads the gradient %{arg}, which is not saved")
                if isinstance(vars[arg].source, Instruction) and arg not in found:
                    raise _broken(program.name, vars, index, f"it reads %{arg}, which is neither saved nor made before")
            found.add(index)


def may_be_made_again(source: object) -> bool:
    """Return whether backward may recompute a value: its op is element-wise and not random."""
    if not isinstance(source, Instruction) or source.op.random:
        return False
    return source.op.scalar is not None or source.op.name in MADE_AGAIN


def check_values(name: str, vars: Sequence[Var], ties: Ties) -> None:
    """Check that arguments come before their readers, and that shapes and domains follow from the arguments.

    Args:
        name: the name of the cell.
        vars: the values of a program or a derivative.
        ties: pairs of variadic groups with equally many edges.

    Raises:
        GraphError: a value is invalid; the message names the first line concerned.
    """
    for index, var in enumerate(vars):
        if isinstance(var.source, Instruction):
            _check_instruction(name, vars, index, ties)
            continue
        given = _shape_and_domain(var)
        if given is not None and given != (var.shape, var.domain):
            raise _broken(name, vars, index, f"its shape and domain must be {given}, got {(var.shape, var.domain)}")


def _shape_and_domain(var: Var) -> tuple[Shape, int] | None:
    """Return the shape and domain that a source other than an instruction implies, if it implies them."""
    match var.source:
        case Weight(parameter=parameter):
            return parameter.shape, SHARED
        case Constant(data=data):
            return np.shape(data), SHARED
    return (var.shape, NODE) if var.domain < NODE else None  # data, ports and gradients have rows of nodes or of edges


def _check_instruction(name: str, vars: Sequence[Var], index: int, ties: Ties) -> None:
    var = vars[index]
    assert isinstance(var.source, Instruction)
    op, args, static = var.source.op, var.source.args, var.source.static
    if not all(0 <= a < index for a in args):
        raise _broken(name, vars, index, "it reads a value that does not come before it")
    if op.names and len(args) != len(op.names):
        raise _broken(name, vars, index, f"it has {len(args)} arguments, but {op.name} takes {', '.join(op.names)}")
    try:
        shape = op.shape(*(vars[a].shape for a in args), **static)
    except AutobatchError as error:
        raise _broken(name, vars, index, f"its arguments do not fit: {error}") from error
    if shape != var.shape:
        raise _broken(name, vars, index, f"its shape must be {shape} by the rule of {op.name}")
    domains = [vars[a].domain for a in args]
    domain = _domain(op, domains, ties) if op.domain is None else op.domain(domains, **static)
    if domain is None:
        raise _broken(name, vars, index, f"the domains {[vars[a].domain for a in args]} have no rows in common")
    if domain != var.domain:
        raise _broken(name, vars, index, f"its domain must be {domain}, as its arguments require, got {var.domain}")
    if op.index_axis is not None:
        ids = origin(vars, args[1]).source
        limit = int_limit(vars, args[1])
        if not (limit or isinstance(ids, Constant) or (isinstance(ids, Attribute) and not ids.is_float)):
            raise _broken(name, vars, index, f"%{args[1]} is neither ints nor a constant, so its range was not checked")
        if limit > vars[args[0]].shape[op.index_axis]:
            raise _broken(
                name, vars, index, f"%{args[1]} has ints below {limit}, more than the elements that it indexes"
            )


def _domain(op: Op, domains: list[int], ties: Ties) -> int | None:
    """Return the domain of a result; None if its arguments cannot be combined."""
    match op.segments:
        case "reduce":
            return NODE if domains[0] >= 0 else None
        case "spread":
            return domains[1] if domains[0] < 0 <= domains[1] else None
    if op.sums_rows:
        return SHARED
    if op.random and domains[0] >= 0:
        return domains[0]
    rows = set(domains) - {SHARED}
    if len(rows) > 1 and (NODE in rows or not rows <= _tied(min(rows), ties)):
        return None
    return min(rows, default=SHARED)


def _tied(group: int, ties: Ties) -> set[int]:
    """Return all groups that have as many edges as `group`."""
    found, before = {group}, set[int]()
    while found != before:
        before = set(found)
        for tie in ties:
            if not found.isdisjoint(tie):
                found.update(tie)
    return found


def _check_ports(name: str, vars: Sequence[Var]) -> None:
    expected = 0
    for index, var in enumerate(vars):
        if isinstance(var.source, Port):
            if var.source.number != expected:
                raise _broken(name, vars, index, f"its port number must be {expected}, got {var.source.number}")
            expected += 1


def _check_columns(name: str, vars: Sequence[Var], domain: int, is_float: bool) -> None:
    end = 0
    for index, var in enumerate(vars):
        if isinstance(var.source, Attribute) and (var.source.is_float, var.domain) == (is_float, domain):
            if var.source.column != end:
                raise _broken(name, vars, index, f"its words must start at {end}, got {var.source.column}")
            end += var.size


def _broken(name: str, vars: Sequence[Var], index: int, claim: str) -> GraphError:
    line = show_lines(vars, [index]) or [f"  {show_var(vars, index)}"]
    return _refused(name, f"in the line {line[0].strip()!r} {claim}")


def _refused(name: str, claim: str) -> GraphError:
    return GraphError(
        f"checking cell {name!r}: {claim}; unless the program was hand-made, this is a bug in autobatch; please "
        f"report it."
    )
