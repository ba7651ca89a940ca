"""`autobatch bench --compile`: how long it takes until a model runs, with empty caches and with full ones.

Two fresh processes do the same, one after the other, with cache folders of their own that are empty at first. Each runs
a mini-batch forward, then forward and backward with a step of Adam: first on the reference backend, which compiles the
library's own loops, then on the cpu backend, which compiles the cells. Time is what a first run takes more than a
second one; that of cells is what planning their layouts, lowering, and compiling or loading their kernels took. What is
left went into measuring the libraries of matrix products, mostly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.cli.threads import DEFAULT_THREADS, use_threads
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.errors import AutobatchError
from autobatch.jit.compiling import Compilation, watch_compilation

LAYOUTS = "layouts of cells"
CELLS = "the cells of this model"
LOOPS = "the library's loops, once for all models"
REST = "the rest of the first steps"
CACHES = {"AUTOBATCH_CACHE": "cells", "NUMBA_CACHE_DIR": "loops"}


@dataclass(frozen=True)
class CompileTimes:
    """Seconds by what they were spent on, in a process with empty caches and in the next one."""

    cold: dict[str, float]
    cached: dict[str, float]

    def __str__(self) -> str:
        rows = [(what, f"{cold:.2f}", f"{self.cached.get(what, 0.0):.2f}") for what, cold in self.cold.items()]
        return format_table(("seconds", "cold", "from the cache"), rows)

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        return {"cold_s": self.cold, "cached_s": self.cached}


def time_compilation(workload: Workload, batch_size: int, note: Callable[[str], None]) -> CompileTimes:
    """Time the first steps of a model in two processes.

    Args:
        workload: names the model, its data, dim and seed.
        batch_size: instances in the mini-batch that is run.
        note: is told what is compiled.

    Raises:
        AutobatchError: a process failed.

    Cost: about a minute.
    """
    arguments = [
        workload.spec.name, workload.dataset.name, str(workload.dim), str(batch_size), str(workload.seed)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        caches = {variable: os.path.join(folder, name) for variable, name in CACHES.items()}
        for path in caches.values():
            os.mkdir(path)
        cold, cached = (_run_process(arguments, caches, note) for _ in range(2))
    return CompileTimes(cold, cached)


def _run_process(
    arguments: list[str], caches: Mapping[str, str], note: Callable[[str], None]
) -> dict[str, float]:  # fmt: skip
    """Run this module; pass on what it says is compiled; give the seconds that it measured."""
    command = [sys.executable, "-m", "autobatch.cli.measuring.compile_times", *arguments]
    measured: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **caches}) as process:
        assert process.stdout is not None, "it is a pipe"
        for line in process.stdout:
            said = json.loads(line)
            if isinstance(said, str):
                note(f"compiling {said}")
            else:
                measured = said
    if process.returncode or not measured:
        raise AutobatchError(
            f"timing compilation: a process ended with status {process.returncode}; what it said stands above."
        )
    return measured


def measure_here(workload: Workload, batch_size: int, begun: Callable[[str], None]) -> dict[str, float]:
    """Measure the first steps in this process, which has run none before."""
    spent: defaultdict[str, float] = defaultdict(float)
    in_loops: list[float] = []

    def spend(compilation: Compilation) -> None:
        if compilation.is_kernel:
            spent[compilation.what] += compilation.seconds
        else:
            in_loops.append(compilation.seconds)

    with watch_compilation(lambda compilation: begun(compilation.what), done=spend, loaded=spend):
        loops, _ = _first_steps(workload, "reference", batch_size)
        in_loops.clear()
        first, layouts = _first_steps(workload, "cpu", batch_size)
    of_cells, more_loops = sum(spent.values()) + layouts, sum(in_loops)
    rest = max(first - of_cells - more_loops, 0.0)
    return {**spent, LAYOUTS: layouts, CELLS: of_cells, LOOPS: loops + more_loops, REST: rest}


def _first_steps(workload: Workload, backend: str, batch_size: int) -> tuple[float, float]:
    """Run a mini-batch twice; give the seconds that the first run took more, and those of planning layouts."""
    began = perf_counter()
    loss = workload.batched("loss", "score", backend, plan_cache=0)
    graphs = record(loss, workload.first(batch_size))
    optimizer = ab.optim.Adam(workload.model, lr=1e-3)
    with loss.profile() as profile:
        loss(graphs)
        _, grads = loss.value_and_grad(graphs)
    optimizer.step(grads)
    first = perf_counter() - began
    began = perf_counter()
    record(loss, workload.first(batch_size))
    loss(graphs)
    _, grads = loss.value_and_grad(graphs)
    optimizer.step(grads)
    again = perf_counter() - began
    layouts = sum(span.end - span.start for call in profile.calls for span in call.stages if span.stage == "layout")
    return first - again, layouts


def main(model: str, data: str, dim: str, batch_size: str, seed: str) -> None:
    """Measure, and print JSON: what is compiled, a line each, and at the end the seconds."""
    use_threads(DEFAULT_THREADS)
    workload = load_workload(model, data, int(dim), int(seed))

    def say(what: object) -> None:
        print(json.dumps(what), flush=True)

    say(measure_here(workload, int(batch_size), say))


if __name__ == "__main__":
    main(*sys.argv[1:])
