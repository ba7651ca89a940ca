"""Measure how much longer a step takes than its matrix products alone, and where the rest goes.

`autobatch bench MODEL --roofline` runs this. On each mini-batch four things take turns: a step; its products alone; a
step with a clock around every batch; its products with a clock around every part. The first two yield the ratio, the
others explain it. Products run once before they are timed, so that nothing of the step remains in the caches; this
makes the ratio stricter.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cpu.run import CompiledPlan
from autobatch.blas.choosing import MAX_SIZE
from autobatch.blas.choosing import measure as measure_products
from autobatch.blas.finding import list_providers
from autobatch.blas.threads import limit_threads
from autobatch.cli.racing import take_turns
from autobatch.cli.results import Tally, describe_run, format_table, open_json
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.errors import BackendError
from autobatch.inspect.profiling import RUNNING, Call
from autobatch.params.stacks import make_gradients
from harness import run
from matmuls import ONCE, Matmuls, Memory, Part, Stages, list_matmuls
from records import QUICK, Findings, Settings

PLANNING, AROUND, OPTIMIZER = Part("planning", ONCE), Part("around", ONCE), Part("optimizer", ONCE)
BESIDES: Mapping[str, str] = {
    "forward": "element-wise kernels and binding, forward",
    "backward": "element-wise kernels and binding, backward",
    "weights": "gradients of biases and tables",
    "planning": "planning",
    "around": "Python around the stages",
    "optimizer": "optimizer",
}
"""What takes time besides products, by stage."""


@dataclass(frozen=True)
class Config(Settings):
    """The mini-batches are the first ones of the data's files."""

    model: str = "tree-lstm"
    data: str = ""
    """A name or path that replaces the model's built-in data."""
    dim: int = 128
    batch_size: int = 64
    policy: str = "auto"
    backend: str = "cpu"
    """The backend, which must compile cells."""
    mode: str = "train"
    """The mode: "infer" computes losses; "train" computes losses and gradients, and takes a step of Adam."""
    minibatches: int = 4
    repeats: int = 5
    json: str = ""
    """A file for the figures in one line, as `autobatch bench --json` writes it."""


@dataclass(frozen=True)
class Line:
    """A part of the step: milliseconds per mini-batch, those of its products alone, and their operations."""

    stage: str
    cell: str
    """The cell of the batches; empty for what runs once for all rows, and for what has no cell."""
    ms: float
    matmul_ms: float
    flops: float

    @property
    def name(self) -> str:
        """Return a name for a table."""
        if self.cell:
            return f"{self.cell}, {self.stage}"
        return f"outside batches, {self.stage}" if self.stage in RUNNING else self.stage


