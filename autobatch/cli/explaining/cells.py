"""Print the compilation of a cell: its program after every pass, from the trace to the source of its kernels.

Every result is checked against its definition before it is shown. Kernels are those of the cpu backend, or those of
the cuda backend with a table of their resources. Below the steps is a reason for each pair of adjacent steps that were
not fused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from textwrap import indent

import numpy as np

from autobatch.cli.explaining.gpus import show_resources
from autobatch.compiler.cuda.source import CudaSource, print_stage
from autobatch.compiler.llvm.source import StageSources
from autobatch.compiler.stage import Note, StageProgram, compile_backward, compile_forward
from autobatch.errors import DataError
from autobatch.graph.graph import Graph
from autobatch.ir.derivative import Derivative
from autobatch.ir.passes.autodiff import ROW_SUM
from autobatch.ir.passes.simplify import simplify_why
from autobatch.ir.program import CellProgram, Instruction, show_lines
from autobatch.ir.program_check import check_cell, check_derivative, check_rewritten
from autobatch.ir.typetable import TypeTable
from autobatch.plan.plan import PlannedCell, Planner

TITLES = {
    "traced": "program, as traced",
    "simplified": "program, simplified: common subexpressions eliminated, constants folded",
    "joined": "program, joined: sums of products merged into one product",
    "stacked": "program, stacked: inner batches merged into one instruction",
    "stacked simplified": "program, stacked and simplified again: this one is executed",
    "derived": "derivative",
    "derivative simplified": "derivative, simplified",
    "recomputed": "derivative, with rematerialisation: recomputed in backward instead of saved",
    "layout": "layout",
    "lowered": "lowered to loops, products, and interpreted ops",
    "cut": "cut: a loop per gate",
    "hoisted": "hoisted: steps that run once for all rows of the type",
    "fused": "fused: steps, and loop nests of kernels",
    "storage": "storage",
    "source": "steps, and the source of their kernels",
    "resources": "GPU resources of the kernels, per thread and block",
    "weights": "weights: steps for gradients of parameters, each once over all rows of the type",
}
AS_BEFORE = "as before"


def show_cells(
    graph: Graph,
    planner: Planner,
    name: str,
    training: bool,
    passes: Sequence[str] = (),
    gpu_dtype: str = "",
) -> str:
    """Describe the compilation of the types of a cell.

    Args:
        graph: graph of a recorded mini-batch, merged and rewritten.
        planner: the planner of the cells.
        name: name of a cell, for all its types; or of a type as numbered by reports, such as `merge#2`.
        training: whether to plan and show the backward pass.
        passes: keys of `TITLES` to show; empty for all.
        gpu_dtype: the model's dtype to show cuda kernels; "" to show those of the cpu backend.

    Raises:
        BackendError: kernels cannot be compiled for GPUs.
        DataError: the mini-batch has no node of this cell.
        GraphError, PlanError: the result of a pass is wrong, a bug in autobatch.

    Cost: planning and compiling each type, except for LLVM.
    """
    types = graph.types
    assert isinstance(types, TypeTable), "the graph was recorded"
    counts, names = np.bincount(graph.type_id, minlength=len(types)).tolist(), types.names
    used = [kind for kind, count in enumerate(counts) if count]
    found = [kind for kind in used if name in (types[kind].name, names[kind])]
    if not found:
        known = dict.fromkeys(types[kind].name for kind in used)
        raise DataError(f"cell must be one of the mini-batch's cells {', '.join(known)}, got {name!r}.")
    texts = []
    for kind in found:
        node_type = types[kind]
        head = f"{names[kind]}, {counts[kind]} {'node' if counts[kind] == 1 else 'nodes'}: {node_type.signature}"
        sections = [
            f"\n{title}\n{indent(text, '  ')}"
            for key, title, text in _sections(planner.plan_cell(node_type, training), passes or TITLES, gpu_dtype)
            if key in (passes or TITLES)
        ]
        texts.append("\n".join([head, *(sections or ["\n(these passes do not run for this type)"])]))
    return "\n\n".join(texts)


def _sections(cell: PlannedCell, passes: Collection[str], gpu_dtype: str) -> Iterator[tuple[str, str, str]]:
    """Yield the pass, title and text of each result, in the order of compilation."""
    yield from _programs(cell)
    yield "layout", TITLES["layout"], str(cell.layout) or "no columns: no inputs from other nodes and no saved values"
    stages = {"forward": compile_forward} | ({} if cell.derivative is None else {"backward": compile_backward})
    sources: list[CudaSource] = []
    for name, compile_stage in stages.items():
        noted, stage = _noted(cell, compile_stage)
        for key, text in noted:
            yield key, f"{name}, {TITLES[key]}", text
        if gpu_dtype:
            sources.append(print_stage(stage))
        yield "source", f"{name}, {TITLES['source']}", str(sources[-1] if gpu_dtype else StageSources(stage, "float32"))
    if gpu_dtype and "resources" in passes:
        yield "resources", TITLES["resources"], show_resources(sources, gpu_dtype, f"cell {cell.program.name!r}")
    if cell.derivative is not None:
        yield "weights", TITLES["weights"], _show_weights(cell.derivative)


def _noted(
    cell: PlannedCell, compile_stage: Callable[[PlannedCell, Note], StageProgram]
) -> tuple[list[tuple[str, str]], StageProgram]:
    """Compile a stage; return the result of each pass, and the stage."""
    noted: list[tuple[str, str]] = []
    stage = compile_stage(cell, lambda key, text: noted.append((key, text)))
    return noted, stage


def _programs(cell: PlannedCell) -> Iterator[tuple[str, str, str]]:
    """Yield the programs and derivatives, with their numbers of instructions in the titles."""
    before: CellProgram | Derivative | None = None
    for key, result in cell.passes or (("traced", cell.type.program), ("stacked", cell.program)):
        if isinstance(result, CellProgram):
            if before is None:
                check_cell(result)
            else:
                check_rewritten(cell.type.program, result)
            title = f"{TITLES[key]} ({_count(len(result.instructions))}{_reasons(key, before)})"
        else:
            check_derivative(result)
            title = f"{TITLES[key]} ({_count(len(result.backward) + len(result.weights))})"
        text = str(result)
        yield key, title, AS_BEFORE if before is not None and text == str(before) else text
        before = result


def _count(n: int) -> str:
    return f"{n} {'instruction' if n == 1 else 'instructions'}"


def _reasons(key: str, before: CellProgram | Derivative | None) -> str:
    """Describe how many instructions simplification removed, and why."""
    if key != "simplified" or not isinstance(before, CellProgram):
        return ""
    return "".join(f", {n} {why}" for why, n in simplify_why(before).why.items())


def _show_weights(derivative: Derivative) -> str:
    """List the steps that compute gradients of parameters; they run one by one, each over all rows."""
    lines = []
    for index in derivative.weights:
        source = derivative.vars[index].source
        assert isinstance(source, Instruction)
        if source.op.view:
            how = "a view"
        elif source.op.name == "row_sum_outer":
            how = "one product, by a library"
        elif source.op is ROW_SUM:
            how = "one pass over the rows"
        else:
            how = "as the reference backend computes it"
        (line,) = show_lines(derivative.vars, [index])
        lines.append(f"{line.strip()}  # {how}{', added in place' if index in derivative.accumulated else ''}")
    for _, scatters in derivative.tables:
        lines += [f"rows %{s.ids} of a table += %{s.values}  # rows with the same id are summed" for s in scatters]
    if not lines:
        return "none: no parameter is read"
    return "\n".join([*lines, "neighbours are not fused: each step runs once over all rows of the type"])
