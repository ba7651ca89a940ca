"""Measure when the first training step is done with empty and full caches, and when steps run at full speed.

Processes are started one after the other, in a home directory whose caches are empty at first; the second process of a
home finds what the first one compiled. Times are seconds of wall clock and of the processor since Python was started,
without drawing the data.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autobatch.cli.results import format_table
from harness import run
from records import QUICK, Findings, Settings

PROCESS = "process"  # the first argument of a child process
LAST, NEAR = 20, 2.0
"""Full speed is reached once a step takes at most NEAR times the median of the last LAST steps."""
COLUMNS = ("imported_s", "first_step_s", "full_speed_s", "last_steps_ms", "processor_s")


@dataclass(frozen=True)
class Config(Settings):
    """The model is trained on its own first mini-batch, repeatedly."""

    model: str = "tree-lstm"
    dim: int = 64
    batch_size: int = 64
    waits: tuple[str, ...] = ("0.3", "inf")
    """Values of AUTOBATCH_COMPILE_WAIT, in seconds; each has its own home directory."""
    limit_s: float = 300.0
    """Seconds after which a process stops waiting for full speed and reports infinity."""


def measure(config: Config) -> Findings:
    """Start two processes for each value."""
    found: dict[str, dict[str, float]] = {}
    for wait in config.waits:
        with tempfile.TemporaryDirectory() as home:
            for which in ("empty caches", "full caches"):
                found[f"{wait}, {which}"] = start(config, wait, Path(home))
    rows = [(name, *(f"{figures[column]:.2f}" for column in COLUMNS)) for name, figures in found.items()]
    seconds = {name: [figures["first_step_s"], figures["full_speed_s"]] for name, figures in found.items()}
    head = ("AUTOBATCH_COMPILE_WAIT", *(column.replace("_", " ") for column in COLUMNS))
    return Findings(seconds, found, format_table(head, rows))


def start(config: Config, wait: str, home: Path) -> dict[str, float]:
    """Start a process, and read what it measured."""
    caches = {"AUTOBATCH_CACHE": str(home / "cache"), "HOME": str(home)}
    arguments = [config.model, config.dim, config.batch_size, config.seed, config.limit_s, time.time()]
    command = [sys.executable, __file__, PROCESS, *map(str, arguments)]
    environment = {**os.environ, **caches, "AUTOBATCH_COMPILE_WAIT": wait}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def train(model: str, dim: int, batch_size: int, seed: int, limit_s: float, called: float) -> dict[str, float]:
    """Train until steps run at full speed. Return the figures.

    Args:
        called: when the process was started, in seconds of `time.time`.
    """
    import autobatch as ab
    from autobatch.cli.workload import load_workload
    from autobatch.system.background import n_waiting

    imported, processor = time.time() - called, time.process_time()
    workload = load_workload(model, None, dim, seed)
    instances = workload.first(batch_size)
    drawing, processor = time.time() - called - imported, time.process_time() - processor
    loss, optimizer = workload.batched("loss", "auto", "cpu"), ab.optim.Adam(workload.model)
    ends, took, n_after = [], [], 0
    while n_after < LAST and time.time() - called < limit_s:
        began = time.time()
        _, grads = loss.value_and_grad(instances)
        optimizer.step(grads)
        ends.append(time.time() - called - drawing)
        took.append(time.time() - began)
        n_after = 0 if n_waiting() else n_after + 1
    last = statistics.median(took[-LAST:])
    reached = [end for end, seconds in zip(ends, took, strict=True) if seconds <= NEAR * last]
    full = reached[0] if n_after == LAST else math.inf
    values = imported, ends[0], full, 1e3 * last, time.process_time() - processor
    return dict(zip(COLUMNS, values, strict=True))


def main(model: str, *numbers: Any) -> None:
    """Train, and print the figures as JSON."""
    dim, batch_size, seed, limit_s, called = map(float, numbers)
    print(json.dumps(train(model, int(dim), int(batch_size), int(seed), limit_s, called)))


if __name__ == "__main__":
    if sys.argv[1:2] == [PROCESS]:
        main(*sys.argv[2:])
    else:
        run(Config(), measure, folder=QUICK)
