"""The trained model of a command: a folder of checkpoints with the model's name, or an exported file.

Exported files are those of `autobatch export`, and folds, which commands run on JSON without the model's code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from autobatch.arguments import RAW
from autobatch.cli import options
from autobatch.cli.training.described import naming
from autobatch.cli.training.stored import BEST, LAST, Settings, StoredModel, read_exported, read_run
from autobatch.cli.words import FILE, model_argument
from autobatch.cli.workload import Encoding, Workload
from autobatch.deploy.loading import load
from autobatch.errors import CheckpointError, DataError
from autobatch.models import ModelSpec
from autobatch.models.data.dataset import Dataset
from autobatch.readers.json_lines import read_jsonl
from autobatch.readers.lines import fault
from autobatch.readers.vocabulary import Vocabulary, encode, restore
from autobatch.schedule.schedule import Policy
from autobatch.system.nested_json import parse_json, to_json

BATCH_SIZE = 256


@dataclass(frozen=True)
class ExportedFold(StoredModel):
    """A fold with its model, from a file of `ab.export`."""

    model: Any

    @classmethod
    def of(cls, path: Path, model: Any) -> ExportedFold:
        """Describe a model of `ab.load` with an exported fold."""
        settings = Settings(
            model=model._function.__name__, data="", dim=0, batch_size=BATCH_SIZE, epochs=0, lr=0.0, policy="",
            backend="auto", seed=0, precision=model.options["precision"],
        )  # fmt: skip
        with naming(path, "use", RAW):
            vocabularies = restore(model.about)
        return cls(path, settings, Encoding(vocabularies, {}), None, model.state_dict(), model)

    @property
    def policy(self) -> str | Policy:
        found: str | Policy = self.model.options["policy"]
        return found

    @property
    def identity(self) -> Any:
        """Return a key that files of the same programs and constants share, whatever their parameters."""
        content, constants = self.model._source.content, self.model._source.constants
        return content, {name: (x.dtype, x.shape, x.tobytes()) for name, x in constants.items()}

    def find_spec(self) -> ModelSpec:
        """Describe the model: it reads JSON, and writes the results of the fold."""
        return ModelSpec(
            name=self.settings.model, summary="an exported fold", model=lambda: self.model, generators=(),
            reads=f"JSON, with the fields {', '.join(self.model._function.fields)}", default_data="", load=self._load,
            predict=self._predict, predictor=self.settings.model,
        )  # fmt: skip

    def read(self, value: Any) -> Any:
        """Read an instance from its JSON value, or from a text that holds it.

        Raises:
            DataError: the text is not JSON, or a field that the fold takes cannot be encoded.
        """
        if isinstance(value, str):
            try:
                value = parse_json(value)
            except ValueError as error:
                raise fault("an instance", "the text", value, getattr(error, "pos", 0), "JSON") from error
        return encode(value, self._vocabularies)

    @cached_property
    def _labels(self) -> Vocabulary | None:
        """Return the vocabulary of the results: the only one of labels with as many names as the results have
        values."""
        function, given = self.model._function, self.model._function.recursion.describe()
        names = [given[name] for name in ("each", "root", "last", "readout") if name in given]
        n = getattr(self.model, names[0]).cell.result_below if names else 0
        others = [found for name, found in self.encoding.vocabularies.items() if name not in function.fields]
        fitting = [found for found in others if found.closed and len(found) == n]
        return fitting[0] if len(fitting) == 1 else None

    def _predict(self, outputs: Any, instances: Sequence[Any], _: Any) -> list[dict[str, Any]]:
        """Return {"result": ...} for each instance, with the "label" of an id, or the "labels" of a list of them."""
        found, labels = describe_results(outputs, instances, {}), self._labels
        if labels is not None:
            for one in found:
                one["labels" if isinstance(one["result"], list) else "label"] = labels.decode(one["result"])
        return found

    @cached_property
    def _vocabularies(self) -> dict[str, Vocabulary]:
        """Return the vocabularies of the fields that the fold takes; others, such as labels, may be missing or
        unknown."""
        taken = self.model._function.fields
        return {name: found for name, found in self.encoding.vocabularies.items() if name in taken}

    def _load(self, data: str, rng: np.random.Generator, _: Any = None, /) -> Dataset:
        """Read a file of JSON lines, as prediction data; without a file, the list of instances is empty.

        Raises:
            DataError: the file cannot be read, a line is not JSON, or a field that the fold takes cannot be encoded.
        """
        items = []
        for number, instance in enumerate(read_jsonl(data) if data else (), start=1):
            try:
                items.append(encode(instance, self._vocabularies))
            except DataError as error:
                raise DataError(f"{data}, instance {number}: {error}") from error
        return Dataset(data, items, (), {}, {})

    def build(self, spec: ModelSpec, dataset: Dataset, rng: np.random.Generator) -> Any:
        return self.model

    def load_workload(self, data: str | None = None, answered: bool = True) -> Workload:
        """Load the model with instances.

        Raises:
            DataError: `data` is not given, or its instances are malformed.
        """
        if data is None:
            raise DataError(f"{self.path} holds no data; give a file of instances with --data.")
        spec, rng = self.find_spec(), np.random.default_rng(0)
        return Workload(spec, self._load(data, rng), self.model, 0, rng, 0, self.settings.precision)


def read_model_file(path: Path, named: Collection[str] = ()) -> StoredModel:
    """Read a file of `autobatch export`, or one of `ab.export` with a fold of the model.

    Args:
        named: models named on the command line; the file may import only these and the models of autobatch.

    Raises:
        CheckpointError: the file is missing, damaged, or holds neither.
    """
    model = load(path)
    is_own = {"settings", "sizes"} <= model.about.keys()  # users may have settings of their own
    if not is_own and model._function is not None and model._function.owner is model:
        return ExportedFold.of(path, model)
    return read_exported(path, model, named)


def describe_results(
    outputs: Any, instances: Sequence[Any], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Return {"result": ...} for each instance, with lists for arrays and tuples."""
    return [{"result": to_json(_result_of(outputs, i))} for i in range(len(instances))]


