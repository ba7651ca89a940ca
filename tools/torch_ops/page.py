"""Write the page that says, for each op of torch's table, what runs it in a cell."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from torch_ops.samples import table
from torch_ops.verdicts import Outcome, Verdict

INTRODUCTION = """# Ops of PyTorch

This page says what runs each op of PyTorch {version} in a cell with `runs="auto"`. The ops are those of the table with
which PyTorch itself is tested (`torch.testing`). Each sample of an op is a separate cell, called for three instances
with different numbers, and its values, gradients and dtypes equal those of PyTorch, one instance at a time. If the
samples of an op differ, the op is listed where torch does most of the work.
`python tools/list_torch_ops.py` writes this page; `python tools/check_torch_ops.py --op NAME` shows one op.

Of {total} ops, {counts}.
"""


class Runner(StrEnum):
    """What runs an op, in the order of the page."""

    AUTOBATCH = "autobatch computes itself"
    OP = "torch runs as one op"
    CELL = "make torch run the whole cell"
    REFUSED = "are refused"
    DEFECT = "give other results than PyTorch, which is a defect"
    NONE = "return no tensor, or do not run on the CPU, and are not compared"


REASONS = {Runner.REFUSED: (Verdict.REFUSED,), Runner.DEFECT: (Verdict.WRONG, Verdict.CRASH)}
"""The verdicts for which the page gives reasons."""


def list_torch_ops(outcomes: Iterable[Outcome], version: str) -> str:
    """Return the text of the page, from the outcomes with `runs="auto"` and the notes of `explain`."""
    found: dict[str, list[Outcome]] = {info.name: [] for info in table().values()}
    for outcome in outcomes:
        found[table()[outcome.op].name].append(outcome)
    by_runner: Mapping[Runner, list[str]] = defaultdict(list)
    for op, of_op in sorted(found.items()):
        by_runner[_runner(of_op)].append(op)
    counts = ", ".join(f"{len(by_runner[runner])} {runner}" for runner in Runner if by_runner[runner])
    parts = [INTRODUCTION.format(version=version, total=len(found), counts=counts)]
    for runner in Runner:
        if by_runner[runner]:
            parts.append(f"\n## Ops that {runner}\n\n{_list(runner, by_runner[runner], found)}\n")
    return "".join(parts)


def _runner(outcomes: Sequence[Outcome]) -> Runner:
    """Return the runner of an op: of its samples, the one for which torch does most."""
    if any(outcome.verdict in (Verdict.WRONG, Verdict.CRASH) for outcome in outcomes):
        return Runner.DEFECT
    if any(outcome.verdict == Verdict.REFUSED for outcome in outcomes):
        return Runner.REFUSED
    compared = [outcome for outcome in outcomes if outcome.verdict != Verdict.SKIPPED]
    if not compared:
        return Runner.NONE
    lines = [line for outcome in compared for line in outcome.notes]
    if any("is run by torch" in line for line in lines):
        return Runner.CELL
    return Runner.OP if any("has torch run" in line for line in lines) else Runner.AUTOBATCH


def _list(runner: Runner, ops: Sequence[str], found: Mapping[str, Sequence[Outcome]]) -> str:
    """List the ops; refused and defective ones with the reason and the number of samples."""
    if runner not in REASONS:
        return ", ".join(f"`{op}`" for op in ops)
    lines = ["| op | samples | why |", "|---|---|---|"]
    for op in ops:
        those = [outcome for outcome in found[op] if outcome.verdict in REASONS[runner]]
        why = re.sub(r"<weakref.*?>", "<weakref>", those[0].detail.removeprefix("in cell 'body': ")).replace("|", "\\|")
        lines.append(f"| `{op}` | {len(those)} of {len(found[op])} | {why} |")
    return "\n".join(lines)
