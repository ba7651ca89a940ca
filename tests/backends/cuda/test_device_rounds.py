"""Test that a round of async programs on a device takes one upload, one launch and one download."""

from __future__ import annotations

import copy
import shutil
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.backends.base import RowMoves
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.options import Options
from autobatch.backends.reference import Reference
from autobatch.devices.device import Traffic
from autobatch.engine.kept_values import SPARE, Done, KeptValues
from autobatch.graph.growing import Request
from autobatch.memplan.planner import MemoryPlanner
from autobatch.ops.randomness import Randomness
from autobatch.plan.plan import Batch, PlannedTypes
from autobatch.schedule.make import make_schedule
from autobatch.trace.phases import Phases, record_in_phases
from autobatch.trace.record import Recorder
from helpers.programs.waiting_programs import Model, items
from helpers.runs.ways import each
from host_device import HostDevice

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
COUNTED = "uploads", "launches", "downloads", "waits", "products"


class Decoder(ab.Module):
    """A greedy LSTM decoder with attention over the states of an LSTM encoder."""

    def __init__(self, words: int, dim: int) -> None:
        rng = np.random.default_rng(0)
        self.words = ab.Parameter(rng.standard_normal((words, dim)))
        self.encoder, self.decoder = ab.LSTMCell(dim, dim, rng=rng), ab.LSTMCell(dim, dim, rng=rng)
        self.output = ab.Linear(2 * dim, words, rng=rng)
        self.zero = np.zeros(dim)
        self.astype("float64")

    @ab.cell
    def read(self, word: int, state: Any) -> Any:
        return self.encoder(ab.lookup(self.words, word), state)

    @ab.cell
    def step(self, word: int, state: Any, memory: list[Any]) -> Any:
        h, c = self.decoder(ab.lookup(self.words, word), state)
        return (h, c), self.output(ab.concat((h, ab.attend(h, memory, memory))))

    async def translate(self, pair: tuple[list[int], int]) -> list[int]:
        """Translate a sentence to a number of words."""
        source, length = pair
        state, memory = (self.zero, self.zero), []
        for word in source:
            state = self.read(word, state)
            memory.append(state[0])
        found = [0]
        while len(found) <= length:
            state, logits = self.step(found[-1], state, memory)
            found.append(int(await ab.value(ab.argmax(logits))))
        return found


def differences(marks: list[Traffic]) -> list[dict[str, int]]:
    """Return what was counted from each mark to the next."""
    return [
        {name: getattr(after, name) - getattr(before, name) for name in COUNTED} for before, after in pairwise(marks)
    ]


