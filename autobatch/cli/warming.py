"""`autobatch warm`: compile models ahead of time, into the cache."""

from __future__ import annotations

from pathlib import Path

import click

import autobatch as ab
from autobatch.cli import options
from autobatch.cli.machine import use_threads
from autobatch.cli.progress import show_compilation
from autobatch.cli.serving.predictor import Predictor
from autobatch.cli.training.trained import read_model_file
from autobatch.cli.words import FILE, model_argument
from autobatch.cli.workload import Workload, load_workload
from autobatch.system.background import waiting_for_code
from autobatch.system.cache import cache_folder

N_INSTANCES = 8


@click.command()
@model_argument("models", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--model",
    "exported",
    metavar="FILE",
    type=FILE,
    help="Also compile the predictions of a file from `autobatch export`.",
)
@options.dim_option
@options.precision_option
@options.threads_option
@show_compilation()
@waiting_for_code()
def warm(models: tuple[str, ...], exported: Path | None, dim: int, precision: str, threads: int | str) -> None:
    """Compile models ahead of time, such as for a container image.

    Runs a mini-batch of each MODEL (by default a Tree-LSTM), forward and backward, on generated data. For a file, runs
    a mini-batch of predictions with the file's width and precision. Later processes on the same kind of processor load
    the compiled code from the cache.
    """
    use_threads(threads)
    predictor = None if exported is None else Predictor.of(read_model_file(exported, models))
    names = models or (("tree-lstm",) if predictor is None else ())
    workloads = [load_workload(name, None, dim, 0, precision=precision) for name in names]
    for workload in workloads:
        run_a_step(workload.with_threads(threads))
        click.echo(f"{workload.spec.name}: compiled")
    if predictor is not None:
        run_predictions(predictor, threads)
        click.echo(f"{exported}: compiled")
    click.echo(f"The cache is {cache_folder()}." if cache_folder() else "The cache is off (AUTOBATCH_CACHE).")


def run_a_step(workload: Workload) -> None:
    """Run a mini-batch without gradients, and one with gradients."""
    instances = workload.first(N_INSTANCES)
    loss = workload.batched("loss", "auto", "cpu")
    loss(instances)
    loss.value_and_grad(instances)


def run_predictions(predictor: Predictor, threads: int | str) -> None:
    """Run a mini-batch of a trained model's predictions."""
    spec, stored = predictor.spec, predictor.stored
    function = getattr(predictor.model, spec.predictor)
    precision = stored.settings.precision
    run = ab.batched(function, policy=stored.policy, backend="cpu", precision=precision, threads=threads)
    run([spec.given(instance) for instance in predictor.draw()])
