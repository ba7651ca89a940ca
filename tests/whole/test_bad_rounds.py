"""Async programs that raise, are interrupted or are written incorrectly: what users see, and that no memory is lost."""

from __future__ import annotations

import asyncio
import gc
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError
from helpers.programs.waiting_programs import DIM, Boom, Model, batched, data, fail, items, last, taken
from helpers.runs.ways import each


def test_errors_name_their_instance_or_come_in_the_place_of_results() -> None:
    model, given = Model(), [-np.ones(DIM), np.ones(DIM), -np.ones(DIM)]

    async def program(x: Any) -> Any:
        return await fail(model, x)

    run = batched(program, module=model)
    with pytest.raises(Boom, match="positive") as found:
        run(given)
    assert found.value.__notes__ == ["while instance 1 was recorded, after 1 round"]
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


@each("width", [0, DIM + 1])
def test_rows_that_a_refused_call_was_given_have_room(width: int) -> None:
    """Nothing reads the rows of the refused call, which are far more than the edges."""
    model = Model()

    @ab.cell(ragged=("rows",))
    def turn_all(rows: Any) -> Any:
        return ab.sum(rows @ model.turning)

    async def program(x: Any) -> Any:
        with pytest.raises(ab.ShapeError):
            turn_all(np.ones((50_000, width)))
        return await ab.value(turn_all(np.tile(x, (4, 1))))

    expected = [4.0 * (x @ model.turning.data).sum() for x in data()]
    np.testing.assert_allclose(batched(program, module=model)(data()), expected, rtol=1e-12)


def test_an_await_too_deep_for_python_is_named() -> None:
    model = Model()

    async def descend(x: Any, depth: int) -> Any:
        return await descend(x, depth - 1) if depth else await ab.value(model.total(x))

    async def program(x: Any) -> Any:
        return await descend(x, 2000)

    with pytest.raises(ab.GraphError, match="exceeded Python's recursion limit"):
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
    with pytest.raises(
        ab.GraphError, match=r"instance 1 of 3 is still waiting after max_rounds=2 rounds, in Model.loop, l"
    ):
        run(items(1, 3, 2))
    assert run(items(2, 1)).shape == (2,)


@each("lengths, most", [((1, 3, 2), 2), ((3, 4), 1), ((1, 2), 0), ((1, 2), 2), ((4, 0, 1, 5), 1)])
def test_too_many_rounds_are_the_errors_of_those_that_wait(lengths: tuple[int, ...], most: int) -> None:
    model, closed = Model(), list[int]()

    async def program(item: Any) -> Any:
        try:
            return await model.loop(item)
        except GeneratorExit:
            model.total(model.turn(item[0]))
            closed.append(item[1])
            raise

    run = batched(program, module=model, max_rounds=most, on_error="return")
    for _ in range(2):
        closed.clear()
        given = items(*lengths)
        for i, (found, item) in enumerate(zip(run(given), given, strict=True)):
            if item[1] <= most:
                np.testing.assert_allclose(found, ab.eager(program, item), rtol=1e-12)
            else:
                assert isinstance(found, ab.GraphError)
                told = (
                    f"instance {i} of {len(lengths)} is still waiting after max_rounds={most} rounds, in Model.loop, l"
                )
                assert str(found).startswith(told)
        assert closed == [n for n in lengths if n > most]
        assert taken(run) == 0
    with pytest.raises(ab.GraphError, match="still waiting") if closed else nullcontext():
        run.value_and_grad(items(*lengths))


