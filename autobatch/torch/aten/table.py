"""The table of ops of ATen that have a counterpart here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPS: dict[str, Callable[..., Any]] = {}
"""By name."""


def op(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark what stands for the ops of these names."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        OPS.update(dict.fromkeys(names, function))
        return function

    return mark
