"""Results: counts per mini-batch, JSON lines, tables of text."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from autobatch.cli.machine import describe_machine
from autobatch.cli.threads import threads_in_force
from autobatch.cli.workload import Workload
from autobatch.errors import DataError

COUNTS = ("nodes", "batches", "lower_bound", "launches", "copied_bytes")


@dataclass
class Tally:
    """The counts of many mini-batches, for their means."""

    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    n_minibatches: int = 0

    def add(self, last: Any) -> None:
        """Add what `loss.last` says of a mini-batch."""
        self.n_minibatches += 1
        for name in COUNTS:
            self.totals[name] += getattr(last, name)

    def means(self) -> dict[str, float]:
        """Average per mini-batch; whole numbers stay whole."""
        counts = {name: round(total / max(self.n_minibatches, 1), 1) for name, total in self.totals.items()}
        return {name: int(count) if count == int(count) else count for name, count in counts.items()}


class JsonLines:
    """Writes one object per result; without a file, writes nothing."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def write(self, result: dict[str, Any]) -> None:
        """Write one result, readable at once."""
        if self._file is not None:
            self._file.write(json.dumps(result, allow_nan=False) + "\n")
            self._file.flush()


@contextmanager
def open_json(path: Path | None, append: bool | None = None) -> Iterator[JsonLines]:
    """Open the file for results before the work begins.

    Args:
        path: None for no file.
        append: write behind what is there, or in its place, line by line. None: what is there stays until the work is
            done, and if it fails.

    Raises:
        DataError: it cannot be written.
    """
    if path is None:
        yield JsonLines(None)
        return
    in_place = append is not None or (path.exists() and not path.is_file())
    target = path if in_place else path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        file = target.open("a" if append else "w", encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(
            f"cannot write results to {path}: {reason}; give a file in a folder that can be written."
        ) from error
    try:
        with file:
            yield JsonLines(file)
        if not in_place:
            target.replace(path)
    finally:
        if not in_place:
            target.unlink(missing_ok=True)


def describe_run(workload: Workload, batch_size: int, policy: str, backend: str, mode: str) -> dict[str, Any]:
    """Say what was run, and on what, as every JSON object does; "auto" is replaced by what it stood for."""
    return {
        "model": workload.spec.name,
        "data": workload.dataset.name,
        "dim": workload.dim,
        "batch_size": batch_size,
        "policy": policy,
        "backend": backend,
        "mode": mode,
        "precision": workload.precision,
        "threads": "auto" if workload.threads == "auto" else threads_in_force(),
        "machine": describe_machine(),
    }


def say_precision(precision: str) -> str:
    """Say in a few words that matrix products are not in float32; nothing if they are."""
    return "" if precision == "float32" else f", {precision} products"


def say_instances(n_instances: int) -> str:
    """Say how many instances there are: "1 instance", "4,000 instances"."""
    return f"{n_instances:,} instance{'' if n_instances == 1 else 's'}"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out text in columns, the first flush left and the others flush right.

    >>> print(format_table(["policy", "batches"], [["depth", "49"], ["agenda", "33"]]))
    policy  batches
    depth        49
    agenda       33
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for first, *rest in [header, *rows]:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
