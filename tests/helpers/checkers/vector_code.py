"""What LLVM made of loops, read from its optimised code: the same question for every processor.

LLVM marks a loop that it vectorised, and the loop for the elements that are left over. An innermost loop that does
arithmetic and has no such mark works on one element at a time; and so does part of a vectorised loop that still has
arithmetic on single numbers, such as calls that were not inlined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autobatch.compiler.llvm.machine import Processor, find_processor, optimise

ARITHMETIC = r"= (?:tail )?(?:f(?:add|sub|mul|div|neg)|call)\b[^(@]*?"
SCALAR = re.compile(ARITHMETIC + r"\b(?:float|double) [%@-]")
PACKED = re.compile(ARITHMETIC + r"<\d+ x (?:float|double)> [%@-]")
MARKS = ("llvm.loop.isvectorized", "llvm.loop.unroll.disable")
"""Of loops that are vectorised, or are what such a loop or an unrolled one, which is judged itself, leaves over."""


@dataclass(frozen=True)
class InnerLoop:
    """A loop that holds no other one."""

    body: str
    marked: bool

    @property
    def is_vectorised(self) -> bool:
        """Whether its arithmetic, if it has any, is on whole vectors, or on the elements that those leave over."""
        return not SCALAR.search(self.body) or (self.marked and not self.is_packed)

    @property
    def is_packed(self) -> bool:
        """Whether it has arithmetic on whole vectors."""
        return PACKED.search(self.body) is not None


def inner_loops(code: str) -> Iterator[InnerLoop]:
    """The innermost loops of every function of a module in LLVM's language."""
    metadata = dict(re.findall(r"^(!\d+) = (.*)$", code, re.MULTILINE))
    for function in re.findall(r"^define .*?^}", code, re.MULTILINE | re.DOTALL):
        found = _loops_of(function)
        for _header, latch, blocks in found:
            if any(other <= blocks for _, _, other in found if other < blocks):
                continue
            body = "\n".join(text for name, text in _blocks(function).items() if name in blocks)
            loop_of = re.search(r"!llvm\.loop (!\d+)", _blocks(function)[latch])
            marks = "" if loop_of is None else " ".join(
                metadata.get(one, "") for one in re.findall(r"!\d+", metadata[loop_of[1]])[1:]
            )  # fmt: skip
            yield InnerLoop(body, any(mark in marks for mark in MARKS))


def _blocks(function: str) -> dict[str, str]:
    """The blocks of a function, by label, in their order."""
    parts = re.split(r"^([-\w.$]+):.*$", function, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def _loops_of(function: str) -> list[tuple[str, str, set[str]]]:
    """The header, the last block and all blocks of each loop."""
    blocks = _blocks(function)
    place = {name: at for at, name in enumerate(blocks)}
    after = {name: set(re.findall(r"label %\"?([-\w.$]+)", text)) for name, text in blocks.items()}
    before: dict[str, set[str]] = {name: set() for name in blocks}
    for name, targets in after.items():
        for target in targets:
            before[target].add(name)
    found = []
    for latch, targets in after.items():
        for header in (target for target in targets if place[target] <= place[latch]):
            inside, waiting = {header}, [latch]
            while waiting:
                name = waiting.pop()
                if name not in inside:
                    inside.add(name)
                    waiting.extend(before[name])
            found.append((header, latch, inside))
    return found


def optimised(processor: str, text: str) -> str:
    """What LLVM makes of a module for a processor that need not be this one.

    Args:
        processor: as LLVM names it, or "host".
    """
    return str(optimise(text, find_processor() if processor == "host" else Processor(processor, "")))
