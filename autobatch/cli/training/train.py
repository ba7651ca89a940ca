"""`autobatch train`: train a model and report after every epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from autobatch.cli import options
from autobatch.cli.machine import use_threads
from autobatch.cli.progress import show_compilation, show_progress
from autobatch.cli.results import JsonLines, describe_run, open_json, say_instances, say_precision
from autobatch.cli.training.fitting import Epoch, Fitting
from autobatch.cli.training.keeping import Keeper, Stopped, open_folder
from autobatch.cli.training.parallel import processes
from autobatch.cli.training.scoring import say_lack, say_missing_metrics, to_weights, weigh_instances
from autobatch.cli.training.stored import LAST, LAST_TENTH, Settings, StoredRun
from autobatch.cli.training.tensorboard import Scalars, open_scalars, require_tensorboard
from autobatch.cli.words import FILE, FOLDER, PathType
from autobatch.cli.workload import Workload, load_workload, say_dim
from autobatch.distributed.group import Joined
from autobatch.distributed.wire import ConnectionLost
from autobatch.errors import DataError
from autobatch.models.spec import in_words

DIVERGED = 1000  # times the loss of the first mini-batch: training diverges


@click.command()
@options.model_argument
@options.data_option
@click.option(
    "--dev",
    metavar="PATH",
    type=PathType(),
    help="Development data, instead of that in --data: a file, or a folder if the format is a folder.",
)
@click.option(
    "--split",
    metavar="SHARE",
    type=options.Real(min=0, max=1, min_open=True, max_open=True),
    help="Share of a single file to hold out as development data.  [default: 0.1, of ten or more instances]",
)
@options.dim_option
@options.batch_size_option
@options.count_option("--epochs", 5, "Passes over the training data, including those before --resume.")
@click.option(
    "--lr",
    metavar="RATE",
    type=options.Real(min=0),
    default=1e-3,
    show_default=True,
    help="Learning rate of the optimizer, Adam.",
)
@options.count_option(
    "--patience", None, "Stop after N epochs without improvement on the development data.  [default: never]"
)
@click.option(
    "--scale-targets",
    is_flag=True,
    help="Standardise the target numbers by their mean and standard deviation in the training data. Metrics and "
    "predictions keep the original unit.",
)
@click.option(
    "--class-weights",
    metavar="WEIGHTS",
    callback=to_weights,
    help="Weights of the losses by label: balanced, inversely proportional to frequency; a list such as yes=2,no=0.5; "
    'or a JSON file, {"yes": 2, "no": 0.5}.  [default: 1]',
)
@options.policy_option
@options.backend_option
@options.precision_option
@options.max_bytes_option
@options.threads_option
@options.count_option(
    "--data-parallel",
    1,
    "Processes for data-parallel training, each on a share of every mini-batch; needs the extra torch.",
)
@options.seed_option
@options.checkpoint_option("Write the last and the best checkpoint to this folder.")
@click.option(
    "--resume", is_flag=True, is_eager=True, help="Resume from the last checkpoint in the folder, if there is one."
)  # eager, because `check_policy` depends on it
@options.count_option(
    "--checkpoint-steps", 100, "Mini-batches between checkpoints; one is also written after each epoch."
)
@options.json_option
@click.option(
    "--tensorboard",
    metavar="DIR",
    type=FOLDER,
    help="Write losses, metrics and speed for TensorBoard to this folder; needs the extra tensorboard.",
)
@click.option(
    "--profile",
    "profile_path",
    metavar="FILE",
    type=FILE,
    help="Print a profile of the last mini-batches, and write it to this file for ui.perfetto.dev.",
)
@click.pass_context
@show_compilation()
def train(
    ctx: click.Context,
    /,
    threads: int | str,
    data_parallel: int,
    checkpoint: Path | None,
    resume: bool,
    checkpoint_steps: int,
    json_path: Path | None,
    tensorboard: Path | None,
    profile_path: Path | None,
    **settings: Any,
) -> int:
    """Train MODEL, and measure it after every epoch.

    MODEL is a name from `autobatch models`, or package.module:Class. An epoch runs over the training data in random
    order, and then prints the mean training loss per instance, the metrics on the development data, and the instances
    trained per second, not counting the time for metrics.

    Development data comes from --dev, or from a file such as dev.txt in the folder of --data. From a single file with
    at least ten instances, 10%, or the share of --split, are held out at random, by --seed.

    With --patience N, training ends early after N epochs without improvement. The best epoch has the best first metric
    on the development data; the next metrics break ties. The last line names it, and all other commands use its
    checkpoint. A run resumed without --patience keeps its previous value.

    With --class-weights, the loss of an instance is multiplied by the weight of its label. The label of a tree is that
    of its root. The balanced weight of a label with n of N instances is N / (C n), for C different labels; labels
    without a given weight have weight 1. The printed loss is weighted, while metrics count all instances alike.

    With --checkpoint, Ctrl-C and SIGTERM end training after a mini-batch. The same command with --resume continues from
    there, with bit-identical results on the same machine with the same number of threads. Omitted options keep their
    values; only --epochs, --patience, --max-bytes and --backend may change, and --json and --tensorboard append to
    their files. Results are equal only up to rounding with another --max-bytes, which changes the parts of
    mini-batches, with another --backend, and with --threads auto, whose choice depends on measurements.

    With --data-parallel N, N processes divide every mini-batch by predicted cost and sum their gradients; results equal
    those of one process up to rounding. Each process uses --threads threads. A run may resume with another N.

    \b
    Examples:
      autobatch train tree-lstm
      autobatch train tree-lstm --data path/to/sst --dim 128 --epochs 5
      autobatch train tree-lstm --data trees.txt --dev more_trees.txt
      autobatch train tree-lstm --checkpoint runs/trees --resume
      autobatch train tree-lstm --data path/to/sst --batch-size 256 --data-parallel 2
    """
    use_threads(threads)
    if checkpoint is None and resume:
        raise click.UsageError("--resume needs --checkpoint DIR, the folder to resume from", ctx)
    if settings["dev"] is not None and settings["split"] is not None:
        raise click.UsageError("give either --dev PATH or --split SHARE, as both choose the development data", ctx)
    require_tensorboard(tensorboard)
    with open_folder(checkpoint, resume) as stored:
        if resume and stored is None:
            click.echo(f"no checkpoint in {checkpoint} yet; starting a new run")
        if stored is None:
            names = ("model", "data", "dim", "seed", "precision", "dev", "split", "scale_targets")
            workload = load_workload(**{name: settings[name] for name in names})
            chosen = Settings(**{**settings, "data": settings["data"] or workload.spec.default_data})
        else:
            # Options left at their defaults keep the stored values.
            given = {name for name in settings if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
            chosen = stored.settle({name: settings[name] for name in given})
            workload = stored.load_workload()
        _check_development(chosen, workload)
        say_missing_metrics(workload)
        workload = workload.with_threads(threads)
        advice = "start again" if checkpoint is None else f"the checkpoint is in {checkpoint}, resume with --resume"
        with processes(data_parallel, advice) as joined:
            if joined.rank:
                json_path = tensorboard = profile_path = None  # only the first process writes
            n_epochs = 0 if stored is None else stored.position.epochs
            run = {"model": workload.spec.name, "data": workload.dataset.name, "seed": chosen.seed, "lr": chosen.lr}
            with open_json(json_path, append=stored is not None, n_epochs=n_epochs, run=run) as results:
                return _run(
                    chosen, workload, joined, stored, checkpoint, checkpoint_steps, results, tensorboard, profile_path
                )


def _check_development(settings: Settings, workload: Workload) -> None:
    """Raise a DataError if an option needs metrics or development data that the model or the data lacks."""
    asked = {"dev": settings.dev, "split": settings.split, "patience": settings.patience}
    needs = next((name for name, value in asked.items() if value not in (None, LAST_TENTH)), None)
    if needs is not None and workload.spec.count_correct is None:
        lack = say_lack(workload.spec, "count_correct")
        raise DataError(f"--{needs} needs a model with metrics; {workload.spec.name} has none, as {lack}.")
    if settings.patience is not None and not workload.dataset.dev:
        raise DataError(f"--patience needs development data; {workload.dataset.name} has none, so give it with --dev.")


def _run(
    settings: Settings,
    workload: Workload,
    joined: Joined,
    stored: StoredRun | None,
    checkpoint: Path | None,
    checkpoint_steps: int,
    results: JsonLines,
    tensorboard: Path | None,
    profile_path: Path | None,
) -> int:
    weights = None if settings.class_weights is None else weigh_instances(workload, settings.class_weights)
    click.echo(summarise(workload))
    policy = settings.policy if stored is None else stored.policy
    fitting = Fitting(
        workload, policy, settings.backend, settings.batch_size, settings.lr, settings.max_bytes, joined, weights
    )
    if stored is None:
        asked = settings.policy
        settings = replace(settings, policy=fitting.policy if asked == "auto" else asked, backend=fitting.backend)
    else:
        stored.restore(fitting, workload.dataset)
        at = fitting.position
        click.echo(f"resuming from {stored.path}: {at.epochs} epochs and {at.steps} mini-batches of the next done")
        for option in ("max_bytes", "backend"):
            if getattr(settings, option) != getattr(stored.settings, option):
                shown = option.replace("_", "-")
                click.echo(f"with another --{shown}, results are equal up to rounding, not bit-identical")
    with open_scalars(tensorboard, fitting) as scalars, _profile(fitting, profile_path) as warm:
        if checkpoint is None:
            _fit(settings, workload, fitting, None, results, scalars, warm)
            return 0
        keeper = Keeper(checkpoint, settings, workload, fitting, checkpoint_steps, joined)
        try:
            with keeper.catch_signals():
                _fit(settings, workload, fitting, keeper, results, scalars, warm)
        except ConnectionLost:
            keeper.write(LAST)
            raise
        except Stopped as stopped:
            click.echo(f"autobatch: interrupted; the checkpoint is in {checkpoint}, resume with --resume.", err=True)
            return stopped.status
    return 0


@contextmanager
def _profile(fitting: Fitting, path: Path | None) -> Iterator[Callable[[], None]]:
    """Yield a function that starts a profile; print it and write its trace at the end, even after an error.

    The profile starts after the first step, which compiles. Without a path, do nothing.

    Raises:
        DataError: the file cannot be written; raised before the work begins.
    """
    if path is None:
        yield lambda: None
        return
    profile, is_on = fitting.loss.profile(), False
    profile.save_trace(path)  # fails now if the file cannot be written
    with ExitStack() as stack:

        def warm() -> None:
            nonlocal is_on
            if not is_on:
                stack.enter_context(profile)
                is_on = True

        try:
            yield warm
        finally:
            profile.save_trace(path)
            click.echo(f"{profile}\ntrace for ui.perfetto.dev: {path}")


def _fit(
    settings: Settings,
    workload: Workload,
    fitting: Fitting,
    keeper: Keeper | None,
    results: JsonLines,
    scalars: Scalars,
    warm: Callable[[], None],
) -> None:
    """Train, and report every epoch; `warm` starts the profile, after the first step or before the only one."""
    described = describe_run(workload, settings.batch_size, fitting.policy, settings.backend, mode="train")
    n_epochs, at = settings.epochs, fitting.position
    n_steps = (n_epochs - at.epochs) * fitting.steps_per_epoch - at.steps

    if n_steps == 1:  # profile the only step
        warm()
    first_loss: float | None = None
    is_told = False

    def after_step() -> None:
        nonlocal first_loss
        warm()
        if first_loss is None:
            first_loss = fitting.last_loss
        scalars.after_step(fitting)
        if keeper is not None:
            keeper.after_step()

    with show_progress(n_steps) as progress:
        for epoch in fitting.epochs(n_epochs, progress, after_step, settings.patience):
            progress.say(epoch.line())
            doubt = "" if is_told else _doubt(epoch, first_loss)
            if doubt:
                is_told = True
                progress.say(f"training diverges: {doubt}; try a smaller --lr")
            results.write({**described, "seed": settings.seed, "lr": settings.lr, **_figures(epoch)})
            scalars.after_epoch(fitting, epoch)
            if keeper is not None:
                keeper.after_epoch(epoch)
    if settings.patience is not None:
        click.echo(_say_end(fitting, settings.patience, workload))


def _say_end(fitting: Fitting, patience: int, workload: Workload) -> str:
    """Describe why training with a patience has ended, and its best epoch."""
    best, n_epochs = fitting.best, fitting.position.epochs
    without = f"no improvement for {patience} epoch{'s' * (patience > 1)}"
    why = without if fitting.is_stuck(patience) else "--epochs reached"
    metrics = "".join(f"  dev {workload.spec.say(metric, value)}" for metric, value in best.metrics.items())
    which = f"best is epoch {best.epoch}:{metrics}" if best.epoch else "no epoch has finite metrics"
    return f"training ended after epoch {n_epochs} ({why}); {which}"


def _doubt(epoch: Epoch, first_loss: float | None) -> str:
    """Describe the sign of divergence in an epoch; "" if there is none."""
    for metric, value in epoch.metrics.items():
        if not math.isfinite(value):
            return f"dev {in_words(metric)} is {value}"
    if first_loss is not None and epoch.loss > DIVERGED * max(abs(first_loss), 1.0):
        return f"the loss is more than {DIVERGED:,} times that of the first mini-batch"
    return ""


def summarise(workload: Workload) -> str:
    """Describe the model and the data in one line."""
    n_numbers = sum(parameter.array.size for parameter in workload.model.parameters().values())
    dataset = workload.dataset
    measured = f"{len(dataset.dev):,}" if dataset.dev else "none"
    held_back = "" if dataset.dev else " (10% of a file is held out, if it has at least ten instances)"
    return (
        f"{workload.spec.name}{say_dim(workload)}, {n_numbers:,} parameters{say_precision(workload.precision)}; "
        f"{dataset.name}: {say_instances(len(dataset.train))} to train on, {measured} to measure on{held_back}"
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
