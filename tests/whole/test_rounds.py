"""Async programs in mini-batches, case by case: what they give and cost, and what a user sees who writes them wrong."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import shutil
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.devices.host import HostDevice
from autobatch.devices.store import HOST
from autobatch.runtime.cpu.backend import Cpu
from autobatch.runtime.cuda.backend import Cuda
from autobatch.runtime.interpreter.reference import Reference
from autobatch.runtime.memory import Memory, MemoryPool
from ways import each

DIM = 3
BACKENDS: list[Any] = [lambda: Reference(poison=True), lambda: Cpu(poison=True, jitted=False)]
if shutil.which("g++") is not None:
    BACKENDS.append(lambda: Cuda(poison=True, device=HostDevice()))


class Model(ab.Module):
    """A state that turns until it is done."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.turning = ab.Parameter(rng.standard_normal((DIM, DIM)))
        self.kept: Any = None
        self.astype("float64")

    @ab.cell
    def turn(self, x: Any) -> Any:
        return ab.tanh(self.turning @ x)

    @ab.cell
    def total(self, x: Any) -> Any:
        return ab.sum(x)

    @ab.cell
    def norm(self, x: Any) -> Any:
        return ab.sqrt(ab.sum(x * x))

    @ab.cell
    def row(self, x: Any, number: int) -> Any:
        return x + ab.lookup(self.turning, number)

    async def loop(self, item: tuple[Any, int]) -> Any:
        """As many turns as the item says, each of which it waits for."""
        x, n = item
        for _ in range(n):
            x = self.turn(x)
            await ab.value(self.total(x))
        return self.total(x)


def items(*lengths: int) -> list[tuple[Any, int]]:
    rng = np.random.default_rng(1)
    return [(rng.standard_normal(DIM), n) for n in lengths]


def data(n: int = 4) -> list[Any]:
    return [x for x, _ in items(*range(n))]


class CountingPool(MemoryPool[Memory]):
    """Counts the memory that runs have, and what they had when each run began."""

    def __init__(self) -> None:
        super().__init__(lambda: Memory(HOST))
        self.n_taken, self.before = 0, list[int]()

    def take(self) -> Memory:
        self.before.append(self.n_taken)
        self.n_taken += 1
        return super().take()

    def give_back(self, memory: Memory) -> None:
        self.n_taken -= 1
        super().give_back(memory)


def batched(function: Callable[..., Any], **options: Any) -> ab.Batched:
    """The function on a backend whose `pool` counts."""
    backend = Reference(poison=True)
    backend.pool = CountingPool()
    return ab.batched(function, **{"backend": backend, **options})


def taken(run: ab.Batched) -> int:
    """How much memory was not given back."""
    found: int = run.backend.pool.n_taken  # type: ignore[attr-defined]
    return found


def last(run: ab.Batched) -> Any:
    assert run.last is not None
    return run.last


# What programs give, and what it costs.


@each("make", BACKENDS)
def test_rounds_are_those_of_the_longest_and_nodes_those_that_were_asked_for(make: Any) -> None:
    model, given = Model(), items(0, 3, 1, 5)
    run = batched(model.loop, backend=make(), module=model, rewrites=())
    for _ in range(2):
        np.testing.assert_allclose(run(given), [ab.eager(model.loop, item) for item in given], rtol=1e-12)
        assert last(run).rounds == 5
        assert last(run).nodes == sum(1 + n + n + 1 for _, n in given)  # data, turns, awaited totals, the result
        assert [r.waited for r in last(run).per_round] == [(1, 2, 3), (1, 3), (1, 3), (3,), (3,)]