@each("resident", [True, False])
def test_a_round_of_greedy_decoding_takes_one_upload_one_launch_and_one_download(
    resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters on the host are another upload. States stay on the device, where the launch moves them."""
    pairs = [([1, 2, 3], 6), ([4, 5, 6, 7, 8], 8), ([9, 1], 7)]
    model, device = Decoder(words=30, dim=8), HostDevice()
    expected = [ab.eager(model.translate, pair) for pair in pairs]
    if resident:
        model.to(device)
    translate = ab.batched(model.translate, backend=Cuda(poison=True, device=device))
    for _ in range(2):
        assert translate(pairs) == expected
    marks = [copy.copy(device.traffic)]
    answer = Phases.answer

    def marking(*args: Any) -> None:
        marks.append(copy.copy(device.traffic))
        answer(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Phases, "answer", marking)
        assert translate(pairs) == expected
    assert translate.last is not None
    assert translate.last.rounds == 8
    once = {"uploads": 1 if resident else 2, "launches": 1, "downloads": 1, "waits": 1, "products": 0}
    assert differences(marks) == [once] * 8


class Clock:
    """A timer that counts its marks."""

    def __init__(self) -> None:
        self.n_marks = 0

    def mark(self, stage: str, batch: Batch | None, end: float | None = None) -> None:
        self.n_marks += 1


def on_cuda(device: HostDevice) -> Any:
    return Cuda(poison=True, device=device)


def interpreted(device: HostDevice) -> Any:
    return Reference(poison=True, store=device)


def turned(given: tuple[Model, Any]) -> Any:
    model, x = given
    return model.total(model.turn(x))


@each("make, dtype, precision, is_timed", [
    (on_cuda, "float64", "float32", False), (on_cuda, "float32", "float32", True),
    (on_cuda, "float32", "tf32", False), (on_cuda, "float32", "tf32", True), (interpreted, "float32", "float32", False),
])  # fmt: skip
def test_a_run_copies_rows_before_it_computes(make: Any, dtype: str, precision: str, is_timed: bool) -> None:
    """Compared with NumPy, for rows of one element, of a warp and more. With tf32, the first step is the host's."""
    for seed in range(3):
        device, rng = HostDevice(seed), np.random.default_rng(seed)
        columns = [rng.standard_normal((7, *shape)).astype(dtype) for shape in ((), (3, 4), (70,))]
        tables = [np.zeros((9, *column.shape[1:]), dtype) for column in columns]
        found = [rng.integers(0, 7, n).astype(np.int32) for n in (9, 1, 5)]
        rows = [rng.permutation(9)[:n].astype(np.int32) for n in (9, 1, 5)]
        there = [*map(device.put, tables)]
        pairs = zip(map(device.put, columns), there, (0, 9, 10), (9, 10, 15), strict=True)
        for table, column, taken, placed in zip(tables, columns, found, rows, strict=True):
            table[placed] = column[taken]
        model, clock = Model().astype(dtype), Clock()
        expected = [np.tanh(model.turning.data @ x).sum() for x, _ in items(1, 2, 3)]
        turn = ab.batched(turned, module=model.to(device), backend=make(device), precision=precision)
        (part,) = turn.prepare([(model, x) for x, _ in items(1, 2, 3)]).parts
        run = part.executable.begin(Randomness(), clock if is_timed else None)
        run.carry(RowMoves([*pairs], np.concatenate(found), np.concatenate(rows)))
        with closing(run), run:
            run.forward()
            np.testing.assert_allclose(run.outputs[0], expected, rtol=1e-2 if precision == "tf32" else 1e-5)
        assert (clock.n_marks > 0) == is_timed
        for table, moved in zip(tables, there, strict=True):
            np.testing.assert_array_equal(device.get(moved), table)


class Chooser(ab.Module):
    """Keeps wide states, and awaits few of their elements, several of different shapes, or some again later."""

    @ab.cell
    def widen(self, x: Any) -> Any:
        return ab.concat([ab.tanh(x)] * 40)

    @ab.cell
    def total(self, x: Any) -> Any:
        return ab.sum(x)

    async def first_of_many(self, x: Any) -> Any:
        states = [self.widen(k * x) for k in range(50)]
        first, _ = await ab.value((states[0], self.total(ab.sum_n(states))))
        return self.total(states[1]) + float(first[0])

    async def shapes(self, x: Any) -> Any:
        total, state = await ab.value((self.total(x), x + 1.0))
        again = await ab.value(self.total(self.widen(float(total) * x)))
        return ab.sum(x) + float(again) + float(state[0])

    async def again(self, x: Any) -> Any:
        total = self.total(x)
        first = await ab.value(total)
        state = self.widen(float(first) * x)
        await ab.value(self.total(state))
        await ab.value(self.total(ab.tanh(state)))
        return float(await ab.value(total)) + self.total(state)


@each("name, downloads", [("first_of_many", 3), ("shapes", 3), ("again", 5)])
def test_awaited_values_are_read_at_once_unless_few_are_wanted(name: str, downloads: int) -> None:
    """One download for each round, and one for the results. Few of many wide states are gathered first."""
    instances = list(np.random.default_rng(0).standard_normal((6, 100)))
    chooser, device = Chooser(), HostDevice()
    run = ab.batched(getattr(chooser, name), module=chooser, backend=Cuda(poison=True, device=device))
    expected = [ab.eager(getattr(chooser, name), x) for x in instances]
    before = copy.copy(device.traffic)
    np.testing.assert_allclose(run(instances), expected, rtol=1e-4)
    assert device.traffic.downloads - before.downloads == downloads
    assert device.traffic.downloaded_bytes - before.downloaded_bytes < 4 * SPARE


def test_rows_that_no_run_has_copied_are_copied_before_they_are_read() -> None:
    """As after a round whose run failed; then the memory of the earlier run is released."""
    model, device = Model(), HostDevice()
    backend, recorder, instances = Cuda(poison=True, device=device), Recorder(model.loop, model), items(2, 2)
    with record_in_phases(recorder, instances) as phases:
        wanted = phases.advance()
        phases.graph.hold(wanted, 1)
        kept = KeptValues(phases.graph, phases.table_of, model.dtype)
        request = Request(wanted, phases.output_slots, kept.next_run)
        chosen = phases.graph.choose(request, recorder.types)
        graph = phases.graph.emit(chosen, request, recorder.types)
        planner = MemoryPlanner()
        cells = [planner.plan_cell(kind, training=False) for kind in recorder.types.types]
        planned = PlannedTypes(cells, recorder.slots.shapes, training=False)
        plan = planner.place(graph, make_schedule(graph, policies.get("agenda")), planned)
        run = backend.prepare(plan, planned, Options(policies.get("agenda"), dtype=model.dtype)).begin(Randomness())
        with run:
            run.forward(to=None)
        kept.add(Done(run, chosen.kept.values), device)
        first = kept.read(wanted, set())
        kept.settle()
        assert kept.moves is not None
        assert backend.pool.n_bytes == 0
        assert kept.read(wanted, set()) == first
        assert kept.moves is None
        assert backend.pool.n_bytes > 0
        np.testing.assert_allclose(first, [np.tanh(model.turning.data @ x).sum() for x, _ in instances])
        kept.close()
