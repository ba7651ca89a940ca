"""Check whether LLVM vectorised loops, by reading its optimised code; this works alike for every processor.

LLVM marks a loop that it vectorised, and the loop for the remaining elements. An innermost loop with arithmetic and
without such a mark works on one element at a time. So does any part of a vectorised loop that has arithmetic on single
numbers, such as calls that were not inlined.
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
"""Marks of vectorised loops, and of the remainder loops of vectorised or unrolled loops."""


@dataclass(frozen=True)
class InnerLoop:
    """A loop that contains no other loop."""

    body: str
    marked: bool

    @property
    def is_vectorised(self) -> bool:
        """Return whether all arithmetic, if any, is on whole vectors, or this is a remainder loop."""
        return not SCALAR.search(self.body) or (self.marked and not self.is_packed)

    @property
    def is_packed(self) -> bool:
        """Return whether it has arithmetic on whole vectors."""
        return PACKED.search(self.body) is not None


def inner_loops(code: str) -> Iterator[InnerLoop]:
    """Yield the innermost loops of every function of a module in LLVM IR."""
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
    """Return the blocks of a function by label, in order."""
    parts = re.split(r"^([-\w.$]+):.*$", function, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def _loops_of(function: str) -> list[tuple[str, str, set[str]]]:
    """Return the header, the last block and all blocks of each loop."""
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
    """Return the code of a module that LLVM has optimised for a processor, which may differ from this one.

    Args:
        processor: LLVM's name for it, or "host".
    """
    return str(optimise(text, find_processor() if processor == "host" else Processor(processor, "")))
