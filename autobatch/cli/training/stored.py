"""Stored models and runs of `autobatch train`: settings, parameters and progress in checkpoints and exported files."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autobatch import policies
from autobatch.arguments import RAW
from autobatch.cli.results import Tally
from autobatch.cli.training.described import SPARE, Bounded, check_described, check_encoding, check_run, naming
from autobatch.cli.training.fitting import Best, Fitting, Position
from autobatch.cli.training.scoring import Weights
from autobatch.cli.workload import ANSWERS, Counting, Encoding, Workload, find_here, load_workload
from autobatch.deploy.encoding import describe_policy
from autobatch.errors import CheckpointError, DataError
from autobatch.models import MODELS, ModelSpec
from autobatch.models.data.dataset import Dataset
from autobatch.params.checkpoint import load_checkpoint, save_checkpoint
from autobatch.policies.files import from_text
from autobatch.policies.rules.directed import Directed
from autobatch.readers.vocabulary import Vocabulary, restore
from autobatch.readers.vocabulary import describe as describe_vocabularies
from autobatch.schedule.schedule import Policy

LAST, BEST = "last.safetensors", "best.safetensors"
FREE = ("epochs", "patience", "max_bytes", "backend")  # settings that may change when a run resumes
LAST_TENTH = "last"  # version 0.2 used the last 10% of a single file as development data
PARAMETER, OPTIMIZER = "parameter.", "optimizer."  # prefixes of names of arrays


@dataclass(frozen=True)
class Settings:
    """The arguments that determine the results of a run."""

    model: str
    data: str
    dim: int
    batch_size: int
    epochs: int
    lr: float
    policy: str
    backend: str
    seed: int
    patience: int | None = None
    max_bytes: int | None = None
    precision: str = "float32"
    dev: str | None = None
    """Path of the development data."""
    split: float | str | None = None
    """Share of a single file drawn as development data; None for the default, or `LAST_TENTH`."""
    scale_targets: bool = False
    class_weights: Weights | None = None


@dataclass(frozen=True)
class StoredModel:
    """A trained model read from a checkpoint or from an exported file."""

    path: Path
    settings: Settings
    encoding: Encoding
    learned: Directed | None
    """The policy of the loss, if it was learned or read from a file."""
    parameters: dict[str, Any]

    @property
    def policy(self) -> str | Policy:
        """Return the policy to run the model with; a learned one is the stored copy: its file may have changed."""
        return self.settings.policy if self.learned is None else self.learned

    @property
    def identity(self) -> Any:
        """Return a key that files of the same model share, whatever its parameters."""
        words = {name: vocabulary.words for name, vocabulary in self.encoding.vocabularies.items()}
        return self.settings.model, self.encoding.sizes, self.encoding.scales, words

    def refuse_model(self, model: str) -> None:
        """Raise a CheckpointError unless `model` is the stored one."""
        if model != self.settings.model:
            raise CheckpointError(
                f"cannot use {str(self.path)!r} for {model}: it holds a {self.settings.model}; give that model, or "
                f"another folder."
            )

    def find_spec(self) -> ModelSpec:
        """Find the spec of the stored model.

        Raises:
            DataError: the model is unknown or unusable.
            CheckpointError: its vocabularies or sizes do not fit.
        """
        spec = find_here(self.settings.model)
        with naming(self.path, "use"):
            check_encoding(spec, self.encoding)
        return spec

    def build(self, spec: ModelSpec, dataset: Dataset, rng: np.random.Generator) -> Any:
        """Build the stored model with its parameters.

        Raises:
            CheckpointError: the stored parameters do not fit the model's code.
        """
        # A damaged file must not make the model draw more numbers than it stores.
        with naming(self.path, "use", (*RAW, MemoryError)):
            model = spec.build(dataset, self.settings.dim, Bounded(rng, _n_numbers(self.parameters) + SPARE))
            model.load_state_dict(self.parameters)
        return model

    def load_workload(self, data: str | None = None, answered: bool = True) -> Workload:
        """Load the stored model with its training data, or with other data.

        Args:
            answered: whether instances must have answers.

        Raises:
            DataError: the data is missing or malformed.
            CheckpointError: the stored parameters do not fit the model's code.
        """
        settings, encoding = self.settings, self.encoding
        held_out: dict[str, Any] = {}
        if data is None:
            split = settings.split
            held_out = {"dev": settings.dev, "split": None if isinstance(split, str) else split}
        self.find_spec()  # raises its errors outside the `try` for errors of the data
        if data not in (None, settings.data):
            ignored = () if answered else ANSWERS
            # Answers may be missing if they are not required, so their vocabularies do not count.
            vocabularies = {k: v if k in ignored else Counting(v) for k, v in encoding.vocabularies.items()}
            encoding = replace(encoding, vocabularies=vocabularies)
        try:
            workload = load_workload(
                settings.model, data or settings.data, settings.dim, settings.seed, encoding, settings.precision,
                answered, self.build, **held_out,
            )  # fmt: skip
        except DataError as error:
            if data is not None:
                raise
            raise DataError(f"{error} The model was trained on this data; give other data with --data.") from error
        if settings.split == LAST_TENTH and workload.dataset.dev_places is not None:  # a single file, as it has places
            workload = replace(workload, dataset=workload.dataset.hold_out_the_last())
        return workload


@dataclass(frozen=True)
class StoredRun(StoredModel):
    """A checkpoint of a run."""

    n_train: int
    """Number of training instances."""
    digest: str
    """`Dataset.digest`; this and `dev_digest` are "" in checkpoints of versions without them."""
    dev_digest: str
    position: Position
    best: Best
    draws: dict[str, int]
    """Seed and step of the loss's random numbers."""
    optimizer: dict[str, Any]

    def settle(self, given: dict[str, Any]) -> Settings:
        """Return the stored settings, with those in `FREE` replaced by the given ones.

        The results of an epoch do not depend on these, up to rounding.

        Args:
            given: settings of the command line.

        Raises:
            CheckpointError: another given setting differs from the stored one.
        """
        stored = asdict(self.settings)
        for name, value in given.items():
            if name not in FREE and value not in (stored[name], "auto"):
                wanted = "left out" if stored[name] is None or stored[name] is False else stored[name]
                remedy = f"give {wanted}" if name == "model" else "leave it out"
                raise CheckpointError(
                    f"cannot resume from {str(self.path)!r}: {name.replace('_', ' ')} must be {wanted} as before, got "
                    f"{value}; {remedy}, or choose another folder."
                )
        return replace(self.settings, **{name: given[name] for name in FREE if given.get(name, "auto") != "auto"})

    def restore(self, fitting: Fitting, dataset: Dataset) -> None:
        """Restore training to the stored position; `dataset` is the current data.

        Raises:
            CheckpointError: the data has changed, or the optimizer's state does not fit.
        """
        doing, n_train = f"cannot resume from {str(self.path)!r}", len(dataset.train)
        if n_train != self.n_train:
            raise CheckpointError(
                f"{doing}: {self.settings.data} must hold {self.n_train} training instances as before, got {n_train}; "
                f"restore the data."
            )
        for what, path, before, now in (
            ("training", self.settings.data, self.digest, dataset.digest),
            ("development", self.settings.dev or self.settings.data, self.dev_digest, dataset.dev_digest),
        ):
            if before and now and before != now:
                raise CheckpointError(f"{doing}: the {what} data in {path} has changed; restore the data.")
        with naming(self.path, "resume from"):
            fitting.optimizer.load_state_dict(self.optimizer)  # type: ignore[arg-type]
        fitting.loss.seed, fitting.loss.step = self.draws["seed"], self.draws["step"]
        fitting.position, fitting.best = self.position, self.best
        if self.learned is not None:
            fitting.loss.policy = self.learned