@dataclass(frozen=True)
class Roofline:
    """Means over the mini-batches of the medians of their runs.

    Attributes:
        ms, matmul_ms: time of a step, and of its products alone, both without a clock inside.
        peak: GFLOP/s of the fastest product of large squares; `peak_library` computes it.
        lines: the parts of a step, with a clock around each.
        seconds: all timed runs, by what ran.
    """

    policy: str
    backend: str
    ms: float
    matmul_ms: float
    peak: float
    peak_library: str
    counts: dict[str, float]
    lines: list[Line] = field(default_factory=list)
    seconds: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Return the time of a step relative to that of its products."""
        return self.ms / self.matmul_ms

    @property
    def flops(self) -> float:
        """Return the operations of a mini-batch's products."""
        return sum(line.flops for line in self.lines)

    def besides(self) -> dict[str, float]:
        """Return milliseconds besides products, by stage."""
        found: defaultdict[str, float] = defaultdict(float)
        for line in self.lines:
            found[line.stage] += line.ms - line.matmul_ms
        return dict(found)

    def figures(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return {
            "ms": self.ms,
            "matmul_ms": self.matmul_ms,
            "ratio": self.ratio,
            "gflops": self.flops / 1e6 / self.ms,
            "matmul_gflops": self.flops / 1e6 / self.matmul_ms,
            "peak_gflops": self.peak,
            "parts": [
                {"stage": one.stage, "cell": one.cell, "ms": one.ms, "matmul_ms": one.matmul_ms, "flops": one.flops}
                for one in self.lines
            ],
            "besides_ms": self.besides(),
            **self.counts,
        }

    def __str__(self) -> str:
        header = ("part", "ms", "matmuls", "besides", "ratio", "GFLOP/s", "alone")
        rows = [_row(line.name, line.ms, line.matmul_ms, line.flops) for line in self.lines]
        ms, matmul_ms = (sum(getattr(line, name) for line in self.lines) for name in ("ms", "matmul_ms"))
        rows.append(_row("sum", ms, matmul_ms, self.flops))
        rows.append(_row("without clocks inside", self.ms, self.matmul_ms, self.flops))
        spent = sorted(self.besides().items(), key=lambda item: -item[1])
        besides = format_table(("besides matmuls", "ms"), [(BESIDES[stage], f"{ms:.2f}") for stage, ms in spent])
        return (
            f"{format_table(header, rows)}\n\n{besides}\n\n"
            f"The step takes {self.ratio:.2f} times the time of its matmuls alone, which is {self.matmul_ms:.2f} ms "
            f"at {self.flops / 1e6 / self.matmul_ms:.0f} GFLOP/s.\n"
            f"The fastest product of two matrices of {MAX_SIZE} x {MAX_SIZE} here: {self.peak:.0f} GFLOP/s, by "
            f"{self.peak_library}."
        )


def _row(name: str, ms: float, matmul_ms: float, flops: float) -> tuple[str, ...]:
    if not flops:
        return (name, f"{ms:.2f}", "", f"{ms:.2f}", "", "", "")
    ratio, reached, alone = ms / matmul_ms, flops / 1e6 / ms, flops / 1e6 / matmul_ms
    return (
        name, f"{ms:.2f}", f"{matmul_ms:.2f}", f"{ms - matmul_ms:.2f}", f"{ratio:.2f}", f"{reached:.0f}", f"{alone:.0f}"
    )  # fmt: skip


class _Racer:
    """Runs the steps of one loss, and their products.

    Args:
        loss: a loss with the cpu backend, and without a cache of plans.
        optimizer: changes the model after each step; None computes losses only.
        minibatches: mini-batches of recorded graphs.
    """

    def __init__(self, loss: Any, optimizer: Any, minibatches: Sequence[Sequence[Any]]) -> None:
        self.loss, self.optimizer, self.minibatches = loss, optimizer, minibatches
        self.profile = loss.profile(n_calls=1)
        self.matmuls: list[Matmuls] = []
        self.tally = Tally()
        self.parts: list[list[dict[Part, float]]] = [[] for _ in minibatches]
        self.matmul_parts: list[list[dict[Part, float]]] = [[] for _ in minibatches]

    def take_in(self, parameters: Mapping[str, Any]) -> None:
        """Run every mini-batch once, and list its products."""
        executables: list[CompiledPlan] = []
        for number, minibatch in enumerate(self.minibatches):
            self.step(number)
            self.tally.add(self.loss.last)
            executables.append(self.loss.prepare(minibatch, self.optimizer is not None).parts[-1].executable)
        memory, stages = Memory(executables[0].options.dtype), Stages()
        memory.take("buffer", max(executable.plan.size for executable in executables))
        for executable in executables:
            cells = executable.cells
            made = make_gradients(parameters, cells.row_parameters).of if cells.training else {}
            gradients = {id(parameters[name]): gradient for name, gradient in made.items()}
            self.matmuls.append(Matmuls(list(list_matmuls(executable, stages, memory, gradients))))

    def step(self, number: int) -> None:
        if self.optimizer is None:
            self.loss(self.minibatches[number])
        else:
            _, grads = self.loss.value_and_grad(self.minibatches[number])
            self.optimizer.step(grads)

    def step_in_parts(self, number: int) -> None:
        """Run a mini-batch with a clock around every batch."""
        began = perf_counter()
        with self.profile:
            if self.optimizer is None:
                self.loss(self.minibatches[number])
            else:
                _, grads = self.loss.value_and_grad(self.minibatches[number])
        called = perf_counter()
        if self.optimizer is not None:
            self.optimizer.step(grads)
        ended = perf_counter()
        found = split_call(self.profile.calls[-1])
        found[AROUND] = called - began - sum(found.values())
        if self.optimizer is not None:
            found[OPTIMIZER] = ended - called
        self.parts[number].append(found)

    def multiply(self, number: int) -> None:
        """Run the products of a mini-batch."""
        self.matmuls[number].run()

    def multiply_in_parts(self, number: int) -> None:
        """Run the products of a mini-batch with a clock around every part."""
        self.matmul_parts[number].append(self.matmuls[number].time_parts())


def split_call(call: Call) -> dict[Part, float]:
    """Divide the stages of a call into parts. Return seconds."""
    found: defaultdict[Part, float] = defaultdict(float)
    for batch in call.batches:
        found[Part(batch.stage, batch.type_id)] += batch.end - batch.start
    for span in call.stages:
        if span.stage not in RUNNING:
            found[PLANNING] += span.end - span.start
    for stage in RUNNING:
        whole = sum(span.end - span.start for span in call.stages if span.stage == stage)
        inner = sum(batch.end - batch.start for batch in call.batches if batch.stage == stage)
        if whole:
            found[Part(stage, ONCE)] = whole - inner
    return dict(found)


def measure(config: Config) -> Findings:
    """Time steps and their products alone."""
    with open_json(Path(config.json) if config.json else None) as results:
        workload = load_workload(config.model, config.data, config.dim, config.seed)
        found = race_matmuls(workload, config)
        figures = {"instances_per_s": 1e3 * config.batch_size / found.ms, **found.figures()}
        described = describe_run(workload, config.batch_size, found.policy, found.backend, config.mode)
        results.write({**described, **figures, "minibatches": config.minibatches, "repeats": config.repeats})
    title = (
        f"{config.model}, {workload.dataset.name}, dim {config.dim}, {config.mode}; per mini-batch of "
        f"{config.batch_size}, policy {found.policy}, one thread"
    )
    return Findings(found.seconds, {**described, **figures}, f"{title}\n\n{found}", config.model.replace(":", "-"))


def race_matmuls(workload: Workload, config: Config) -> Roofline:
    """Time steps and their products alone, in turn; mode train changes the model's parameters.

    Raises:
        DataError: the data is too small.
        BackendError: the backend does not compile cells, or the cells have no matrix products.
    """
    racer = _make_racer(workload, config)
    loss = racer.loss
    runs: dict[str, Callable[[int], object]] = {
        "step": racer.step,
        "matmuls, untimed": racer.multiply,
        "matmuls": racer.multiply,
        "step in parts": racer.step_in_parts,
        "matmuls, untimed again": racer.multiply,
        "matmuls in parts": racer.multiply_in_parts,
    }
    with limit_threads(1):
        times = take_turns(runs, config.minibatches, config.repeats)
    peaks = measure_products(list_providers(), MAX_SIZE, MAX_SIZE, MAX_SIZE, str(loss.recorder.module.dtype))
    library = max(peaks, key=lambda name: peaks[name])
    return Roofline(
        policy=loss.policy.name,
        backend=loss.backend.name,
        ms=_mean_ms(times["step"]),
        matmul_ms=_mean_ms(times["matmuls"]),
        peak=peaks[library],
        peak_library=library,
        counts=racer.tally.means(),
        lines=_make_lines(racer, loss.last.graph.types.names),
        seconds={what: [one for timings in by_minibatch for one in timings] for what, by_minibatch in times.items()},
    )


def _make_racer(workload: Workload, config: Config) -> _Racer:
    """Record the mini-batches, run each once and list its products."""
    loss = workload.batched("loss", config.policy, config.backend, plan_cache=0)
    if not isinstance(loss.backend, Cpu):
        raise BackendError(
            f"timing the matmuls of compiled cells alone: the backend {loss.backend.name!r} does not compile cells; "
            f"choose cpu."
        )
    graphs = record(loss, workload.first(config.batch_size * config.minibatches))
    minibatches = [graphs[start : start + config.batch_size] for start in range(0, len(graphs), config.batch_size)]
    optimizer = ab.optim.Adam(workload.model, lr=1e-3) if config.mode == "train" else None
    racer = _Racer(loss, optimizer, minibatches)
    racer.take_in({name: p for name, p in workload.model.parameters().items() if p.trainable})
    if not all(matmuls.listed for matmuls in racer.matmuls):
        raise BackendError(
            f"timing the matmuls of {workload.spec.name} alone: its cells multiply no rows by shared matrices; there "
            f"is no such ratio for it."
        )
    return racer


def _mean_ms(seconds: Sequence[Sequence[float]]) -> float:
    return 1e3 * statistics.fmean(statistics.median(repeats) for repeats in seconds)


def _make_lines(racer: _Racer, names: Sequence[str]) -> list[Line]:
    """Return the parts with their means; cells by time, the longest first, then what has no cell."""
    parts, matmul_parts = (_mean_parts(times) for times in (racer.parts, racer.matmul_parts))
    n = len(racer.matmuls)
    flops: defaultdict[Part, float] = defaultdict(float)
    for matmuls in racer.matmuls:
        for part, count in matmuls.flops().items():
            flops[part] += count / n
    per_cell: defaultdict[int, float] = defaultdict(float)
    for part, ms in parts.items():
        per_cell[part.kind] += ms
    order = list(BESIDES)
    known = sorted(
        {*parts, *matmul_parts},
        key=lambda part: (part.kind == ONCE, -per_cell[part.kind], part.kind, order.index(part.stage)),
    )
    return [
        Line(
            part.stage,
            "" if part.kind == ONCE else names[part.kind],
            parts.get(part, 0.0),
            matmul_parts.get(part, 0.0),
            flops[part],
        )
        for part in known
    ]


def _mean_parts(times: Sequence[Sequence[Mapping[Part, float]]]) -> dict[Part, float]:
    """Return milliseconds of each part: means over mini-batches of the medians of their runs, without the first run."""
    found: defaultdict[Part, list[float]] = defaultdict(list)
    for timings in times:
        for part in {part for timing in timings[1:] for part in timing}:
            found[part].append(statistics.median(timing.get(part, 0.0) for timing in timings[1:]))
    return {part: 1e3 * float(np.sum(medians)) / len(times) for part, medians in found.items()}


if __name__ == "__main__":
    run(Config(), measure, folder=QUICK)
