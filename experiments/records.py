"""The record of a run: its settings, machine and code, and its results.

A record is a JSON file. It is *stale* if the code that it measures has changed: the tables made from it then say so
(`tables.py`), and the experiment is run again instead of being skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from autobatch.cli.machine import describe_machine
from digest import ROOT, digest_of

RESULTS = ROOT / "experiments" / "results"
QUICK = RESULTS / "quick"
"""Folder for records that are not used in documents, such as those of `--quick`; git ignores it."""

Seconds: TypeAlias = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Settings:
    """The settings of every experiment."""

    seed: int = 0
    threads: int = 1
    """Threads of matrix products."""


@dataclass(frozen=True)
class Findings:
    """The results of an experiment: raw seconds by name, the figures made from them, and a table as text."""

    seconds: Seconds
    figures: Mapping[str, Any]
    table: str
    part: str = ""
    """The part of the record's name after the experiment's, if an experiment writes several."""
    draw: Callable[[Path], None] | None = None
    """Draws the results into a PNG file beside the record."""


@dataclass(frozen=True)
class Record:
    """A record that was read from a file."""

    name: str
    """The file's name, without the suffix."""
    content: Mapping[str, Any]

    @property
    def figures(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.content["figures"]
        return found

    @property
    def settings(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.content["settings"]
        return found

    @property
    def seconds(self) -> Seconds:
        found: Seconds = self.content["seconds"]
        return found

    @property
    def is_stale(self) -> bool:
        """Return whether the measured code has changed, is missing, or is unknown."""
        code = self.content.get("code")
        try:
            return code is None or digest_of(code["modules"]) != code["digest"]
        except FileNotFoundError:
            return True


def origins(records: Iterable[Record]) -> str:
    """State when and on which machines records were measured, and of which the code has changed since."""
    found = list(records)
    commits: dict[str, dict[str, None]] = {}
    for content in (record.content for record in found):
        machine = content["machine"]
        place = f"{content['started'][:10]}, {machine['cpu']}, {machine['cores']} core{'s'[: machine['cores'] > 1]}"
        place += ", as one of several tasks at a time" if content.get("ray") else ""
        commits.setdefault(place, {}).setdefault(content["commit"][:7])
    measured = "; ".join(f"{place}, commit{'s'[: len(some) > 1]} {', '.join(some)}" for place, some in commits.items())
    stale = [record.name for record in found if record.is_stale]
    which = f" of {', '.join(stale)}" if len(stale) < len(found) else ""
    return f"Measured {measured}." + (f" The code{which} has changed since." if stale else "")


def place_of(folder: Path, experiment: str, part: str = "") -> Path:
    """Return the path of a record."""
    return folder / ("-".join(filter(None, (experiment, part))) + ".json")


def read_record(path: Path) -> Record:
    """Read a record."""
    return Record(path.stem, json.loads(path.read_text(encoding="utf-8")))


def read_records(folder: Path) -> dict[str, Record]:
    """Read all records of a folder, by name."""
    return {path.stem: read_record(path) for path in sorted(folder.glob("*.json"))}


@dataclass(frozen=True)
class Start:
    """What is known when a run starts, such as the code and the machine's load."""

    experiment: str
    settings: Settings
    code: Mapping[str, Any]
    """Prefixes of the measured modules, and their digest."""
    time: str
    load: float
    """The machine's load average."""

    @classmethod
    def now(cls, experiment: str, settings: Settings, modules: Sequence[str]) -> Start:
        """Note what is known now."""
        code = {"modules": list(modules), "digest": digest_of(modules)}
        return cls(experiment, settings, code, time.strftime("%Y-%m-%d %H:%M"), round(os.getloadavg()[0], 2))

    def write(self, path: Path, findings: Findings) -> None:
        """Write a record atomically, and its drawing beside it."""
        write_record(path, self.to_record(findings), findings.draw)

    def to_record(self, findings: Findings) -> dict[str, Any]:
        """Make a record of what this process found on this machine."""
        return {
            "experiment": self.experiment,
            "command": command_line(),
            "settings": asdict(self.settings),
            "commit": _commit(),
            "code": self.code,
            "started": self.time,
            "machine": {**describe_machine(), **_torch_version(), "load_at_start": self.load},
            "figures": findings.figures,
            "seconds": {way: [float(f"{t:.4g}") for t in times] for way, times in findings.seconds.items()},
        }

    def is_finished(self, path: Path) -> bool:
        """Return whether a record with the same settings and the same code exists."""
        if not path.is_file():
            return False
        record = read_record(path).content
        return bool(
            record["settings"] == json.loads(json.dumps(asdict(self.settings))) and record.get("code") == self.code
        )


def command_line() -> str:
    """Return the command that this process runs."""
    return " ".join(["python", f"experiments/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def write_record(path: Path, record: Mapping[str, Any], draw: Callable[[Path], None] | None = None) -> None:
    """Write a record atomically, and what `draw` draws beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, to_json(record))
    if draw is not None:
        draw(path.with_suffix(".png"))


def in_json(settings: Settings) -> Mapping[str, Any]:
    """Return settings as they appear in a record."""
    found: Mapping[str, Any] = json.loads(json.dumps(asdict(settings)))
    return found


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: an interrupt leaves the old one in place."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def to_json(record: Mapping[str, Any]) -> str:
    """Return JSON with a line per entry; the numbers of a list share one."""
    text = json.dumps(record, indent=2)
    return re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", ":!experiments/results")
    return (git("rev-parse", "HEAD") or "unknown") + (", with changes" if changed else "")


def _torch_version() -> dict[str, str]:
    return {"torch": sys.modules["torch"].__version__} if "torch" in sys.modules else {}
