"""Question: how long does it take until a model runs, with empty caches and with full ones?

`autobatch bench MODEL --compile` runs this. Two fresh processes do the same, one after the other, with cache folders of
their own that are empty at first. Each runs a mini-batch forward, then forward and backward with a step of Adam: first
on the reference backend, which compiles the library's own loops, then on the cpu backend, which compiles the cells. The
time is that of a first run minus that of a second one; that of cells is what planning their layouts, lowering, and
compiling or loading their kernels took. The rest is mostly the measurement of the libraries of matrix products.
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
from pathlib import Path
from time import perf_counter
from typing import Any

import autobatch as ab
from autobatch.cli.progress import show_progress
from autobatch.cli.results import describe_run, format_table, open_json
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.errors import AutobatchError
from autobatch.jit.compiling import Compilation, watch_compilation
from harness import run
from records import QUICK, Findings, Settings

LAYOUTS = "layouts of cells"
CELLS = "the cells of this model"
LOOPS = "the library's loops, once for all models"
REST = "the rest of the first steps"
CACHES = {"AUTOBATCH_CACHE": "cells", "NUMBA_CACHE_DIR": "loops"}
PROCESS = "process"  # the first argument of a process that this one starts


@dataclass(frozen=True)
class Config(Settings):
    """The mini-batch is the first one, in the order of the data's files."""

    model: str = "tree-lstm"
    data: str = ""
    """A name or path, in place of what the model has built in."""
    dim: int = 128
    batch_size: int = 64
    json: str = ""
    """A file for the figures in one line, as `autobatch bench --json` writes it."""


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


def measure(config: Config) -> Findings:
    """Time the first steps of the model in processes of their own."""
    with open_json(Path(config.json) if config.json else None) as results:
        workload = load_workload(config.model, config.data, config.dim, config.seed)
        workload.first(config.batch_size)
        with show_progress(1) as progress:
            found = time_compilation(workload, config.batch_size, progress.note)
        figures = {**describe_run(workload, config.batch_size, "score", "cpu", "compile"), **found.figures()}
        results.write(figures)
    title = f"{config.model}, {workload.dataset.name}, dim {config.dim}; the first steps forward and backward"
    seconds = {"cold": [found.cold[CELLS]], "cached": [found.cached[CELLS]]}
    return Findings(seconds, figures, f"{title}\n\n{found}", config.model.replace(":", "-"))


def time_compilation(workload: Workload, batch_size: int, note: Callable[[str], None]) -> CompileTimes:
    """Time the first steps of a model in two processes.

    Args:
        workload: names the model, its data, dim and seed.
        batch_size: instances in the mini-batch that is run.
        note: called with what is compiled.

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
    """Start this script as a process; pass on the names of what it compiles; return the seconds that it measured."""
    command = [sys.executable, __file__, PROCESS, *arguments]
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
    workload = load_workload(model, data, int(dim), int(seed))

    def say(what: object) -> None:
        print(json.dumps(what), flush=True)

    say(measure_here(workload, int(batch_size), say))


if __name__ == "__main__":
    if sys.argv[1:2] == [PROCESS]:
        main(*sys.argv[2:])
    else:
        run(Config(), measure, folder=QUICK)
