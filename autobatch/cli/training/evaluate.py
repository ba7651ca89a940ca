"""`autobatch eval`, `autobatch predict` and `autobatch export`: use a trained model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import autobatch as ab
from autobatch.cli import options
from autobatch.cli.machine import use_threads
from autobatch.cli.results import JsonLines, describe_run, open_json, say_instances
from autobatch.cli.training.scoring import Scorer, say_lack, say_missing_metrics
from autobatch.cli.training.stored import StoredModel, describe
from autobatch.cli.training.trained import Trained, checkpoint_option, trained_model
from autobatch.cli.words import DATA, FILE, complete_data
from autobatch.cli.workload import Workload
from autobatch.errors import DataError
from autobatch.models.data.own_files import FilesLoader
from autobatch.readers.vocabulary import describe as describe_vocabularies
from autobatch.trace.recursion import BoundRecursion

data_option = click.option(
    "--data",
    metavar="NAME_OR_PATH",
    type=DATA,
    shell_complete=complete_data,
    help="A generator or a folder, for its development data. A file, or a folder without development data, is used as "
    "a whole.  [default: the development data of training]",
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
    """Compute the metrics of a trained MODEL on development data or other data.

    MODEL is the name used in training. Without --data, the metrics equal those that training printed for the epoch of
    the checkpoint.

    \b
    Examples:
      autobatch eval tree-lstm --checkpoint runs/trees
      autobatch eval --model trees.ab --data path/to/test.txt
    """
    use_threads(threads)
    stored = trained.read()
    workload = stored.load_workload(data).with_threads(threads)
    if workload.spec.count_correct is None:
        raise DataError(f"cannot measure {stored.settings.model}: {say_lack(workload.spec, 'count_correct')}.")
    say_missing_metrics(workload)
    instances, backend = select_instances(workload, data), backend or stored.settings.backend
    with open_json(json_path) as results:
        metrics = make_scorer(workload, instances, stored, backend, max_bytes).measure()
        if not metrics and not workload.spec.missing_packages():
            raise DataError(
                f"cannot measure {stored.settings.model} on {workload.dataset.name}: its "
                f"{say_instances(len(instances))} must have labels; autobatch predict works without them."
            )
        words = "  ".join(workload.spec.say(metric, value) for metric, value in metrics.items())
        name = workload.dataset.name if data is not None else stored.settings.dev or workload.dataset.name
        click.echo(f"{name}, {say_instances(len(instances))}:  {words}")
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
    help="Output file, replaced if it exists.  [default: standard output]",
)
@click.option(
    "--probabilities", is_flag=True, help="Add the probabilities of the labels, if the model scores them by logits."
)
@options.other_backend_option
@options.max_bytes_option
@options.threads_option
def predict(
    trained: Trained,
    data: str | None,
    out: Path | None,
    probabilities: bool,
    backend: str | None,
    max_bytes: int | None,
    threads: int | str,
) -> None:
    """Write the predictions of a trained MODEL, one JSON object per line.

    MODEL is the name used in training. The lines are in the order of the data. --data may lack the answers: tags,
    numbers of molecules, or translations. With translations, blank lines get a prediction, too. Without --data, the
    instances are those of `autobatch eval`, or all if the training data was too small to hold out development data.

    With --probabilities, each object also has "probabilities", by label: {"yes": 0.9, "no": 0.1}. For a tree, they are
    those of its root; for tags, they are a list with an object per tag.

    \b
    Examples:
      autobatch predict bilstm-tagger --checkpoint runs/tags --data path/to/test.txt --out tags.jsonl
      autobatch predict --model tagger.ab --data path/to/test.txt
    """
    use_threads(threads)
    stored = trained.read()
    workload = stored.load_workload(data, answered=data is None).with_threads(threads)
    if workload.spec.predict is None:
        raise DataError(f"cannot predict with {stored.settings.model}: {say_lack(workload.spec, 'predict')}.")
    if probabilities and workload.spec.probabilities is None:
        raise DataError(f"{stored.settings.model} has no probabilities: it does not score labels by logits.")
    backend = backend or stored.settings.backend
    instances = select_instances(workload, data) if workload.dataset.dev else workload.dataset.items
    scorer = make_scorer(workload, instances, stored, backend, max_bytes)
    with open_json(out) as results:
        lines = results if out is not None else JsonLines(sys.stdout)
        for prediction in scorer.predict(probabilities):
            lines.write(prediction)


@click.command()
@options.model_argument
@checkpoint_option(required=True)
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=FILE,
    help="Output file, replaced if it exists.",
)
@options.count_option("--examples", 64, "Number of instances to run; the file holds the cells that they call.")
def export(model: str, checkpoint: Path, out: Path, examples: int) -> None:
    """Write a trained MODEL to one file, for `autobatch predict --model` and `ab.load`.

    MODEL is the name used in training. The file holds the parameters, the vocabularies, the policy and the programs of
    the cells, but no code. For a class with the attribute files, it holds the fold, scan or fold_edges named
    predict, which reads JSON.

    \b
    Examples:
      autobatch export bilstm-tagger --checkpoint runs/tags --out tagger.ab
    """
    stored = Trained(model, checkpoint).read()
    workload = stored.load_workload()
    spec = workload.spec
    is_fold = spec.predict is None and isinstance(getattr(workload.model, "predict", None), BoundRecursion)
    if spec.predict is None and not is_fold and isinstance(spec.load, FilesLoader):
        raise DataError(f"cannot export {model}: its attribute predict must be an ab.fold, ab.scan or ab.fold_edges.")
    # A model without predictions exports its loss.
    method = "predict" if is_fold else "loss" if spec.predict is None else spec.predictor
    function = workload.batched(method, stored.policy, "reference")
    workload.model.eval()
    instances = workload.up_to(examples)
    given = [spec.given(instance) for instance in instances] if spec.predict is not None else instances
    vocabularies = workload.dataset.vocabularies
    about = describe_vocabularies(vocabularies) if is_fold else describe(stored.settings, workload)
    ab.export(function, out, examples=given, about=about)
    click.echo(f"{out}: {model}, {out.stat().st_size / 1e3:,.0f} kB")


def make_scorer(
    workload: Workload, instances: Sequence[Any], stored: StoredModel, backend: str, max_bytes: int | None
) -> Scorer:
    """Record instances for a stored model, with its policy and batch size."""
    return Scorer(workload, instances, stored.policy, backend, stored.settings.batch_size, max_bytes)


def select_instances(workload: Workload, data: str | None) -> Sequence[Any]:
    """Return all instances of --data if it is a file or a folder without development data, else the development data.

    Raises:
        DataError: the data has no instances to return.
    """
    dataset = workload.dataset
    is_file = data is not None and data not in workload.spec.generators and Path(data).is_file()
    is_whole = is_file or (data is not None and dataset.dev_places is not None)
    instances = dataset.items if is_whole else dataset.dev
    if not instances:
        raise DataError(
            f"cannot measure on {dataset.name}: it has no development instances; give a file with --data, all of which "
            f"is used."
        )
    return instances