@each("most", [1, 2, 5])
@each("begins", [1, 3])
def test_awaits_of_known_values_end_after_as_many_in_a_row(begins: int, most: int) -> None:
    """An instance waits in `begins` rounds; each one follows `n_known` waits for values that are already known."""
    model = Model()

    async def program(item: tuple[Any, int]) -> Any:
        x, n_known = item
        for _ in range(begins):
            x = model.turn(x)
            for _ in range(1 + n_known):
                await ab.value([x, x])
        while n_known > 9:
            await ab.gather(ab.value(x), ab.value(x))
        return model.total(x)

    def is_too_long(n_known: int) -> bool:
        return begins > most or n_known > most or (begins == most and n_known > 0)

    run = batched(program, module=model, max_rounds=most, on_error="return")
    unlimited = batched(program, module=model)
    for n_known in (0, most - 1, most, most + 1, 10):
        (item,) = items(n_known)
        (found,) = run([item])
        if is_too_long(n_known):
            assert isinstance(found, ab.GraphError)
            idle = "" if n_known <= most or most == 1 else " in a row that had nothing to compute"
            assert f"instance 0 of 1 is still waiting after max_rounds={most} rounds{idle}, in test_awaits" in str(
                found
            )
            with pytest.raises(ab.GraphError, match="is still waiting after max_rounds"):
                batched(program, module=model, max_rounds=most).value_and_grad([item])
        else:
            np.testing.assert_allclose(found, ab.eager(program, item), rtol=1e-12)
        if n_known < 10:
            np.testing.assert_allclose(unlimited([item]), [ab.eager(program, item)], rtol=1e-12)
    if begins < most:
        first, second = run(items(0, 10))
        np.testing.assert_allclose(first, ab.eager(program, items(0)[0]), rtol=1e-12)
        assert isinstance(second, ab.GraphError)
    assert taken(run) == 0


def test_what_cannot_be_awaited_is_the_error_of_its_instance() -> None:
    model = Model()

    async def program(item: Any) -> Any:
        x, n = item
        if n == 2:
            await ab.value([model.total(x), model.loop(item)])
        return await model.loop(item)

    run = batched(program, module=model, on_error="return")
    first, second, third = run(items(1, 2, 3))
    one, _, other = items(1, 2, 3)
    np.testing.assert_allclose((first, third), (ab.eager(program, one), ab.eager(program, other)), rtol=1e-12)
    assert isinstance(second, ab.GraphError)
    assert "must be awaited" in str(second)
    with pytest.raises(ab.GraphError, match="must be awaited") as found:
        run.value_and_grad(items(1, 2, 3))
    assert found.value.__notes__ == ["while instance 1 was recorded, after 0 rounds"]


def wrong_programs(model: Model) -> dict[str, tuple[Any, str]]:
    """Return incorrect programs with a pattern of their error messages, by name."""

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

    async def sleeps_longer(x: Any) -> Any:
        await asyncio.sleep(1)

    async def runs_eagerly(x: Any) -> Any:
        return ab.eager(model.loop, (x, 1))

    async def calls_a_batched_function(x: Any) -> Any:
        return batched(model.loop)([(x, 1)])

    async def stores(x: Any) -> Any:
        model.kept = model.turn(x) if model.kept is None else model.kept
        return await ab.value(model.kept)

    forgotten = r"results of ab.value\(...\) and ab.gather\(...\) must be awaited, .* write await before it"
    unawaited = "pass ab.batched an async function that awaits it"
    return {
        "decided by a request": (forgot_to_decide, forgotten),
        "compared a request": (forgot_to_compare, forgotten),
        "read a request": (forgot_to_read, forgotten),
        "unpacked branches": (forgot_to_unpack, forgotten),
        "gave a cell a call": (forgot_an_argument, "argument 'x' .* must be awaited, got <coroutine .* write await"),
        "returned a request": (returned_a_request, r"as its result\[\]; " + unawaited),
        "returned branches": (returned_branches, unawaited),
        "returned a call": (returned_a_call, unawaited),
        "a sync function of a call": (lambda x: model.loop((x, 1)), unawaited),
        "an async generator": (generates, unawaited),
        "gathered a value": (gathered_a_value, "must be awaitable, got .* pass calls of async functions"),
        "gathered a call twice": (gathered_twice, "must not be awaited elsewhere, got .* call the function again"),
        "gathered a call that runs": (
            gathered_while_it_runs,
            "must not be awaited elsewhere, got .* call the function again",
        ),
        "awaited a request twice": (awaited_twice, "a call of ab.value must be awaited only once"),
        "awaited data twice": (awaited_data_twice, "a call of ab.value must be awaited only once"),
        "slept": (sleeps, "got None, which needs an event loop"),
        "slept longer": (sleeps_longer, "got a function of asyncio, which needs an event loop"),
        "ran eagerly": (runs_eagerly, "await the program there instead"),
        "called a batched function": (calls_a_batched_function, "call its cells instead"),
        "stored a value": (stores, "awaited or returned: recorded values must be used within their own instance"),
    }


