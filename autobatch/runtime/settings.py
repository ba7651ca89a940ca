"""The settings of a batched function except its policy, planner and backend; `autobatch.batched` explains each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Waiting(NamedTuple):
    """How long async programs may wait, and what their errors do.

    Attributes:
        max_rounds: the most rounds of a mini-batch; None for no limit.
        on_error: "raise" the first error of a program, or "return" errors in the place of results.
    """

    max_rounds: int | None = None
    on_error: str = "raise"


@dataclass(frozen=True)
class Settings:
    """The options of `autobatch.batched` that are plain values, checked.

    Attributes:
        rewrites: names of passes over graphs.
        seed: the seed of random numbers.
        max_bytes: bound on the bytes of the values of a mini-batch; None is no limit.
        plan_cache: how many plans to keep.
        precision: the precision of matrix products.
        threads: a number, or "auto".
        tune: "off", "auto", decisions, or the path of a file with decisions.
        waiting: how long async programs may wait, and what their errors do.
    """

    rewrites: tuple[str, ...]
    seed: int
    max_bytes: int | None
    plan_cache: int
    precision: str
    threads: int | str
    tune: Any
    waiting: Waiting
