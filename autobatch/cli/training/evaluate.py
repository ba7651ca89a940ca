"""`autobatch eval`, `autobatch predict` and `autobatch export`: what a trained model is used for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import autobatch as ab
from autobatch.cli import options
from autobatch.cli.completion import complete_data
from autobatch.cli.places import DATA, FILE
from autobatch.cli.results import JsonLines, describe_run, open_json, say_instances
from autobatch.cli.threads import use_threads
from autobatch.cli.training.scoring import Scorer, say_missing_metrics
from autobatch.cli.training.stored import StoredModel, describe
from autobatch.cli.training.trained import Trained, checkpoint_option, trained_model
from autobatch.cli.workload import Workload
from autobatch.errors import DataError

data_option = click.option(
    "--data",
    metavar="NAME_OR_PATH",
    type=DATA,
    shell_complete=complete_data,
    help="A file, which is read whole; or a folder or a generator, for its development data.  [default: the "
    "development data of training]",
)


@click.command(name="eval")
@trained_model
@data_option
@options.other_backend_option
@options.max_bytes_option
@options.threads_option
@options.json_option
def evaluate(
    trained: Trained,
    data: str | None,
    backend: str | None,
    max_bytes: int | None,
    threads: int | str,
    json_path: Path | None,
) -> None:
    """Measure a trained MODEL: its metrics on development or other data.

    MODEL is the name that it was trained by. Without --data, the metrics are those that training printed for the
    epoch of the checkpoint.

    \b
    Examples:
      autobatch eval tree-lstm --checkpoint runs/trees
      autobatch eval --model trees.ab --data path/to/test.txt
    """
    use_threads(threads)
    stored = trained.read()
    workload = stored.load_workload(data).with_threads(threads)
    if workload.spec.count_correct is None:
        raise DataError(
            f"cannot measure {stored.settings.model}: it has no metrics; give the model a method scores(instance)."
        )
    say_missing_metrics(workload)
    instances, backend = select_instances(workload, data), backend or stored.settings.backend
    with open_json(json_path) as results:
        metrics = make_scorer(workload, instances, stored, backend, max_bytes).measure()
        if not metrics and not workload.spec.missing_packages():
            raise DataError(
                f"cannot measure {stored.settings.model} on {workload.dataset.name}: nothing in its "
                f"{say_instances(len(instances))} has a label; autobatch predict needs none."
            )
        words = "  ".join(workload.spec.say(metric, value) for metric, value in metrics.items())
        click.echo(f"{workload.dataset.name}, {say_instances(len(instances))}:  {words}")
        settings = stored.settings
        described = describe_run(workload, settings.batch_size, settings.policy, backend, mode="eval")
        results.write({**described, "instances": len(instances), **metrics})


@click.command()
@trained_model
@data_option
@click.option(
    "--out",
    metavar="FILE",
    type=FILE,
    help="Write to this file, which is replaced.  [default: standard output]",
)
@options.other_backend_option
@options.max_bytes_option
@options.threads_option
def predict(
    trained: Trained,
    data: str | None,
    out: Path | None,
    backend: str | None,
    max_bytes: int | None,
    threads: int | str,
) -> None:
    """Write the predictions of a trained MODEL, one JSON object a line.

    MODEL is the name that it was trained by. The lines are in the order of the data. What --data names needs no
    answers: sentences without tags, molecules without numbers, sentences without translations beside them, each blank
    line of which has a prediction. Without --data, the instances are those that `autobatch eval` measures, or all if
    training had too few to hold some back.

    \b
    Examples:
      autobatch predict bilstm-tagger --checkpoint runs/tags --data path/to/test.txt --out tags.jsonl
      autobatch predict --model tagger.ab --data path/to/test.txt
    """
    use_threads(threads)
    stored = trained.read()
    workload = stored.load_workload(data, answered=data is None).with_threads(threads)
    if workload.spec.predict is None:
        raise DataError(
            f"cannot predict with {stored.settings.model}: it has no scores; give the model a method scores(instance)."
        )
    backend = backend or stored.settings.backend
    instances = select_instances(workload, data) if workload.dataset.dev else workload.dataset.items
    scorer = make_scorer(workload, instances, stored, backend, max_bytes)
    with open_json(out) as results:
        lines = results if out is not None else JsonLines(sys.stdout)
        for prediction in scorer.predict():
            lines.write(prediction)


@click.command()
@options.model_argument
@checkpoint_option(required=True)
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=FILE,
    help="Write to this file, which is replaced.",
)
@options.count_option("--examples", 64, "Instances of the data, which call the cells that the file shall hold.")
def export(model: str, checkpoint: Path, out: Path, examples: int) -> None:
    """Write a trained MODEL to one file, for `autobatch predict --model` and `ab.load`.

    MODEL is the name that it was trained by. The file holds parameters, vocabularies, the policy and the programs of
    the cells, and no code.

    \b
    Examples:
      autobatch export bilstm-tagger --checkpoint runs/tags --out tagger.ab
    """
    stored = Trained(model, checkpoint).read()
    workload = stored.load_workload()
    spec = workload.spec
    method = "loss" if spec.predict is None else spec.predictor
    function = workload.batched(method, stored.policy, "reference")
    workload.model.eval()
    instances = workload.up_to(examples)
    given = [spec.given(instance) for instance in instances] if spec.predict is not None else instances
    ab.export(function, out, examples=given, about=describe(stored.settings, workload))
    click.echo(f"{out}: {model}, {out.stat().st_size / 1e3:,.0f} kB")


def make_scorer(
    workload: Workload, instances: Sequence[Any], stored: StoredModel, backend: str, max_bytes: int | None
) -> Scorer:
    """Record instances, to be run as training ran them, but by a backend and within a limit of their own."""
    return Scorer(workload, instances, stored.policy, backend, stored.settings.batch_size, max_bytes)


def select_instances(workload: Workload, data: str | None) -> Sequence[Any]:
    """Take all of a file that was asked for, else the development data.

    Raises:
        DataError: there are none.
    """
    dataset = workload.dataset
    is_file = data is not None and data not in workload.spec.generators and Path(data).is_file()
    instances = dataset.items if is_file else dataset.dev
    if not instances:
        raise DataError(
            f"cannot measure on {dataset.name}: it holds no development instances; give a file by --data, which is "
            f"read whole."
        )
    return instances
