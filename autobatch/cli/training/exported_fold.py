"""Exported files: those of `autobatch export`, and folds, which commands run on JSON without the model's code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from autobatch.arguments import RAW
from autobatch.cli.training.described import naming
from autobatch.cli.training.stored import Settings, StoredModel, read_exported
from autobatch.cli.workload import Encoding, Workload
from autobatch.deploy.loading import load
from autobatch.errors import DataError
from autobatch.models import ModelSpec
from autobatch.models.data.dataset import Dataset
from autobatch.readers.encoding import encode
from autobatch.readers.json_lines import read_jsonl
from autobatch.readers.lines import fault
from autobatch.readers.vocabulary import Vocabulary, restore
from autobatch.schedule.schedule import Policy
from autobatch.system.jsonable import to_json
from autobatch.system.nested_json import parse_json

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
        """Return the policy in the file."""
        found: str | Policy = self.model.options["policy"]
        return found

    @property
    def identity(self) -> Any:
        """Return a key that files of the same programs share, whatever their parameters."""
        return self.model._source.content

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
        """The vocabulary of the results: the only one of labels that has as many as the results have values."""
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
        """The vocabularies of the fields that the fold takes; others, such as labels, may be missing or unknown."""
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
        """Return the model."""
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
    if "settings" not in model.about and model._function is not None and model._function.owner is model:
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
