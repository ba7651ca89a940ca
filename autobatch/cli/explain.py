"""`autobatch explain`: show the batches of several policies, and why they are not larger; or the compilation of a cell.

A cell is printed after every pass, from the trace to the source of its kernels. Every result is checked against its
definition before it is shown. Kernels are those of the cpu backend, or those of the cuda backend with a table of their
registers, shared memory and spilled bytes, which needs no GPU. Below the steps is a reason for each pair of adjacent
steps that were not fused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from textwrap import indent

import click
import numpy as np

from autobatch.backends.cuda.device_cell import fit_rows
from autobatch.cli import options
from autobatch.cli.machine import use_threads
from autobatch.cli.results import format_table
from autobatch.cli.words import FILE, require_picture
from autobatch.cli.workload import load_workload, record
from autobatch.compiler.cuda.resources import COMPILER, GPUS, has_compiler, measure_resources
from autobatch.compiler.cuda.source import CudaSource, print_stage
from autobatch.compiler.llvm.source import StageSources
from autobatch.compiler.stage import Note, StageProgram, compile_backward, compile_forward
from autobatch.errors import DataError
from autobatch.graph.graph import Graph
from autobatch.inspect.plotting import plot_schedules
from autobatch.ir.autodiff import ROW_SUM
from autobatch.ir.derivative import Derivative
from autobatch.ir.program import CellProgram, Instruction, show_lines
from autobatch.ir.program_check import check_cell, check_derivative, check_rewritten
from autobatch.ir.simplify import simplify_why
from autobatch.ir.typetable import TypeTable
from autobatch.plan.plan import PlannedCell, Planner

NO_COMPILER = f"{COMPILER} is missing: install NVIDIA's CUDA toolkit to see the resources of the kernels"
NO_KERNELS = "no kernels"
PLACE = "int32"  # dtype of positions in memory, which allows a total of 2**31 elements
COLUMNS = ("kernel", "GPU", "threads per row", "registers", "spilled bytes", "shared bytes")


def show_resources(sources: Sequence[CudaSource], dtype: str, about: str) -> str:
    """Format a table with a line for each kernel of these stages on each GPU; without any, explain why.

    Registers and spilled bytes are per thread, shared bytes per block.

    Args:
        dtype: the model's dtype.
        about: subject of error messages.

    Raises:
        BackendError: the kernels cannot be compiled.
    """
    if not has_compiler():
        return NO_COMPILER
    texts = {name: text for source in sources for name, text in source.texts.items()}
    if not texts:
        return NO_KERNELS
    resources = measure_resources(texts, dtype, PLACE, about)
    rows = []
    for source in sources:
        for number, kernel in enumerate(source.kernels):
            if kernel is None:
                continue
            for gpu, most_shared_bytes in GPUS.items():
                found = resources[gpu][kernel.name]
                fit = fit_rows(kernel, source.stage.storage.row_width, np.dtype(dtype).itemsize, most_shared_bytes)
                shared_bytes = found.shared_bytes + fit.shared_bytes
                figures = (fit.team, found.registers, found.spilled_bytes, shared_bytes)
                rows.append([f"{source.stage.lowered.stage}, step {number}", gpu, *map(str, figures)])
    return format_table(COLUMNS, rows)


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
    # A cell that is planned without training has no derivative.
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
        return "no steps, because no parameter is read"
    return "\n".join([*lines, "neighbours are not fused: each step runs once over all rows of the type"])


@click.command()
@options.model_argument
@options.data_option
@options.dim_option
@options.count_option(
    "--batch-size",
    32,
    "Number of instances to batch, the first in file order.",
)
@options.policies_option("auto,depth,agenda")
@options.choice_option(
    "--bound",
    ["chain", "pairs"],
    "chain",
    "Method for the lower bound on batches: chains of one type, or pairs of types (tighter, but takes seconds).",
)
@click.option("--training", is_flag=True, help="Include the backward pass.")
@click.option("--memory", is_flag=True, help="Show the memory layout within and between cells, and the copies.")
@click.option(
    "--cell", metavar="NAME", help="Instead, show how this cell is compiled: programs, memory layout and kernels."
)
@click.option(
    "--pass",
    "passes",
    metavar="NAME",
    type=click.Choice(list(TITLES)),
    multiple=True,
    help="With --cell, show only the result of this compiler pass; repeatable.",
)
@click.option(
    "--plot",
    "plot_path",
    metavar="FILE",
    type=FILE,
    help="Plot the schedules, or with --memory the memory layout of the first policy, to a PNG, PDF or SVG file.",
)
@options.backend_option
@options.max_bytes_option
@options.threads_option
@options.seed_option
def explain(
    model: str,
    data: str | None,
    dim: int,
    batch_size: int,
    policies: tuple[str, ...],
    bound: str,
    training: bool,
    memory: bool,
    cell: str | None,
    passes: tuple[str, ...],
    plot_path: Path | None,
    backend: str,
    max_bytes: int | None,
    threads: int | str,
    seed: int,
) -> None:
    """Explain how policies batch a mini-batch.

    MODEL is a name from `autobatch models`, or package.module:Class. For each policy, a report lists nodes, types,
    batches (as run, and compacted) and their lower bound, launches, bytes copied, rewrites and memory, and why the
    nodes of some types ran alone.

    \b
    Examples:
      autobatch explain tree-lstm --batch-size 32 --policy auto,agenda
      autobatch explain tree-lstm --cell merge --backend cuda
    """
    if cell is not None and (memory or plot_path is not None):
        raise click.UsageError("--memory and --plot show a mini-batch and cannot be combined with --cell.")
    if passes and cell is None:
        raise click.UsageError("--pass requires --cell NAME.")
    if plot_path is not None:
        require_picture(plot_path, "draw")
    use_threads(threads)
    workload = load_workload(model, data, dim, seed).with_threads(threads)
    instances = workload.up_to(batch_size)
    on_gpu = cell is not None and backend == "cuda"  # kernels are only printed, so no GPU is needed
    losses = [workload.batched("loss", policy, "reference" if on_gpu else backend, max_bytes) for policy in policies]
    which = f"the first {batch_size}" if len(instances) == batch_size else f"all {len(instances)}"
    click.echo(f"{model}, {which} instances of {workload.dataset.name}")
    if cell is not None:
        loss = losses[0]
        gpu_dtype = workload.model.dtype.name if on_gpu or loss.backend.name == "cuda" else ""
        graph = loss.merged(record(loss, instances))
        click.echo(f"\n{show_cells(graph, loss.planner, cell, training, passes, gpu_dtype)}")
        return
    reports = []
    for loss in losses:
        reports.append(loss.explain(record(loss, instances), training, bound=bound, memory=memory))
        click.echo(f"\n{reports[-1]}")
    if plot_path is not None:
        if reports[0].memory is not None:
            reports[0].memory.plot(plot_path)
        else:
            plot_schedules([report.picture for report in reports], plot_path)
        click.echo(f"\nWrote the plot to {plot_path}.")
