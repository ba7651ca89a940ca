"""Claims that measure nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from claims import Claim, Published, Records
from records import Findings, Settings
from table import Table


def make_claim(name: str, measured: list[str]) -> Claim[Settings]:
    """Make a claim with two parts that appends each part it measures to `measured`."""

    def measure(settings: Settings, part: str) -> Findings:
        measured.append(part)
        return Findings({part: [0.5]}, {"number": len(part)}, f"{part}: {len(part)}")

    def tabulate(records: Records) -> Sequence[Table]:
        return [Table("Lengths", ("", "number"), [(part, f"{one.figures['number']}") for part, one in records.items()])]

    def draw(records: Records, figure: Any) -> None:
        figure.subplots().plot([one.figures["number"] for one in records.values()])

    return Claim(
        name=name,
        heading=f"{name} is < claimed",
        claimed="Words have letters.",
        settings=Settings(),
        quick=Settings(),
        parts=("one", "three"),
        quick_parts=("one",),
        measure=measure,
        tabulate=tabulate,
        draw=draw,
        see=lambda records: f"Seen: {len(records)}.",
        published=[Published("letters of three", "6", "elsewhere", lambda records: "5")],
        disagreement="They count otherwise.",
        modules=("autobatch.errors",),
    )
