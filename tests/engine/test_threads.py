"""Test batched functions called from several threads: all results equal those of a single thread."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import InterpretedRun, Reference
from autobatch.system import locks
from helpers.fakes.noting_backend import NotedExecutable, NotingBackend
from helpers.runs.recorded import module_of

DIM = 3
BACKENDS: dict[str, Callable[[], Any]] = {"reference": Reference, "cpu": Cpu}


class Trees(ab.Module):
    """Sums over nested tuples of ints, with two matrices that planning makes adjacent."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.left, self.right = (ab.Parameter(rng.standard_normal((DIM, DIM))) for _ in range(2))
        self.table = ab.Parameter(rng.standard_normal((6, DIM)))
        self.astype("float64")

    @ab.cell
    def leaf(self, word: int) -> Any:
        return ab.lookup(self.table, word)

    @ab.cell
    def merge(self, a: Any, b: Any) -> Any:
        return ab.tanh(self.left @ a + self.right @ b)

    @ab.cell
    def turn(self, a: Any) -> Any:
        return ab.tanh(self.right @ a)

    def state(self, tree: Any) -> Any:
        return self.leaf(tree) if isinstance(tree, int) else self.merge(*map(self.state, tree))

    def loss(self, tree: Any) -> Any:
        return ab.sum(self.state(tree))

    def turned(self, tree: Any) -> Any:
        return ab.sum(self.turn(self.state(tree)) * 2.0)


def draw_tree(rng: np.random.Generator, depth: int = 3) -> Any:
    if depth == 0 or rng.random() < 0.3:
        return int(rng.integers(6))
    return draw_tree(rng, depth - 1), draw_tree(rng, depth - 1)


def draw_batches(n: int, seed: int = 0) -> list[list[Any]]:
    rng = np.random.default_rng(seed)
    return [[draw_tree(rng) for _ in range(rng.integers(1, 4))] for _ in range(n)]


