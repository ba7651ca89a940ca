"""One process that serves a trained model over HTTP."""

from __future__ import annotations

import gc
import signal
import socket
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import uvicorn

from autobatch.cli.serving.log import LOG
from autobatch.cli.training.stored import StoredRun, read_trained
from autobatch.errors import AutobatchError, DataError
from autobatch.models import ModelSpec, find_model
from autobatch.models.data.dataset import Dataset
from autobatch.serving import app, serve

LOOK_EVERY = 1.0  # seconds between two looks at the checkpoint
N_WARMING = 8  # instances with which the server warms up


@dataclass(frozen=True)
class Predictor:
    """A trained model, and how its instances and predictions are written."""

    spec: ModelSpec
    stored: StoredRun
    model: Any

    @classmethod
    def of(cls, stored: StoredRun) -> Predictor:
        """Build the stored model, without its data.

        Raises:
            DataError: it predicts nothing.
            CheckpointError: the model is not what it was.
        """
        settings, encoding = stored.settings, stored.encoding
        spec = find_model(settings.model)
        if spec.predict is None:
            raise DataError(
                f"cannot serve {settings.model}: it has no scores; give the model a method scores(instance)."
            )
        dataset = Dataset("", (), (), encoding.vocabularies, encoding.sizes)
        model: Any = spec.build(dataset, settings.dim, np.random.default_rng(settings.seed))
        model.load_state_dict(stored.parameters)
        model.eval()
        return cls(spec, stored, model)

    def read(self, text: Any) -> Any:
        """Read an instance: the text that a file of the model's data holds for it.

        Raises:
            DataError: it is no text, or not that of one instance.
        """
        if not isinstance(text, str):
            raise DataError(f"an instance is a text, {self.spec.reads}, and not {text!r}.")
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
            file.write(text if text.endswith("\n") else text + "\n")
            file.flush()
            try:
                found = self._load(file.name)
            except DataError as error:
                raise DataError(str(error).replace(file.name, "the instance")) from None
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
        return self.spec.load(data, np.random.default_rng(0), self.stored.encoding.vocabularies).items


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


class Reloading:
    """Takes up a new checkpoint, in a thread.

    Args:
        checkpoint, model: as the command was given them.
        predictor: whose parameters are replaced.
    """

    def __init__(self, checkpoint: Path, model: str, predictor: Predictor) -> None:
        self._checkpoint, self._model, self._predictor = checkpoint, model, predictor
        self._wake, self._is_over, self._asked = threading.Event(), False, False
        self._seen = _stamp(predictor.stored.path)
        self._thread = threading.Thread(target=self._watch, name="autobatch checkpoint", daemon=True)

    def __enter__(self) -> Reloading:
        if hasattr(signal, "SIGHUP"):  # Windows has none
            signal.signal(signal.SIGHUP, self._ask)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._wake.set()
        self._thread.join()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._wake.set()

    def _watch(self) -> None:
        while not self._is_over:
            self._wake.wait(LOOK_EVERY)
            self._wake.clear()
            try:
                self._look()
            except AutobatchError as error:
                LOG.warning("the model stays as it was: %s", error)

    def _look(self) -> None:
        """Load the checkpoint if it is another one than the last, or if that was asked for."""
        asked, self._asked = self._asked, False
        seen = _stamp(self._predictor.stored.path)
        if not asked and seen == self._seen:
            return
        self._seen = seen
        stored = read_trained(self._checkpoint, self._model)
        self._predictor.model.load_state_dict(stored.parameters)
        self._seen = _stamp(stored.path)
        LOG.info("took up %r.", str(stored.path))


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells that a file was written again; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def run_process(
    listening: socket.socket, model: str, checkpoint: Path, token: str | None, deadline: float | None, **options: Any
) -> None:
    """Serve until a signal ends the process.

    Args:
        deadline: seconds after which a request is given up.
        options: of `autobatch.serving.serve`.
    """
    predictor = Predictor.of(read_trained(checkpoint, model))
    stored, spec = predictor.stored, predictor.spec
    backend = options.pop("backend") or stored.settings.backend
    server = serve(
        getattr(predictor.model, spec.predictor), policy=stored.policy, backend=backend,
        precision=stored.settings.precision, **options,
    )  # fmt: skip
    predictor.model.to("cuda" if backend == "cuda" else "cpu")

    def warm_up() -> None:
        for future in [server.submit(spec.given(instance)) for instance in predictor.draw()]:
            future.result()
        gc.collect()
        gc.freeze()  # what is there now stays: to look through it again and again would stop requests for long

    application = app(
        server, read=predictor.read, write=predictor.write, given=spec.given, title=model, token=token,
        deadline=deadline, warm_up=warm_up, schema={"type": "string", "description": f"An instance: {spec.reads}."},
    )  # fmt: skip
    config = uvicorn.Config(application, log_level="warning")
    for number in (signal.SIGINT, signal.SIGTERM):  # which uvicorn raises again when it has shut down
        signal.signal(number, lambda number, frame: None)
    with Reloading(checkpoint, model, predictor):
        uvicorn.Server(config).run(sockets=[listening])