def test_values_that_nobody_waits_for_are_held_back_and_run_together() -> None:
    model = Model()

    async def program(item: tuple[Any, int]) -> Any:
        x, n = item
        losses = list[Any]()
        for _ in range(n):
            x = model.turn(x)
            losses.append(model.norm(x))
            model.norm(model.turn(x))  # which nobody reads
            await ab.value(model.total(x))
        return ab.sum_n(losses)

    run = batched(program, module=model, rewrites=())
    run(items(4, 2))
    assert [r.batches for r in last(run).per_round] == [3, 3, 3, 3]  # data or what was kept; turns; totals
    assert last(run).nodes == 2 + 6 + 6 + 6 + 2
    assert last(run).batches - sum(r.batches for r in last(run).per_round) == 3  # kept states; norms; sums


def test_gathered_branches_cost_the_rounds_of_the_deeper_one() -> None:
    model = Model()

    async def program(x: Any) -> Any:
        found = await ab.gather(model.loop((x, 4)), ab.gather(model.loop((x, 2)), model.loop((x, 3))), ab.value(x))
        return ab.sum_n([found[0], *found[1]])

    run = batched(program, module=model)
    np.testing.assert_allclose(run(data()), [ab.eager(program, x) for x in data()], rtol=1e-12)
    assert last(run).rounds == 4


def test_what_waits_for_nothing_that_is_new_takes_no_round() -> None:
    model = Model()

    async def program(x: Any) -> Any:
        y = model.turn(x)
        total, state = await ab.value((model.total(y), y))
        for _ in range(5):
            assert (await ab.value(y) == state).all()
        assert await ab.value({"data": x, "text": "a", "empty": ()}) == {"data": x, "text": "a", "empty": ()}
        assert await ab.gather() == []
        return [float(total), "done"]

    run = batched(program, module=model)
    assert run(data()[:1]) == [[float(ab.eager(program, data()[0])[0]), "done"]]
    assert last(run).rounds == 1


def test_no_draw_is_numbered_by_a_gather_of_nothing() -> None:
    @ab.cell
    def drop(x: Any) -> Any:
        return ab.dropout(x, 0.5)

    async def draw(x: Any) -> Any:
        return drop(x)

    async def program(x: Any) -> Any:
        await ab.gather()
        return (await ab.gather(draw(x), draw(x)))[1]

    run = batched(program, seed=2)
    for key, found in enumerate(run([np.ones(20)] * 3)):
        with ab.randomness(2, 0, key):
            np.testing.assert_allclose(found, ab.eager(program, np.ones(20)), rtol=1e-6)


def test_results_of_plain_numbers_and_structures() -> None:
    model = Model()

    async def program(item: tuple[Any, int]) -> Any:
        x, n = item
        return {"n": n, "total": float(await ab.value(model.total(x))) if n else 0.0, "words": list(range(n))}

    found = batched(program, module=model)(items(0, 2, 1))
    assert found["words"] == [[], [0, 1], [0]]
    np.testing.assert_allclose(found["n"], [0, 2, 1])
    np.testing.assert_allclose(found["total"], [0.0, *(x.sum() for x, _ in items(0, 2, 1)[1:])])


