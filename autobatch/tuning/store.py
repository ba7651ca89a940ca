"""Keep tuning decisions in the user's cache, per machine and model (`autobatch.system.cache`).

The key of an entry covers the processor, its usable cores, the versions of the libraries, the backend, and the programs
of a model with all their widths; the entry has a line per class of mini-batches. Processes that write one entry at the
same time replace it as a whole: a line may be lost, and is then measured again, but lines are never mixed up.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from autobatch.blas.finding import find_versions
from autobatch.errors import PlanError
from autobatch.ir.typetable import NodeType
from autobatch.system.cache import UNREADABLE, find_entry, keep_entry
from autobatch.system.files import write_whole
from autobatch.system.processor import cpu_name, usable_cores
from autobatch.tuning.variant import Variant, read_variant

FORMAT = "autobatch decisions 2"


@dataclass(frozen=True)
class Decision:
    """The decision for a class of mini-batches.

    Attributes:
        variant: how the mini-batches run.
        why: the reason, as text.
        one_ns: nanoseconds per node with one thread, if several were chosen; else 0.
    """

    variant: Variant
    why: str
    one_ns: float = 0.0


def sign_model(types: Iterable[NodeType], *options: str) -> str:
    """Make the key of decisions; the order of types does not matter."""
    programs = sorted(f"{t.signature}\n{t.program}" for t in types)
    versions = (f"{name} {version}" for name, version in sorted(find_versions().items()) if name != "torch")
    parts = (FORMAT, cpu_name(), str(usable_cores()), sys.platform, *versions, *options, *programs)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def find_decisions(signature: str) -> dict[str, Decision]:
    """Read decisions by class; none, with a warning, if the file cannot be read."""
    return find_entry("tuning", signature, _load) or {}


def keep_decision(signature: str, label: str, decision: Decision) -> None:
    """Add the decision for a class to the entry."""
    kept = {**find_decisions(signature), label: decision}
    content = {"format": FORMAT, "cpu": cpu_name(), "classes": {name: asdict(one) for name, one in kept.items()}}
    keep_entry("tuning", signature, lambda path: write_whole(path, json.dumps(content, indent=1).encode()))


def _load(path: Path) -> dict[str, Decision]:
    """Read an entry; PlanError if it is not one."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        decisions = {}
        for label, one in content["classes"].items():
            variant, one_ns = read_variant(f"for {label!r}", one["variant"], Variant()), float(one["one_ns"])
            if variant.threads > 1 and not 0 < one_ns < math.inf:
                raise ValueError(f"one_ns={one_ns} is no time")
            decisions[label] = Decision(variant, str(one["why"]), one_ns)
        return decisions
    except (*UNREADABLE, PlanError) as error:
        raise PlanError(f"reading decisions from {str(path)!r}: {error!r}; delete it.") from error
