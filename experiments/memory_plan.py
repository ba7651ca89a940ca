"""Claim: inside the cells of the literature nothing is copied; the published planner copies 48 to 4128 kB a batch.

The seven cells of the literature, planned at width 128 for a batch of 32 nodes. Copies of the published planner
(ED-Batch, arXiv:2302.03851) are those of its design. "op by op" is what a backend without fused kernels would copy
besides: operands of element-wise ops that do not lie side by side. Then what is executed of each: products, other
instructions and copied bytes, written and planned, forward and with the backward stages.

The models that come with autobatch follow, forward and in training, with all parts of the planner, and without each:
nodes, batches, launches, bytes that the reference backend moves, bytes that move without a launch of their own where
kernels are fused, and bytes of the buffer. Counts do not depend on the machine; times are multiples of those with all
parts, by medians of rounds in which all ways take turns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.graph.rewrite.passes import DEFAULT, PASSES
from autobatch.ir.program import NODE, CellProgram, Instruction
from autobatch.ir.typetable import NodeType
from autobatch.memplan import check_cell_layout, plan_cell
from autobatch.memplan.cell.grouping import PRODUCTS
from autobatch.memplan.planner import MemoryPlanner
from autobatch.memplan.report.movement import movements
from autobatch.models import find_model
from autobatch.plan.plan import PlannedCell
from harness import ROOT, Findings, Settings, find_data, run, take_turns

sys.path.insert(0, str(ROOT / "tests"))

from literature_cells import INSTANCES, SEVEN, WIDTH, trace_cell

DECIDED = ("cell", "instructions", "batches", "copies", "kB", "of parameters", "op by op", "published")
EXECUTED = ("cell", "written", "planned", "copied kB", "training, written", "planned", "copied kB")
COUNTED = ("", "nodes", "batches", "launches", "kB moved", "of these without launch", "buffer kB", "time")
MODELS = {"tree-lstm": "sst", "bilstm-tagger": None, "lattice-lstm": "lattice"}
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Config(Settings):
    """Published figures are about this width and number of nodes; models have `dim` and mini-batches of `batch`."""

    width: int = WIDTH
    instances: int = INSTANCES
    dim: int = 64
    batch: int = 64
    repeats: int = 15


class Way(NamedTuple):
    """How mini-batches are planned."""

    planner: MemoryPlanner = MemoryPlanner()
    rewrites: Sequence[str] = DEFAULT


WAYS = {
    "all parts": Way(),
    "ports in program order": Way(MemoryPlanner(joins=False)),
    "sums of products apart": Way(MemoryPlanner(sums=False)),
    "cells not stacked": Way(MemoryPlanner(stacks=False)),
    "sums not folded": Way(rewrites=tuple(name for name in DEFAULT if name != "fold")),
    "equal nodes shared": Way(rewrites=PASSES),
}


def measure(config: Config) -> Findings:
    """Plan and check every cell, then run the models in all ways."""
    decided, layouts, reasons = decide(config)
    executed, steps = execute(config)
    models, seconds, counts = run_models(config)
    title = f"width {config.width}, {config.instances} nodes; pairs are copies / kB"
    tables = (title, format_table(DECIDED, decided), "\n".join(reasons), "products + other instructions")
    found = {"cells": layouts, "executed": steps, "models": counts}
    return Findings(seconds, found, "\n\n".join(filter(None, (*tables, format_table(EXECUTED, executed), models))))


def decide(config: Config) -> tuple[list[tuple[str, ...]], dict[str, Any], list[str]]:
    """Lay out the cells of the literature."""
    rows, figures, reasons = [], {}, []
    for name, published in SEVEN.items():
        layout = plan_cell(trace_cell(published.body, config.width), config.instances)
        check_cell_layout(layout)
        copied, apart = (
            n / 1024 for n in (layout.copied_bytes(config.instances), layout.apart_bytes(config.instances))
        )
        counts = {
            "instructions": sum(len(batch.values) for batch in layout.batches),
            "batches": len(layout.batches),
            "copies": len(layout.copies),
            "kB": copied,
            "of parameters": layout.parameter_copies,
        }
        other = f"{len(layout.apart)} / {apart:g}"
        rows.append((name, *(f"{n:g}" for n in counts.values()), other, f"{published.copies} / {published.kilobytes}"))
        figures[name] = {**counts, "apart": len(layout.apart), "apart_kB": apart}
        reasons += [f"{name}: {copy.what}: {copy.reason}" for copy in (*layout.copies, *layout.apart)]
    return rows, figures, reasons


def execute(config: Config) -> tuple[list[tuple[str, ...]], dict[str, Any]]:
    """Count what is executed of each cell, as written and as planned."""
    rows, figures = [], {}
    for name, published in SEVEN.items():
        program = trace_cell(published.body, config.width)
        plain = MemoryPlanner(joins=False, stacks=False)
        cells = {what: plan_one(p, program) for what, p in (("written", plain), ("planned", MemoryPlanner()))}
        counts = {what: count_cell(cell, config.instances) for what, cell in cells.items()}
        figures[name] = counts
        row = [name]
        for stage in ("forward", "training"):
            written, planned = counts["written"][stage], counts["planned"][stage]
            row += [f"{w['products']} + {w['other']}" for w in (written, planned)]
            row.append(f"{planned['copied_bytes'] / 1024:g}")
        rows.append(tuple(row))
    return rows, figures


def plan_one(planner: MemoryPlanner, program: CellProgram) -> PlannedCell:
    """Plan a program for training, as the only type."""
    return planner.plan_cell(NodeType(0, program.name, program, None, ()), training=True)


def count_cell(cell: PlannedCell, n_nodes: int) -> dict[str, dict[str, int]]:
    """Instructions that compute, and bytes copied inside the cell, forward and in all stages."""
    derivative = cell.derivative
    assert derivative is not None, "plan_one plans for training"
    forward = set(cell.program.instructions)
    stages = {"forward": forward, "training": forward | {*derivative.backward, *derivative.weights}}
    found = {}
    for stage, values in stages.items():
        sources = [(v, derivative.vars[v].source) for v in sorted(values)]
        computing = [s for _, s in sources if isinstance(s, Instruction) and not s.op.view and not s.op.copies]
        copied = 0
        for value, source in sources:
            if value in cell.layout.joins and isinstance(source, Instruction) and derivative.vars[value].domain >= NODE:
                copied += sum(derivative.vars[source.args[n]].size for n in cell.layout.joins[value].copied)
        if stage == "training":
            unsettled = [n for n, g in enumerate(derivative.ports) if g is not None and n not in cell.layout.settled]
            copied += sum(cell.layout.inputs[n].width for n in unsettled)
        products = sum(s.op in PRODUCTS or s.op.name.removeprefix("row_sum_") in ("outer", "matmul") for s in computing)
        n_bytes = FLOAT_BYTES * copied * n_nodes
        found[stage] = {"products": products, "other": len(computing) - products, "copied_bytes": n_bytes}
    return found


def run_models(config: Config) -> tuple[str, dict[str, list[float]], dict[str, Any]]:
    """Count and time the models, forward and in training, in all ways."""
    tables: list[str] = []
    seconds: dict[str, list[float]] = {}
    figures: dict[str, Any] = {}
    for name, folder in MODELS.items():
        spec, rng = find_model(name), np.random.default_rng(config.seed)
        data = spec.load((folder and find_data(folder)) or spec.default_data, rng)
        model: Any = spec.build(data, config.dim, rng)
        instances = data.items[: config.batch]
        for stage in ("forward", "training"):
            losses = {
                what: ab.batched(model.loss, policy="score", planner=way.planner, rewrites=way.rewrites, plan_cache=0)
                for what, way in WAYS.items()
            }
            times = take_turns(
                {what: run_one(loss, instances, stage == "training") for what, loss in losses.items()}, config.repeats
            )
            seconds |= {f"{name}, {stage}, {what}": found for what, found in times.items()}
            counts = {what: count_model(loss, instances, stage == "training") for what, loss in losses.items()}
            typical = {what: median(found) for what, found in times.items()}
            for what, count in counts.items():
                count["time"] = round(typical[what] / typical["all parts"], 3)
            figures[f"{name}, {stage}"] = counts
            rows = [_row(what, count) for what, count in counts.items()]
            title = f"{name}, {stage}: {len(instances)} instances of {data.name.rsplit('/', 1)[-1]}, width {config.dim}"
            tables.append(f"{title}\n\n{format_table(COUNTED, rows)}")
    return "\n\n".join(tables), seconds, figures


def run_one(loss: ab.Batched, instances: Sequence[Any], training: bool) -> Callable[[], object]:
    """What runs a mini-batch of recorded graphs."""
    graphs = loss.record_all(instances)
    return (lambda: loss.value_and_grad(graphs)) if training else (lambda: loss(graphs))


def count_model(loss: ab.Batched, instances: Sequence[Any], training: bool) -> dict[str, float]:
    """What a mini-batch takes."""
    report = loss.explain(instances, training=training)
    step = loss._prepare(*loss._read(instances), training)
    moved = [movement for part in step.parts for movement in movements(part.plan, step.cells)]
    return {
        "nodes": report.nodes,
        "batches": report.batches,
        "launches": report.launches,
        "moved_kB": report.copied_bytes / 1024,
        "without_launch": sum(m.n_bytes for m in moved if not m.launches) / max(sum(m.n_bytes for m in moved), 1),
        "buffer_kB": report.planned_bytes / 1024,
    }


def _row(what: str, count: Mapping[str, float]) -> tuple[str, ...]:
    numbers = [f"{count[key]:,.0f}" for key in ("nodes", "batches", "launches", "moved_kB")]
    return what, *numbers, f"{count['without_launch']:.0%}", f"{count['buffer_kB']:,.0f}", f"{count['time']:.2f}"


if __name__ == "__main__":
    run(Config(), measure)
