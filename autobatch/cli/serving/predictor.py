"""A trained model for predictions, with methods that read instances and write results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from autobatch.cli.training.scoring import say_lack
from autobatch.cli.training.stored import StoredModel
from autobatch.cli.training.trained import ExportedFold
from autobatch.errors import CheckpointError, DataError
from autobatch.models import ModelSpec
from autobatch.models.data.dataset import Dataset
from autobatch.system.files import text_as_file
from autobatch.system.nested_json import dump_json, show_json

N_WARMING = 8  # instances for the warm-up


@dataclass(frozen=True)
class Predictor:
    """A trained model with the formats of its instances and predictions."""

    spec: ModelSpec
    stored: StoredModel
    model: Any

    @classmethod
    def of(cls, stored: StoredModel) -> Predictor:
        """Build the stored model, without its data.

        Raises:
            DataError: the model has no predictions.
            CheckpointError: the stored parameters do not fit the model's code.
        """
        settings, encoding = stored.settings, stored.encoding
        spec = stored.find_spec()
        if spec.predict is None:
            raise DataError(f"cannot serve {settings.model}: {say_lack(spec, 'predict')}.")
        dataset = Dataset("", (), (), encoding.vocabularies, encoding.sizes, scales=encoding.scales)
        model = stored.build(spec, dataset, np.random.default_rng(settings.seed))
        model.eval()
        return cls(spec, stored, model)

    def take(self, stored: StoredModel) -> None:
        """Load the parameters of another file of the same model.

        Raises:
            CheckpointError: the file is for another model, or has other constants or vocabularies.
        """
        if stored.identity != self.stored.identity:
            raise CheckpointError(
                f"cannot reload {str(stored.path)!r}: it holds another model, arrays other than parameters that "
                f"differ, or vocabularies built from other data; restart the server."
            )
        self.model.load_state_dict(stored.parameters)

    @property
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of an instance."""
        if isinstance(self.stored, ExportedFold):
            return {"type": ["object", "array"], "description": f"An instance: {self.spec.reads}."}
        kinds = ["string", "object"] if "JSON" in self.spec.reads else "string"
        return {"type": kinds, "description": f"An instance: {self.spec.reads}."}

    def read(self, text: Any) -> Any:
        """Parse an instance: its text as in a file of the model's data, or, for JSON formats, a JSON value.

        Raises:
            DataError: it is not a text, or not the text of exactly one instance.
        """
        if isinstance(self.stored, ExportedFold):
            return self.stored.read(text)
        is_wrapped = isinstance(text, dict) and len(text) == 1 and text.keys() <= {"instance", "instances"}
        if isinstance(text, dict):
            text = dump_json(text)
        if not isinstance(text, str):
            raise DataError(f"an instance must be a string in the format of the data files, got {show_json(text)}.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"the text must be valid Unicode, got a lone surrogate at character {error.start + 1}."
            ) from None
        with text_as_file(text if text.endswith("\n") else text + "\n") as file:
            try:
                found = self._load(str(file))
            except DataError as error:
                hint = " In JSON lines, each line is an instance without an enclosing object." if is_wrapped else ""
                told = (
                    str(error).replace(str(file), "the instance").replace("the file holds none", "the text holds none")
                )
                raise DataError(told + hint) from None
        if len(found) != 1:
            raise DataError(f"the text must hold one instance, got {len(found)}; send each as a separate text.")
        return found[0]

    def write(self, instance: Any, result: Any) -> Any:
        """Return the prediction for an instance as JSON values."""
        assert self.spec.predict is not None
        vocabularies = self.stored.encoding.vocabularies
        return self.spec.predict(as_minibatch(result), [instance], vocabularies)[0]

    def draw(self) -> list[Any]:
        """Draw instances from the model's own generator, for the warm-up."""
        return self._load(self.spec.default_data)[:N_WARMING]

    def _load(self, data: str) -> list[Any]:
        load = self.spec.load_inputs or self.spec.load
        return load(data, np.random.default_rng(0), self.stored.encoding.vocabularies).items


def as_minibatch(result: Any) -> Any:
    """Convert the result of an instance to that of a mini-batch of one: arrays get a first axis, lists are nested."""
    if isinstance(result, list):
        return [result]
    if isinstance(result, tuple):
        parts = map(as_minibatch, result)
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if isinstance(result, dict):
        return {key: as_minibatch(value) for key, value in result.items()}
    return np.asarray(result)[None] if isinstance(result, (np.ndarray, np.generic, int, float)) else [result]
