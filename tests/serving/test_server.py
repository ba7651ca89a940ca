"""Test a server: its answers equal the function's results, whoever else is served, fails or leaves."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import threading
import time
from collections import deque
from concurrent.futures import CancelledError
from functools import partial
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
import autobatch.torch as abt
from autobatch.errors import DataError, DeadlineError, GraphError, PlanError, ServingError
from autobatch.serving import running
from helpers.models.every_model import MODELS
from helpers.programs.waiting_programs import DIM, Boom, Model, items

QUICK = ("tree-lstm", "lattice-lstm")
WAIT = 60.0


def serve(function: Any, **options: Any) -> Any:
    return ab.serve(function, **{"backend": "reference", **options})


@pytest.fixture(params=["whole", "one batch a round"])
def rounds(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run whole rounds or single batches per round, and forget nodes often."""
    monkeypatch.setattr(running, "COMPACT_AT", 16)
    for name in ("QUANTUM", "WHOLE"):
        monkeypatch.setattr(running, name, 1e3 if request.param == "whole" else 1e-15)


@pytest.mark.parametrize("name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in MODELS])
@pytest.mark.usefixtures("rounds")
def test_every_model_is_served_as_it_runs_alone(name: str) -> None:
    model, instances = MODELS[name]()
    model.astype("float64")
    expected = [model.loss(x) for x in instances]
    with serve(model.loss, max_running=3) as server:
        for futures in ([server.submit(x) for x in instances] for _ in range(3)):
            for future, value in zip(futures, expected, strict=True):
                assert future.result(WAIT) == pytest.approx(value, abs=1e-10)


@pytest.mark.usefixtures("rounds")
def test_async_programs_go_on_with_their_numbers() -> None:
    model, given = Model(), items(3, 0, 7, 1, 5, 2)
    expected = [ab.eager(model.loop, item) for item in given]
    with serve(model.loop, max_running=4) as server:
        futures = [server.submit(item) for item in given * 5]
        for future, value in zip(futures, expected * 5, strict=True):
            assert future.result(WAIT) == pytest.approx(value, abs=1e-10)


def test_structures_constants_and_ints_come_as_the_function_returns_them() -> None:
    model = Model()

    def run(item: Any) -> Any:
        x = model.turn(item)
        return {"x": x, "best": ab.argmax(x), "n": 3, "list": [model.total(x), None], "of data": item}

    item = items(0)[0][0]
    with serve(run, module=model) as server:
        found, alone = server.submit(item).result(WAIT), run(item)
    assert found["n"] == 3
    assert found["list"][1] is None
    assert found["best"] == alone["best"]
    assert np.issubdtype(np.asarray(found["best"]).dtype, np.integer)
    np.testing.assert_allclose(found["x"], alone["x"], atol=1e-12)
    np.testing.assert_allclose(found["of data"], item, atol=1e-12)


class Mixed(Model):
    """A program that does what the request says."""

    async def run(self, request: tuple[str, Any]) -> Any:
        what, n = request
        x: Any = np.ones(3)
        if what == "raise at once":
            raise Boom("at once")
        for _ in range(n):
            x = self.turn(x)
            if what == "stale" and self.kept is not None:
                return self.turn(self.kept)
            if what == "keep":
                self.kept = x
            if what == "wait":
                await ab.value(self.total(x))
        if what == "range":
            return self.row(x, 99)
        if what == "raise":
            raise Boom("late")
        return self.total(x)


@pytest.mark.usefixtures("rounds")
def test_what_fails_fails_alone() -> None:
    model = Mixed()
    good = [("wait", n % 5) for n in range(12)] + [("run", 4)]
    expected = [ab.eager(model.run, request) for request in good]
    bad = [("raise", 2), ("raise at once", 0), ("range", 1)]
    with serve(model.run, max_running=6) as server:
        for _ in range(3):
            futures, failing = [], []
            for k, request in enumerate(good):
                futures.append(server.submit(request))
                failing.append(server.submit(bad[k % len(bad)]))
            for future, value in zip(futures, expected, strict=True):
                assert future.result(WAIT) == pytest.approx(value, abs=1e-10)
            for k, future in enumerate(failing):
                assert isinstance(future.exception(WAIT), DataError if bad[k % len(bad)][0] == "range" else Boom)
        assert server.explain().failed == 3 * len(good)


def test_what_cannot_be_recorded_with_others_is_found_alone() -> None:
    model = Mixed()
    with serve(model.run, max_running=8) as server:
        server.submit(("keep", 1)).result(WAIT)
        futures = [server.submit(request) for request in [("run", 2), ("stale", 1), ("wait", 3), ("run", 1)]]
        assert isinstance(futures[1].exception(WAIT), GraphError)
        for k, request in ((0, ("run", 2)), (2, ("wait", 3)), (3, ("run", 1))):
            assert futures[k].result(WAIT) == pytest.approx(ab.eager(model.run, request), abs=1e-10)


@pytest.mark.parametrize("end", ["returns", "raises", "is cancelled"])
@pytest.mark.parametrize("max_running", [1, 3])
@pytest.mark.usefixtures("rounds")
def test_values_of_ended_requests_are_refused(max_running: int, end: str) -> None:
    """Programs keep computed and pending values; later ones, at the same places, pass them to cells or await them."""
    model, kept, waits = Model(), list[Any](), threading.Event()

    async def program(what: str) -> Any:
        if what == "passes":
            return model.total(kept.pop())
        if what == "awaits":
            return await ab.value(kept.pop())
        x = model.turn(np.ones(DIM))
        total = model.total(x)
        if what == "runs":
            return await ab.value(total)
        kept.append(model.turn(x) if what == "keeps a pending one" else x)
        await ab.value(total)
        if end == "raises":
            raise Boom
        while end == "is cancelled":
            waits.set()
            await ab.value(model.total(x))

    expected = ab.eager(program, "runs")
    with serve(program, module=model, max_running=max_running) as server:
        for keeps, reads in product(("keeps a pending one", "keeps a computed one"), ("passes", "awaits")):
            waits.clear()
            keeper = server.submit(keeps)
            if end == "is cancelled":
                assert waits.wait(WAIT)
                assert keeper.cancel()
            else:
                assert isinstance(keeper.exception(WAIT), Boom if end == "raises" else type(None))
            assert server.submit("runs").result(WAIT) == pytest.approx(expected, abs=1e-10)
            with pytest.raises(GraphError, match="must be used within their own instance, got one from another"):
                server.submit(reads).result(WAIT)
            assert not kept


def test_a_request_that_does_not_fit_fails_alone() -> None:
    @ab.cell
    def double(x: Any) -> Any:
        return ab.sum(2.0 * x)

    sizes = [3, 4, 5000, 3, 6000, 4]
    with serve(double, max_running=8, max_bytes=4000) as server:
        futures = [server.submit(np.ones(n)) for n in sizes]
        for n, future in zip(sizes, futures, strict=True):
            if n >= 5000:
                assert isinstance(future.exception(WAIT), PlanError)
            else:
                assert future.result(WAIT) == 2 * n


class FailsOnce:
    """A policy that raises once when it is told to, which is an error of all requests that run."""

    name = "fails once"

    def __init__(self) -> None:
        self.fails = self.has_failed = False

    def schedule(self, graph: Any) -> Any:
        if self.fails and not self.has_failed:
            self.has_failed = True
            raise Boom
        return ab.policies.get("agenda").schedule(graph)


def test_what_is_cancelled_before_it_runs_alone_does_not_run() -> None:
    model, policy, begun = Model(), FailsOnce(), list[str]()
    runs_alone, goes_on = threading.Event(), threading.Event()

    async def program(name: str) -> str:
        begun.append(name)
        policy.fails = len(begun) == 3
        if begun.count("last") == 2:
            runs_alone.set()
            goes_on.wait(WAIT)
        while name == "endless" or not policy.has_failed:
            await ab.value(model.total(np.ones(DIM)))
        return name

    with serve(program, module=model, policy=policy) as server:
        futures = [server.submit(name) for name in ("first", "endless", "last")]
        assert runs_alone.wait(WAIT)
        assert futures[1].cancel()
        goes_on.set()
        assert [futures[k].result(WAIT) for k in (0, 2)] == ["first", "last"]
    assert begun.count("endless") == 1
    assert server.explain().cancelled == 1


def test_where_kept_values_fill_the_memory_no_request_begins() -> None:
    model, most = Model(), list[int]()
    first, later = items(*[200] * 30), items(*[100] * 30)
    expected = [ab.eager(model.loop, item) for item in (*first, *later)]
    for max_bytes in (None, 640):
        with serve(model.loop, max_running=60, max_bytes=max_bytes) as server:
            futures = [server.submit(item) for item in first]
            while len(server.explain().rounds) < 3:
                time.sleep(1e-3)
            futures += [server.submit(item) for item in later]
            for future, value in zip(futures, expected, strict=True):
                assert future.result(WAIT) == pytest.approx(value, abs=1e-10)
            most.append(max(round_.n_programs for round_ in server.explain().rounds))
    assert most[1] < most[0]


class Gate:
    """A program that blocks the server's thread until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, x: Any) -> Any:
        if x is None:
            self.entered.set()
            assert self.opened.wait(WAIT)
            return 0.0
        return 2.0 * x


def test_requests_that_are_cancelled_leave() -> None:
    gate = Gate()
    with serve(gate) as server:
        first = server.submit(None)
        assert gate.entered.wait(WAIT)
        cancelled, kept = server.submit(1.0), server.submit(3.0)
        assert cancelled.cancel()
        gate.opened.set()
        assert kept.result(WAIT) == 6.0
        assert first.result(WAIT) == 0.0
        with pytest.raises(CancelledError):
            cancelled.result(WAIT)
    assert server.explain().cancelled == 1


def test_a_request_cancelled_just_before_it_begins_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled after the server has removed the requests that are over, and before it takes the next ones."""
    gate, begun, cancelled, room = Gate(), list[Any](), list[Any](), running.Running.room

    def run(x: Any) -> Any:
        begun.append(x)
        return gate(x)

    def cancel_first(self: Any, n_running: int) -> int:
        assert all(future.cancel() for future in cancelled)
        cancelled.clear()
        return room(self, n_running)

    monkeypatch.setattr(running.Running, "room", cancel_first)
    with serve(run) as server:
        first = server.submit(None)
        assert gate.entered.wait(WAIT)
        futures = [server.submit(x) for x in (1.0, 2.0, 3.0)]
        cancelled.append(futures[1])
        gate.opened.set()
        assert [future.result(WAIT) for future in (first, futures[0], futures[2])] == [0.0, 2.0, 6.0]
    assert futures[1].cancelled()
    assert begun == [None, 1.0, 3.0]
    assert (server.explain().done, server.explain().cancelled) == (3, 1)


def test_a_program_that_waits_for_ever_is_cancelled_while_it_runs() -> None:
    model, ended = Model(), threading.Event()

    async def for_ever(x: Any) -> Any:
        try:
            while True:
                x = model.turn(x)
                await ab.value(model.total(x))
        finally:
            ended.set()

    with serve(for_ever, module=model, max_running=2) as server:
        future = server.submit(np.ones(3))
        late = server.submit(np.ones(3), deadline=0.2)
        assert isinstance(late.exception(WAIT), ServingError)
        ended.clear()
        assert future.cancel()
        assert ended.wait(WAIT)


def test_deadlines_order_the_queue_and_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autobatch.serving.server.PATIENCE", 1e3)
    gate, order = Gate(), list[float]()
    with serve(gate, max_running=1) as server:
        server.submit(None)
        assert gate.entered.wait(WAIT)
        for x, deadline in ((1.0, None), (2.0, 50.0), (3.0, 40.0), (4.0, None)):
            server.submit(x, deadline).add_done_callback(lambda future: order.append(future.result()))
        late = server.submit(5.0, deadline=0.01)
        time.sleep(0.05)
        gate.opened.set()
        with pytest.raises(ServingError, match="deadline of request 5 passed"):
            late.result(WAIT)
    assert order == [6.0, 4.0, 2.0, 8.0]


@pytest.mark.parametrize("is_async", [False, True])
def test_deadlines_are_kept_while_a_program_runs_on(is_async: bool) -> None:
    """For requests that run beside it or wait, and for itself. Those without a deadline wait for it."""
    gate = Gate()

    async def wait(x: Any) -> Any:
        return gate(x)

    with serve(wait if is_async else gate, max_running=2) as server:
        assert server.submit(1.0).result(WAIT) == 2.0
        late = [server.submit(None, deadline=0.3)]
        assert gate.entered.wait(WAIT)
        late += [server.submit(1.0, deadline=deadline) for deadline in (0.2, 0.1, 0.3, 0.1)]
        kept = [server.submit(1.0), server.submit(3.0, deadline=WAIT)]
        for future in late:
            assert isinstance(future.exception(WAIT), DeadlineError)
        assert not any(future.done() for future in kept)
        gate.opened.set()
        assert [future.result(WAIT) for future in kept] == [2.0, 6.0]
        counts = server.explain()
    assert (counts.done, counts.failed) == (3, 5)


def test_close_waits_as_long_as_it_is_told() -> None:
    gate = Gate()
    server = serve(gate, max_running=1)
    futures = [server.submit(None), server.submit(1.0)]
    assert gate.entered.wait(WAIT)
    assert not server.close(within=0.1)
    for future in futures:
        assert "closed, and the request was not done within 0.1 seconds" in str(future.exception(WAIT))
    gate.opened.set()
    assert server.close(within=WAIT)
    idle = serve(gate)
    assert idle.submit(1.0).result(WAIT) == 2.0
    assert idle.close(within=0)
    gate.opened.clear()
    with_cancelled = serve(gate, max_running=1)
    running_one, waiting_one = with_cancelled.submit(None), with_cancelled.submit(1.0)
    assert running_one.cancel()
    assert waiting_one.cancel()
    assert with_cancelled.close(within=0)
    gate.opened.set()
    for longest in (math.inf, 1e30, np.float32(WAIT)):
        assert serve(gate).close(longest)
    for within in (-1, "soon", True, math.nan, np.array([1.0])):
        with pytest.raises(DataError, match="must be a number of seconds"):
            server.close(within)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_is_told_that_it_has_no_server() -> None:
    """For all calls, and also if a thread held the server's lock during the fork."""

    async def stream(server: Any) -> None:
        async for _ in server.stream(np.ones(2)):
            pass

    async def items(x: Any) -> Any:
        yield 1

    def refused(call: Any) -> bool:
        try:
            call()
        except ServingError as error:
            return "make a server in each process" in str(error)
        return False

    with serve(Model().total) as server, serve(items, module=Model()) as streams:
        server.submit(np.ones(2), deadline=WAIT).result(WAIT)
        with server._changed:
            pid = os.fork()
        if not pid:
            status = 1
            try:
                signal.alarm(int(WAIT))
                calls = [lambda: server.submit(1), server.explain, lambda: asyncio.run(stream(streams))]
                is_right = all(map(refused, calls)) and server.is_closed and server.close()
                status = 0 if is_right else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert server.submit(np.ones(2)).result(WAIT) == 2.0


def test_nobody_is_overtaken_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """While requests with early deadlines keep coming, one without a deadline gets its turn."""
    monkeypatch.setattr("autobatch.serving.server.PATIENCE", 0.2)
    patient = threading.Event()

    def run(x: float) -> float:
        time.sleep(0.005)
        return x

    with serve(run, max_running=1) as server:
        urgent = deque(server.submit(1.0, deadline=WAIT / 2) for _ in range(4))
        began = time.monotonic()
        server.submit(2.0).add_done_callback(lambda _: patient.set())
        while not patient.is_set():  # there are always four that would go first
            urgent.popleft().exception(WAIT)
            urgent.append(server.submit(1.0, deadline=0.1))
        assert 0.1 < time.monotonic() - began < WAIT


def test_what_is_over_leaves_the_queue() -> None:
    """Cancelled or late requests free their places, and are answered while others run."""
    model, ended = Model(), threading.Event()

    async def run(steps: Any) -> Any:
        x: Any = np.ones(3)
        while not ended.is_set() and steps:
            x = model.turn(x)
            await ab.value(model.total(x))
        return model.total(x)

    with serve(run, module=model, max_running=1, max_waiting=3) as server:
        busy = server.submit(True)
        while not server.explain().running:
            time.sleep(0.001)
        late, cancelled = server.submit(False, deadline=0.05), server.submit(False)
        kept = server.submit(False)
        with pytest.raises(ServingError, match="3 requests are waiting"):
            server.submit(False)
        assert cancelled.cancel()
        assert isinstance(late.exception(WAIT), DeadlineError)
        assert not busy.done()
        while server.explain().waiting > 1:
            time.sleep(0.001)
        others = [server.submit(False), server.submit(False)]
        ended.set()
        for future in (busy, kept, *others):
            future.result(WAIT)
        counts = server.explain()
    assert (counts.done, counts.failed, counts.cancelled) == (4, 1, 1)


def test_too_many_requests_are_refused() -> None:
    gate = Gate()
    with serve(gate, max_running=1, max_waiting=2) as server:
        server.submit(None)
        assert gate.entered.wait(WAIT)
        kept = [server.submit(1.0), server.submit(2.0)]
        with pytest.raises(ServingError, match=r"2 requests are waiting, the limit of max_waiting=2; retry in"):
            server.submit(3.0)
        gate.opened.set()
        assert [future.result(WAIT) for future in kept] == [2.0, 4.0]
    with pytest.raises(ServingError, match="closed"):
        server.submit(1.0)


def test_it_is_awaited_in_an_event_loop() -> None:
    model = Model()

    async def main() -> list[Any]:
        async with serve(model.loop) as server:
            return await asyncio.gather(*(server(item) for item in items(2, 4)))

    expected = [ab.eager(model.loop, item) for item in items(2, 4)]
    assert asyncio.run(main()) == pytest.approx(expected, abs=1e-10)


def test_parameters_may_change_between_rounds() -> None:
    model = Model()
    item = items(2)[0]
    with serve(model.loop) as server:
        before = server.submit(item).result(WAIT)
        model.turning.data = 0.5 * model.turning.data
        after = server.submit(item).result(WAIT)
    assert after == pytest.approx(ab.eager(model.loop, item), abs=1e-10)
    assert after != before


@pytest.mark.parametrize("option", [{"max_running": 0}, {"max_running": True}, {"max_waiting": "3"}])
def test_numbers_of_requests_are_checked(option: Any) -> None:
    ((name, number),) = option.items()
    with pytest.raises(DataError, match=f"{name} of serve must be an int.*, got {number!r}"):
        serve(Model().loop, **option)
    with serve(Model().loop) as server, pytest.raises(DataError, match="must be a number of seconds"):
        server.submit(items(1)[0], deadline=-1)


def test_numbers_of_numpy_are_seconds() -> None:
    with serve(Model().loop) as server:
        for deadline in (np.int64(WAIT), np.float32(WAIT), math.inf):
            assert server.submit(items(1)[0], deadline=deadline).result(WAIT) is not None
        for wrong in (np.int64(0), math.nan, True, "3"):
            with pytest.raises(DataError, match="deadline must be a number of seconds above 0"):
                server.submit(items(1)[0], deadline=wrong)


@pytest.mark.parametrize("option", [{"max_bytes": 1}, {"policy": "depth"}, {"backend": "reference"}])
def test_a_batched_function_takes_no_other_options(option: Any) -> None:
    batched = ab.batched(Model().loop, backend="reference")
    with pytest.raises(DataError, match=f"{next(iter(option))} must be an option of ab.batched"):
        ab.serve(batched, **option)
    ab.serve(batched, max_running=2, policy="auto").close()


def turned(model: Model, item: Any) -> Any:
    return model.total(model.turn(item[0]))


@pytest.mark.parametrize(
    "n", [100, pytest.param(1000, marks=pytest.mark.slow), pytest.param(100_000, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("is_async", [True, False])
def test_nothing_grows(n: int, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of nodes, values, rows, logged calls and objects is the same after ten times as many requests."""
    monkeypatch.setattr(running, "COMPACT_AT", 100)
    model, few = Model(), items(1, 2, 3, 4)
    with serve(model.loop if is_async else partial(turned, model), module=model, max_running=16) as server:

        def sizes(n: int) -> list[int]:
            for _ in range(n // 100):
                for future in [server.submit(few[k % 4]) for k in range(100)]:
                    future.result(WAIT)
            graph, kept = server._running._phases.graph, server._running._kept.rows
            arrays = [*graph.nodes, graph.values, graph._pending, kept.size, kept._held]
            gc.collect()
            return [graph.n_nodes, *(array.size for array in arrays), len(gc.get_objects())]

        sizes(2 * n)
        before = sizes(n)
        after, log = sizes(9 * n), server._engine.recorder.calls.log
        if is_async:
            assert log.n_bytes < log.n_calls  # each takes 12 bytes until it is forgotten
        assert after[-1] <= 1.1 * before[-1] + 1000  # number of objects
        for then, now in zip(before[:-1], after[:-1], strict=True):  # capacities may be twice the needed size
            assert now <= 4 * (then + running.COMPACT_AT)


def test_a_full_recording_is_replaced_when_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MOST_CALLS", 50)
    model, given, made = Model(), items(3, 0, 7, 1, 5, 2), list[Any]()
    expected = [ab.eager(model.loop, item) for item in given]

    class Noted(running.Running):
        def __init__(self, engine: Any, n_places: int) -> None:
            super().__init__(engine, n_places)
            made.append(self)

    monkeypatch.setattr("autobatch.serving.server.Running", Noted)
    with serve(model.loop, max_running=4) as server:
        for future, value in zip([server.submit(item) for item in given * 10], expected * 10, strict=True):
            assert future.result(WAIT) == pytest.approx(value, abs=1e-10)
    assert 5 < len(made) <= len(given) * 10
    assert server.explain().done == len(given) * 10


class Net(torch.nn.Module):
    """A recursion over nested pairs of vectors, with PyTorch modules."""

    def __init__(self) -> None:
        super().__init__()
        self.join = torch.nn.Linear(6, 3)

    def forward(self, given: Any) -> torch.Tensor:
        if isinstance(given, torch.Tensor):
            return given
        return torch.tanh(self.join(torch.cat([self(one) for one in given])))


def test_modules_of_torch_are_served() -> None:
    net, x = Net().double(), torch.arange(3.0, dtype=torch.float64)
    given = [(x, x), (x, (x, 2 * x)), x, ((x, x), (x, (x, x)))]
    expected = [net(one) for one in given]
    with ab.serve(abt.batched(net, backend="reference")) as server:
        for future, value in zip([server.submit(one) for one in given * 3], expected * 3, strict=True):
            found = future.result(WAIT)
            assert isinstance(found, torch.Tensor)
            assert not found.requires_grad
            torch.testing.assert_close(found, value.detach(), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("rounds")
def test_a_learned_machine_decides() -> None:
    model, instances = MODELS["tree-lstm"]()
    model.astype("float64")
    batched = ab.batched(model.loss, backend="reference")
    batched.learn_policy([instances], episodes=20)
    with ab.serve(batched) as server:
        for future, instance in zip([server.submit(x) for x in instances], instances, strict=True):
            assert future.result(WAIT) == pytest.approx(model.loss(instance), abs=1e-10)


def test_clocks_may_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day is not used."""
    jumps = cycle([0.0, 1e9, -1e9])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    model, given = Model(), items(3, 1)
    with serve(model.loop) as server:
        futures = [server.submit(item, deadline=WAIT) for item in given * 5]
        for future, item in zip(futures, given * 5, strict=True):
            assert future.result(WAIT) == pytest.approx(ab.eager(model.loop, item), abs=1e-10)
