"""Run drawn programs of torch by number, and shrink those that fail."""

from __future__ import annotations

from fuzzing.campaign import Found
from fuzzing_torch.blocks import Block, shrink
from fuzzing_torch.drawing import draw_program
from fuzzing_torch.worlds import find_failure


def text_of(seed: int) -> str:
    """Return the text of a program by number."""
    return draw_program(seed).text()


def run_one(seed: int, backend: str, shrink_seconds: float) -> Found | None:
    """Run a program by number; if it fails, shrink it."""
    program = draw_program(seed)
    failure = find_failure(program.text(), backend)
    if failure is None:
        return None
    if failure.is_set_apart or not shrink_seconds:
        return Found(seed, failure.signature, failure.detail, is_set_apart=failure.is_set_apart)
    signature = failure.signature

    def fails(smaller: Block) -> bool:
        found = find_failure(smaller.text(), backend)
        return found is not None and found.signature == signature

    program = shrink(program, fails, shrink_seconds)
    failure = find_failure(program.text(), backend) or failure
    return Found(seed, failure.signature, failure.detail, program.text(), f"backend={backend!r}")
