"""Shared code of all experiments: the command line, and fair timing.

An experiment is a frozen dataclass of settings and a function that measures; `run` joins them. A setting is changed on
the command line by name:

    python experiments/precision.py dim=128 epochs=3 out=/tmp
    python experiments/precision.py --dim 128 --epochs 3 --out /tmp

A run prints a table and writes a record (`records.py`). The nine claims of the project do more (`claims.py`).
"""

from __future__ import annotations

import ast
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from autobatch.cli import racing
from autobatch.cli.ending import run_process
from autobatch.errors import AutobatchError
from autobatch.models.data.dataset import Dataset, load_trees
from autobatch.system.background import VARIABLE
from digest import ROOT, RUNTIME
from records import RESULTS, Findings, Seconds, Settings, Start, place_of

DATA = ROOT.parent / "shared" / "data"
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

S = TypeVar("S", bound=Settings)


def run(
    settings: S,
    measure: Callable[[S], Findings | Iterator[Findings]],
    name: str | None = None,
    modules: Sequence[str] = RUNTIME,
    folder: Path = RESULTS,
) -> None:
    """Read changed settings from the command line, measure, print each table and write its record.

    Records have the name of the script, or `name`, and the digest of the measured modules. They are written to `folder`
    unless the command line names one. User errors and Ctrl-C end with a message instead of a traceback.
    """
    run_process(lambda: _measure(settings, measure, name or Path(sys.argv[0]).stem, modules, folder))


def _measure(
    settings: S,
    measure: Callable[[S], Findings | Iterator[Findings]],
    name: str,
    modules: Sequence[str],
    folder: Path,
) -> None:
    changes = read_words(sys.argv[1:])
    out = Path(changes.pop("out", folder))
    settings = change(settings, changes)
    use_threads(settings.threads)
    start = Start.now(name, settings, modules)
    measured = measure(settings)
    for findings in [measured] if isinstance(measured, Findings) else measured:
        print(findings.table)
        path = place_of(out, name, findings.part)
        start.write(path, findings)
        print(f"\nwritten to {os.path.relpath(path)}\n")


def change(settings: S, changes: Mapping[str, str]) -> S:
    """Change settings by name.

    Raises:
        AutobatchError: a setting is unknown, or its value has the wrong type.
    """
    known = [field.name for field in fields(settings)]
    if unknown := [name for name in changes if name not in known]:
        raise AutobatchError(f"settings must be some of {', '.join(known)} or out, as name=value, got {unknown[0]!r}.")
    return replace(
        settings, **{name: read_setting(name, text, getattr(settings, name)) for name, text in changes.items()}
    )


def use_threads(n_threads: int) -> None:
    """Limit matrix products to `n_threads`. The script restarts itself, because libraries read the limit when they
    load.

    Compilation is waited for, unless the environment says otherwise.
    """
    wanted = dict.fromkeys(THREADS, str(n_threads)) | {VARIABLE: os.environ.get(VARIABLE, "inf")}
    if any(os.environ.get(name) != number for name, number in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


take_turns = racing.time_ways


def medians(seconds: Seconds) -> dict[str, float]:
    """Return the median seconds of each variant."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def find_data(folder: str) -> str | None:
    """Return the path of real data beside the checkout, None if it does not exist."""
    return str(DATA / folder) if (DATA / folder).is_dir() else None


def load_sst_or_listops(seed: int) -> Dataset:
    """Load the Stanford Sentiment Treebank if it exists beside the checkout, else draw list operations."""
    return load_trees(find_data("sst") or "listops", np.random.default_rng(seed))


def name_of(dataset: Dataset) -> str:
    """Return the name of a dataset, without its folder."""
    return Path(dataset.name).name


def read_words(words: Sequence[str]) -> dict[str, str]:
    """Read settings by name: `dim=128`, or `--dim 128` as in other commands; `--quick` means `quick=True`.

    >>> read_words(["dim=128", "--section", "race", "--quick", "out=/tmp"])
    {'dim': '128', 'section': 'race', 'quick': 'True', 'out': '/tmp'}
    """
    changes: dict[str, str] = {}
    waiting = ""
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if equals:
            changes[name], waiting = value, ""
        elif word.startswith("--"):
            changes[name], waiting = "True", name
        else:
            changes[waiting or name], waiting = word if waiting else "", ""
    return changes


def read_setting(name: str, text: str, default: Any) -> Any:
    """Parse a setting as the type of its default; a tuple may be given as a single value.

    Raises:
        AutobatchError: the text is not of that type.
    """
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = text
    if isinstance(default, tuple):
        parts = value.split(",") if isinstance(value, str) else value
        value = tuple(parts) if isinstance(parts, list | tuple) else (parts,)
        fits = not default or all(_is_like(one, default[0]) for one in value)
    else:
        value = value if isinstance(value, str) or not isinstance(default, str) else text
        fits = default is None or _is_like(value, default)
    if not fits:
        example = ",".join(map(str, default)) if isinstance(default, tuple) else default
        raise AutobatchError(f"{name} must have the form {name}={example}, got {text}.")
    return value


def _is_like(value: Any, default: Any) -> bool:
    """Return whether a value has the same type as another; an int passes for a float."""
    return type(value) is type(default) or (isinstance(default, float) and type(value) is int)
