"""Random async programs give in mini-batches what they give alone, in every way in which they can be run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import autobatch as ab
from autobatch.devices.host import HostDevice
from autobatch.runtime.cpu.backend import Cpu
from autobatch.runtime.cuda.backend import Cuda
from autobatch.runtime.interpreter.reference import Reference
from random_rounds import Boom, Instance, RoundModel

SEED, RELATIVE = 3, 1e-10
POLICIES = ("agenda", "depth", "sufficient", "score", "unbatched", "critical", "score+both+compact")
BACKENDS: dict[str, Any] = {
    "reference": lambda: Reference(poison=True),
    "cpu": lambda: Cpu(poison=True, jitted=False),
}
if shutil.which("g++") is not None:
    BACKENDS["cuda"] = lambda: Cuda(poison=True, device=HostDevice())
MODEL = RoundModel()
quick = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True)
long = settings(deadline=None, max_examples=1000, suppress_health_check=list(HealthCheck))


@cache
def batched(backend: str, name: str = "everything", **options: Any) -> ab.Batched:
    """The function that all tests call, so that its handles, tables and memory are used again and again."""
    return ab.batched(getattr(MODEL, name), backend=BACKENDS[backend](), seed=SEED, **options)


def eager(instances: Sequence[Instance]) -> list[Any]:
    """What each instance gives alone, or raises."""
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
    """Equal to rounding, in structure and kind of number."""
    if isinstance(expected, Boom):
        assert isinstance(found, Boom)
        return
    pairs = list(zip(leaves(found), leaves(expected), strict=True))
    for one, other in pairs:
        assert one.shape == other.shape
        assert (one.dtype.kind == "i") == (other.dtype.kind == "i")
        np.testing.assert_allclose(one, other, rtol=RELATIVE, atol=RELATIVE)


def compare(run: ab.Batched, instances: Sequence[Instance], expected: Sequence[Any]) -> None:
    """Compare a mini-batch with its instances alone."""
    run.step = 0
    for found, one in zip(per_instance(run(instances), len(instances)), expected, strict=True):
        assert_same(found, one)


def per_instance(found: Any, n: int) -> list[Any]:
    return found if isinstance(found, list) else [(found[0][k], found[1][k]) for k in range(n)]


def check_values(instances: Sequence[Instance]) -> None:
    """Compare in all ways."""
    expected = eager(instances)
    depth = max(MODEL.depths[x.number] for x in instances)
    for backend in BACKENDS:
        run = batched(backend)
        compare(run, instances, expected)
        assert run.last is not None
        assert run.last.rounds <= depth
    for policy in POLICIES:
        run.policy = ab.policies.get(policy)
        compare(run, instances, expected)


def check_errors(instances: Sequence[Instance]) -> None:
    """Of instances that raise, alone and in gathered branches, the error is returned in their place, or raised."""
    expected = eager(instances)
    for backend in BACKENDS:
        compare(batched(backend, on_error="return"), instances, expected)
    run = batched("reference")
    if any(isinstance(x, Boom) for x in expected):
        with pytest.raises(Boom, match="told so") as found:
            run(instances)
        assert any(f"instance {k} " in found.value.__notes__[0] for k, x in enumerate(expected) if isinstance(x, Boom))
    else:
        compare(run, instances, expected)


def gradients(run: ab.Batched, instances: Sequence[Instance], weights: Any) -> tuple[float, dict[str, Any]]:
    """The weighted loss and its gradients, as arrays of their own."""
    run.step = 0
    value, grads = run.value_and_grad(instances, reduce=weights)
    return float(value), {name: np.array(grad) for name, grad in grads.items()}


def slope(instances: Sequence[Instance], weights: Any, along: dict[str, Any], size: float = 1e-5) -> float:
    """The central difference of the eager loss, in which programs are told what they were told before."""
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


def check_gradients(instances: Sequence[Instance]) -> None:
    """All backends agree, also where too little memory makes training run the whole graph again; and so do slopes."""
    weights = np.random.default_rng(len(instances)).uniform(0.5, 2.0, len(instances))
    expected = weights @ [float(total) for total, _ in eager(instances)]
    found = {name: gradients(batched(name, "loss"), instances, weights) for name in BACKENDS}
    tight = batched("reference", "loss", max_bytes=4000)
    found["parts"] = gradients(tight, instances, weights)
    for value, grads in found.values():
        np.testing.assert_allclose(value, expected, rtol=RELATIVE, atol=RELATIVE)
        for name, grad in grads.items():
            np.testing.assert_allclose(grad, found["reference"][1][name], rtol=RELATIVE, atol=RELATIVE)
    rng = np.random.default_rng(1)
    along = {name: rng.standard_normal(parameter.shape) for name, parameter in MODEL.parameters().items()}
    exact = sum(float((found["reference"][1][name] * v).sum()) for name, v in along.items())
    np.testing.assert_allclose(slope(instances, weights, along), exact, rtol=1e-5, atol=1e-6)
