"""Random async programs have the same results in mini-batches, run in every way, as alone."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.graph.graph import Graph
from helpers.programs.random_rounds import Boom, Instance, RoundModel, minibatches
from host_device import HostDevice

SEED, RELATIVE = 3, 1e-10
POLICIES = ("agenda", "depth", "sufficient", "score", "unbatched", "critical", "score+both+compact")
BACKENDS: dict[str, Any] = {
    "reference": lambda: Reference(poison=True),
    "cpu": lambda: Cpu(poison=True),
}
if shutil.which("g++") is not None:
    BACKENDS["cuda"] = lambda: Cuda(poison=True, device=HostDevice())
MODEL = RoundModel()


def drawn(n: int, **options: Any) -> Callable[[Callable[[list[Instance]], None]], Callable[[], None]]:
    """Run a test on n random mini-batches."""

    def decorate(test: Callable[[list[Instance]], None]) -> Callable[[], None]:
        checks = list(HealthCheck)
        set_up = settings(deadline=None, max_examples=n, derandomize=True, database=None, suppress_health_check=checks)
        return set_up(given(minibatches(**options))(test))

    return decorate


@cache
def batched(backend: str, name: str = "everything", **options: Any) -> ab.Batched:
    """Return the function that all tests call, so that they reuse its log, tables and memory."""
    return ab.batched(getattr(MODEL, name), backend=BACKENDS[backend](), seed=SEED, **options)


def eager(instances: Sequence[Instance]) -> list[Any]:
    """Return the result of each instance alone, or its error."""
    found = list[Any]()
    for key, instance in enumerate(instances):
        with ab.randomness(SEED, 0, key):
            try:
                found.append(ab.eager(MODEL.everything, instance))
            except Boom as error:
                found.append(error)
    return found


def leaves(x: Any) -> list[Any]:
    return [leaf for part in x for leaf in leaves(part)] if isinstance(x, (list, tuple)) else [np.asarray(x)]


def assert_same(found: Any, expected: Any) -> None:
    """Check equality up to rounding, of structure and kinds of numbers."""
    if isinstance(expected, Boom):
        assert isinstance(found, Boom)
        return
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        assert one.shape == other.shape
        assert (one.dtype.kind == "i") == (other.dtype.kind == "i")
        np.testing.assert_allclose(one, other, rtol=RELATIVE, atol=RELATIVE)


def compare(run: ab.Batched, instances: Sequence[Any], expected: Sequence[Any]) -> None:
    """Compare a mini-batch with its instances run alone."""
    run.step = 0
    stacked = run(instances)
    found = stacked if isinstance(stacked, list) else zip(*stacked, strict=True)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def check_values(instances: list[Instance]) -> None:
    """Run on all backends, in at most as many rounds as the longest instance waits, and by all policies."""
    expected = eager(instances)
    depth = max(MODEL.depths[x.number] for x in instances)
    for name in BACKENDS:
        run = batched(name)
        compare(run, instances, expected)
        assert run.last is not None
        assert run.last.rounds <= depth
    run = batched("reference")
    for policy in POLICIES:
        run.policy = ab.policies.get(policy)
        compare(run, instances, expected)


def check_sizes(instances: list[Instance]) -> None:
    """Compare mini-batches of all sizes, recorded ones, and ones that run in parts; only requested nodes run."""
    run = batched("cpu", rewrites=())
    expected = eager(instances)
    compare(run, instances, expected)
    assert run.last is not None
    n_nodes = run.last.nodes
    graphs = run.record_all(instances)
    assert sum(graph.n_nodes for graph in graphs) == n_nodes
    compare(run, graphs, expected)
    with_little_memory(run, graphs, False, lambda: compare(run, instances, expected))
    for size in (1, 3 * len(instances)):
        some = (instances * 3)[:size]
        compare(run, some, eager(some))


def with_little_memory(run: ab.Batched, graphs: Sequence[Graph], training: bool, call: Callable[[], Any]) -> Any:
    """Call with 2, 4 or 8 times the memory of the largest instance: rounds keep values, so they may need more."""
    needed = max(run.prepare([graph], training).whole_bytes for graph in graphs)
    try:
        for times in (2, 4, 8):
            run.max_bytes = times * needed
            try:
                return call()
            except ab.PlanError:
                continue
        raise AssertionError(f"a round of an instance needs more than {run.max_bytes} bytes")
    finally:
        run.max_bytes = None


def check_errors(instances: list[Instance]) -> None:
    """Check that the error of an instance is returned in its place, or raised with its name."""
    expected = eager(instances)
    for name in BACKENDS:
        compare(batched(name, on_error="return"), instances, expected)
    failed = [k for k, x in enumerate(expected) if isinstance(x, Boom)]
    run = batched("reference")
    if failed:
        with pytest.raises(Boom, match="told so") as found:
            run(instances)
        assert any(f"instance {k} " in found.value.__notes__[0] for k in failed)
    else:
        compare(run, instances, expected)


def gradients(run: ab.Batched, instances: Sequence[Any], weights: Any) -> tuple[float, dict[str, Any]]:
    """Return the weighted loss and copies of its gradients."""
    run.step = 0
    value, grads = run.value_and_grad(instances, reduce=weights)
    return float(value), {name: np.array(grad) for name, grad in grads.items()}


def slope(instances: Sequence[Instance], weights: Any, along: dict[str, Any], size: float = 1e-5) -> float:
    """Return the central difference of the eager loss, with the values that programs awaited before."""
    parameters = MODEL.parameters()
    start = {name: parameter.data.copy() for name, parameter in parameters.items()}
    losses = list[float]()
    MODEL.holds = True
    try:
        for step in (size, -size):
            for name, parameter in parameters.items():
                parameter.data = start[name] + step * along[name]
            losses.append(float(weights @ [float(total) for total, _ in eager(instances)]))
    finally:
        MODEL.holds = False
        for name, parameter in parameters.items():
            parameter.data = start[name]
    return (losses[0] - losses[1]) / (2.0 * size)


def check_gradients(instances: list[Instance]) -> None:
    """Compare gradients of all backends, of recorded graphs and with little memory; check slopes."""
    weights = np.random.default_rng(len(instances)).uniform(0.5, 2.0, len(instances))
    expected = weights @ [float(total) for total, _ in eager(instances)]
    found = {name: gradients(batched(name, "loss"), instances, weights) for name in BACKENDS}
    run = batched("cpu", "loss")
    run.step = 0  # it has trained before
    graphs = run.record_all(instances)
    found["recorded"] = gradients(run, graphs, weights)
    found["in little memory"] = with_little_memory(run, graphs, True, lambda: gradients(run, instances, weights))
    for value, grads in found.values():
        np.testing.assert_allclose(value, expected, rtol=RELATIVE, atol=RELATIVE)
        for name, grad in grads.items():
            np.testing.assert_allclose(grad, found["reference"][1][name], rtol=RELATIVE, atol=RELATIVE)
    rng = np.random.default_rng(1)
    along = {name: rng.standard_normal(parameter.shape) for name, parameter in MODEL.parameters().items()}
    exact = sum(float((found["reference"][1][name] * v).sum()) for name, v in along.items())
    np.testing.assert_allclose(slope(instances, weights, along), exact, rtol=1e-5, atol=1e-6)


def check_threads(instances: list[Instance]) -> None:
    """Call one function from two threads at once, with different mini-batches."""
    run, failed = batched("cpu"), list[BaseException]()
    both = [(some, eager(some)) for some in (instances, instances[::-1])]

    def work(some: list[Instance], expected: list[Any]) -> None:
        try:
            for _ in range(3):
                compare(run, some, expected)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=one) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.slow
@drawn(15)
def test_values(instances: list[Instance]) -> None:
    check_values(instances)


@drawn(15)
def test_sizes(instances: list[Instance]) -> None:
    check_sizes(instances)


@pytest.mark.slow
@drawn(15, raises=True)
def test_errors(instances: list[Instance]) -> None:
    check_errors(instances)


@pytest.mark.slow
@drawn(15)
def test_gradients(instances: list[Instance]) -> None:
    check_gradients(instances)


@drawn(5)
def test_threads(instances: list[Instance]) -> None:
    check_threads(instances)


@pytest.mark.long
@drawn(200, depth=3, most=6)
def test_large_programs(instances: list[Instance]) -> None:
    check_values(instances)
    check_sizes(instances)
    check_gradients(instances)


@pytest.mark.long
@drawn(200, depth=3, most=6, raises=True)
def test_large_programs_that_raise(instances: list[Instance]) -> None:
    check_errors(instances)
