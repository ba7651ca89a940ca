"""What every experiment shares: the command line, fair timing, and the record of a run.

An experiment is a frozen dataclass of settings and a function that measures; `run` joins them. A setting is changed on
the command line by name:

    python experiments/policies.py dim=128 repeats=3 out=/tmp
    python experiments/policies.py --dim 128 --repeats 3 --out /tmp

A run prints a table and writes one JSON file: command, settings, commit, machine, raw seconds, figures made of them.
"""

from __future__ import annotations

import ast
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from autobatch.cli.ending import run_to_the_end
from autobatch.cli.machine import describe_machine
from autobatch.models.data.dataset import Dataset, load_trees

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

Seconds: TypeAlias = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Settings:
    """What every experiment can be told."""

    seed: int = 0
    threads: int = 1
    """Of every matrix product."""


@dataclass(frozen=True)
class Findings:
    """What an experiment found: raw seconds by name, the figures made of them, and those as text."""

    seconds: Seconds
    figures: Mapping[str, Any]
    table: str
    part: str = ""
    """Names the record, where an experiment makes several."""
    draw: Callable[[Path], None] | None = None
    """Draws them into a PNG file, which lies beside the record."""


S = TypeVar("S", bound=Settings)


def run(settings: S, measure: Callable[[S], Findings | Iterator[Findings]], name: str | None = None) -> None:
    """Read changed settings from the command line, measure, print each table and write its record.

    Records bear the name of the script, or the one that is given. Errors that a user can cause end in a sentence.
    """
    changes = read_words(sys.argv[1:])
    out = Path(changes.pop("out", ROOT / "experiments" / "results"))
    unknown = sorted(changes.keys() - {field.name for field in fields(settings)})
    if unknown:
        sys.exit(f"{unknown[0]!r} is no setting; write name=value, for out or one of these: {settings}")
    values = {name: read_setting(name, text, getattr(settings, name)) for name, text in changes.items()}
    settings = replace(settings, **values)
    use_threads(settings.threads)
    sys.exit(run_to_the_end(lambda: _measure(settings, measure, out, name)))


def _measure(settings: S, measure: Callable[[S], Findings | Iterator[Findings]], out: Path, name: str | None) -> None:
    """Measure, print each table and write its record."""
    started = time.strftime("%Y-%m-%d %H:%M")
    load = os.getloadavg()[0]
    measured = measure(settings)
    for findings in [measured] if isinstance(measured, Findings) else measured:
        print(findings.table)
        path = write_record(out, settings, findings, started, load, name)
        print(f"\nwritten to {os.path.relpath(path)}\n")


def write_record(
    out: Path, settings: Settings, findings: Findings, started: str, load: float, name: str | None = None
) -> Path:
    """Write how an experiment was run, on what, and what it found; give the place."""
    script = Path(sys.argv[0]).stem
    name = name or script
    record = {
        "experiment": name,
        "command": " ".join(["python", f"experiments/{script}.py", *sys.argv[1:]]),
        "settings": asdict(settings),
        "commit": _commit(),
        "started": started,
        "machine": {**describe_machine(), **_torch_version(), "load_at_start": round(load, 2)},
        "figures": findings.figures,
        "seconds": {way: [float(f"{t:.4g}") for t in times] for way, times in findings.seconds.items()},
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / ("-".join(filter(None, (name, findings.part))) + ".json")
    path.write_text(_to_json(record), encoding="utf-8")
    if findings.draw is not None:
        findings.draw(path.with_suffix(".png"))
    return path


def use_threads(n_threads: int) -> None:
    """Limit matrix products to `n_threads`: libraries read it when they load, so the script starts itself again."""
    wanted = dict.fromkeys(THREADS, str(n_threads))
    if any(os.environ.get(name) != number for name, number in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def take_turns(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time each way `repeats` times, one after the other in every round, so that a drift of the machine meets all.

    What happens once (compiling, growing buffers) happens in a first, untimed round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def medians(seconds: Seconds) -> dict[str, float]:
    """The median of each way's seconds."""
    return {name: statistics.median(times) for name, times in seconds.items()}


def find_data(folder: str) -> str | None:
    """The path of real data, where it lies beside the checkout."""
    return str(DATA / folder) if (DATA / folder).is_dir() else None


def load_sst_or_listops(seed: int) -> Dataset:
    """The Stanford Sentiment Treebank, where it lies beside the checkout; else drawn list operations."""
    return load_trees(find_data("sst") or "listops", np.random.default_rng(seed))


def name_of(dataset: Dataset) -> str:
    """The name of the data, without the folder that it lies in."""
    return Path(dataset.name).name


def read_words(words: Sequence[str]) -> dict[str, str]:
    """Read settings by name: `dim=128`, or `--dim 128` as of other commands; `--quick` alone is `quick=True`.

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
    """Read a setting as what its default is; one value may stand for a tuple of one.

    Ends the process with a sentence where it says something else.
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
        sys.exit(f"{name}={text} is not understood; write {name}= and what is like {default!r}")
    return value


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value is of the type of another; an int will do for a float."""
    return type(value) is type(default) or (isinstance(default, float) and type(value) is int)


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", ":!experiments/results")
    return (git("rev-parse", "HEAD") or "unknown") + (", with changes" if changed else "")


def _torch_version() -> dict[str, str]:
    return {"torch": sys.modules["torch"].__version__} if "torch" in sys.modules else {}


def _to_json(record: Mapping[str, Any]) -> str:
    """JSON with a line per entry; the numbers of a list share one."""
    text = json.dumps(record, indent=2)
    return re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"
