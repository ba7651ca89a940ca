"""Profiles of calls: milliseconds and bytes per stage and per batch, as a table and as a trace.

While a profile is active, the clock of each call records the spans of its stages, and the backend reports the end of
each batch (`autobatch.backends.base.Timer`), at the cost of a clock reading and a list entry. Without a profile, each
of these points costs only an `if`. Traces have Chrome's format for Perfetto (ui.perfetto.dev): calls contain stages,
and stages batches.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import check_int
from autobatch.engine.counts import Span, Step
from autobatch.errors import DataError
from autobatch.graph.graph import Graph
from autobatch.inspect.plotting import show_as_text
from autobatch.ir.typetable import TypeTable, group_by_shape, name_group
from autobatch.plan.plan import Batch, PlannedTypes
from autobatch.system.files import write_whole

TypeRow: TypeAlias = tuple[str, list[float], list[float]]  # name; batches, rows; milliseconds per stage, megabytes
Mark: TypeAlias = tuple[str, Batch | None, float]  # arguments of `Timer.mark`
N_CALLS = 100
RUNNING = ("forward", "backward", "weights")
STAGES = ("record", "lookup", "merge", "layout", "rewrite", "schedule", "place", *RUNNING)
STAGE_HEADER = ("stage", "ms", "share", "MB")
HEADER = ("type", "batches", "rows", "forward ms", "backward ms", "weights ms", "MB")


@dataclass(frozen=True)
class Call:
    """One call in a profile.

    Attributes:
        start, end: seconds of `time.perf_counter`, as in all spans.
        plan_hit: as in `LastCall`.
        stages: the stages, in order; if the mini-batch ran in parts, part by part.
        batches: the batches, in order of execution. In stage "weights" all rows of a type are one batch.
        precision: precision of matrix products.
    """

    start: float
    end: float
    instances: int
    nodes: int
    plan_hit: bool | None
    stages: tuple[Span, ...]
    batches: tuple[Span, ...]
    precision: str = "float32"


class Taken(NamedTuple):
    """The raw record of a call, which is converted to a `Call` when the profile is read.

    Attributes:
        call: stages as recorded by the clock, without batches.
        marks: the backend's reports.
        cells: planned types, to count bytes.
        parts: `segment_ptr` and number of batches of each part's plan.
        made: bytes of the results of the stages before running, by stage.
        itemsize: bytes per number.
    """

    call: Call
    marks: list[Mark]
    cells: PlannedTypes
    parts: list[tuple[dict[int, NDArray[np.int64]], int]]
    made: dict[str, int]
    itemsize: int

    def to_call(self) -> Call:
        """Compute the rows and bytes of batches, and the bytes of stages."""
        batches = tuple(self._batches())
        return replace(self.call, stages=tuple(self._stages(batches)), batches=batches)

    def _batches(self) -> Iterator[Span]:
        # `n_left` counts the batches that backward has yet to run in the current part, whose weight stage follows.
        parts, since, n_left = iter(self.parts), self.call.start, 0
        segments, done = self.parts[0][0], list[tuple[Any, int]]()
        for stage, batch, end in self.marks:
            if batch is not None:
                if stage == "backward" and not n_left:  # the backward pass takes the parts in reverse order
                    segments, n_left = done.pop()
                n_left -= stage == "backward"
                n_bytes = self.itemsize * self._count_elements(segments, batch, backward=stage != "forward")
                yield Span(stage, since, end, n_bytes, batch.type_id, batch.end - batch.start)
            elif stage == "forward":  # a mark without a batch begins the forward pass of the next part
                done.append(next(parts))
                segments, n_left = done[-1][0], 0
            since = end

    def _count_elements(self, segments: dict[int, NDArray[np.int64]], batch: Batch, backward: bool) -> int:
        """Count the numbers in the rows of a batch: inputs, saved values and, with `backward`, gradients."""
        layout, block = self.cells.cells[batch.type_id].layout, int(self.cells.tables.block_ptr[batch.type_id])
        total, rows = 0, batch.end - batch.start
        for number, (inputs, saved) in enumerate(zip(layout.input_width, layout.saved_width, strict=True)):
            if number:  # the edges of a variadic group; number 0 is the nodes
                ptr = segments[block + number]
                rows = int(ptr[batch.end] - ptr[batch.start])
            total += rows * ((2 * inputs if backward else inputs) + (saved if self.cells.training else 0))
        return total

    def _stages(self, batches: tuple[Span, ...]) -> Iterator[Span]:
        """Yield the stages with their bytes; gradients of parameters are a separate stage, "weights"."""
        made, ran = dict(self.made), deque(batches)
        for span in self.call.stages:
            inner = []
            while ran and ran[0].end <= span.end:
                inner.append(ran.popleft())
            weights = [batch for batch in inner if batch.stage == "weights"]
            end = weights[0].start if weights else span.end
            # Popped, because a stage that runs for each part has several spans, but one total.
            n_bytes = made.pop(span.stage, 0) + sum(batch.n_bytes for batch in inner if batch.stage == span.stage)
            yield span._replace(end=end, n_bytes=n_bytes)
            if weights:
                yield Span("weights", end, span.end, sum(batch.n_bytes for batch in weights))


class Profile:
    """A context manager that records the times of calls; prints as tables, also in notebooks.

    Bytes are those that a stage creates (graphs, indices) or works on: inputs and saved values of the rows of a batch
    and, in backward, gradients of inputs. Parameters are not counted.

    Args:
        types: table of the types, for their names.
        n_calls: number of calls to keep; older ones are dropped.
        watch: sets the active profile, or None, and returns the previous one.

    Raises:
        DataError: `n_calls` is not an int above 0.
    """

    def __init__(self, types: TypeTable, n_calls: int, watch: Callable[[Any], Any]) -> None:
        self._n_calls = check_int("n_calls of profile", n_calls, at_least=1)
        self._taken: deque[Call | Taken] = deque(maxlen=self._n_calls)
        self._types, self._watch = types, watch
        self._before: Profile | None = None
        self._marks: list[Mark] = []

    def __enter__(self) -> Profile:
        self._before = self._watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watch(self._before)

    @property
    def calls(self) -> list[Call]:
        """Return the calls, oldest first."""
        found = [taken if isinstance(taken, Call) else taken.to_call() for taken in self._taken]
        self._taken = deque(found, self._n_calls)
        return found

    def begin(self) -> None:
        """Drop the batches of an unfinished call."""
        self._marks = []

    def mark(self, stage: str, batch: Batch | None, end: float | None = None) -> None:
        """Record the end of a batch; see `autobatch.backends.base.Timer`."""
        self._marks.append((stage, batch, perf_counter() if end is None else end))

    def add(self, step: Step, itemsize: int, precision: str = "float32") -> None:
        """Add a call that has just ended; `itemsize` is the bytes per number."""
        plans = [part.plan for part in step.parts]
        call = Call(
            step.clock.start, perf_counter(), step.graph.n_instances, sum(plan.graph.n_nodes for plan in plans),
            step.plan_hit, tuple(step.clock.spans or ()), (), precision,
        )  # fmt: skip
        parts = [(plan.segment_ptr, len(plan.batches)) for plan in plans]
        self._taken.append(Taken(call, self._marks, step.cells, parts, _made(step), itemsize))
        self._marks = []

    def stage_ms(self) -> dict[str, float]:
        """Return the mean milliseconds per call of each stage that ran."""
        return {stage: ms for stage, (ms, _) in self._totals().items()}

    def _totals(self) -> dict[str, tuple[float, float]]:
        """Return the mean milliseconds and bytes per call of each stage."""
        spans, n = [span for call in self.calls for span in call.stages], max(len(self.calls), 1)
        present = {span.stage for span in spans}
        return {
            stage: (
                sum(s.ms for s in spans if s.stage == stage) / n,
                sum(s.n_bytes for s in spans if s.stage == stage) / n,
            )
            for stage in STAGES
            if stage in present
        }

    def __str__(self) -> str:
        stages, rows = self._stage_rows(), self._type_rows()
        lines = [*self._facts(), "  {:<8}  {:>9}  {:>5}  {:>9}".format(*STAGE_HEADER)]
        lines += ("  {:<8}  {:>9}  {:>5}  {:>9}".format(*row) for row in stages)
        width = max((len(row[0]) for row in rows), default=4)
        for name, *cells in (HEADER, *map(_write_row, rows)):
            lines.append(f"  {name:<{width}}" + "".join(f"  {cell:>11}" for cell in cells))
        return "\n".join([*lines, *(f"  {rest}" for rest in self._besides(rows))])

    _repr_pretty_ = show_as_text

    def _repr_html_(self) -> str:
        from autobatch.display.html import write_lines, write_table

        rows = self._type_rows()
        types = write_table(HEADER, map(_write_row, rows)) + write_lines(self._besides(rows))
        return write_lines(self._facts()) + write_table(STAGE_HEADER, self._stage_rows()) + types

    def _facts(self) -> Iterator[str]:
        """Yield the lines about whole calls."""
        n = max(len(self.calls), 1)
        nodes = sum(call.nodes for call in self.calls) / n
        yield f"{len(self.calls)} calls; mean per call: {self._call_ms():.3f} ms, {nodes:.0f} nodes"
        n_bf16 = sum(call.precision == "bf16" for call in self.calls)
        if n_bf16:
            yield f"  matrix products in bf16: {n_bf16} of the calls"

    def _call_ms(self) -> float:
        return sum(call.end - call.start for call in self.calls) * 1e3 / max(len(self.calls), 1)

    def _stage_rows(self) -> list[tuple[str, ...]]:
        """Return the name, milliseconds, share and megabytes of each stage, as text."""
        whole = self._call_ms()
        return [
            (stage, f"{ms:.3f}", f"{ms / whole:.0%}", f"{n_bytes / 1e6:.3f}")
            for stage, (ms, n_bytes) in self._totals().items()
        ]

    def _besides(self, rows: Sequence[TypeRow]) -> Iterator[str]:
        """Yield lines with the time of the running stages outside batches."""
        totals = self._totals()
        for k, stage in enumerate(RUNNING):
            if stage in totals:
                yield f"{stage} outside batches: {totals[stage][0] - sum(row[2][k] for row in rows):.3f} ms"

    def _type_rows(self) -> list[TypeRow]:
        """Return a row per type, slowest first; types that differ only in shapes share a row."""
        spans, n, rows = [span for call in self.calls for span in call.batches], max(len(self.calls), 1), []
        type_ids = sorted({span.type_id for span in spans})
        group_of = group_by_shape([self._types[type_id] for type_id in type_ids])
        for first in set(group_of.values()):
            group = [type_id for type_id in type_ids if group_of[type_id] == first]
            own = [span for span in spans if group_of[span.type_id] == first]
            ran = [span for span in own if span.stage == "forward"]
            ms = [sum(s.ms for s in own if s.stage == stage) / n for stage in RUNNING]
            counts = [len(ran) / n, sum(span.rows for span in ran) / n]
            name = name_group([self._types.names[type_id] for type_id in group])
            rows.append((name, counts, [*ms, sum(span.n_bytes for span in own) / n / 1e6]))
        return sorted(rows, key=lambda row: -sum(row[2][:3]))

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the calls to `path` as JSON for Perfetto (ui.perfetto.dev), replacing an existing file.

        Raises:
            DataError: the file cannot be written; an existing one is unchanged.
        """
        try:
            write_whole(path, json.dumps({"traceEvents": list(self._events()), "displayTimeUnit": "ms"}).encode())
        except OSError as error:
            raise DataError(
                f"cannot write a trace to {os.fspath(path)!r}: {(error.strerror or str(error)).lower()}; choose a "
                f"file in a writable folder."
            ) from error

    def _events(self) -> Iterator[dict[str, Any]]:
        yield {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": "autobatch"}}
        zero = self.calls[0].start if self.calls else 0.0

        def event(name: str, kind: str, span: Span | Call, args: dict[str, Any]) -> dict[str, Any]:
            # Ends are rounded, not durations, so that a span ends exactly where the next begins.
            start, end = (round(1e9 * (time - zero)) for time in (span.start, span.end))
            times = {"ts": start / 1000, "dur": (end - start) / 1000}
            return {"ph": "X", "pid": 1, "tid": 1, "name": name, "cat": kind, **times, "args": args}

        names = self._types.names
        for call in self.calls:
            about = {"instances": call.instances, "nodes": call.nodes, "precision": call.precision}
            yield event("call", "call", call, about if call.plan_hit is None else {**about, "plan hit": call.plan_hit})
            for span in call.stages:
                yield event(span.stage, "stage", span, {"bytes": span.n_bytes})
            for span in call.batches:
                yield event(names[span.type_id], span.stage, span, {"rows": span.rows, "bytes": span.n_bytes})


def _write_row(row: TypeRow) -> tuple[str, ...]:
    name, counts, numbers = row
    return name, *(f"{count:.1f}" for count in counts), *(f"{number:.3f}" for number in numbers)


def _made(step: Step) -> dict[str, int]:
    """Return the bytes of the results of the stages before running, by stage."""
    plans, merged = [part.plan for part in step.parts], _graph_bytes(step.graph)
    schedules = [(plan.schedule.batch_type, plan.schedule.batch_ptr, plan.schedule.order) for plan in plans]
    places = [(plan.row, plan.node_at, plan.dest_ptr, plan.dest, plan.adds) for plan in plans]
    return {
        "record": merged,
        "merge": merged,
        "rewrite": sum(_graph_bytes(plan.graph) for plan in plans),
        "schedule": sum(array.nbytes for arrays in schedules for array in arrays),
        "place": sum(array.nbytes for arrays in places for array in arrays),
    }


def _graph_bytes(graph: Graph) -> int:
    return graph.words.nbytes + graph.floats.nbytes
