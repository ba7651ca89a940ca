"""A trained model that predicts: how its instances are read, and its predictions written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from autobatch.cli.training.stored import StoredModel
from autobatch.errors import CheckpointError, DataError
from autobatch.models import ModelSpec
from autobatch.models.data.dataset import Dataset
from autobatch.system.files import text_as_file
from autobatch.system.nested_json import dump_json, show_json

N_WARMING = 8  # instances with which a model warms up


@dataclass(frozen=True)
class Predictor:
    """A trained model, and how its instances and predictions are written."""

    spec: ModelSpec
    stored: StoredModel
    model: Any

    @classmethod
    def of(cls, stored: StoredModel) -> Predictor:
        """Build the stored model, without its data.

        Raises:
            DataError: it predicts nothing.
            CheckpointError: the model is not what it was.
        """
        settings, encoding = stored.settings, stored.encoding
        spec = stored.find_spec()
        if spec.predict is None:
            raise DataError(
                f"cannot serve {settings.model}: it has no scores; give the model a method scores(instance)."
            )
        dataset = Dataset("", (), (), encoding.vocabularies, encoding.sizes)
        model = stored.build(spec, dataset, np.random.default_rng(settings.seed))
        model.eval()
        return cls(spec, stored, model)

    def take(self, stored: StoredModel) -> None:
        """Take the parameters of another file of the same model.

        Raises:
            CheckpointError: it is of another model, or has other vocabularies, by which instances are read.
        """
        own = self.stored
        named = {name: vocabulary.words for name, vocabulary in stored.encoding.vocabularies.items()}
        known = {name: vocabulary.words for name, vocabulary in own.encoding.vocabularies.items()}
        if stored.settings.model != own.settings.model or stored.encoding.sizes != own.encoding.sizes or named != known:
            raise CheckpointError(
                f"cannot take up {str(stored.path)!r}: it is of another model, or of other data, with vocabularies of "
                f"its own; begin the server anew."
            )
        self.model.load_state_dict(stored.parameters)

    def read(self, text: Any) -> Any:
        """Read an instance: the text that a file of the model's data holds for it, or the object, if that is JSON.

        Raises:
            DataError: it is no text, or not that of one instance.
        """
        is_wrapped = isinstance(text, dict) and len(text) == 1 and text.keys() <= {"instance", "instances"}
        if isinstance(text, dict):
            text = dump_json(text)
        if not isinstance(text, str):
            raise DataError(
                f"an instance must be a text, as a file of the data holds it, got {show_json(text)}; give the text."
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"the text must be Unicode, got half a surrogate pair as character {error.start + 1}; send the "
                f"character whole."
            ) from None
        with text_as_file(text if text.endswith("\n") else text + "\n") as file:
            try:
                found = self._load(str(file))
            except DataError as error:
                hint = " A line of many is the instance alone, without an object around it." if is_wrapped else ""
                told = (
                    str(error).replace(str(file), "the instance").replace("the file holds none", "the text holds none")
                )
                raise DataError(told + hint) from None
        if len(found) != 1:
            raise DataError(f"the text holds {len(found)} instances; give each as a text of its own.")
        return found[0]

    def write(self, instance: Any, result: Any) -> Any:
        """The prediction for an instance, as JSON holds it."""
        assert self.spec.predict is not None
        vocabularies = self.stored.encoding.vocabularies
        return self.spec.predict(as_minibatch(result), [instance], vocabularies)[0]

    def draw(self) -> list[Any]:
        """Some instances that the model's own generator draws, with which a server warms up."""
        return self._load(self.spec.default_data)[:N_WARMING]

    def _load(self, data: str) -> list[Any]:
        load = self.spec.load_inputs or self.spec.load
        return load(data, np.random.default_rng(0), self.stored.encoding.vocabularies).items


def as_minibatch(result: Any) -> Any:
    """The result of one instance as that of a mini-batch of one: arrays have a first axis, lists are per instance."""
    if isinstance(result, list):
        return [result]
    if isinstance(result, tuple):
        parts = map(as_minibatch, result)
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if isinstance(result, dict):
        return {key: as_minibatch(value) for key, value in result.items()}
    return np.asarray(result)[None] if isinstance(result, (np.ndarray, np.generic, int, float)) else [result]
