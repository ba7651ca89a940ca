"""Loops that run in Python plan, and compute, what compiled ones do: whole steps, of every kind."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.jit.in_python import MODE
from autobatch.jit.loops import Compiled
from helpers.programs.random_programs import draw_instances, draw_model

OPTIONS: list[dict[str, Any]] = [
    {"policy": "auto"},
    {"policy": "agenda", "rewrites": "all"},
    {"policy": "depth", "max_bytes": 50_000},
    {"policy": "score"},
    {"policy": "search"},
    {"policy": "unbatched"},
]


def call_in_python(loop: Compiled[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a loop as if it waited for its machine code."""
    if not loop.waits:
        return loop.called(*args, **kwargs)
    return loop.python(*args, **kwargs) if MODE.in_python else loop._run_in_python(*args, **kwargs)


def n_batches(run: ab.Batched) -> int:
    assert run.last is not None
    return run.last.batches


def steps(seed: int, options: dict[str, Any]) -> list[Any]:
    """What two steps of training, and inference, give, and how many batches ran."""
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    instances = draw_instances(rng, model, 6)
    loss, everything = (ab.batched(f, backend="reference", **options) for f in (model.loss, model.everything))
    optimizer, found = ab.optim.Adam(model, lr=0.01), []
    for _ in range(2):
        values, grads = loss.value_and_grad(instances)
        optimizer.step(grads)
        found += [values, {name: np.asarray(g) for name, g in grads.items()}, n_batches(loss)]
    found += [loss(instances), n_batches(loss), everything(instances)]
    return [*found, {name: p.data for name, p in model.parameters().items()}]


@pytest.mark.cases(4, 40)
@pytest.mark.parametrize("seed", range(120))
def test_steps_without_compiled_loops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options = OPTIONS[seed % len(OPTIONS)]
    expected = steps(seed, options)
    monkeypatch.setattr(Compiled, "__call__", call_in_python)
    assert_equal(steps(seed, options), expected)


def assert_equal(found: Any, expected: Any) -> None:
    """Two structures of numbers, equal up to the rounding of float64."""
    assert type(found) is type(expected)
    if is_dataclass(expected):
        assert_equal(vars(found), vars(expected))
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
