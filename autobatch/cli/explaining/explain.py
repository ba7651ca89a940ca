"""`autobatch explain`: show the batches of several policies, and why they are not larger."""

from __future__ import annotations

from pathlib import Path

import click

from autobatch.cli import options
from autobatch.cli.explaining.cells import TITLES, show_cells
from autobatch.cli.places import FILE, require_picture
from autobatch.cli.threads import use_threads
from autobatch.cli.workload import load_workload, record
from autobatch.inspect.plotting import plot_schedules


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
