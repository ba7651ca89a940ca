"""Compare outputs and gradients of the cpu backend with those of the reference backend."""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference

RELATIVE = 1e-10


TOLERANCES = {"float32": 2e-5, "float64": RELATIVE}


def assert_equal(found: Any, expected: Any, relative: float = RELATIVE) -> None:
    """Compare structures of arrays, with a tolerance of `relative` times the largest number of each array."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other, relative)
        return
    if hasattr(expected, "c"):
        assert_equal((found.h, found.c), (expected.h, expected.c), relative)
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert np.all(np.abs(found - expected) <= relative * np.max(np.abs(expected), initial=1e-3))


def compare(function: Any, instances: list[Any], relative: float = RELATIVE, **options: Any) -> Cpu:
    """Compare a function on both backends, in inference and, if it has a loss, in training; return the cpu backend."""
    cpu = Cpu(poison=True)
    ours = ab.batched(function, backend=cpu, **options)
    theirs = ab.batched(function, backend=Reference(poison=True), **options)
    assert_equal(ours(instances), theirs(instances), relative)
    return cpu


def compare_gradients(
    function: Any, instances: list[Any], cpu: Cpu, relative: float = RELATIVE, has_aux: bool = False, **options: Any
) -> None:
    """Compare values and gradients of weighted losses on both backends."""
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(instances))
    ours = ab.batched(function, backend=cpu, **options)
    theirs = ab.batched(function, backend=Reference(poison=True), **options)
    found = ours.value_and_grad(instances, reduce=weights, has_aux=has_aux)
    assert_equal(found, theirs.value_and_grad(instances, reduce=weights, has_aux=has_aux), relative)