def store_run(path: Path, settings: Settings, workload: Workload, fitting: Fitting) -> None:
    """Write a checkpoint of a run.

    Raises:
        CheckpointError: it cannot be written; an existing file is unchanged.
    """
    # The losses of a device that are not read yet belong to the position.
    fitting.read_losses()
    optimizer: dict[str, Any] = dict(fitting.optimizer.state_dict())
    arrays = {PARAMETER + name: array for name, array in workload.model.state_dict().items()}
    arrays |= {OPTIMIZER + name: array for name, array in optimizer.pop("arrays").items()}
    state = {
        **describe(settings, workload),
        "n_train": len(workload.dataset.train),
        "digest": workload.dataset.digest,
        "dev_digest": workload.dataset.dev_digest,
        "position": {**asdict(fitting.position), "metrics": _finite(fitting.position.metrics)},
        "best": _finite(fitting.best.metrics),
        "best_epoch": fitting.best.epoch,
        "draws": {"seed": fitting.loss.seed, "step": fitting.loss.step},
        "policy": describe_policy(fitting.loss.policy, "cannot store the policy").get("text"),
        "optimizer": optimizer,
    }
    save_checkpoint(path, arrays, state)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def describe(settings: Settings, workload: Workload) -> dict[str, Any]:
    """Return the settings, sizes, scales and vocabularies from which a model is rebuilt, as JSON values."""
    dataset = workload.dataset
    return {
        "settings": asdict(settings),
        "sizes": dict(dataset.sizes),
        "scales": dict(dataset.scales),
        **describe_vocabularies(dataset.vocabularies),
    }


