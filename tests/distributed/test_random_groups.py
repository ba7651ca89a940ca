"""Test random programs over random DAGs, divided arbitrarily among processes: values and gradients of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.engine.session import GradientRequest
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.processes import run_processes

PER_TEST, N_PROGRAMS = 10, 200


def differentiate(rank: int, n: int, start: int) -> list[str]:
    """Describe what is wrong with a group's gradients, for some random models."""
    wrong = []
    with ab.distributed.group():
        for seed in range(start, start + PER_TEST):
            rng = np.random.default_rng(seed)
            model = draw_model(rng, smooth=True)
            instances = draw_instances(rng, model, int(rng.integers(1, 9)))
            options: dict[str, Any] = {
                "policy": str(rng.choice(["auto", "agenda", "depth"])),
                "max_bytes": None if rng.random() < 0.5 else 1 << 17,
            }
            recorded, reduce = bool(rng.random() < 0.5), str(rng.choice(["mean", "sum"]))
            both = [ab.batched(model.everything, **options) for _ in range(2)]
            alone, together = [loss.record_all(instances) if recorded else instances for loss in both]
            try:
                (value, _), grads = both[0].differentiate(alone, GradientRequest(reduce, True, None, False, None))
                value, grads = float(value), {name: np.array(g) for name, g in grads.items()}
                (share,) = ab.distributed.shares(together, len(instances), rng if recorded else None)
                (found, _), others = both[1].value_and_grad(share, reduce, has_aux=True)
            except ab.NumericError:
                continue
            scale = max(1.0, *(float(np.abs(g).max(initial=0.0)) for g in grads.values()))
            if abs(found - value) > 1e-11 * max(1.0, abs(value)):
                wrong.append(f"{seed}: value {found} and not {value}")
            wrong += [
                f"{seed}: gradient of {name}"
                for name, g in grads.items()
                if not np.allclose(np.asarray(others[name]), g, rtol=1e-10, atol=1e-11 * scale)
            ]
    return wrong


@pytest.mark.cases(0, 3)
@pytest.mark.parametrize("start", range(0, N_PROGRAMS, PER_TEST))
def test_random_programs_have_the_gradients_of_one_process(start: int, tmp_path: Path) -> None:
    n = 2 + start // PER_TEST % 3
    assert run_processes(n, tmp_path, differentiate, n, start) == [[]] * n
