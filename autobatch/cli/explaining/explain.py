"""`autobatch explain`: what runs together under several policies, and why not more."""

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
    "How many instances to batch: the first, in the order of the data's files; all if there are fewer.",
)
@options.policies_option("auto,depth,agenda")
@options.choice_option(
    "--bound",
    ["chain", "pairs"],
    "chain",
    "How to bound the batches: by the chains of each type, or by pairs of types, which takes seconds.",
)
@click.option("--training", is_flag=True, help="Run backward too, and count it.")
@click.option("--memory", is_flag=True, help="Show where values lie, in cells and between, and what moves.")
@click.option("--cell", metavar="NAME", help="Show instead what becomes of a cell: programs, layout, kernels, and why.")
@click.option(
    "--pass",
    "passes",
    metavar="NAME",
    type=click.Choice(list(TITLES)),
    multiple=True,
    help="With --cell, show only what this pass makes of it; may be given several times.",
)
@click.option(
    "--plot",
    "plot_path",
    metavar="FILE",
    type=FILE,
    help="Draw what ran when, or with --memory where values lie under the first policy, into a PNG, PDF or SVG file.",
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
    """Show what runs together under several policies, and why not more.

    MODEL is a name that `autobatch models` lists, or package.module:Class. For each policy: the nodes and their types,
    the batches, what compacting would leave of them, the fewest possible, the launches, the bytes copied, what was
    rewritten, the memory that values take, and the types whose nodes ran alone, with the reason.

    \b
    Example:
      autobatch explain tree-lstm --batch-size 32 --policy auto,agenda
      autobatch explain tree-lstm --cell merge --backend cuda
    """
    if cell is not None and (memory or plot_path is not None):
        raise click.UsageError("--cell shows a cell and no mini-batch; --memory and --plot do not go with it.")
    if passes and cell is None:
        raise click.UsageError("--pass shows what a pass makes of a cell; name the cell with --cell.")
    if plot_path is not None:
        require_picture(plot_path, "draw")
    use_threads(threads)
    workload = load_workload(model, data, dim, seed).with_threads(threads)
    instances = workload.up_to(batch_size)
    on_gpu = cell is not None and backend == "cuda"  # nothing runs, so that no GPU is needed
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
        click.echo(f"\ndrawn: {plot_path}")