def read_run(path: Path) -> StoredRun:
    """Read a checkpoint of a run.

    Raises:
        CheckpointError: the file is missing, damaged or not a checkpoint of `autobatch train`.
    """
    try:
        arrays, state = load_checkpoint(path)
    except CheckpointError as error:  # name the command instead of the function in the message
        raise CheckpointError(str(error).replace("save_checkpoint", "autobatch train --checkpoint")) from error
    parameters = _named(arrays, PARAMETER)
    try:
        with naming(path, "load"):
            check_run(state)
        position = {**state["position"], "tally": Tally(**state["position"]["tally"])}
        text, doing = state.get("policy"), f"cannot load the policy in {str(path)!r}"
        return StoredRun(
            path=path,
            **_made_of(path, state, parameters),
            n_train=state["n_train"],
            digest=state.get("digest", ""),
            dev_digest=state.get("dev_digest", ""),
            position=Position(**position),
            best=_best_of(state),
            draws=state["draws"],
            learned=None if text is None else from_text(text, policies.KINDS, doing),
            parameters=parameters,
            optimizer={**state["optimizer"], "arrays": _named(arrays, OPTIMIZER)},
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"cannot load {str(path)!r}: it is a checkpoint, but not of autobatch train; give a folder written by "
            f"autobatch train --checkpoint."
        ) from error


def _best_of(state: Mapping[str, Any]) -> Best:
    """Read the best epoch; version 0.2 stored only the first of its metrics, and not its number."""
    best, epoch = state["best"], state.get("best_epoch", state["position"]["epochs"])
    if best in (None, {}):
        return Best()
    return Best(epoch, best if isinstance(best, dict) else {next(iter(state["position"]["metrics"])): best})


def _made_of(path: Path, described: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Read the result of `describe` from a file of this or an earlier version."""
    with naming(path, "load"):
        check_described(described, _n_numbers(parameters))
    sizes, vocabularies = dict(described["sizes"]), restore(described)
    if "n_classes" in sizes and "classes" not in vocabularies:  # version 0.2: tree labels were numbers
        vocabularies["classes"] = Vocabulary.of_labels(map(str, range(sizes["n_classes"])))
    settings = {"split": LAST_TENTH, **described["settings"]}
    if settings["split"] == "drawn":  # before there was a choice of the share
        settings["split"] = None
    return {
        "settings": Settings(**settings),
        "encoding": Encoding(vocabularies, sizes, described.get("scales", {})),
    }


def read_exported(path: Path, model: Any, named: Collection[str] = ()) -> StoredModel:
    """Describe a file that `autobatch export` wrote.

    Args:
        model: the model, loaded from the file.
        named: models named on the command line; the file may import only these and the models of autobatch.

    Raises:
        CheckpointError: the file was written by `ab.export`, without a model's name; or its model is neither part of
            autobatch nor in `named`.
    """
    policy, parameters = model.options["policy"], model.state_dict()
    try:
        made_of = _made_of(path, model.about, parameters)
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"cannot use {str(path)!r}: ab.export wrote it, so it holds no model name, and its exported function is "
            f"not a fold; load it with ab.load, export a fold, or export the model with autobatch export."
        ) from error
    name = made_of["settings"].model
    if name not in MODELS and name not in named:
        raise CheckpointError(
            f"cannot use {str(path)!r}: its model {name!r} is not part of autobatch, and a file must not cause an "
            f"import; if you trust that module, also give its name as MODEL."
        )
    learned = policy if isinstance(policy, Directed) else None
    return StoredModel(path=path, **made_of, learned=learned, parameters=parameters)


def _n_numbers(parameters: Mapping[str, Any]) -> int:
    return sum(array.size for array in parameters.values())


def _named(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
