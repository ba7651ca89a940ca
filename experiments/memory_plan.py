"""Claim 3: nothing is copied inside the literature's cells, where the published planner copies 48 to 4128 kB per batch.

The seven cells of the literature are planned at width 128 for a batch of 32 nodes. Copies of the published planner
(ED-Batch, arXiv:2302.03851) follow from its design. "op by op" is what a backend without fused kernels would also copy:
operands of element-wise ops that are not adjacent in memory. The next table shows what each cell executes: products,
other instructions and copied bytes, written and planned, forward and with the backward stages.

Then the models of the package are planned, forward and in training, with all parts of the planner and without each:
nodes, batches, launches, bytes that the reference backend moves, the share of these bytes that needs no launch if
kernels are fused, and bytes of the buffer. Counts do not depend on the machine. `ablation.py` measures what each part
is worth in time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import autobatch as ab
from autobatch.graph.rewrite import DEFAULT, PASSES
from autobatch.ir.program import NODE, CellProgram, Instruction
from autobatch.ir.typetable import NodeType
from autobatch.memplan import check_cell_layout, plan_cell
from autobatch.memplan.cell.grouping import PRODUCTS
from autobatch.memplan.planner import MemoryPlanner
from autobatch.memplan.report import movements
from autobatch.models import find_model
from autobatch.plan.plan import PlannedCell
from charts import COLORS, EACH, OURS, THEIRS, entitle
from claims import Claim, Published, Records, run_claim
from digest import ROOT, STEP
from harness import find_data
from records import Findings, Settings
from table import Table

sys.path.insert(0, str(ROOT / "tests"))

from helpers.programs.literature_cells import INSTANCES, SEVEN, WIDTH, trace_cell

DECIDED = ("cell", "instructions", "batches", "copies", "of parameters", "kB", "op by op, kB", "published, kB")
EXECUTED = (
    "products + others", "forward, as written", "planned", "copied kB", "training, as written", "planned", "copied kB"
)  # fmt: skip
COUNTED = ("", "nodes", "batches", "launches", "kB moved", "of these without launch", "buffer kB")

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = {"tree-lstm": "sst", "bilstm-tagger": None, "lattice-lstm": "lattice"}
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Config(Settings):
    """The published figures are for this width and number of nodes; models have width `dim` and mini-batches of
    `batch`.
    """

    width: int = WIDTH
    instances: int = INSTANCES
    dim: int = 64
    batch: int = 64


class Way(NamedTuple):
    """A variant of planning mini-batches."""

    planner: MemoryPlanner = MemoryPlanner()
    rewrites: Sequence[str] = DEFAULT

    def batched(self, model: Any) -> ab.Batched:
        """Batch the loss of a model with this planner and these rewrites."""
        return ab.batched(
            model.loss, policy="score", backend="reference", planner=self.planner, rewrites=self.rewrites, plan_cache=0
        )


WAYS = {
    "all parts": Way(),
    "ports in program order": Way(MemoryPlanner(joins=False)),
    "sums of products apart": Way(MemoryPlanner(sums=False)),
    "cells not stacked": Way(MemoryPlanner(stacks=False)),
    "sums not folded": Way(rewrites=tuple(name for name in DEFAULT if name != "fold")),
    "equal nodes shared": Way(rewrites=PASSES),
}


def measure(config: Config, part: str) -> Findings:
    """Plan and check every cell, then plan the models with all variants."""
    figures = {"cells": decide(config), "executed": execute(config), "models": count_models(config)}
    return Findings({}, figures, "\n\n".join(table.text() for table in tables_of(figures)))


def decide(config: Config) -> dict[str, Any]:
    """Lay out the cells of the literature."""
    figures = {}
    for name, published in SEVEN.items():
        layout = plan_cell(trace_cell(published.body, config.width), config.instances)
        check_cell_layout(layout)
        figures[name] = {
            "instructions": sum(len(batch.values) for batch in layout.batches),
            "batches": len(layout.batches),
            "copies": len(layout.copies),
            "kB": layout.copied_bytes(config.instances) / 1024,
            "of parameters": layout.parameter_copies,
            "apart": len(layout.apart),
            "apart_kB": layout.apart_bytes(config.instances) / 1024,
            "reasons": [f"{copy.what}: {copy.reason}" for copy in (*layout.copies, *layout.apart)],
        }
    return figures


def execute(config: Config) -> dict[str, Any]:
    """Count what each cell executes, as written and as planned."""
    figures = {}
    for name, published in SEVEN.items():
        program = trace_cell(published.body, config.width)
        plain = MemoryPlanner(joins=False, stacks=False)
        cells = {what: plan_one(p, program) for what, p in (("written", plain), ("planned", MemoryPlanner()))}
        figures[name] = {what: count_cell(cell, config.instances) for what, cell in cells.items()}
    return figures


def plan_one(planner: MemoryPlanner, program: CellProgram) -> PlannedCell:
    """Plan a program for training, as the only type."""
    return planner.plan_cell(NodeType(0, program.name, program, None, ()), training=True)


def count_cell(cell: PlannedCell, n_nodes: int) -> dict[str, dict[str, int]]:
    """Count computing instructions, and bytes copied inside the cell, forward and in all stages."""
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
            unaliased = [n for n, g in enumerate(derivative.ports) if g is not None and n not in cell.layout.aliased]
            copied += sum(cell.layout.inputs[n].width for n in unaliased)
        products = sum(s.op in PRODUCTS or s.op.name.removeprefix("row_sum_") in ("outer", "matmul") for s in computing)
        n_bytes = FLOAT_BYTES * copied * n_nodes
        found[stage] = {"products": products, "other": len(computing) - products, "copied_bytes": n_bytes}
    return found


def count_models(config: Config) -> dict[str, Any]:
    """Count the costs of the models, forward and in training, with all variants."""
    figures: dict[str, Any] = {}
    for name, folder in MODELS.items():
        spec, rng = find_model(name), np.random.default_rng(config.seed)
        data = spec.load((folder and find_data(folder)) or spec.default_data, rng)
        model: Any = spec.build(data, config.dim, rng)
        for stage in ("forward", "training"):
            figures[f"{name}, {stage}"] = {
                what: count_model(way.batched(model), data.items[: config.batch], stage == "training")
                for what, way in WAYS.items()
            }
    return figures


def count_model(loss: ab.Batched, instances: Sequence[Any], training: bool) -> dict[str, float]:
    """Count the costs of a mini-batch."""
    report = loss.explain(instances, training=training)
    step = loss.plan(loss._call(instances, training))
    moved = [movement for part in step.parts for movement in movements(part.plan, step.cells)]
    return {
        "nodes": report.nodes,
        "batches": report.batches,
        "launches": report.launches,
        "moved_kB": report.copied_bytes / 1024,
        "without_launch": sum(m.n_bytes for m in moved if not m.launches) / max(sum(m.n_bytes for m in moved), 1),
        "buffer_kB": report.planned_bytes / 1024,
    }


def tables_of(figures: Mapping[str, Any]) -> list[Table]:
    """Show what is copied in cells, what they execute, and what models move."""
    decided, executed = [], []
    for name, cell in figures["cells"].items():
        counts = (cell[what] for what in ("instructions", "batches", "copies", "of parameters", "kB", "apart_kB"))
        decided.append((name, *(f"{count:g}" for count in counts), f"{SEVEN[name].kilobytes:g}"))
        row = [name]
        for stage in ("forward", "training"):
            written, planned = (figures["executed"][name][way][stage] for way in ("written", "planned"))
            row += [f"{found['products']} + {found['other']}" for found in (written, planned)]
            row.append(f"{planned['copied_bytes'] / 1024:g}")
        executed.append(row)
    tables = [Table("Copies of a batch", DECIDED, decided), Table("Executed operations", EXECUTED, executed)]
    for name, counts in figures["models"].items():
        rows = []
        for what, count in counts.items():
            numbers = [f"{count[key]:,.0f}" for key in ("nodes", "batches", "launches", "moved_kB")]
            more = f"{count['without_launch']:.0%}", f"{count['buffer_kB']:,.0f}"
            rows.append((what, *numbers, *more))
        tables.append(Table(f"{name}: without each part of the planner", COUNTED, rows))
    return tables


def tabulate(records: Records) -> list[Table]:
    """Show the record."""
    return tables_of(records[""].figures)


def draw(records: Records, figure: Figure) -> None:
    """Draw what is copied in each cell, published and here, and what models move without each part of the planner."""
    cells, models = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.set_figheight(3.6)
    found = records[""].figures
    names = list(found["cells"])
    for k, (label, amounts) in enumerate({
        "published planner": [SEVEN[name].kilobytes for name in names],
        "ours, op by op": [found["cells"][name]["apart_kB"] for name in names],
        "ours, fused": [found["cells"][name]["kB"] for name in names],
    }.items()):  # fmt: skip
        places = [row + 0.27 * (k - 1) for row in range(len(names))]
        bars = cells.barh(places, amounts, height=0.25, label=label, color=(THEIRS, EACH, OURS)[k])
        cells.bar_label(bars, [f"{amount:,g}" for amount in amounts], padding=2, fontsize=7)
    cells.set_xscale("symlog", linthresh=10)
    cells.set_xlim(0, 50_000)
    cells.set_yticks(range(len(names)), names)
    cells.invert_yaxis()
    cells.set_xlabel(
        f"copies per batch of {records[''].settings['instances']} nodes, width {records[''].settings['width']} (kB)"
    )
    cells.set_ylabel("cell")
    cells.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=7, columnspacing=1)
    training = {name.partition(",")[0]: counts for name, counts in found["models"].items() if "training" in name}
    for k, (name, counts) in enumerate(training.items()):
        ratios = [count["launches"] / counts["all parts"]["launches"] for count in counts.values()]
        models.plot(ratios, [row + 0.15 * (k - 1) for row in range(len(ratios))], "o", color=COLORS[k], label=name)
        models.set_yticks(range(len(ratios)), [*counts])
    models.invert_yaxis()
    models.axvline(1, color="black", lw=1)
    models.set_xlabel("launches in training\n(multiple of all parts)")
    models.set_ylabel("change to the planner")
    models.legend(
        loc="lower center", bbox_to_anchor=(0.3, 1), ncols=3, fontsize=7, columnspacing=0.6, handletextpad=0.2
    )
    entitle(figure, message_of(found["cells"]))


def message_of(cells: Mapping[str, Any]) -> str:
    """State what is copied inside cells, with fused kernels and without."""
    fused, apart = ([cell[what] for cell in cells.values() if cell[what]] for what in ("kB", "apart_kB"))
    of_fused = f"at most {max(fused):,g} kB are copied" if fused else "nothing is copied"
    but = f"op by op, up to {max(apart):,g} kB in {len(apart)} of them" if apart else "nor op by op"
    return f"Inside the {len(cells)} cells of the literature {of_fused} where kernels are fused; {but}"


def see(records: Records) -> str:
    """State what is copied."""
    found = records[""].figures
    copied = {name: cell["kB"] for name, cell in found["cells"].items() if cell["kB"]}
    copying = ", ".join(f"{name} {kilobytes:g} kB" for name, kilobytes in copied.items()) or "none"
    theirs = [cell.kilobytes for cell in SEVEN.values()]
    moved = ", ".join(f"{name} {counts['all parts']['moved_kB']:,.0f} kB" for name, counts in found["models"].items())
    return (
        f"Cells with copies: {copying}; the published planner copies {min(theirs):g} to "
        f"{max(theirs):g} kB. A mini-batch of a whole model moves: {moved}."
    )


def published(name: str) -> Published:
    """Compare the copies of the published planner in a cell with ours."""
    theirs = f"{SEVEN[name].copies} copies, {SEVEN[name].kilobytes:g} kB"

    def ours(records: Records) -> str:
        cell = records[""].figures["cells"][name]
        return f"{cell['copies']} copies, {cell['kB']:g} kB"

    return Published(f"{name}, copies of a batch", theirs, "ED-Batch (arXiv:2302.03851), by its design", ours)


CLAIM = Claim(
    name="memory_plan",
    heading="Inside cells from the literature, nothing is copied",
    claimed=(
        "The planner orders values in memory so that the operands of a product, and the parts of a fused kernel, have "
        "the layout in which they are read. Seven cells from the literature are planned at one width for a batch of "
        "nodes. “Op by op” counts the copies of a backend that does not fuse element-wise operations: those of "
        "operands that are not adjacent. Then whole models run without each part of the planner. With ports in program "
        "order, a cell's inputs are in the order of its code, which makes joins copy; with sums of products apart, "
        "x·A + y·B is two products instead of one; with cells not stacked, gates of the same form run one by one; with "
        "sums not folded, a sum is a separate node instead of a part of its reader. In “equal nodes shared”, nothing "
        "is switched off: equal nodes are always merged, even without a gain. All figures are counts, which do not "
        "depend on the machine and do not vary."
    ),
    settings=Config(),
    quick=Config(dim=16, batch=8),
    parts=("",),
    quick_parts=("",),
    measure=measure,
    tabulate=tabulate,
    draw=draw,
    see=see,
    published=[published(name) for name in SEVEN],
    disagreement=(
        "The published planner lays out batches of single operations, whose operands must be adjacent. Here, "
        "element-wise operations are fused and read their operands in place, without copies."
    ),
    modules=STEP,
)  # fmt: skip

if __name__ == "__main__":
    run_claim(CLAIM)
