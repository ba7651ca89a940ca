"""Inner batches: choose which instructions of a cell run as one.

The problem is the same as batching nodes: instructions of one signature (op, shapes, static arguments) may run together
if none depends on another, and the fewest batches are wanted. The choice is greedy. It runs all ready instructions of
one signature at once, and prefers the signature of which the largest share is ready. Where every instruction of a
signature waits only for others of the same signature, running it now is part of some sequence with the fewest batches.

A product by a parameter runs only with products of the same input: together they are one product of stacked parameters,
each of any number of rows. So sizes that are equal by chance make no difference. Other products run alone, as backends
run them.

Branch and bound over all sequences and groupings saved one batch in 1 of the 181 cells of the zoo, the models and the
literature, and no launch on any backend.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from autobatch.graph.dag import Dag
from autobatch.ir.program import SHARED, Instruction
from autobatch.memplan.cell.memory import ProgramMemory, literal
from autobatch.ops.define import Shape, static_key
from autobatch.ops.linear import affine, matmul, outer

STACKED = (matmul, affine)  # weight and bias are stacked
PRODUCTS = (*STACKED, outer)
INPUT = 1  # the operand of these that is not stacked

Batch: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Steps:
    """The computing instructions of a cell as nodes whose types are their signatures.

    Attributes:
        values: the value that each node computes, in program order.
        dag: the data dependencies, through views and joins.
    """

    values: tuple[int, ...]
    dag: Dag


def make_steps(memory: ProgramMemory) -> Steps:
    """Number the computing instructions of a program, and their signatures in order of appearance."""
    number = {value: n for n, value in enumerate(memory.steps)}
    numbers: dict[Hashable, int] = {}
    type_id, edge_ptr, edge_src = [], [0], list[int]()
    for value in memory.steps:
        source = memory.program.vars[value].source
        assert isinstance(source, Instruction)
        type_id.append(numbers.setdefault(signature(memory, value), len(numbers)))
        edge_src += sorted({number[read] for arg in source.args for read in computed(memory, arg)})
        edge_ptr.append(len(edge_src))
    dag = Dag(np.array(type_id, np.int32), np.array(edge_ptr, np.int32), np.array(edge_src, np.int32), len(numbers))
    return Steps(memory.steps, dag)


def choose_batches(steps: Steps) -> tuple[Batch, ...]:
    """Divide the instructions into batches, in an order in which they can run.

    Args:
        steps: the instructions of the cell.

    Returns:
        Batches of the values that the instructions compute.

    Cost: O(batches * (instructions + edges)).
    """
    type_ids, ptr, src = steps.dag.type_id.tolist(), steps.dag.edge_ptr.tolist(), steps.dag.edge_src.tolist()
    sources = [src[ptr[n] : ptr[n + 1]] for n in range(len(type_ids))]
    left = dict.fromkeys(range(len(type_ids)))
    batches: list[Batch] = []
    while left:
        ready, could = _ready(left, type_ids, sources)
        # The ratio of the batching policy `Sufficient`, |F_a| / |frontier(G_a)|: at 1 waiting gains nothing.
        nodes = max(ready.values(), key=lambda nodes: len(nodes) / could[type_ids[nodes[0]]])
        batches.append(tuple(steps.values[n] for n in nodes))
        for n in nodes:
            del left[n]
    return tuple(batches)


def _ready(
    left: dict[int, None], type_ids: list[int], sources: list[list[int]]
) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return, per type, the nodes whose inputs are finished, and how many nodes do not wait for others of the type."""
    ready: dict[int, list[int]] = {}
    could: dict[int, int] = {}
    awaited: dict[int, set[int]] = {}  # per unfinished node, the types of the unfinished nodes it depends on
    # `left` keeps program order, so the sources of n are already in `awaited`.
    for n in left:
        before = [source for source in sources[n] if source in left]
        awaited[n] = {type_ids[source] for source in before}.union(*(awaited[source] for source in before))
        if type_ids[n] not in awaited[n]:
            could[type_ids[n]] = could.get(type_ids[n], 0) + 1
        if not before:
            ready.setdefault(type_ids[n], []).append(n)
    return ready, could


def computed(memory: ProgramMemory, index: int) -> set[int]:
    """Return the computed values that a value views or copies."""
    value = memory.reads[index].value
    source = memory.program.vars[value].source
    if not isinstance(source, Instruction):
        return set()
    if source.op.copies:
        return {read for part in source.args for read in computed(memory, part)}
    return {value}


def signature(memory: ProgramMemory, value: int) -> Hashable:
    """Return a key of an instruction without its arguments' places; equal for instructions that may run as one.

    Products whose parameters are stacked may have any numbers of rows.
    """
    vars, source = memory.program.vars, memory.program.vars[value].source
    assert isinstance(source, Instruction)
    by_parameter = source.op in STACKED and vars[source.args[0]].domain == SHARED
    stacks = by_parameter and len(vars[source.args[0]].shape) == 2

    def form(shape: Shape) -> Hashable:
        # Empty parameters have no memory, so they cannot be stacked with others.
        return (shape[0] > 0, *shape[1:]) if stacks else shape

    arguments: list[Any] = []
    for number, index in enumerate(source.args):
        read, var = memory.reads[index], vars[index]
        origin = vars[read.value]
        if (number_text := literal(origin)) is not None:
            arguments.append(number_text)
        else:
            shape = var.shape if number == INPUT else form(var.shape)
            arguments.append((shape, memory.area_of(read.value), read.strided))
    together: Hashable = None
    if source.op in PRODUCTS:
        x = source.args[INPUT]
        # x and stop_gradient(x) have the same memory, but only one of them has a gradient. The key of any other
        # product is its own value, so that it runs alone.
        together = (memory.reads[x], x in memory.constants) if by_parameter else value
    return source.op, static_key(source.static), form(vars[value].shape), vars[value].domain, *arguments, together


def is_product(memory: ProgramMemory, batch: Batch) -> bool:
    """Return whether the op of a batch is a matrix product, which reads its operands as blocks."""
    source = memory.program.vars[batch[0]].source
    return isinstance(source, Instruction) and source.op in PRODUCTS
