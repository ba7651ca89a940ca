"""Claim: inside the cells of the literature nothing is copied; the published planner copies 48 to 4128 kB a batch.

The seven cells of the literature, planned at width 128 for a batch of 32 nodes. Copies of the published planner
(ED-Batch, arXiv:2302.03851) are those of its design. "op by op" is what a backend without fused kernels would copy
besides: operands of element-wise ops that do not lie side by side. Counts do not depend on the machine.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from autobatch.cli.results import format_table
from autobatch.memplan import check_cell_layout, plan_cell
from harness import ROOT, Findings, Settings, run

sys.path.insert(0, str(ROOT / "tests"))

from literature_cells import INSTANCES, SEVEN, WIDTH, trace_cell

HEADER = ("cell", "instructions", "batches", "fewest", "copies", "kB", "of parameters", "op by op", "published")


@dataclass(frozen=True)
class Config(Settings):
    """Published figures are about the settings given here."""

    width: int = WIDTH
    instances: int = INSTANCES


def measure(config: Config) -> Findings:
    """Plan and check every cell."""
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
            "fewest": layout.fewest,
            "copies": len(layout.copies),
            "kB": copied,
            "of parameters": layout.parameter_copies,
        }
        other = f"{len(layout.apart)} / {apart:g}"
        rows.append((name, *(f"{n:g}" for n in counts.values()), other, f"{published.copies} / {published.kilobytes}"))
        figures[name] = {**counts, "apart": len(layout.apart), "apart_kB": apart, "proven": layout.proven}
        reasons += [f"{name}: {copy.what}: {copy.reason}" for copy in (*layout.copies, *layout.apart)]
    title = f"width {config.width}, {config.instances} nodes; pairs are copies / kB\n\n"
    return Findings({}, figures, title + "\n".join([format_table(HEADER, rows), "", *reasons]))


if __name__ == "__main__":
    run(Config(), measure)
