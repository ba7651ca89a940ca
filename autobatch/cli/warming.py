"""`autobatch warm`: compile ahead, into the cache, what models need."""

from __future__ import annotations

import click

import autobatch as ab
from autobatch.backends.cpu.fixed import compile_fixed
from autobatch.cli import options
from autobatch.cli.progress import show_compilation
from autobatch.cli.threads import use_threads
from autobatch.cli.workload import Workload, load_workload
from autobatch.jit.later import compiling_now
from autobatch.system.cache import cache_folder

N_INSTANCES = 8


@click.command()
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@options.dim_option
@options.precision_option
@options.threads_option
@show_compilation()
@compiling_now()
def warm(models: tuple[str, ...], dim: int, precision: str, threads: int | str) -> None:
    """Compile ahead what models need, such as while the image of a container is built.

    A mini-batch of each MODEL is run, forward and backward, with a step of Adam, on data that it draws itself; by
    default a Tree-LSTM, for the loops that all models share. What is compiled lies in the cache: later processes find
    it, on processors of the same kind.
    """
    use_threads(threads)
    workloads = [load_workload(name, None, dim, 0, precision=precision) for name in models or ("tree-lstm",)]
    compile_fixed("float32", precision, threads != 1)
    for workload in workloads:
        run_a_step(workload.with_threads(threads))
        click.echo(f"{workload.spec.name}: compiled")
    click.echo(f"It lies in {cache_folder()}." if cache_folder() else "There is no cache: AUTOBATCH_CACHE is off.")


def run_a_step(workload: Workload) -> None:
    """Run a mini-batch without gradients, and one with them, and step."""
    instances = workload.first(N_INSTANCES)
    loss = workload.batched("loss", "auto", "cpu")
    loss(instances)
    _, grads = loss.value_and_grad(instances)
    ab.optim.Adam(workload.model).step(grads)
