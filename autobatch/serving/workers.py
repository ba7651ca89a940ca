"""The figures that the workers behind one port share: each writes its own to a common folder.

They write only while somebody views the live page of one of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SEVERAL = "AUTOBATCH_WORKERS"
"""Environment variable: a folder shared by workers."""
EVERY = 0.5  # seconds between two checks whether figures are wanted
FRESH = 3.0  # seconds for which figures, or a request for them, are valid


class Workers:
    """The workers that share a folder.

    Args:
        folder: a folder that all of them may write to; its other files are left alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._own = folder, folder / f"live-{os.getpid()}.json"
        self._wanted = folder / "live-wanted"
        self._faults: dict[str, str] = {}

    @property
    def is_wanted(self) -> bool:
        """Return whether somebody has recently requested the figures of all workers."""
        return _is_fresh(self._wanted)

    @property
    def fault(self) -> str:
        """Return why this worker could not write its figures, or request others, the last time; empty if it could."""
        return next(iter(self._faults.values()), "")

    def publish(self, figures: Mapping[str, Any]) -> None:
        """Write the figures of this worker, atomically."""
        beside = self._own.with_suffix(".part")
        with self._noting("write"):
            beside.write_text(json.dumps(figures), encoding="utf-8")
            os.replace(beside, self._own)

    def others(self) -> list[dict[str, Any]]:
        """Request and read the figures of the other workers; they may be missing for `EVERY` seconds at first."""
        with self._noting("ask for"):
            self._wanted.touch()
        found = list[dict[str, Any]]()
        for path in sorted(self._folder.glob("live-*.json")):
            if path != self._own and _is_fresh(path) and _lives(int(path.stem.removeprefix("live-"))):
                with suppress(OSError, ValueError):
                    found.append(json.loads(path.read_text(encoding="utf-8")))
        return found

    @contextmanager
    def _noting(self, doing: str) -> Iterator[None]:
        """Note that the folder cannot be written, for the live page; requests are still served."""
        self._faults.pop(doing, None)
        try:
            yield
        except OSError as error:
            self._faults[doing] = f"a worker cannot {doing} the figures that workers share: {error.strerror}"


def _is_fresh(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < FRESH
    except OSError:
        return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
