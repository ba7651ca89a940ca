"""Print how a cell is compiled: its program after every pass, from the trace to the source of its kernels.

Every result is checked from its definition before it is shown. The kernels are those of the cpu backend or of the cuda
backend; of the latter a table says what they need of GPUs. Below the steps is a reason for each pair of neighbours
that are not in one loop nest.
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
    "simplified": "program, simplified: nothing is computed twice, or known",
    "joined": "program, joined: sums of products are one product",
    "stacked": "program, stacked: inner batches are one instruction",
    "stacked simplified": "program, stacked and simplified again: this one is executed",
    "derived": "derivative",
    "derivative simplified": "derivative, simplified",
    "recomputed": "derivative, with what backward computes again instead of having it saved",
    "layout": "layout",
    "lowered": "lowered to loops, products, and interpreted ops",
    "cut": "cut: loops over one gate each",
    "hoisted": "hoisted: what runs once for all rows of the type",
    "fused": "fused: steps, and loop nests of kernels",
    "storage": "storage",
    "source": "steps, and the source of their kernels",
    "resources": "what the kernels need of GPUs, per thread and block",
    "weights": "weights: what runs once over all rows of the type, for the gradients of parameters",
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
    """Describe the types of a cell, one after the other.

    Args:
        graph: of a recorded mini-batch, merged and rewritten.
        planner: decides what is executed.
        name: of the cell, for all its types; or of a type as reports number them, such as `merge#2`.
        training: plan for backward too, and show it.
        passes: what to show, of `TITLES`; all if there are none.
        gpu_dtype: the model's float type, for the kernels of the cuda backend; "" for those of the cpu backend.

    Raises:
        BackendError: kernels cannot be compiled for GPUs.
        DataError: no node of the mini-batch is of such a cell.
        GraphError, PlanError: what a pass made is wrong; a defect of autobatch.

    Cost: that of planning and compiling each type, without what LLVM makes of the source.
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
        sections = [
            f"\n{title}\n{indent(text, '  ')}"
            for key, title, text in _sections(planner.plan_cell(node_type, training), passes or TITLES, gpu_dtype)
            if key in (passes or TITLES)
        ]
        texts.append("\n".join([head, *(sections or ["\n(none of these passes is run for it)"])]))
    return "\n\n".join(texts)


def _sections(cell: PlannedCell, passes: Collection[str], gpu_dtype: str) -> Iterator[tuple[str, str, str]]:
    """The pass, title and text of each result, in the order in which one is made from the other."""
    yield from _programs(cell)
    yield "layout", TITLES["layout"], str(cell.layout) or "no columns: nothing is read from other nodes or saved"
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
    """The passes over a stage with what each made, and the stage."""
    noted: list[tuple[str, str]] = []
    stage = compile_stage(cell, lambda key, text: noted.append((key, text)))
    return noted, stage


def _programs(cell: PlannedCell) -> Iterator[tuple[str, str, str]]:
    """The programs, each with how many instructions it has, and derivatives."""
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
    """How many instructions simplification met, and why they went."""
    if key != "simplified" or not isinstance(before, CellProgram):
        return ""
    return "".join(f", {n} {why}" for why, n in simplify_why(before).why.items())


def _show_weights(derivative: Derivative) -> str:
    """What computes each gradient of a parameter; these steps run one by one, each over all rows."""
    lines = []
    for index in derivative.weights:
        source = derivative.vars[index].source
        assert isinstance(source, Instruction)
        if source.op.view:
            how = "a view"
        elif source.op.name == "row_sum_outer":
            how = "one product, which a library computes"
        elif source.op is ROW_SUM:
            how = "one pass over the rows"
        else:
            how = "as the reference backend computes it"
        (line,) = show_lines(derivative.vars, [index])
        lines.append(f"{line.strip()}  # {how}{', added in place' if index in derivative.accumulated else ''}")
    for _, scatters in derivative.tables:
        lines += [f"rows %{s.ids} of a table += %{s.values}  # rows with the same id are summed" for s in scatters]
    if not lines:
        return "nothing: no parameter is read"
    return "\n".join([*lines, "neighbours are not fused: each step runs once over all rows of the type"])
