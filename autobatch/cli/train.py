"""`autobatch train`: train a model and report after every epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autobatch.cli import options
from autobatch.cli.fitting import Epoch, Fitting
from autobatch.cli.progress import show_progress
from autobatch.cli.results import describe_run, open_json
from autobatch.cli.threads import use_threads
from autobatch.cli.workload import Workload, load_workload


@click.command()
@options.model_argument
@options.data_option
@options.dim_option
@options.batch_size_option
@click.option("--epochs", type=click.IntRange(min=1), default=5, show_default=True, help="Passes over the data.")
@click.option(
    "--lr", type=click.FloatRange(min=0), default=1e-3, show_default=True, help="Learning rate of the optimizer, Adam."
)
@click.option(
    "--policy", metavar="NAME", default="auto", show_default=True, help="What decides which nodes run together."
)
@options.backend_option
@options.threads_option
@options.seed_option
@options.json_option
def train(
    model: str,
    data: str | None,
    dim: int,
    batch_size: int,
    epochs: int,
    lr: float,
    policy: str,
    backend: str,
    threads: int,
    seed: int,
    json_path: Path | None,
) -> None:
    """Train MODEL, and measure it after every epoch.

    MODEL is a name that `autobatch models` lists, or package.module:Class. Every instance is recorded once; an epoch
    runs over them in a random order. Reported: the mean training loss of an instance, the metrics on the development
    data, and the instances trained in a second, measuring not counted.

    \b
    Examples:
      autobatch train tree-lstm
      autobatch train tree-lstm --data path/to/sst --dim 128 --epochs 5
    """
    use_threads(threads)
    workload = load_workload(model, data, dim, seed)
    with open_json(json_path) as results:
        click.echo(summarise(workload))
        fitting = Fitting(workload, policy, backend, batch_size, lr)
        described = describe_run(workload, batch_size, fitting.policy, fitting.backend, mode="train")
        with show_progress(epochs * fitting.steps_per_epoch) as progress:
            for epoch in fitting.epochs(epochs, progress):
                progress.say(epoch.line())
                results.write({**described, "seed": seed, "lr": lr, **_figures(epoch)})


def summarise(workload: Workload) -> str:
    """Say in one line what is about to be trained."""
    n_numbers = sum(parameter.data.size for parameter in workload.model.parameters().values())
    dataset = workload.dataset
    return (
        f"{workload.spec.name}, dim {workload.dim}, {n_numbers:,} parameters; "
        f"{dataset.name}: {len(dataset.train):,} instances to train on, {len(dataset.dev):,} to measure on"
    )


def _figures(epoch: Epoch) -> dict[str, Any]:
    return {
        "epoch": epoch.number,
        "train_loss": epoch.loss,
        **{f"dev_{metric}": share for metric, share in epoch.metrics.items()},
        "instances_per_s": epoch.instances_per_s,
        "ms": epoch.ms,
        **epoch.counts,
    }
