"""How a function runs, beside its policy, planner and backend; see `autobatch.batched` for the meaning of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The options of `autobatch.batched` that are no objects, checked.

    Attributes:
        rewrites: names of passes over graphs.
        seed: of random numbers.
        max_bytes: of the values of a mini-batch; None is no limit.
        plan_cache: how many plans to keep.
        precision: of matrix products.
        threads: a number, or "auto".
        tune: "off", "auto", decisions, or the path of a file with such.
    """

    rewrites: tuple[str, ...]
    seed: int
    max_bytes: int | None
    plan_cache: int
    precision: str
    threads: int | str
    tune: Any
