"""Programs as nested lines, which print as Python; failing ones are shrunk by leaving out lines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

ASSIGNED = re.compile(r"(\w+) = (.+)")
CUTS = (
    re.compile(r" \+ [^+]*()(?=$| \+|\))"),
    re.compile(r"([(=n]\s?)[\w.()]+ \+ "),
    re.compile(r"torch\.tanh(\(.*\))"),
    re.compile(r"()\.(?:double|mean|sin)\(\)"),
    re.compile(r"((?:chain|tree)\(\d+, \d+, )[2-9]"),
    re.compile(r", (?:chain|tree)\([^)]*\)()"),
    re.compile(r"()(?:chain|tree)\([^)]*\), "),
    re.compile(r"()\[[-:\d]+\]"),
    re.compile(r"(), runs='\w+'"),
)
"""Parts that are cut from a line, except for the first group: terms, calls, and instances."""


@dataclass(frozen=True)
class Block:
    """A line, and the lines within it; a whole program has an empty line on top."""

    line: str
    inside: tuple[Block, ...] = ()

    def text(self, indent: int = 0) -> str:
        """Return the lines as Python."""
        if not self.line:
            return "\n".join(part.text() for part in self.inside)
        lines = [f"{'    ' * indent}{self.line}"]
        if self.line.endswith(":"):
            lines += [part.text(indent + 1) for part in self.inside] or [f"{'    ' * (indent + 1)}pass"]
        return "\n".join(lines)

    @property
    def size(self) -> int:
        """Return the size to minimize."""
        return len(self.line) + 20 + sum(part.size for part in self.inside)

    def smaller(self) -> Iterator[Block]:
        """Yield the block with lines left out, many first, or simplified."""
        n = len(self.inside)
        for width in (8, 4, 2, 1):
            if width > 1 and n <= width:
                continue
            for start in reversed(range(0, n, width)):
                yield replace(self, inside=self.inside[:start] + self.inside[start + width :])
        for k, part in reversed([*enumerate(self.inside)]):
            for changed in [*part.smaller(), *_simpler(part, self.inside[:k])]:
                yield replace(self, inside=(*self.inside[:k], changed, *self.inside[k + 1 :]))


def _simpler(block: Block, before: tuple[Block, ...]) -> Iterator[Block]:
    """Yield a line with fewer terms or parts, or with an earlier value."""
    if block.inside or block.line.endswith(":"):
        return
    for cut in CUTS:
        for match in cut.finditer(block.line):
            shorter = block.line[: match.start()] + match[1] + block.line[match.end() :]
            if shorter.count("(") == shorter.count(")"):
                yield Block(shorter)
    if not (found := ASSIGNED.fullmatch(block.line)):
        return
    assigned = [ASSIGNED.fullmatch(other.line) for other in before]
    names = [one[1] for one in assigned if one]
    if found[2] not in names:
        yield from (Block(f"{found[1]} = {name}") for name in dict.fromkeys(names) if name != found[1])


def shrink(program: Block, fails: Callable[[Block], bool], seconds: float) -> Block:
    """Leave out whatever can be left out while the program fails."""
    end = time.monotonic() + seconds
    at, n_failed = 0, 0  # candidates tried before a success are tried again last
    while time.monotonic() < end:
        candidates = [one for one in program.smaller() if one.size < program.size]
        if n_failed >= len(candidates):
            break
        candidate = candidates[at % len(candidates)]
        if fails(candidate):
            program, n_failed = candidate, 0
        else:
            at, n_failed = at + 1, n_failed + 1
    return program
