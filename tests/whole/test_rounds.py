"""Async programs in mini-batches, case by case: results and costs."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from helpers.programs.waiting_programs import BACKENDS, DIM, Model, batched, data, items, last, taken
from helpers.runs.ways import each


@each("make", BACKENDS)
def test_rounds_are_those_of_the_longest_and_nodes_those_that_were_asked_for(make: Any) -> None:
    model, given = Model(), items(0, 3, 1, 5)
    run = batched(model.loop, backend=make(), module=model, rewrites=())
    for _ in range(2):
        np.testing.assert_allclose(run(given), [ab.eager(model.loop, item) for item in given], rtol=1e-12)
        assert last(run).rounds == 5
        assert last(run).nodes == sum(1 + n + n + 1 for _, n in given)  # data, turns, awaited totals, the result
        assert [r.waited for r in last(run).per_round] == [(1, 2, 3), (1, 3), (1, 3), (3,), (3,)]


def test_values_that_are_not_awaited_are_held_back_and_run_together() -> None:
    model = Model()

    async def program(item: tuple[Any, int]) -> Any:
        x, n = item
        losses = list[Any]()
        for _ in range(n):
            x = model.turn(x)
            losses.append(model.norm(x))
            model.norm(model.turn(x))  # without a reader
            await ab.value(model.total(x))
        return ab.sum_n(losses)

    run = batched(program, module=model, rewrites=())
    run(items(4, 2))
    assert [r.batches for r in last(run).per_round] == [3, 3, 3, 3]  # data or kept values; turns; totals
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


@each("make", BACKENDS)
def test_parameters_are_awaited_as_their_numbers(make: Any) -> None:
    model, seen = Model(), list[Any]()

    async def program(item: tuple[Any, int]) -> Any:
        x, n = item
        alone, parts = await ab.value(model.turning), await ab.value({"a": (model.turning, n), "x": x})
        y = model.turn(x)
        _, beside = await ab.value((y, [model.turning]))
        seen.extend((alone, parts["a"][0], beside[0]))
        assert parts["a"][1] == n
        if float(alone[n, 0]) > 0:
            y = model.turn(y * alone[0] + beside[0].T @ x)
        return model.total(y) * alone.sum()

    given = items(0, 1, 2, 1)
    run = batched(program, module=model, backend=make())
    for _ in range(2):
        np.testing.assert_allclose(run(given), [ab.eager(program, item) for item in given], rtol=1e-9)
        run.value_and_grad(given, inputs=True)
        for numbers in seen:
            assert isinstance(numbers, np.ndarray)
            assert not numbers.flags.writeable
            np.testing.assert_array_equal(numbers, model.turning.data)
        before = seen[0].copy()
        model.turning.data = -model.turning.data
        np.testing.assert_array_equal(seen[0], before)
        seen.clear()

    async def held(x: Any) -> Any:
        return model.total((await ab.value(model.turning)) @ model.turn(x))

    fixed = model.turning.data.copy()
    grads = batched(held, module=model, backend=make()).value_and_grad(data())[1]
    constant = batched(lambda x: model.total(fixed @ model.turn(x)), module=model, backend=make())
    np.testing.assert_allclose(grads["turning"], constant.value_and_grad(data())[1]["turning"], rtol=1e-9)


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


@pytest.mark.slow
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
        assert max(pool.before) == 0  # runs do not overlap
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
    assert run.last is not None
    assert run.last.unseen_share == 0, "policies are learned on the graphs of rounds"
    report = run.explain(given, training=True)
    assert "rounds" in str(report)
    run.profile(given, training=True)