@each("make", BACKENDS)
def test_calls_of_other_functions_between_and_beside_change_nothing(make: Any) -> None:
    model, given = Model(), items(3, 0, 4)
    backend = make()
    run, other = (batched(f, backend=backend, module=model) for f in (model.loop, model.turn))
    expected, turned = [ab.eager(model.loop, x) for x in given], [model.turn(x) for x, _ in given]
    _, wanted = run.value_and_grad(given)
    wanted = {name: np.array(grad) for name, grad in wanted.items()}
    failed = list[BaseException]()

    def work() -> None:
        try:
            for _ in range(5):
                np.testing.assert_allclose(run(given), expected, rtol=1e-12)
                np.testing.assert_allclose(other([x for x, _ in given]), turned, rtol=1e-12)
                _, grads = run.value_and_grad(given)
                np.testing.assert_allclose(grads["turning"], wanted["turning"], rtol=1e-12)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_float_types_and_copies_may_change_between_calls() -> None:
    model, given = Model(), items(3, 1)
    run = batched(model.loop, module=model)
    expected = run(given)
    model.astype("float32")
    assert run(given).dtype == np.float32
    np.testing.assert_allclose(run(given), expected, rtol=1e-5)
    model.astype("float64")
    for twin in (run, copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        np.testing.assert_allclose(twin(given), expected, rtol=1e-12)


# Training.


@each("make", BACKENDS)
def test_gradients_are_central_differences_with_the_decisions_held(make: Any) -> None:
    """Lengths are decisions that no small step changes."""
    model, given = Model(), items(3, 0, 4)

    async def loss(item: tuple[Any, int]) -> Any:
        x, n = item
        best = -1.0
        while best < 0.4 and n > 0:
            x, n = model.turn(x), n - 1
            best = float(await ab.value(ab.max(x)))
        return model.norm(x)

    ab.testing.check_grads(batched(loss, module=model, backend=make()), given, model, np.random.default_rng(0))


def test_gradients_of_inputs_are_central_differences() -> None:
    model, given = Model(), items(3, 0, 4)
    run = batched(model.loop, module=model)
    _, _, found = run.value_and_grad(given, reduce="sum", inputs=True)
    for (x, n), (gradient, _) in zip(given, found, strict=True):
        for k in range(DIM):
            step = 1e-6 * np.eye(DIM)[k]
            difference = ab.eager(model.loop, (x + step, n)) - ab.eager(model.loop, (x - step, n))
            np.testing.assert_allclose(gradient[k], difference / 2e-6, rtol=1e-6, atol=1e-8)


def test_training_in_little_memory_runs_in_parts_once_the_rounds_are_over() -> None:
    model, given = Model(), items(6, 4, 2)
    value, grads = batched(model.loop, module=model).value_and_grad(given)
    alone = batched(model.loop, module=model)
    needed = max(alone.prepare(alone.record_all([item]), training=True).whole_bytes for item in given)
    for max_bytes in (needed, 2 * needed, 10 * needed):
        run = batched(model.loop, module=model, max_bytes=max_bytes)
        for _ in range(2):
            found, found_grads = run.value_and_grad(given)
            np.testing.assert_allclose(found, value, rtol=1e-12)
            np.testing.assert_allclose(found_grads["turning"], grads["turning"], rtol=1e-12)
            assert taken(run) == 0
        pool: Any = run.backend.pool  # type: ignore[attr-defined]
        assert max(pool.before) == 0  # no run beside another
        np.testing.assert_allclose(run(given), [ab.eager(model.loop, item) for item in given], rtol=1e-12)


def test_numbers_that_were_only_awaited_add_nothing_to_gradients() -> None:
    model = Model()

    async def program(x: Any) -> Any:
        y = model.turn(x)
        assert await ab.value(model.norm(y)) == 0.0  # where its derivative is infinite
        return model.total(model.turn(y))

    given = [np.zeros(DIM)] * 2
    run = batched(program, module=model)
    _, expected = run.value_and_grad(run.record_all(given))
    assert np.isfinite(expected["turning"]).all()
    expected = {name: np.array(grad) for name, grad in expected.items()}
    _, grads = run.value_and_grad(given)
    np.testing.assert_allclose(grads["turning"], expected["turning"])


# What goes wrong.


class Boom(Exception):
    """What programs raise."""


async def fail(model: Model, x: Any) -> Any:
    """Raise if what it waits for is positive."""
    if await ab.value(model.total(x)) > 0.0:
        raise Boom("positive")
    return model.total(x)


def test_errors_name_their_instance_or_come_in_the_place_of_results() -> None:
    model, given = Model(), [-np.ones(DIM), np.ones(DIM), -np.ones(DIM)]

    async def program(x: Any) -> Any:
        return await fail(model, x)

    run = batched(program, module=model)
    with pytest.raises(Boom, match="positive") as found:
        run(given)
    assert found.value.__notes__ == ["raised by instance 1 of the mini-batch, after 1 rounds"]
    run = batched(program, module=model, on_error="return")
    first, second, third = run(given)
    assert (first, third) == (-3.0, -3.0)
    assert isinstance(second, Boom)
    for refused in (run.value_and_grad, run.record_all):
        with pytest.raises(Boom, match="positive"):
            refused(given)


def test_errors_of_branches_are_caught_where_they_were_gathered() -> None:
    model, closed = Model(), list[str]()

    async def slow(x: Any) -> Any:
        try:
            for _ in range(9):
                x = model.turn(x)
                await ab.value(model.total(x))
        except GeneratorExit:
            closed.append("slow")
            raise
        return x

    async def program(x: Any) -> Any:
        try:
            await ab.gather(slow(x), fail(model, x), ab.gather(slow(x), slow(x)))
        except Boom:
            return model.total(model.turn(x))
        return model.total(x)

    run = batched(program, module=model)
    given = [np.ones(DIM), -np.ones(DIM)]
    np.testing.assert_allclose(run(given), [ab.eager(program, x) for x in given], rtol=1e-12)
    assert closed == ["slow"] * 3
    assert last(run).rounds == 9


def test_finally_blocks_of_ended_branches_may_call_cells_and_their_errors_are_noted() -> None:
    model, ended = Model(), list[str]()

    async def slow(x: Any) -> Any:
        try:
            for _ in range(9):
                await ab.value(model.total(x))
        finally:
            model.turn(x)
            ended.append("called")
            await ab.value(model.total(model.turn(x)))

    async def program(x: Any) -> Any:
        await ab.gather(slow(x), fail(model, x), slow(x))

    async def alone(x: Any) -> Any:
        await (fail(model, x) if x[0] > 0 else slow(x))

    for function, n_ended in ((program, 2), (alone, 1)):
        run = batched(function, module=model)
        with pytest.raises(Boom, match="positive") as found:
            run([np.ones(DIM), -np.ones(DIM)][: 3 - n_ended])
        assert any("RuntimeError: coroutine ignored GeneratorExit" in note for note in found.value.__notes__)
        assert len(ended) == n_ended
        ended.clear()


@each("depth", [10, 2000])
def test_gathers_in_gathers_end_however_deep(depth: int) -> None:
    model = Model()

    async def descend(x: Any, depth: int) -> Any:
        if not depth:
            await ab.value(model.total(x))
            return await ab.value(model.total(model.turn(x)))
        return (await ab.gather(descend(x, depth - 1)))[0]

    async def program(item: tuple[Any, bool]) -> Any:
        x, fails = item
        return await fail(model, np.ones(DIM)) if fails else await descend(x, depth)

    run = batched(program, module=model)
    assert np.isfinite(run([(np.ones(DIM), False)])).all()
    with pytest.raises(Boom):
        run([(np.ones(DIM), False), (np.ones(DIM), True)])


def test_an_await_too_deep_for_python_is_named() -> None:
    model = Model()

    async def descend(x: Any, depth: int) -> Any:
        return await descend(x, depth - 1) if depth else await ab.value(model.total(x))

    async def program(x: Any) -> Any:
        return await descend(x, 2000)

    with pytest.raises(ab.GraphError, match="deeper than Python's recursion limit"):
        batched(program, module=model)(data())
    (error,) = batched(program, module=model, on_error="return")(data(1))
    assert isinstance(error, ab.GraphError)


def test_an_interrupt_ends_all_programs_and_the_next_call_works() -> None:
    model, ended, interrupts = Model(), list[int](), [True]

    async def program(item: tuple[Any, int]) -> Any:
        x, n = item
        try:
            for _ in range(n):
                x = model.turn(x)
                await ab.value(model.total(x))
            if n == 2 and interrupts[0]:
                raise KeyboardInterrupt
        finally:
            ended.append(n)
        return model.total(x)

    given = items(1, 5, 2, 4)
    for training in (False, True):
        run = batched(program, module=model)
        interrupts[0] = True
        with pytest.raises(KeyboardInterrupt):
            run.value_and_grad(given) if training else run(given)
        assert sorted(ended) == [1, 2, 4, 5]
        assert taken(run) == 0
        interrupts[0] = False
        np.testing.assert_allclose(run(given), [ab.eager(program, item) for item in given], rtol=1e-12)
        ended.clear()


def test_too_many_rounds_name_an_instance_and_where_it_waits() -> None:
    model = Model()
    run = batched(model.loop, module=model, max_rounds=2)
    with pytest.raises(ab.GraphError, match=r"instance 1 of 3 still waits after max_rounds=2 rounds, in Model.loop, l"):
        run(items(1, 3, 2))
    assert run(items(2, 1)).shape == (2,)


def wrong_programs(model: Model) -> dict[str, tuple[Any, str]]:
    """Programs that are wrong, and what is said of them."""

    async def forgot_to_decide(x: Any) -> Any:
        return x if ab.value(model.total(x)) else model.turn(x)

    async def forgot_to_compare(x: Any) -> Any:
        asked: Any = ab.value(model.total(x))
        return x if asked == 1.0 else model.turn(x)

    async def forgot_to_read(x: Any) -> Any:
        asked: Any = ab.value(model.total(x))
        return [int(asked)]

    async def forgot_to_unpack(x: Any) -> Any:
        branches: Any = ab.gather(model.loop((x, 1)), model.loop((x, 1)))
        left, right = branches
        return left + right

    async def forgot_an_argument(x: Any) -> Any:
        return model.turn(model.loop((x, 1)))

    async def returned_a_request(x: Any) -> Any:
        return [ab.value(model.total(x))]

    async def returned_branches(x: Any) -> Any:
        return ab.gather(model.loop((x, 1)), model.loop((x, 1)))

    async def returned_a_call(x: Any) -> Any:
        return model.loop((x, 1))

    async def generates(x: Any) -> Any:
        yield x

    async def gathered_a_value(x: Any) -> Any:
        return await ab.gather(model.loop((x, 1)), model.total(x))

    async def gathered_twice(x: Any) -> Any:
        call = model.loop((x, 1))
        return await ab.gather(call, call)

    async def gathered_while_it_runs(x: Any) -> Any:
        call = model.loop((x, 2))

        async def again() -> Any:
            await ab.value(model.total(x))
            return await ab.gather(call)

        return await ab.gather(call, again())

    async def awaited_twice(x: Any) -> Any:
        asked = ab.value(model.total(x))
        return [await asked, await asked]

    async def awaited_data_twice(x: Any) -> Any:
        asked = ab.value(x)
        return [await asked, await asked]

    async def sleeps(x: Any) -> Any:
        await asyncio.sleep(0)

    async def runs_eagerly(x: Any) -> Any:
        return ab.eager(model.loop, (x, 1))

    async def calls_a_batched_function(x: Any) -> Any:
        return batched(model.loop)([(x, 1)])

    async def stores(x: Any) -> Any:
        model.kept = model.turn(x) if model.kept is None else model.kept
        return await ab.value(model.kept)

    forgotten = r"uses ab.value\(...\) or ab.gather\(...\) as if it were what it waits for; write await before it"
    unawaited = "which nobody awaits; give ab.batched an async function that awaits it"
    return {
        "decided by a request": (forgot_to_decide, forgotten),
        "compared a request": (forgot_to_compare, forgotten),
        "read a request": (forgot_to_read, forgotten),
        "unpacked branches": (forgot_to_unpack, forgotten),
        "gave a cell a call": (forgot_an_argument, "argument 'x' of a cell is <coroutine .* write await before it"),
        "returned a request": (returned_a_request, r"as its result\[\], " + unawaited),
        "returned branches": (returned_branches, unawaited),
        "returned a call": (returned_a_call, unawaited),
        "a sync function of a call": (lambda x: model.loop((x, 1)), unawaited),
        "an async generator": (generates, unawaited),
        "gathered a value": (gathered_a_value, "which cannot be awaited; give calls of async functions"),
        "gathered a call twice": (gathered_twice, "which is awaited elsewhere; call the function again"),
        "gathered a call that runs": (gathered_while_it_runs, "which is awaited elsewhere; call the function again"),
        "awaited a request twice": (awaited_twice, "one call of ab.value was awaited twice"),
        "awaited data twice": (awaited_data_twice, "one call of ab.value was awaited twice"),
        "slept": (sleeps, "awaited None, which only an event loop can answer"),
        "ran eagerly": (runs_eagerly, "await the program there instead"),
        "called a batched function": (calls_a_batched_function, "call its cells instead"),
        "stored a value": (stores, "awaited or returned uses a value from another recording"),
    }


@pytest.mark.parametrize("case", wrong_programs(Model()))
def test_wrong_programs_are_refused_in_one_sentence(case: str) -> None:
    """Whatever is left unawaited, no warning says so."""
    model = Model()
    program, said = wrong_programs(model)[case]
    run = batched(program, module=model)
    for _ in range(2):
        with pytest.raises(ab.GraphError, match=said) as found:
            run(data(2))
        assert str(found.value).count("\n") == 0
        assert taken(run) == 0
        del found
        gc.collect()


def test_values_of_other_recordings_are_refused() -> None:
    model = Model()

    async def keep(x: Any) -> Any:
        model.kept = model.turn(x)
        return model.total(model.kept)

    async def use(x: Any) -> Any:
        return await ab.value([model.kept])

    def refuse(call: Callable[[], Any]) -> None:
        with pytest.raises(ab.GraphError, match="outside the recording that made it") as found:
            call()
        assert ("raised by instance 0" in str(getattr(found.value, "__notes__", ""))) == (call is not eagerly)

    def eagerly() -> Any:
        return ab.eager(use, data()[0])

    batched(keep, module=model)(data(1))
    refuse(lambda: batched(use, module=model)(data(1)))
    refuse(eagerly)


def test_a_value_of_a_recording_that_failed_is_no_value_of_the_next() -> None:
    model = Model()

    async def program(x: Any) -> Any:
        if model.kept is None:
            model.kept = model.turn(model.turn(x))
            return model.total(model.row(x, 2**40))
        return model.total(model.kept)

    run = batched(program, module=model)
    with pytest.raises(ab.DataError, match="32 bits"):
        run(data(1))
    for _ in range(3):
        with pytest.raises(ab.GraphError, match="another recording"):
            run(data(1))


def test_what_cannot_be_said_of_programs_that_wait_is_refused() -> None:
    model = Model()
    run = batched(model.loop, module=model)
    with pytest.raises(ab.GraphError, match="planned while they run"):
        run.prepare(items(1))
    with pytest.raises(ab.GraphError, match="recorded ahead"):
        list(run.prefetch([items(1)]))
    with pytest.raises(ab.GraphError, match="cell 'wait' is an async function"):

        @ab.cell
        async def wait(x: Any) -> Any:
            return x


def test_recorded_programs_hold_their_decisions() -> None:
    model, given = Model(), items(0, 3, 1)
    run = batched(model.loop, module=model)
    expected, (_, wanted) = run(given), run.value_and_grad(given)
    wanted = {name: np.array(grad) for name, grad in wanted.items()}
    graphs = run.record_all(given)
    np.testing.assert_allclose(run(graphs[::-1]), expected[::-1], rtol=1e-12)
    _, grads = run.value_and_grad(graphs)
    np.testing.assert_allclose(grads["turning"], wanted["turning"], rtol=1e-12)
    run.learn_policy([given], episodes=20)
    np.testing.assert_allclose(run(given), expected, rtol=1e-12)
    report = run.explain(given, training=True)
    assert "rounds" in str(report)
    run.profile(given, training=True)
