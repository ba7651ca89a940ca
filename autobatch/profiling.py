"""Where the time of calls went: milliseconds and bytes per stage and per batch, as a table and as a trace.

While a profile is taken, the clock of each call keeps the spans of its stages, and the backend tells when each batch is
done (`autobatch.executor.Timer`): a reading of the clock and a list entry each. Off, either costs one test.
The trace is in Chrome's format, which Perfetto (ui.perfetto.dev) opens; calls hold stages, and these hold batches.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any

from autobatch.checkpoint import write_whole
from autobatch.errors import DataError
from autobatch.graph import Graph, Types
from autobatch.plan import Batch, Plan, PlannedCell
from autobatch.report import Span, Step

N_CALLS = 100
STAGES = ("record", "lookup", "merge", "rewrite", "schedule", "place", "forward", "backward", "weights")
HEADER = ("type", "batches", "rows", "forward ms", "backward ms", "weights ms", "MB")


@dataclass(frozen=True)
class Call:
    """One call in a profile.

    Attributes:
        start, end: seconds of `time.perf_counter`, as in all spans.
        plan_hit: as in `LastCall`.
        stages: one after the other; those of parts, where there are several, in turn.
        batches: in the order in which they ran. In stage "weights" all rows of a type are one.
    """

    start: float
    end: float
    instances: int
    nodes: int
    plan_hit: bool | None
    stages: tuple[Span, ...]
    batches: tuple[Span, ...]


class Profile:
    """The times of the last calls; prints as a table. While it is entered, calls are added.

    Bytes are what a stage makes (graphs, indices) or works on: the inputs and saved values of the rows of a batch, and
    in backward the gradients beside the inputs. Parameters are not in them.

    Args:
        types: names the types.
        n_calls: how many to keep.
        watch: makes a profile the one that is taken, None for none; gives the one before.

    Attributes:
        calls: oldest first.
    """

    def __init__(self, types: Types, n_calls: int, watch: Callable[[Profile | None], Profile | None]) -> None:
        self.calls: deque[Call] = deque(maxlen=n_calls)
        self._types, self._watch = types, watch
        self._before: Profile | None = None
        self._laps: list[tuple[str, Batch | None, float]] = []

    def __enter__(self) -> Profile:
        self._before = self._watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watch(self._before)

    def begin(self) -> None:
        """Forget the batches of a call that did not come to its end."""
        self._laps.clear()

    def lap(self, stage: str, batch: Batch | None) -> None:
        """Note that a batch is done; see `autobatch.executor.Timer`."""
        self._laps.append((stage, batch, perf_counter()))

    def add(self, step: Step, itemsize: int) -> None:
        """Take in a call that has just ended, whose numbers have `itemsize` bytes."""
        batches = tuple(self._batches(step, itemsize))
        stages = tuple(_stages(step, batches))
        nodes = sum(part.plan.graph.n_nodes for part in step.parts)
        self.calls.append(
            Call(step.clock.start, perf_counter(), step.graph.n_instances, nodes, step.plan_hit, stages, batches)
        )
        self._laps.clear()

    def _batches(self, step: Step, itemsize: int) -> Iterator[Span]:
        parts, since = iter(step.parts), step.clock.start
        plan = step.parts[0].plan
        for stage, batch, end in self._laps:
            if batch is not None:
                n_bytes = itemsize * count_elements(plan, step.cells.cells[batch.kind], batch, stage != "forward")
                yield Span(stage, since, end, n_bytes, batch.kind, batch.end - batch.start)
            elif stage == "forward":
                plan = next(parts).plan
            since = end

    def stage_ms(self) -> dict[str, float]:
        """Mean milliseconds of a call in each stage that ran."""
        return {stage: ms for stage, (ms, _) in self._totals().items()}

    def _totals(self) -> dict[str, tuple[float, float]]:
        """Means per call of the milliseconds and bytes of each stage."""
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
        n, totals = max(len(self.calls), 1), self._totals()
        whole = sum(call.end - call.start for call in self.calls) * 1e3 / n
        nodes = sum(call.nodes for call in self.calls) / n
        lines = [f"{len(self.calls)} calls; means of a call: {whole:.3f} ms, {nodes:.0f} nodes"]
        lines.append(f"  {'stage':<8}  {'ms':>9}  {'share':>5}  {'MB':>9}")
        for stage, (ms, n_bytes) in totals.items():
            lines.append(f"  {stage:<8}  {ms:>9.3f}  {ms / whole:>5.0%}  {n_bytes / 1e6:>9.3f}")
        rows = self._type_rows()
        width = max((len(row[0]) for row in rows), default=4)
        lines.append(f"  {HEADER[0]:<{width}}" + "".join(f"  {title:>11}" for title in HEADER[1:]))
        for name, counts, numbers in rows:
            cells = [f"{count:.1f}" for count in counts] + [f"{number:.3f}" for number in numbers]
            lines.append(f"  {name:<{width}}" + "".join(f"  {cell:>11}" for cell in cells))
        return "\n".join(lines)

    def _type_rows(self) -> list[tuple[str, list[float], list[float]]]:
        """Per type its name; batches and rows; milliseconds per direction and megabytes: the slowest type first."""
        spans, n, rows = [span for call in self.calls for span in call.batches], max(len(self.calls), 1), []
        for kind in {span.kind for span in spans}:
            own = [span for span in spans if span.kind == kind]
            ran = [span for span in own if span.stage == "forward"]
            ms = [sum(s.ms for s in own if s.stage == stage) / n for stage in ("forward", "backward", "weights")]
            counts = [len(ran) / n, sum(span.rows for span in ran) / n]
            rows.append((self._types.names[kind], counts, [*ms, sum(span.n_bytes for span in own) / n / 1e6]))
        return sorted(rows, key=lambda row: -sum(row[2][:3]))

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the calls for Perfetto (ui.perfetto.dev), as JSON, over what was in the file.

        Raises:
            DataError: the file cannot be written; it is as it was.
        """
        try:
            write_whole(path, json.dumps({"traceEvents": list(self._events()), "displayTimeUnit": "ms"}).encode())
        except OSError as error:
            raise DataError(
                f"cannot write a trace to {os.fspath(path)!r}: {error.strerror}; give a file in a folder that exists "
                f"and can be written."
            ) from error

    def _events(self) -> Iterator[dict[str, Any]]:
        yield {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": "autobatch"}}
        zero = self.calls[0].start if self.calls else 0.0

        def event(name: str, kind: str, span: Span | Call, args: dict[str, Any]) -> dict[str, Any]:
            start, end = (round(1e9 * (time - zero)) for time in (span.start, span.end))
            times = {"ts": start / 1000, "dur": (end - start) / 1000}
            return {"ph": "X", "pid": 1, "tid": 1, "name": name, "cat": kind, **times, "args": args}

        names = self._types.names
        for call in self.calls:
            about = {"instances": call.instances, "nodes": call.nodes}
            yield event("call", "call", call, about if call.plan_hit is None else {**about, "plan hit": call.plan_hit})
            for span in call.stages:
                yield event(span.stage, "stage", span, {"bytes": span.n_bytes})
            for span in call.batches:
                yield event(names[span.kind], span.stage, span, {"rows": span.rows, "bytes": span.n_bytes})


def count_elements(plan: Plan, cell: PlannedCell, batch: Batch, backward: bool) -> int:
    """Count the numbers that the rows of a batch have: inputs and saved values, and with `backward` gradients."""
    layout, block, total, rows = cell.layout, plan.first_block(batch.kind), 0, batch.end - batch.start
    for number, (inputs, saved) in enumerate(zip(layout.input_width, layout.saved_width, strict=True)):
        if number:
            ptr = plan.segment_ptr[block + number]
            rows = int(ptr[batch.end] - ptr[batch.start])
        total += rows * ((2 * inputs if backward else inputs) + (saved if plan.mirror else 0))
    return total


def _stages(step: Step, batches: tuple[Span, ...]) -> Iterator[Span]:
    """The stages of a call with their bytes; what computes the gradients of parameters is one of its own."""
    made = _made(step)
    for span in step.clock.spans or ():
        inner = [batch for batch in batches if span.start <= batch.start and batch.end <= span.end]
        weights = [batch for batch in inner if batch.stage == "weights"]
        end = weights[0].start if weights else span.end
        n_bytes = made.get(span.stage, 0) + sum(batch.n_bytes for batch in inner if batch.stage == span.stage)
        yield span._replace(end=end, n_bytes=n_bytes)
        if weights:
            yield Span("weights", end, span.end, sum(batch.n_bytes for batch in weights))


def _made(step: Step) -> dict[str, int]:
    """Bytes of what the stages before running make."""
    plans, merged = [part.plan for part in step.parts], _graph_bytes(step.graph)
    schedules = [plan.schedule for plan in plans]
    return {
        "record": merged,
        "merge": merged,
        "rewrite": sum(_graph_bytes(plan.graph) for plan in plans),
        "schedule": sum(s.batch_type.nbytes + s.batch_ptr.nbytes + s.order.nbytes for s in schedules),
        "place": sum(p.row.nbytes + p.node_at.nbytes + p.dest_ptr.nbytes + p.dest.nbytes + p.adds.nbytes for p in plans),
    }


def _graph_bytes(graph: Graph) -> int:
    return graph.words.nbytes + graph.floats.nbytes
