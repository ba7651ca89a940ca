"""Measure how long it takes until a model runs, with empty caches and with full ones.

`autobatch bench MODEL --compile` runs this. Two fresh processes do the same, one after the other, with their own cache,
which is empty at first. Each runs a mini-batch forward, then forward and backward with a step of Adam, on the cpu
backend. The time is that of a first run minus that of a second one. The time of cells is that of planning their layouts
and compiling their kernels. The rest is lowering, and measuring the libraries of matrix products.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import autobatch as ab
from autobatch.cli.progress import show_progress
from autobatch.cli.results import describe_run, format_table, open_json
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.errors import AutobatchError
from autobatch.system.background import VARIABLE, Compilation, watch_compilation
from harness import run
from records import QUICK, Findings, Settings

LAYOUTS = "layouts of cells"
CELLS = "the cells of this model"
REST = "the rest of the first steps"
PROCESS = "process"  # the first argument of a child process


@dataclass(frozen=True)
class Config(Settings):
    """The mini-batch is the first one of the data's files."""

    model: str = "tree-lstm"
    data: str = ""
    """A name or path that replaces the model's built-in data."""
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
        """Return both as JSON data."""
        return {"cold_s": self.cold, "cached_s": self.cached}


def measure(config: Config) -> Findings:
    """Time the first steps of the model in new processes."""
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
        workload: the model, its data, dim and seed.
        batch_size: instances in the mini-batch that is run.
        note: called with the name of what is being compiled.

    Raises:
        AutobatchError: a process failed.

    Cost: some seconds.
    """
    arguments = [
        workload.spec.name, workload.dataset.name, str(workload.dim), str(batch_size), str(workload.seed)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        cold, cached = (_run_process(arguments, folder, note) for _ in range(2))
    return CompileTimes(cold, cached)


def _run_process(arguments: list[str], cache: str, note: Callable[[str], None]) -> dict[str, float]:
    """Start this script as a process and report what it compiles. Return the seconds that it measured."""
    command = [sys.executable, __file__, PROCESS, *arguments]
    measured: dict[str, float] = {}
    environment = {**os.environ, "AUTOBATCH_CACHE": cache, VARIABLE: "inf"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
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
    """Measure the first steps in this process, which must not have run any before."""
    spent: defaultdict[str, float] = defaultdict(float)

    def spend(compilation: Compilation) -> None:
        spent[compilation.what] += compilation.seconds

    with watch_compilation(lambda compilation: begun(compilation.what), done=spend):
        first, layouts = _first_steps(workload, batch_size)
    of_cells = sum(spent.values()) + layouts
    return {**spent, LAYOUTS: layouts, CELLS: of_cells, REST: max(first - of_cells, 0.0)}


def _first_steps(workload: Workload, batch_size: int) -> tuple[float, float]:
    """Run a mini-batch twice. Return the seconds that the first run took longer, and those of planning layouts."""
    began = perf_counter()
    loss = workload.batched("loss", "score", "cpu", plan_cache=0)
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
    """Measure, and print JSON: a line for each thing that is compiled, and at the end the seconds."""
    workload = load_workload(model, data, int(dim), int(seed))

    def say(what: object) -> None:
        print(json.dumps(what), flush=True)

    say(measure_here(workload, int(batch_size), say))


if __name__ == "__main__":
    if sys.argv[1:2] == [PROCESS]:
        main(*sys.argv[2:])
    else:
        run(Config(), measure, folder=QUICK)