def _result_of(outputs: Any, i: int) -> Any:
    """Return the part of a mini-batch's results that belongs to an instance."""
    if isinstance(outputs, tuple):
        return [_result_of(part, i) for part in outputs]
    if isinstance(outputs, dict):
        return {name: _result_of(part, i) for name, part in outputs.items()}
    if is_dataclass(outputs):
        return {field.name: _result_of(getattr(outputs, field.name), i) for field in fields(outputs)}
    return outputs[i]


class Trained(NamedTuple):
    """A trained model as given on the command line.

    Attributes:
        name: name of the model; None to use the one in the exported file.
        path: the folder of checkpoints, one of its files, or the exported file.
        is_exported: whether `path` is an exported file.
    """

    name: str | None
    path: Path
    is_exported: bool = False

    @property
    def file(self) -> Path:
        """Return the file to read: in a folder the best checkpoint, or the last one before the first epoch's end."""
        if self.is_exported or not self.path.is_dir():
            return self.path
        return self.path / (BEST if (self.path / BEST).exists() else LAST)

    def read(self) -> StoredModel:
        """Read the model from the file.

        Raises:
            CheckpointError: the file is missing or unreadable, or holds another model.
        """
        if self.is_exported:
            stored: StoredModel = read_model_file(self.path, () if self.name is None else (self.name,))
            if self.name is not None:
                stored.refuse_model(self.name)
            return stored
        assert self.name is not None
        path = self.file
        if not path.exists():
            lacking = f"it holds neither {BEST} nor {LAST}" if self.path.is_dir() else "it does not exist"
            raise CheckpointError(
                f"cannot find a checkpoint in {str(self.path)!r}: {lacking}; give a folder written by autobatch train "
                f"--checkpoint."
            )
        stored = read_run(path)
        stored.refuse_model(self.name)
        return stored


def checkpoint_option(required: bool) -> options.Decorator:
    """Make the option for the checkpoints of a run."""
    return options.checkpoint_option(
        "Folder of `autobatch train --checkpoint`, for its best checkpoint; or one of its files.",
        required=required,
    )


def trained_model(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument and options for a trained model to a command, which gets them as `trained`."""

    @model_argument("name", metavar="[MODEL]", required=False)
    @checkpoint_option(required=False)
    @click.option(
        "--model",
        "exported",
        metavar="FILE",
        type=FILE,
        help="A file from `autobatch export`, or from ab.export with a fold, instead of --checkpoint; MODEL is needed "
        "only for other models of your own.",
    )
    @wraps(command)
    def given(name: str | None, checkpoint: Path | None, exported: Path | None, **others: Any) -> Any:
        if exported is not None and checkpoint is None:
            return command(trained=Trained(name, exported, is_exported=True), **others)
        if exported is None and name is not None and checkpoint is not None:
            return command(trained=Trained(name, checkpoint), **others)
        raise click.UsageError("give either MODEL and --checkpoint DIR, or --model FILE.")

    return given