@pytest.mark.cases(1)
@pytest.mark.parametrize("case", wrong_programs(Model()))
def test_wrong_programs_are_refused_in_one_sentence(case: str) -> None:
    """No warning reports values that were never awaited."""
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


@each("case", ["decided by a request", "compared a request", "read a request", "unpacked branches"])
def test_requests_that_are_used_as_numbers_are_refused_in_eager_mode_too(case: str) -> None:
    program, said = wrong_programs(Model())[case]
    with pytest.raises(ab.GraphError, match=said):
        ab.eager(program, data(1)[0])


def test_values_of_other_recordings_are_refused() -> None:
    model = Model()

    async def keep(x: Any) -> Any:
        model.kept = model.turn(x)
        return model.total(model.kept)

    async def use(x: Any) -> Any:
        return await ab.value([model.kept])

    def refuse(call: Callable[[], Any]) -> None:
        with pytest.raises(ab.GraphError, match="outside its recording") as found:
            call()
        assert ("while instance 0 was recorded" in str(getattr(found.value, "__notes__", ""))) == (call is not eagerly)

    def eagerly() -> Any:
        return ab.eager(use, data()[0])

    batched(keep, module=model)(data(1))
    refuse(lambda: batched(use, module=model)(data(1)))
    refuse(eagerly)


def test_values_of_an_earlier_mini_batch_are_refused() -> None:
    """Programs keep a computed and a pending value; those of the next mini-batch pass them to cells or await them."""
    model, kept = Model(), list[Any]()

    async def program(what: str) -> Any:
        if what == "passes":
            return model.total(kept.pop())
        if what == "awaits":
            return await ab.value(kept.pop())
        x = model.turn(np.ones(DIM))
        if what == "keeps":
            kept.extend((x, model.turn(x)))
        return await ab.value(model.total(x))

    run = batched(program, module=model)
    expected = run(["runs", "runs"])
    for what in ("passes", "awaits"):
        np.testing.assert_array_equal(run(["keeps", "runs"]), expected)
        for _ in range(2):
            with pytest.raises(ab.GraphError, match="must be used within their own instance, got one from another"):
                run([what, "runs"])
            np.testing.assert_array_equal(run(["runs", "runs"]), expected)
        assert not kept


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


def test_programs_are_ended_where_a_later_one_cannot_begin() -> None:
    model = Model()

    async def program(x: Any) -> Any:
        return model.total(x)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(DataError, match="got one in a deque"):
            batched(program, module=model).value_and_grad([*data(2), deque([np.ones(1)])], inputs=True)
        gc.collect()
    assert not [str(warning.message) for warning in told]


def test_what_cannot_be_said_of_programs_that_wait_is_refused() -> None:
    model = Model()
    run = batched(model.loop, module=model)
    with pytest.raises(ab.GraphError, match="planned while they run"):
        run.prepare(items(1))
    with pytest.raises(ab.GraphError, match="cell 'wait' must not be an async function"):

        @ab.cell
        async def wait(x: Any) -> Any:
            return x


