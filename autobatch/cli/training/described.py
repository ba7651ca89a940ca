"""Checks of the JSON of a stored model or run, which may come from an untrusted source, before it is used.

Errors name the value and its allowed values. A missing value raises KeyError, and a list in place of fields TypeError.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from autobatch.arguments import RAW, Kind, is_int, refusal
from autobatch.backends import NAMES
from autobatch.cli.results import COUNTS
from autobatch.cli.training.scoring import BALANCED, are_weights
from autobatch.cli.workload import Encoding
from autobatch.errors import AutobatchError, CheckpointError
from autobatch.ir.precision import PRECISIONS
from autobatch.models import ModelSpec
from autobatch.models.data.dataset import Loader
from autobatch.models.data.own_files import FilesLoader

SPARE = 1 << 20  # random numbers that building a model may draw in addition to its parameters
MOST = (1 << 63) - 1  # largest count
MOST_NAME, MOST_PATH = 255, 4095  # bytes of a file name, and of a path
ADVICE = "the file is damaged, so give another copy"


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) <= sys.float_info.max


def _is_path(x: Any) -> bool:
    try:
        encoded = os.fsencode(x) if isinstance(x, str) else None
    except UnicodeEncodeError:
        return False
    return encoded is not None and len(encoded) <= MOST_PATH and max(map(len, encoded.split(b"/"))) <= MOST_NAME


def _are_texts(x: Any) -> bool:
    return isinstance(x, list) and all(isinstance(text, str) for text in x)


def _is_order(x: Any) -> bool:
    try:
        np.random.PCG64().state = x
    except RAW:
        return False
    return True


def _whole(least: int, most: float = MOST) -> Kind:
    return Kind(f"an int from {least} to {most}", lambda x: is_int(x) and least <= x <= most)


def _one_of(*values: str) -> Kind:
    return Kind(f"one of {', '.join(values)}", lambda x: isinstance(x, str) and x in values)


TEXT = Kind("a text of printable characters", lambda x: isinstance(x, str) and x.isprintable())
WORDS = Kind("a list of different texts", lambda x: _are_texts(x) and len({*x}) == len(x))
NUMBER = Kind("a finite number", _is_number)
POSITIVE = Kind("a finite number above 0", lambda x: _is_number(x) and x > 0)
DURATION = Kind("a finite number of at least 0", lambda x: _is_number(x) and x >= 0)
METRICS = Kind(
    "finite numbers by name",
    lambda x: isinstance(x, dict) and all(map(TEXT.holds, x)) and all(map(_is_number, x.values())),
)
COUNT, SEED = _whole(0), Kind("an int of at least 0", lambda x: is_int(x) and x >= 0)


def _or(kind: Kind, other: Kind) -> Kind:
    return Kind(f"{kind.words} or {other.words}", lambda x: kind.holds(x) or other.holds(x))


NOTHING = Kind("null", lambda x: x is None)
PATH = Kind("a name or a path", _is_path)
SETTINGS = {
    "model": TEXT,
    "data": PATH,
    "batch_size": _whole(1),
    "epochs": COUNT,
    "lr": DURATION,
    "policy": TEXT,
    "backend": _one_of("auto", *NAMES),
    "seed": SEED,
}
LATER_SETTINGS = {
    "patience": _or(_whole(1), NOTHING),
    "max_bytes": _or(_whole(1), NOTHING),
    "precision": _one_of(*PRECISIONS),
    "dev": _or(PATH, NOTHING),
    "scale_targets": Kind("true or false", lambda x: isinstance(x, bool)),
    "class_weights": Kind("balanced, weights by label, or null", lambda x: x in (BALANCED, None) or are_weights(x)),
    "split": _or(
        Kind("a number between 0 and 1", lambda x: _is_number(x) and 0 < x < 1), _or(_one_of("drawn", "last"), NOTHING)
    ),
}
"""Settings that may be missing in files of earlier versions."""
SCALES = {"target_mean": NUMBER, "target_std": POSITIVE}
POSITION = {
    "epochs": COUNT,
    "steps": COUNT,
    "order": Kind("a state of PCG64", _is_order),
    "metrics": METRICS,
    "total_loss": NUMBER,
    "n_seen": COUNT,
    "seconds": DURATION,
}
RUN = {
    "n_train": COUNT,
    "best": _or(METRICS, _or(NUMBER, NOTHING)),
}


@contextmanager
def naming(path: Path, doing: str, raw: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Convert errors in the block to a CheckpointError that names the file, including the Python errors in `raw`."""
    try:
        yield
    except AutobatchError as error:
        raise CheckpointError(f"cannot {doing} {str(path)!r}: {error}") from error
    except raw as error:
        raise CheckpointError(
            f"cannot {doing} {str(path)!r}: malformed content ({type(error).__name__}: {error}); {ADVICE}."
        ) from error


