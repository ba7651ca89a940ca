"""A backend that wraps another one and records its runs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from autobatch.backends.base import Backend, Executable, Run, Timer
from autobatch.backends.options import Options
from autobatch.ops.randomness import Randomness
from autobatch.plan.plan import Plan, PlannedTypes


class NotingBackend:
    """Wraps another backend.

    Args:
        inner: the wrapped backend.
        on_run: called with each executable before it runs.
        extra_bytes: returns the bytes to add to the wrapped executable's `n_bytes`, as if a plan needed more scratch.

    Attributes:
        ran: the executables that ran, in order.
    """

    def __init__(
        self,
        inner: Backend,
        on_run: Callable[[NotedExecutable], object] = lambda executable: None,
        extra_bytes: Callable[[Plan, Options], int] = lambda plan, options: 0,
    ) -> None:
        self.inner, self.name, self.on_run, self.extra_bytes = inner, inner.name, on_run, extra_bytes
        self.ran: list[NotedExecutable] = []

    def table_sizes(self, cells: PlannedTypes, options: Options) -> Any:
        return self.inner.table_sizes(cells, options)

    def prepare(self, plan: Plan, cells: PlannedTypes, options: Options, tables: Any = None) -> NotedExecutable:
        return NotedExecutable(self, plan, options, self.inner.prepare(plan, cells, options, tables))


class NotedExecutable:
    def __init__(self, backend: NotingBackend, plan: Plan, options: Options, inner: Executable) -> None:
        self.backend, self.plan, self.options, self.inner = backend, plan, options, inner
        self.n_bytes = inner.n_bytes + backend.extra_bytes(plan, options)

    def begin(self, randomness: Randomness, timer: Timer | None = None) -> Run:
        self.backend.on_run(self)
        self.backend.ran.append(self)
        return self.inner.begin(randomness, timer)


def count_live(kind: type) -> int:
    """Count the live objects of a class."""
    gc.collect()
    return sum(type(one) is kind for one in gc.get_objects())
