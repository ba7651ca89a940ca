"""Gradient flow: which ports an output of a type depends on, and which outputs of nodes a loss depends on.

A value that no loss depends on must get no gradient, instead of a zero one: 0 times infinity is not 0. The dependence
of losses is therefore computed output by output, since a node may have one output that is used and one that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import IntArray
from autobatch.ir.program import NODE, CellProgram, Instruction, Var, Weight
from autobatch.ops.elementwise import stop_gradient
from autobatch.ops.linear import affine, matmul

Array = NDArray[Any]


class FlowArrays(NamedTuple):
    """For T types, which ports each output depends on, as arrays for the core.

    Attributes:
        n_outputs: int32[T].
        n_ports: int32[T].
        flow_ptr: int32[T+1], where the matrix of a type begins in `flow`.
        flow: whether an output depends on a port, a matrix (outputs, ports) for each type.
    """

    n_outputs: IntArray
    n_ports: IntArray
    flow_ptr: IntArray
    flow: Array


def make_flows(programs: Sequence[CellProgram]) -> FlowArrays:
    """Return the gradient flows of types, from their programs. Cost: linear in the values times the ports."""
    return join_flows([reach(program, program.ports, arguments_of) for program in programs])


def join_flows(matrices: Sequence[Array]) -> FlowArrays:
    """Join the gradient flows of types, a matrix (outputs, ports) each."""
    shapes = np.array([matrix.shape for matrix in matrices], np.int32).reshape(-1, 2)
    sizes = np.concatenate(([0], np.cumsum(shapes.prod(1)))).astype(np.int32)
    flow = np.concatenate([np.zeros(0, bool), *(matrix.ravel() for matrix in matrices)])
    return FlowArrays(shapes[:, 0].copy(), shapes[:, 1].copy(), sizes, flow)


def singular_outputs(program: CellProgram) -> tuple[int, ...]:
    """Return the outputs whose gradient may be infinite or NaN although all inputs are finite; see `Op.singular`."""
    may_be, has_gradient = set[int](), {i for i, var in enumerate(program.vars) if isinstance(var.source, Weight)}
    has_gradient.update(program.ports)
    for i in program.instructions:
        source = program.vars[i].source
        assert isinstance(source, Instruction)
        if source.op.singular or may_be.intersection(source.args):
            may_be.add(i)
        if source.op.pullback is not None and has_gradient.intersection(source.args):
            has_gradient.add(i)
    return tuple(n for n, value in enumerate(program.outputs) if value in may_be & has_gradient)


def stop_outputs(program: CellProgram, outputs: tuple[int, ...]) -> CellProgram:
    """Return the program with gradients stopped at these outputs."""
    vars, numbers = [*program.vars], [*program.outputs]
    for output in outputs:
        value = numbers[output]
        numbers[output] = len(vars)
        vars.append(Var(Instruction(stop_gradient, (value,)), vars[value].shape, vars[value].domain))
    return replace(program, vars=tuple(vars), outputs=tuple(numbers))


def products_of(vars: Sequence[Var], indices: Iterable[int]) -> list[int]:
    """Select the values that are a node's products with matrices, which are the most expensive to compute."""
    sources = ((i, vars[i].source) for i in indices if vars[i].domain == NODE)
    return [i for i, source in sources if isinstance(source, Instruction) and source.op in (matmul, affine)]


def keep_products(program: CellProgram, numbers: Iterable[int]) -> CellProgram:
    """Return the program with the products of these numbers as extra outputs, which only its derivatives read."""
    products = products_of(program.vars, program.instructions)
    # The numbers may have been chosen for an earlier trace of the cell, which had more products.
    kept = [products[number] for number in numbers if number < len(products)]
    return replace(program, outputs=(*program.results, *kept), n_kept=len(kept))


def reach(
    program: CellProgram, values: Sequence[int], arguments: Callable[[Sequence[Var], int], Sequence[int]]
) -> Array:
    """Find whether gradients flow from each output of a program to each of some values: (outputs, values).

    Args:
        arguments: maps an instruction to the earlier values that its gradients flow to.
    """
    reached = np.zeros((len(program.vars), len(values)), bool)
    reached[list(values), np.arange(len(values))] = True
    for i in program.instructions:
        reached[i] = reached[list(arguments(program.vars, i))].any(0)
    return reached[list(program.outputs)]


def arguments_of(vars: Sequence[Var], index: int) -> Sequence[int]:
    """Return the arguments of an instruction, if it has a gradient."""
    source = vars[index].source
    return source.args if isinstance(source, Instruction) and source.op.pullback is not None else ()
