"""Decisions and measurements in the user's cache, per machine and model: `autobatch.system.cache`.

An entry of decisions holds for a processor, its usable cores, the versions of the libraries, a backend, and the
programs of a model with all their widths; it has a line per class of mini-batches. Processes that write one entry at
the same time replace it as a whole, so a line may be lost, which is then measured again, but none is ever mixed up.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from autobatch.blas.finding import find_versions
from autobatch.errors import PlanError
from autobatch.ir.typetable import NodeType
from autobatch.system.cache import UNREADABLE, find_entry, keep_entry
from autobatch.system.files import write_whole
from autobatch.system.processor import cpu_name, usable_cores
from autobatch.tuning.variant import Variant, is_value

FORMAT = "autobatch decisions 2"
FORMAT_COSTS = "autobatch step costs 1"
MOST_MEASURED = 64
Entry = TypeVar("Entry")
Measured: TypeAlias = list[tuple[tuple[float, ...], float]]  # features of `Work` and seconds


@dataclass(frozen=True)
class Decision:
    """What was decided for a class of mini-batches.

    Attributes:
        variant: how they run.
        why: in words.
        one_ns: nanoseconds per node with one thread, where more were chosen; else 0.
    """

    variant: Variant
    why: str
    one_ns: float = 0.0


def sign_model(types: Iterable[NodeType], *options: str) -> str:
    """Name what decisions hold for; the order of types does not count."""
    programs = sorted(f"{t.signature}\n{t.program}" for t in types)
    return _digest(FORMAT, *_machine(), *options, *programs)


def sign_machine(backend: str) -> str:
    """Name what measurements hold for."""
    return _digest(FORMAT_COSTS, *_machine(), backend)


def find_decisions(signature: str) -> dict[str, Decision]:
    """Read what was decided, by class; nothing, with a warning, where a file cannot be read."""
    return find_entry("tuning", signature, _load_decisions) or {}


def keep_decision(signature: str, label: str, decision: Decision) -> None:
    """Write what was decided for a class beside what others wrote."""
    kept = {**find_decisions(signature), label: decision}
    content = {"format": FORMAT, "cpu": cpu_name(), "classes": {name: asdict(one) for name, one in kept.items()}}
    keep_entry("tuning", signature, lambda path: write_whole(path, json.dumps(content, indent=1).encode()))


def find_measured(backend: str) -> Measured:
    """Read what mini-batches took on this machine."""
    return find_entry("tuning", sign_machine(backend), _load_measured) or []


def keep_measured(backend: str, measured: Measured) -> None:
    """Write what mini-batches took, the last ones."""
    content = {"format": FORMAT_COSTS, "backend": backend, "measured": measured[-MOST_MEASURED:]}
    keep_entry("tuning", sign_machine(backend), lambda path: write_whole(path, json.dumps(content).encode()))


def _machine() -> list[str]:
    versions = (f"{name} {version}" for name, version in sorted(find_versions().items()) if name != "torch")
    return [cpu_name(), str(usable_cores()), sys.platform, *versions]


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _load_decisions(path: Path) -> dict[str, Decision]:
    def read(content: Any) -> dict[str, Decision]:
        return {str(label): _read_decision(one) for label, one in content["classes"].items()}

    return _load(path, FORMAT, read)


def _load_measured(path: Path) -> Measured:
    def read(content: Any) -> Measured:
        pairs = [(tuple(map(float, features)), float(seconds)) for features, seconds in content["measured"]]
        if any(len(features) != 3 or not _is_positive([seconds]) for features, seconds in pairs):
            raise ValueError("a measurement is none")
        return pairs

    return _load(path, FORMAT_COSTS, read)


def _load(path: Path, wanted: str, read: Callable[[Any], Entry]) -> Entry:
    """Read a file of a format; PlanError if it is none."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != wanted:
            raise ValueError(f"its format is not {wanted!r}")
        return read(content)
    except UNREADABLE as error:
        raise PlanError(f"reading decisions from {str(path)!r}: {error!r}; delete it.") from error


def _read_decision(content: Any) -> Decision:
    variant = Variant(**content["variant"])
    if not all(is_value(name, value) for name, value in asdict(variant).items()):
        raise ValueError(f"{content['variant']} is no variant")
    one_ns = float(content["one_ns"])
    if variant.threads > 1 and not _is_positive([one_ns]):
        raise ValueError(f"one_ns={one_ns} is no time")
    return Decision(variant, str(content["why"]), one_ns)


def _is_positive(numbers: Sequence[float]) -> bool:
    return all(math.isfinite(number) and number > 0 for number in numbers)