def check_described(described: Mapping[str, Any], n_numbers: int) -> None:
    """Check the description of a model with `n_numbers` numbers in its parameters.

    Raises:
        CheckpointError, KeyError, TypeError: the description is malformed.
    """
    settings, size = described["settings"], _whole(0, n_numbers + SPARE)
    _check("settings.", settings, {**SETTINGS, "dim": _whole(1, n_numbers + SPARE)})
    _check("settings.", settings, {name: kind for name, kind in LATER_SETTINGS.items() if name in settings})
    _check("sizes.", described["sizes"], dict.fromkeys(described["sizes"], size))
    if described.get("scales"):
        _check("scales.", described["scales"], SCALES)
        if described["scales"].keys() != SCALES.keys():  # another would override a size
            raise refusal("scales", f"{' and '.join(SCALES)}", [*described["scales"]], CheckpointError, ADVICE)
    _check("vocabularies.", described["vocabularies"], dict.fromkeys(described["vocabularies"], WORDS))
    if "closed" in described:
        _check("", described, {"closed": WORDS})


def check_run(state: Mapping[str, Any]) -> None:
    """Check the progress of a run.

    Raises:
        CheckpointError, KeyError, TypeError: the state is malformed.
    """
    position = state["position"]
    _check("", state, RUN)
    later = {"digest": TEXT, "dev_digest": TEXT, "best_epoch": _whole(0, position["epochs"])}
    _check("", state, {name: kind for name, kind in later.items() if name in state})
    _check("draws.", state["draws"], {"seed": SEED, "step": COUNT})
    _check("position.", position, POSITION)
    _check("position.tally.", position["tally"], {"n_minibatches": COUNT})
    _check("position.tally.totals.", position["tally"]["totals"], dict.fromkeys(COUNTS, COUNT))
    if position["steps"] and not (position["n_seen"] and position["seconds"]):
        raise refusal("position.steps", "0 before instances are seen", position["steps"], CheckpointError, ADVICE)
    if NUMBER.holds(state["best"]) and not position["metrics"]:
        raise refusal("position.metrics", "those of the best epoch", position["metrics"], CheckpointError, ADVICE)


def _check(above: str, content: Mapping[str, Any], wanted: Mapping[str, Kind]) -> None:
    if not isinstance(content, dict):
        raise TypeError(f"{above} has no fields")
    for name, kind in wanted.items():
        if not kind.holds(content[name]):
            raise refusal(f"{above}{name}", kind.words, content[name], CheckpointError, ADVICE)


def check_encoding(spec: ModelSpec, encoding: Encoding) -> None:
    """Check that a model's vocabularies are present, and that their sizes agree with `encoding.sizes`.

    Raises:
        CheckpointError: a vocabulary is missing, a size differs, or a user's model now declares words as labels.
    """
    closed: dict[str, bool | None] = {}
    advice = ADVICE
    if isinstance(spec.load, Loader):
        closed = dict.fromkeys(spec.load.words)
    elif isinstance(spec.load, FilesLoader):
        files, advice = spec.load.files, "restore the attribute files of its class, or train it again"
        closed = {**dict.fromkeys(files.words, False), **dict.fromkeys(files.labels, True)}
    for name, is_closed in closed.items():
        vocabulary, size = encoding.vocabularies.get(name), encoding.sizes.get(f"n_{name}")
        if vocabulary is None:
            raise CheckpointError(f"the vocabulary of {name}, which {spec.name} needs, is missing; {advice}.")
        if is_closed not in (None, vocabulary.closed):
            before = "labels" if vocabulary.closed else "words"
            raise CheckpointError(f"{name} must be one of the {before} of {spec.name}, as in training; {advice}.")
        if size != len(vocabulary):
            raise refusal(
                f"sizes.n_{name}", f"{len(vocabulary)}, the size of the vocabulary", size, CheckpointError, ADVICE
            )


class Bounded(np.random.Generator):
    """A generator that draws at most `n_left` numbers, so that a small file cannot ask for a huge model."""

    def __init__(self, drawing: np.random.Generator, n_left: int) -> None:
        super().__init__(drawing.bit_generator)
        self._n_left = n_left


def _bounded(name: str, place: int) -> Callable[..., Any]:
    """Make a method that counts its draws; `place` is the position of its argument `size`."""
    draw = getattr(np.random.Generator, name)

    def drawing(self: Any, *args: Any, **options: Any) -> Any:
        size = options.get("size", args[place] if len(args) > place else None)
        # Python ints, because a product of int64 could overflow and pass.
        self._n_left -= 1 if size is None else int(np.prod(size, dtype=object))
        if self._n_left < 0:
            raise CheckpointError(f"its dim and sizes need more parameters than it holds; {ADVICE}.")
        return draw(self, *args, **options)

    return drawing


for _name, _place in {"random": 0, "standard_normal": 0, "uniform": 2, "normal": 2}.items():
    setattr(Bounded, _name, _bounded(_name, _place))
