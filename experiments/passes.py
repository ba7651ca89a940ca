"""Measure what each pass over cells is worth, in instructions, launches and time.

The models of the package, and a carelessly written gated cell, run on the cpu backend with all passes, without each
one, and with none. Counts for all types of the mini-batch are instructions that compute (neither views nor copies)
forward and backward, steps of the compiled stages (kernels, products, interpreted ops), and loop nests in the kernels.
Counts for the mini-batch are launches, floats saved per node, and kB of the buffer. Counts do not depend on the
machine; times are relative to all passes, from medians of rounds in which all variants take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.stage import compile_backward, compile_forward
from autobatch.engine.counts import Step
from autobatch.ir.program import Instruction
from autobatch.memplan.planner import MemoryPlanner
from autobatch.models import find_model
from autobatch.plan.plan import PlannedCell
from harness import find_data, run, take_turns
from records import Findings, Settings

COUNTED = ("", "instructions", "steps", "loop nests", "launches", "saved", "buffer kB", "time")
MODELS = {"tree-lstm": "sst", "bilstm-tagger": None, "lattice-lstm": "lattice"}
PASSES: dict[str, Any] = {
    **dict.fromkeys(("simplifies", "joins", "sums", "stacks", "cuts", "hoists", "fuses", "reuses"), False),
    "recomputes": "nothing",
}
"""How each pass is switched off."""
ALL = "all passes"
LENGTHS = (4, 40)  # of the sequences that the careless cell reads


@dataclass(frozen=True)
class Config(Settings):
    """Models have width `dim`, and mini-batches of `batch` instances."""

    dim: int = 64
    batch: int = 64
    repeats: int = 15
    backend: str = "cpu"


class Careless(ab.Module):
    """A gated recurrent cell written carelessly: gates are computed repeatedly, with useless factors."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.dim = dim
        self.forget, self.update = (
            ab.Parameter(0.5 * rng.standard_normal((dim, 2 * dim)) / dim**0.5) for _ in range(2)
        )

    @ab.cell
    def read(self, h: Any, x: Any) -> Any:
        kept = ab.sigmoid(self.forget @ ab.concat((h, x))) * h * 1.0
        new = (1.0 - ab.sigmoid(self.forget @ ab.concat((h, x)))) * ab.tanh(self.update @ ab.concat((h, x)))
        return ab.concat(ab.split(kept + new, 2)) / 1.0

    def loss(self, xs: Any) -> Any:
        """Compute the mean square of the last state."""
        h: Any = np.zeros(self.dim)
        for x in xs:
            h = self.read(h, x)
        return ab.mean(h * h)


def ways() -> dict[str, MemoryPlanner]:
    """Make planners with all passes, without each one, and with none."""
    apart = {f"without: {name}": MemoryPlanner(**{name: off}) for name, off in PASSES.items()}
    more = {"recomputes more": MemoryPlanner(recomputes="more")}
    return {ALL: MemoryPlanner(), **apart, **more, "none": MemoryPlanner(**PASSES)}


def measure(config: Config) -> Iterator[Findings]:
    """Count and time every model, forward and in training, with all variants."""
    for name, (model, instances) in load(config).items():
        tables: list[str] = []
        seconds: dict[str, list[float]] = {}
        figures: dict[str, Any] = {}
        for stage in ("forward", "training"):
            training = stage == "training"
            losses = {
                way: ab.batched(model.loss, policy="score", planner=planner, backend=config.backend, plan_cache=0)
                for way, planner in ways().items()
            }
            calls = {way: run_one(loss, instances, training) for way, loss in losses.items()}
            times = take_turns(calls, config.repeats)
            typical = {way: median(found) for way, found in times.items()}
            counts = {way: count(loss, instances, training) for way, loss in losses.items()}
            for way, found in counts.items():
                found["time"] = round(typical[way] / typical[ALL], 3)
            seconds |= {f"{stage}, {way}": found for way, found in times.items()}
            figures[stage] = counts
            rows = [_row(way, found) for way, found in counts.items()]
            title = f"{name}, {stage}: {len(instances)} instances, width {config.dim}, {typical[ALL] * 1000:.1f} ms"
            tables.append(f"{title}\n\n{format_table(COUNTED, rows)}")
        yield Findings(seconds, figures, "\n\n".join(tables), part=name)


def load(config: Config) -> dict[str, tuple[Any, Sequence[Any]]]:
    """Load the models, and instances of each."""
    found: dict[str, tuple[Any, Sequence[Any]]] = {}
    for name, folder in MODELS.items():
        spec, rng = find_model(name), np.random.default_rng(config.seed)
        data = spec.load((folder and find_data(folder)) or spec.default_data, rng)
        found[name] = spec.build(data, config.dim, rng), data.items[: config.batch]
    rng = np.random.default_rng(config.seed)
    lengths = rng.integers(*LENGTHS, size=config.batch)
    sequences = [rng.standard_normal((n, config.dim)).astype(np.float32) for n in lengths]
    found["careless"] = Careless(config.dim, rng), [list(xs) for xs in sequences]
    return found


def run_one(loss: ab.Batched, instances: Sequence[Any], training: bool) -> Callable[[], object]:
    """Make a function that runs a mini-batch of recorded graphs."""
    graphs = loss.record_all(instances)
    return (lambda: loss.value_and_grad(graphs)) if training else (lambda: loss(graphs))


def count(loss: ab.Batched, instances: Sequence[Any], training: bool) -> dict[str, float]:
    """Count the costs of a mini-batch, and of the cells of its types."""
    report = loss.explain(instances, training=training)
    step = loss.plan(loss._call(instances, training))
    cells = [step.cells.cells[kind] for kind in np.unique(step.graph.type_id)]
    stages = [compile_forward(cell) for cell in cells]
    stages += [compile_backward(cell) for cell in cells if cell.derivative is not None]
    kernels = [made for stage in stages for made in stage.steps if isinstance(made, Kernel)]
    return {
        "instructions": sum(map(count_instructions, cells)),
        "steps": sum(len(stage.steps) for stage in stages),
        "nests": sum(len(kernel.blocks) for kernel in kernels),
        "launches": report.launches,
        "saved": count_saved(step),
        "buffer_kB": report.planned_bytes / 1024,
    }


def count_saved(step: Step) -> float:
    """Return the number of saved floats per node, over all types; values of nodes and edges count."""
    plan = step.parts[0].plan
    n_saved = plan.size - 2 * plan.gradient_offset if plan.gradient_offset else 0
    return n_saved / max(1, plan.graph.n_nodes)


def count_instructions(cell: PlannedCell) -> int:
    """Return the number of instructions that compute in a cell, over all its stages."""
    vars, indices = cell.program.vars, set(cell.program.instructions)
    if cell.derivative is not None:
        vars, indices = cell.derivative.vars, indices | {*cell.derivative.backward, *cell.derivative.weights}
    sources = [vars[index].source for index in indices]
    return sum(isinstance(s, Instruction) and not s.op.view and not s.op.copies for s in sources)


def _row(way: str, found: Mapping[str, float]) -> tuple[str, ...]:
    numbers = [f"{found[key]:,.0f}" for key in ("instructions", "steps", "nests", "launches", "saved", "buffer_kB")]
    return way, *numbers, f"{found['time']:.2f}"


if __name__ == "__main__":
    run(Config(), measure)
