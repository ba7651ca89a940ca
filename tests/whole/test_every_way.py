"""Every model that has a twin, by every policy on every backend: losses and gradients are the twin's.

The models of `CASES` are slow here: they are quick in the tests of each backend.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.devices.host import HostDevice
from autobatch.runtime.backend import Backend
from autobatch.runtime.cpu.backend import Cpu
from autobatch.runtime.cuda.backend import Cuda
from autobatch.runtime.interpreter.reference import Reference
from parity import assert_equal
from twin_cases import AWAITING, CASES, MORE, Case

POLICIES = ("auto", "unbatched", "depth", "agenda", "sufficient", "critical", "score+both+compact", "search")
TO_TWIN = 1e-9
BACKENDS: dict[str, Callable[[], Backend]] = {
    "reference": lambda: Reference(poison=True),
    "cpu": lambda: Cpu(poison=True, jitted=False),
    "cuda": lambda: Cuda(poison=True, device=HostDevice()),
}
needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="builds kernels for the processor by g++")


every_case = pytest.mark.parametrize(
    "case",
    [*(pytest.param(case, marks=pytest.mark.slow) for case in CASES), *MORE, *AWAITING],
    ids=lambda case: case.name,
)


@every_case
@pytest.mark.parametrize("backend", ["reference", "cpu", pytest.param("cuda", marks=needs_a_compiler)])
def test_every_policy_gives_what_the_twin_gives(case: Case, backend: str) -> None:
    model, instances = case.draw(seed=2, n_instances=5, dim=4)
    twin = case.make_twin(model.state_dict())
    losses = torch.stack([twin.loss(instance) for instance in instances])
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(instances))
    (losses * torch.from_numpy(weights)).sum().backward()  # type: ignore[no-untyped-call]
    expected = {name: parameter.grad.numpy() for name, parameter in twin.named_parameters()}
    for policy in POLICIES:
        loss = ab.batched(model.loss, policy=policy, backend=BACKENDS[backend]())
        value, grads = loss.value_and_grad(instances, reduce=weights)
        assert_equal(value, (losses.detach().numpy() * weights).sum(), TO_TWIN)
        found = {case.name_in_twin(name): np.asarray(gradient) for name, gradient in grads.items()}
        assert_equal(dict(sorted(found.items())), dict(sorted(expected.items())), TO_TWIN)
