"""The settings of a batched function except its policy, planner and backend; `autobatch.batched` explains each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
    """

    rewrites: tuple[str, ...]
    seed: int
    max_bytes: int | None
    plan_cache: int
    precision: str
    threads: int | str
    tune: Any
