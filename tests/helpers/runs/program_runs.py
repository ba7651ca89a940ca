"""Run programs and their derivatives on random rows, with the kernels of their ops and nothing else of the runtime."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.ir.autodiff import differentiate
from autobatch.ir.derivative import Derivative
from autobatch.ir.program import NODE, SHARED, Attribute, CellProgram, Constant, Instruction, Port, Var, Weight, origin
from autobatch.ops.define import run_kernel
from autobatch.ops.randomness import Randomness
from autobatch.ops.variadic import Segments
from autobatch.params.parameter import Parameter
from autobatch.params.stacks import pieces_of
from autobatch.trace.record import Recorder

EDGES = (0, 2, 1, 3)  # of each node, in every variadic group
N_ROWS = {NODE: len(EDGES), SHARED: 1}


class Drawn(NamedTuple):
    """Rows for the ports and attributes of a program, by leaf name, and gradients of its outputs."""

    leaves: dict[tuple[str, int], Any]
    incoming: list[Any]


class Results(NamedTuple):
    """The results of a program and its derivative; gradients of parameters by their ids."""

    outputs: list[Any]
    ports: list[Any]
    parameters: dict[int, Any]


def trace_types(model: Any, instances: Iterable[Any]) -> list[CellProgram]:
    """Return the programs of all types of nodes that a model's loss has on some instances."""
    recorder = Recorder(model.loss, model)
    recorder.record(list(instances))
    return [kind.program for kind in recorder.types.types]


def draw_rows(program: CellProgram, rng: np.random.Generator) -> Drawn:
    """Draw the inputs of a batch of nodes; ints are ids in the smallest table that they index."""
    limits: defaultdict[int, list[int]] = defaultdict(lambda: [2])
    for index in program.instructions:
        source = program.vars[index].source
        if isinstance(source, Instruction) and source.op.index_axis is not None:
            found = origin(program.vars, source.args[1])
            limits[id(found)].append(program.vars[source.args[0]].shape[source.op.index_axis])
    leaves: dict[tuple[str, int], Any] = {}
    for var in program.vars:
        if isinstance(var.source, Attribute) and not var.source.is_float:
            data: Any = rng.integers(min(limits[id(var)]), size=(len(EDGES), *var.shape))
        else:
            data = rng.standard_normal((n_rows(var.domain), *var.shape))
        if isinstance(var.source, (Port, Attribute)):
            leaves[var.source.name, var.source.leaf] = data
    outputs = [program.vars[index] for index in program.outputs]
    incoming = [rng.standard_normal((n_rows(NODE if v.domain == SHARED else v.domain), *v.shape)) for v in outputs]
    return Drawn(leaves, incoming)


def run_program(program: CellProgram, drawn: Drawn) -> Results:
    """Compute the outputs and pull the drawn gradients back, in float64."""
    return run_derivative(differentiate(program), drawn)


def compute(program: CellProgram, drawn: Drawn) -> list[Any]:
    env = _known(program.vars, drawn)
    _run(program.vars, program.instructions, env)
    return [env[output] for output in program.outputs]


def run_derivative(derivative: Derivative, drawn: Drawn) -> Results:
    """Compute the outputs of a program, and run its derivative."""
    program = derivative.program
    env = _known(derivative.vars, drawn)
    _run(derivative.vars, program.instructions, env)
    env |= dict(zip(derivative.incoming, drawn.incoming, strict=True))
    _run(derivative.vars, sorted({*derivative.backward, *derivative.weights}), env)
    parameters: dict[int, Any] = {}
    for index, gradient in derivative.parameters:
        for part, piece in pieces_of(derivative.parameter(index), env[gradient][0]):
            parameters[id(part)] = parameters.get(id(part), 0) + piece
    for index, scatters in derivative.tables:
        table = derivative.parameter(index)
        total = parameters.setdefault(id(table), np.zeros(table.shape))
        for scatter in scatters:
            np.add.at(total, env[scatter.ids], env[scatter.values])
    ports = [None if g is None else env[g] for g in derivative.ports]
    return Results([env[output] for output in program.outputs], ports, parameters)


def draw_parameters(program: CellProgram, rng: np.random.Generator) -> list[Parameter]:
    """Give the parameters of a program random float64 values; return them."""
    for parameter in program.parameters:
        parameter.astype("float64").data = rng.standard_normal(parameter.shape)
    return program.parameters


def count_launches(vars: Sequence[Var], indices: Iterable[int]) -> tuple[int, int, int]:
    """Count products, element-wise and other computations, and copies; views do not count."""
    counted: Counter[str] = Counter()
    for index in indices:
        source = vars[index].source
        assert isinstance(source, Instruction)
        product = any(name in source.op.name for name in ("matmul", "affine", "outer"))
        counted["product" if product else "copy" if source.op.copies else "view" if source.op.view else "other"] += 1
    return counted["product"], counted["other"], counted["copy"]


def n_rows(domain: int) -> int:
    return N_ROWS.get(domain, sum(EDGES))


def _known(vars: Sequence[Var], drawn: Drawn) -> dict[int, Any]:
    env: dict[int, Any] = {}
    for index, var in enumerate(vars):
        match var.source:
            case Port(name=name, leaf=leaf) | Attribute(name=name, leaf=leaf):
                env[index] = drawn.leaves[name, leaf]
            case Weight(parameter=parameter):
                env[index] = parameter.data[None]
            case Constant(data=data):
                env[index] = data if isinstance(data, (int, float)) else data[None]
    return env


def _run(vars: Sequence[Var], indices: Iterable[int], env: dict[int, Any]) -> None:
    for index in indices:
        var = vars[index]
        assert isinstance(var.source, Instruction)
        op, args, static = var.source.op, [env[arg] for arg in var.source.args], dict(var.source.static)
        if op.view:
            env[index] = op.kernel(np, args[0], **static)
            continue
        if op.segments is not None:
            static["segments"] = Segments(np.cumsum((0, *EDGES)))
        if op.random:
            static["random"] = Randomness(key=np.arange(len(EDGES)))
        env[index] = np.zeros((n_rows(var.domain), *var.shape))
        run_kernel(op, np, [arg[None] for arg in args] if op.sums_rows else args, env[index], static)
