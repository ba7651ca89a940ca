"""Results of commands: counts per mini-batch, JSON lines and text tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from io import SEEK_END, FileIO
from pathlib import Path
from typing import Any, TextIO

from autobatch.cli.machine import describe_machine, threads_in_force
from autobatch.cli.workload import Workload
from autobatch.errors import DataError
from autobatch.system.files import unfinished_beside, write_whole
from autobatch.system.nested_json import to_json

COUNTS = ("nodes", "batches", "lower_bound", "launches", "copied_bytes")


NO_RUN: Mapping[str, Any] = {}


@dataclass
class Tally:
    """Sums of the counts of mini-batches, for their means."""

    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    n_minibatches: int = 0

    def add(self, last: Any) -> None:
        """Add the counts of a mini-batch, from `loss.last`."""
        self.n_minibatches += 1
        for name in COUNTS:
            self.totals[name] += getattr(last, name)

    def means(self) -> dict[str, float]:
        """Return means per mini-batch, rounded to one decimal; integral means are ints."""
        counts = {name: round(total / max(self.n_minibatches, 1), 1) for name, total in self.totals.items()}
        return {name: int(count) if count == int(count) else count for name, count in counts.items()}


class JsonLines:
    """A writer of one JSON object per line; without a file, it writes nothing.

    Args:
        file: an open file, or None; its buffer is bypassed.
        path: path of the file, for messages.
    """

    def __init__(self, file: FileIO | TextIO | None, path: Path | str = "standard output") -> None:
        self._path = path
        self._file: FileIO | None
        if file is None or isinstance(file, FileIO):
            self._file = file
        else:
            file.flush()
            self._file = FileIO(file.fileno(), "w", closefd=False)

    def write(self, result: dict[str, Any]) -> None:
        """Write one result, whole or not at all, without buffering. NaN and infinity become null.

        Raises:
            DataError: the file cannot be written.
        """
        if self._file is None:
            return
        line, written = f"{json.dumps(to_json(result))}\n".encode(), 0
        try:
            while written < len(line):  # an unbuffered write may be partial
                written += self._file.write(line[written:]) or 0
        except BrokenPipeError:  # not a fault: `run_to_the_end` ends the command
            raise
        except OSError as error:
            with suppress(OSError):  # only regular files can be truncated
                self._file.truncate(self._file.seek(0, SEEK_END) - written)
            raise _cannot_write(self._path, error, "free some space, or give another file") from error


def _cannot_write(path: Path | str, error: OSError, advice: str) -> DataError:
    return DataError(f"cannot write results to {path}: {(error.strerror or str(error)).lower()}; {advice}.")


@contextmanager
def open_json(
    path: Path | None, append: bool | None = None, n_epochs: int = 0, run: Mapping[str, Any] = NO_RUN
) -> Iterator[JsonLines]:
    """Open the file for results before the work begins.

    Args:
        path: the file, or None for no output.
        append: whether to append to an existing file or to overwrite it, line by line. None replaces it only after the
            work has succeeded.
        n_epochs: with `append`, the number of completed epochs; lines of later epochs, left by a run killed before its
            next checkpoint, are removed.
        run: items that all lines of that run have; lines of other runs are kept.

    Raises:
        DataError: the file cannot be written.
    """
    if path is None:
        yield JsonLines(None)
        return
    in_place = append is not None or (path.exists() and not path.is_file())  # a pipe or device is never replaced
    with nullcontext(path) if in_place else unfinished_beside(path) as target:
        try:
            if append:
                _remove_later(path, n_epochs, run)
            file = FileIO(target, "a" if append else "w")
        except OSError as error:
            raise _cannot_write(path, error, "choose a file in a writable folder") from error
        with file:
            yield JsonLines(file, path)
        if not in_place:
            os.replace(target, path)


def _remove_later(path: Path, n_epochs: int, run: Mapping[str, Any]) -> None:
    """Remove trailing lines that are truncated or belong to later epochs of a run."""
    if not path.is_file():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    n_lines = len(lines)
    while lines and _is_later(lines[-1], n_epochs, run):
        del lines[-1]
    if len(lines) < n_lines:
        write_whole(path, b"".join(lines))


def _is_later(line: bytes, n_epochs: int, run: Mapping[str, Any]) -> bool:
    try:
        if not line.endswith(b"\n"):
            return True
        found = json.loads(line)
        return found["epoch"] > n_epochs and all(found.get(name) == x for name, x in run.items())
    except (ValueError, LookupError, TypeError):
        return False  # keep lines of other programs


def describe_run(workload: Workload, batch_size: int, policy: str, backend: str, mode: str) -> dict[str, Any]:
    """Return the settings and the machine of a run, the common part of all JSON results."""
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
    """Format the precision of matrix products, as ", bf16 products"; "" for float32."""
    return "" if precision == "float32" else f", {precision} products"


def say_instances(n_instances: int) -> str:
    """Format a number of instances: "1 instance", "4,000 instances"."""
    return f"{n_instances:,} instance{'' if n_instances == 1 else 's'}"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table, the first column left-aligned and the others right-aligned.

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