@pytest.mark.slow
def test_no_handle_and_no_other_instance_stays_when_a_call_is_over() -> None:
    model, given = Model(), [-np.ones(DIM), np.ones(DIM), -np.ones(DIM)]

    class Data:
        """An object with weak references."""

    async def program(item: tuple[Any, Data]) -> Any:
        return await fail(model, item[0])

    run = batched(program, module=model, on_error="return")
    n_bytes = list[int]()
    for _ in range(3):
        told = [Data() for _ in given]
        alive = [weakref.ref(one) for one in told]
        _, error, _ = run(list(zip(given, told, strict=True)))
        assert isinstance(error, Boom)
        assert [entry.name for entry in traceback.extract_tb(error.__traceback__)] == ["program", "fail"]
        told.clear()
        gc.collect()
        assert [ref() is None for ref in alive] == [True, False, True]  # the error holds frames of this one
        del error
        n_bytes.append(run.recorder.calls.log.n_bytes)
    assert n_bytes[0] == n_bytes[1] == n_bytes[2]


class Words(ab.Module):
    """Adds up the vectors of words, and awaits each vector."""

    def __init__(self) -> None:
        self.table = ab.Parameter(np.arange(12.0).reshape(4, 3))

    @ab.cell
    def vector(self, word: int) -> Any:
        return ab.lookup(self.table, word)

    async def run(self, words: list[int]) -> Any:
        vectors = []
        for word in words:
            vectors.append(self.vector(word))
            if len(vectors) < len(words):
                await ab.value(vectors[-1])
        return vectors[-1]


@pytest.mark.parametrize("word", [4, -1, 1000])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_id_outside_of_its_range_fails_its_instance(word: int, place: int) -> None:
    bad = [1, 1, 1]
    bad[place] = word  # the last one is among the results, and nothing waits for it
    given = [[0, 1], bad, [2, 3, 3, 1], [*bad, 0], [1]]
    with pytest.raises(DataError, match=rf"instance 1, .*gives {word} as vector argument 'word', which takes 0..3"):
        batched(Words().run)(given)
    results = batched(Words().run, on_error="return")(given)
    for i, expected in ((0, [3, 4, 5]), (2, [3, 4, 5]), (4, [3, 4, 5])):
        assert np.array_equal(results[i], expected)
    for i in (1, 3):
        assert isinstance(results[i], DataError)
        assert f"instance {i}, " in str(results[i])


class Slow(ab.Module):
    """Halves numbers.

    Attributes:
        caught: the errors that programs have caught.
    """

    def __init__(self) -> None:
        self.caught: list[BaseException] = []

    @ab.cell
    def halve(self, x: Any) -> Any:
        return 0.5 * x

    async def fail(self) -> None:
        raise ValueError("ends the branches beside it")

    async def run(self, x: Any) -> Any:
        """Gather requests beside a branch that fails at once; return the answer of a further request."""
        try:
            await ab.gather(ab.value(self.halve(x)), ab.gather(ab.value((self.halve(x), x * 2.0))), self.fail())
        except ValueError as error:
            self.caught.append(error)
            return await ab.value(self.halve(x))


def test_a_failing_branch_ends_the_requests_beside_it() -> None:
    model = Slow()
    found = batched(model.run)([np.full(2, 4.0), np.full(2, 6.0)])
    assert np.array_equal(found, [[2.0, 2.0], [3.0, 3.0]])
    assert [getattr(error, "__notes__", []) for error in model.caught] == [[], []]


class Halved:
    """An awaitable that delegates to a request.

    Args:
        values: what it requests.
    """

    def __init__(self, values: Any) -> None:
        self.values = values

    def __await__(self) -> Any:
        return (yield from ab.value(self.values).__await__())


def test_an_awaitable_may_delegate_to_a_request() -> None:
    model = Slow()

    async def run(x: Any) -> Any:
        one = await Halved(model.halve(x))
        pair = await Halved((model.halve(x), model.halve(2.0 * x)))
        return one + pair[0] + pair[1]

    found = batched(run, module=model)([np.full(2, 4.0), np.full(2, 6.0)])
    assert np.array_equal(found, [[8.0, 8.0], [12.0, 12.0]])
    with pytest.raises(ab.GraphError, match="must be awaited"):
        [*ab.value(np.zeros(2))]  # type: ignore[misc]
