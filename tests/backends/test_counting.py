"""Test backends on another device: the counting backend computes the same as the reference backend.

Outputs are bit-identical. The last bit of a gradient may differ where a parameter is read alone and in a stack, because
the device computes both sums separately.
"""

from __future__ import annotations

import gc
import weakref
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.errors import BackendError
from autobatch.ops.randomness import Randomness
from helpers.checkers.parity import assert_equal
from helpers.fakes.counting_backend import BorderError, Counting, CountingStore
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.recorded import module_of
from helpers.twins.cases import CASES, Case


def check(function: Any, instances: list[Any], has_aux: bool = False, **options: Any) -> Counting:
    """Check that outputs and gradients are equal; return the backend."""
    backend = Counting()
    ours = ab.batched(function, backend=backend, **options)
    theirs = ab.batched(function, backend=Reference(poison=True), **options)
    assert_equal(ours(instances), theirs(instances), 0)
    dtype = str(next(iter(module_of(ours).parameters().values())).dtype)
    found, expected = (loss.value_and_grad(instances, has_aux=has_aux) for loss in (ours, theirs))
    assert_equal(found[0], expected[0], 0)
    for name, gradient in expected[1].items():
        assert_equal(np.asarray(found[1][name]), np.asarray(gradient), 1e-14 if dtype == "float64" else 1e-6)
    return backend


@pytest.mark.cases(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models(case: Case) -> None:
    model, instances = case.draw(seed=0, n_instances=6, dim=5)
    backend = check(model.loss, instances)
    assert backend.store.put_bytes > 0
    assert backend.store.got_bytes > 0


@pytest.mark.slow
def test_random_programs() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=False)
        check(model.loss, draw_instances(rng, model, n=4), policy=("agenda", "score")[seed % 2])


def test_bf16_and_parts() -> None:
    model, instances = CASES[0].draw(seed=1, n_instances=8, dim=5)
    check(model.loss, instances, max_bytes=50_000)
    model.astype("float32")
    check(model.loss, instances, precision="bf16")


def test_what_is_on_the_host_does_not_mix_with_the_device() -> None:
    store, host = CountingStore(), np.ones(3)
    device = store.put(host)
    refused: list[Any] = [
        lambda: device + host, lambda: host + device, lambda: np.exp(device), lambda: np.where(device, 1, 0),
        lambda: np.asarray(device), lambda: device[host > 0], lambda: device.__setitem__(slice(None), host),
        lambda: host.__setitem__(slice(None), device), lambda: store.xp.add(device, host),
        lambda: store.xp.concatenate([device, host]), lambda: np.dot(device, device), lambda: bool(device),
    ]  # fmt: skip
    for mix in refused:
        with pytest.raises((BorderError, TypeError)):
            mix()


@pytest.mark.parametrize("make", [Reference, Cpu, Counting], ids=["reference", "cpu", "counting"])
def test_runs_of_one_function_are_alive_at_once(make: Any) -> None:
    """Three mini-batches run forward, and then each is differentiated, in the same order."""
    model, instances = CASES[0].draw(seed=2, n_instances=6, dim=5)
    loss, trainable = ab.batched(model.loss, backend=make()), model.parameters()
    expected, runs = [], []
    for part_of in (instances[:4], instances[2:], instances[:4]):
        (part,) = loss.prepare(part_of, training=True).parts
        n = part.graph.n_instances
        run = part.executable.begin(Randomness(0, 0, np.arange(n)))
        with run:
            run.forward()
        values, grads = loss.value_and_grad(part_of, reduce="sum")
        assert_equal(run.outputs[0].sum(), np.asarray(values), 1e-12)
        expected.append({name: np.array(gradient) for name, gradient in grads.items()})
        runs.append((run, n))
    for (run, n), wanted in zip(runs, expected, strict=True):
        found = {name: np.zeros_like(p.data) for name, p in trainable.items()}
        with run:
            run.backward({0: np.ones(n)}, {id(p): found[name] for name, p in trainable.items()})
        assert_equal(found, wanted, 1e-12)
        run.close()
    with pytest.raises(BackendError, match="it is already closed"):
        runs[0][0].backward({0: np.ones(4)}, {})


def test_a_run_is_differentiated_once_and_leaves_nothing_behind() -> None:
    """Backward overwrites what it reads. A run that fails or is closed releases its memory and is freed."""
    model, instances = CASES[0].draw(seed=3, n_instances=4, dim=5)
    for backend in (Reference(), Cpu()):
        (part,) = ab.batched(model.loss, backend=backend).prepare(instances, training=True).parts
        run = part.executable.begin(Randomness())
        gradients = {id(p): np.zeros_like(p.data) for p in model.parameters().values()}
        with run:
            run.forward()
            run.backward({0: np.ones(4)}, gradients)
            with pytest.raises(BackendError, match="it is already differentiated"):
                run.backward({0: np.ones(4)}, gradients)
        buffer = weakref.ref(run.memory.buffer if run.memory.buffer.base is None else run.memory.buffer.base)
        run.close()
        backend.pool.take().reserve(10 * part.plan.size, np.dtype(np.float64), None)
        gc.collect()
        assert buffer() is None
        with closing(part.executable.begin(Randomness(), Failing())) as run, run, pytest.raises(ZeroDivisionError):
            run.forward()
        with closing(part.executable.begin(Randomness())) as after, after:
            after.forward()
            assert after.counts().allocations == 0


class Failing:
    """A timer that raises and stops a run."""

    def mark(self, stage: str, batch: Any, end: float | None = None) -> None:
        raise ZeroDivisionError