def in_threads(*works: Callable[[], object], patience: float = 60.0) -> None:
    """Run each function in its own thread, started together; raise the first error."""
    start, errors = threading.Barrier(len(works)), list[BaseException]()

    def run(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if errors:
        raise errors[0]


class Expected:
    """The single-threaded results for each mini-batch, from the reference backend and a separate model."""

    def __init__(self, batches: list[list[Any]], name: str = "loss") -> None:
        run = ab.batched(getattr(Trees(), name), backend=Reference())
        self.batches, self.values, self.grads = batches, list[Any](), list[dict[str, Any]]()
        for batch in batches:
            value, grads = run.value_and_grad(batch, reduce="sum")
            self.values.append(value)
            self.grads.append({key: np.array(gradient) for key, gradient in grads.items()})

    def check(self, run: Any, n: int, seed: int, recorded: bool = False) -> None:
        """Call a function n times on random mini-batches, in training or inference, and compare each result."""
        rng = np.random.default_rng(seed)
        for k in rng.integers(len(self.batches), size=n).tolist():
            batch = run.record_all(self.batches[k]) if recorded and rng.random() < 0.5 else self.batches[k]
            if rng.random() < 0.5:
                np.testing.assert_allclose(run(batch).sum(), self.values[k], rtol=1e-12, atol=1e-12)
                continue
            value, grads = run.value_and_grad(batch, reduce="sum")
            np.testing.assert_allclose(value, self.values[k], rtol=1e-12, atol=1e-12)
            for key, gradient in grads.items():
                np.testing.assert_allclose(np.asarray(gradient), self.grads[k][key], rtol=1e-12, atol=1e-12)


def check_four_threads(backend: str, n_calls: int) -> None:
    """Check one function in four threads, with recordings in between and new types and sizes."""
    expected = Expected(draw_batches(12))
    run = ab.batched(Trees().loss, backend=BACKENDS[backend]())
    in_threads(
        *(lambda seed=seed: expected.check(run, n_calls // 4, seed, recorded=True) for seed in range(4)), patience=900.0
    )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_function_in_four_threads(backend: str) -> None:
    check_four_threads(backend, 120)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_function_in_four_threads_over_two_thousand_calls(backend: str) -> None:
    check_four_threads(backend, 2000)


@pytest.mark.slow
def test_one_compiled_function_in_four_threads_over_two_thousand_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "compiled", Cpu)
    check_four_threads("compiled", 2000)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["a model", "a model and a backend", "a copy"])
def test_functions_that_share(what: str, backend: str) -> None:
    """From the first call on, their plans place the same parameters in different orders."""
    batches = draw_batches(8, seed=1)
    names = ("loss", "loss") if what == "a copy" else ("loss", "turned")
    expected = [Expected(batches, name) for name in names]
    for seed in range(5):
        model, shared = Trees(), BACKENDS[backend]()
        backends = [shared if what == "a model and a backend" else BACKENDS[backend]() for _ in names]
        runs = [ab.batched(getattr(model, n), backend=b) for n, b in zip(names, backends, strict=True)]
        if what == "a copy":
            runs[1] = copy.copy(runs[0])
            runs[1].policy = ab.policies.get("agenda")
        in_threads(
            *(lambda e=e, r=r, s=seed: e.check(r, 10, s, recorded=True) for e, r in zip(expected, runs, strict=True))
        )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_beside_training_sees_whole_steps(backend: str) -> None:
    """They see parameters from before or after a step, never a mix, and so do stored copies."""
    model = Trees()
    for parameter in model.parameters().values():
        parameter.data = np.ones(parameter.shape)
    train = ab.batched(model.loss, backend=BACKENDS[backend]())
    infer = ab.batched(lambda _: [model.left[0], model.right[0], model.table[0]], module=model, backend="reference")
    optimizer = ab.optim.SGD(model, lr=1.0)
    batches, over = draw_batches(6), threading.Event()

    def work() -> None:
        for batch in batches * 5:
            _, grads = train.value_and_grad(batch)
            optimizer.step({name: np.ones(gradient.shape) for name, gradient in grads.items()})
        over.set()

    def look() -> None:
        while not over.is_set():
            assert len({float(number) for rows in infer([0, 1]) for row in rows for number in row}) == 1
            assert len({float(number) for array in model.state_dict().values() for number in array.ravel()}) == 1

    in_threads(work, look)
    assert float(model.left.data[0, 0]) == 1.0 - 30


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_in_a_thread_beside_inference_and_eager_calls_in_others(backend: str) -> None:
    """Each gets the results of its own function; seeds, steps and gradients are not mixed up."""

    def train(run: Any, losses: list[float]) -> None:
        optimizer = ab.optim.Adam(module_of(run), lr=0.01)
        for batch in draw_batches(15):
            value, grads = run.value_and_grad(batch)
            optimizer.step(grads)
            losses.append(float(value))

    alone, beside = list[float](), list[float]()
    train(ab.batched(Trees().loss, backend=BACKENDS[backend]()), alone)
    expected = Expected(draw_batches(8, seed=1))
    trained, kept = Trees(), Trees()
    fixed = ab.batched(kept.loss, backend=BACKENDS[backend]())
    eager = [kept.loss(batch[0]) for batch in draw_batches(8, seed=1)]

    def call_eagerly() -> None:
        for _ in range(5):
            for batch, number in zip(draw_batches(8, seed=1), eager, strict=True):
                assert kept.loss(batch[0]) == number

    in_threads(
        lambda: train(ab.batched(trained.loss, backend=BACKENDS[backend]()), beside),
        lambda: expected.check(fixed, 40, seed=0, recorded=True),
        call_eagerly,
    )
    assert beside == alone


def test_gradients_are_valid_until_the_next_call_of_the_same_thread() -> None:
    run = ab.batched(Trees().loss)
    _, mine = run.value_and_grad([(1, 2)])
    kept = {name: np.array(gradient) for name, gradient in mine.items()}
    in_threads(lambda: run.value_and_grad([(3, (4, 5))]))
    for name, gradient in mine.items():
        np.testing.assert_array_equal(np.asarray(gradient), kept[name])


def test_steps_are_counted_once_each() -> None:
    run = ab.batched(Trees().loss)

    def work() -> None:
        for _ in range(20):
            run.value_and_grad([(1, 2)])

    in_threads(*[work] * 4)
    assert run.step == 80


# Which calls wait for which.


def test_a_call_beside_a_recording_does_not_wait_for_it() -> None:
    """Optimizer steps and saving the model do not wait either. A recording may wait for those."""
    model, reached, done = Trees(), threading.Event(), threading.Event()

    def slow(tree: Any) -> Any:
        reached.set()
        assert done.wait(30)
        return model.loss(tree)

    run, slowly = ab.batched(model.loss), ab.batched(slow, module=model)
    graphs = run.record_all([(1, 2), (3, (4, 5))])
    expected = run(graphs)

    def work() -> None:
        assert reached.wait(30)
        np.testing.assert_array_equal(run(graphs), expected)
        _, grads = run.value_and_grad(graphs)
        ab.optim.SGD(model, lr=0.0).step(grads)
        model.load_state_dict(model.state_dict())
        assert run.settled
        done.set()

    in_threads(work, lambda: np.testing.assert_array_equal(slowly([(1, 2), (3, (4, 5))]), expected))


def test_a_batched_function_in_a_recording_is_refused() -> None:
    """With instances or graphs. The function remains usable."""
    model = Trees()
    run = ab.batched(model.loss)
    graphs = run.record_all([(1, 2)])
    uses: list[Callable[[], Any]] = [
        lambda: run([(1, 2)]), lambda: run(graphs), lambda: run.value_and_grad(graphs), lambda: run.explain(graphs),
        lambda: run.record_all([(1, 2)]),
    ]  # fmt: skip
    for use in uses:

        def nested(tree: Any, use: Callable[[], Any] = use) -> Any:
            use()
            return model.loss(tree)

        with pytest.raises(ab.AutobatchError, match="a batched function must not be called inside a recorded"):
            ab.batched(nested, module=model)([(1, 2)])
    assert run(graphs).shape == (1,)


def test_a_policy_may_call_another_batched_function() -> None:
    """It runs within the turn of the call that asked for it."""
    model = Trees()
    run = ab.batched(model.turned)
    asked = list[Any]()

    class Asking:
        name = "asking"

        def schedule(self, graph: Any) -> Any:
            asked.append(run([(1, 2)]))
            return ab.policies.get("agenda").schedule(graph)

    in_threads(*[lambda: ab.batched(model.loss, policy=Asking())([(1, 2), 3])] * 2)
    assert len(asked) == 2


def test_an_error_or_an_interrupt_lets_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Trees()
    run, broken = ab.batched(model.loss), ab.batched(model.loss)

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    for name in ("__init__", "backward"):
        with monkeypatch.context() as patch:
            patch.setattr(InterpretedRun, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                broken.value_and_grad([(1, 2)])
    in_threads(lambda: run.value_and_grad([(1, 2)]), lambda: broken.value_and_grad([(1, 2)]))


def test_threads_come_in_the_order_in_which_they_ask() -> None:
    """A thread that calls again immediately comes after the waiting ones."""
    first = list[str]()
    for _ in range(20):
        order = list[str]()

        def wait(order: list[str] = order) -> None:
            with locks.run_lock():
                order.append("waiting")

        thread = threading.Thread(target=wait)
        with locks.run_lock(), locks.run_lock():
            thread.start()
            while not locks._locks.next.locked():
                time.sleep(0.001)
        with locks.run_lock():
            order.append("back")
        thread.join()
        first.append(order[0])
    assert first.count("waiting") > 15


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_process_does_not_wait_for_threads_that_it_does_not_have() -> None:
    model, reached, done = Trees(), threading.Event(), threading.Event()
    run: Any = ab.batched(model.loss)
    expected = run([(1, 2)])

    def wait(executable: NotedExecutable) -> None:
        reached.set()
        assert done.wait(30)

    def run_in_the_thread() -> None:
        with run.recorder.types.growing.lock:
            run([(1, 2)])

    run.backend = NotingBackend(run.backend, on_run=wait)
    thread = threading.Thread(target=run_in_the_thread)
    thread.start()
    assert reached.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # kills the child if it hangs
        with run.recorder.types.growing.lock:
            pass
        os._exit(0 if np.array_equal(ab.batched(model.loss)([(1, 2)]), expected) else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
