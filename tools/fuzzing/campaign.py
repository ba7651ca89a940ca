"""Run programs by number; findings are kept in a file, so that a run can be resumed."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fuzzing.cells import draw_program
from fuzzing.checks import SWITCHES, Way, draw_way, find_failure, is_valid
from fuzzing.program import Program
from fuzzing.shrinking import shrink

N_SHRUNK = 3  # failures with the same signature to shrink; the others are only counted

REFUSED = ("n differs between nodes", "must have at least one matrix")
"""Messages about gradients of arrays that were read row by row, which are rows, and about empty stacks."""


@dataclass
class Found:
    """A failure: the number of its program, what is wrong, and the smallest program, once it is known.

    Attributes:
        is_set_apart: whether it is counted separately, because nothing is wrong: the program was refused with a
            message.
    """

    seed: int
    signature: str
    detail: str
    program: str = ""
    way: str = ""
    right_with: list[str] = field(default_factory=list)
    is_set_apart: bool = False

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.signature}", f"    {self.detail}"]
        if self.program:
            lines += ["", *(f"    {line}".rstrip() for line in self.program.splitlines()), f"    # {self.way}"]
        if self.right_with:
            lines.append(f"    # right with {', '.join(self.right_with)} switched off")
        return "\n".join(lines)


@dataclass
class State:
    """The progress of a run.

    Attributes:
        next, end: the number of the next program, and the end of the range.
        n_run: number of programs that were run.
        apart: numbers of programs that were set apart, by reason.
    """

    next: int
    end: int
    n_run: int = 0
    failures: list[Found] = field(default_factory=list)
    apart: dict[str, int] = field(default_factory=dict)

    def counts(self) -> Counter[str]:
        """Count failures by signature."""
        return Counter(found.signature for found in self.failures)


def load_state(path: Path | None, start: int, end: int) -> State:
    """Load the progress of a run with these numbers, or start one."""
    if path is None or not path.exists():
        return State(start, end)
    kept = json.loads(path.read_text())
    if kept["end"] != end:
        raise ValueError(f"resuming {path}: its run must end at {end}, got {kept['end']}; give another file.")
    failures = [Found(**found) for found in kept["failures"]]
    return State(kept["next"], end, kept["n_run"], failures, kept["apart"])


def save_state(state: State, path: Path | None) -> None:
    """Write the progress of a run, atomically."""
    if path is not None:
        beside = path.with_name(f"{path.name}.new")
        beside.write_text(json.dumps(asdict(state), indent=1))
        os.replace(beside, path)


def run(
    state: State,
    run_one: Callable[[int, float], Found | None],
    shrink_seconds: float,
    text_of: Callable[[int], str],
    containing: str = "",
) -> Iterator[Found | None]:
    """Run the remaining programs, one after the other. Yield the failure of each, or None.

    Args:
        run_one: runs a program by number, and has a time in seconds to shrink it if it fails.
        text_of: returns a program's text by number.
        containing: a regular expression; programs without it are left out.
    """
    while state.next < state.end:
        seed, counts = state.next, state.counts()
        if containing and not re.search(containing, text_of(seed)):
            state.next = seed + 1
            continue
        found = run_one(seed, 0.0)
        if found and found.is_set_apart:
            state.apart[found.signature] = state.apart.get(found.signature, 0) + 1
            found = None
        if found and shrink_seconds and counts[found.signature] < N_SHRUNK:
            found = run_one(seed, shrink_seconds)
        if found:
            state.failures.append(found)
        state.next, state.n_run = seed + 1, state.n_run + 1
        yield found


def run_one(seed: int, backends: Sequence[str], shrink_seconds: float, derivatives: bool = False) -> Found | None:
    """Run a program by number, with or without derivatives; if it fails, shrink it."""
    program, way = draw_program(seed, derivatives), draw_way(seed)
    failure = find_failure(program, way, backends)
    if failure is None:
        return None
    if derivatives and any(text in failure.detail for text in REFUSED):
        return Found(seed, failure.signature, failure.detail, is_set_apart=True)
    if not shrink_seconds:
        return Found(seed, failure.signature, failure.detail)

    signature = failure.signature

    def fails(smaller: Program, other: Way) -> bool:
        found = find_failure(smaller, other, backends) if is_valid(smaller) else None
        return found is not None and found.signature == signature

    program, way = shrink(program, way, fails, shrink_seconds)
    failure = find_failure(program, way, backends) or failure
    right = [name for name in SWITCHES if find_failure(program, switched_off(way, name), backends) is None] or [
        "nothing"
    ]
    return Found(seed, failure.signature, failure.detail, str(program), str(way), right)


def switched_off(way: Way, name: str) -> Way:
    """Return the configuration with a pass of the planner switched off."""
    return replace(way, planner={**way.planner, name: False})
