"""Losses and gradients of every model, by every policy, on every backend, equal those of the model's twin.

The models of `CASES` are slow here, because the tests of each backend run them already.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch import policies
from autobatch.backends.base import Backend
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.models import MODELS
from helpers.checkers.parity import assert_equal
from helpers.twins.case import Case
from helpers.twins.cases import AWAITING, CASES, MORE
from host_device import HostDevice

EVERY = [*CASES, *MORE, *AWAITING]
POLICIES = ("auto", *policies.names(), "score+both+compact")
LEARNED = "learned"
TO_TWIN = 1e-9
BACKENDS: dict[str, Callable[[], Backend]] = {
    "reference": lambda: Reference(poison=True),
    "cpu": lambda: Cpu(poison=True),
    "cuda": lambda: Cuda(poison=True, device=HostDevice()),
}
needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="builds kernels for the processor by g++")

every_case = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow) if case in CASES else case for case in EVERY],
    ids=lambda case: case.name,
)


def test_every_model_has_a_twin() -> None:
    assert {case.model for case in EVERY} == set(MODELS)


@cache
def ask_twin(case: Case) -> tuple[Any, list[Any], Any, Any, Mapping[str, Any]]:
    """Return a model, instances, the twin's losses, weights, and the gradients of the weighted sum of losses."""
    model, instances = case.draw(seed=2, n_instances=4, dim=4)
    twin = case.make_twin(model.state_dict())
    losses = torch.stack([twin.loss(instance) for instance in instances])
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(instances))
    (losses * torch.from_numpy(weights)).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad.numpy() for name, parameter in twin.named_parameters()}
    return model, instances, losses.detach().numpy(), weights, dict(sorted(gradients.items()))


@pytest.mark.cases(1)
@every_case
@pytest.mark.parametrize("backend", ["reference", "cpu", pytest.param("cuda", marks=needs_a_compiler)])
def test_every_policy_gives_what_the_twin_gives(case: Case, backend: str) -> None:
    """Losses are also computed without gradients, which keeps less in memory."""
    model, instances, losses, weights, expected = ask_twin(case)
    loss = ab.batched(model.loss, backend=BACKENDS[backend]())
    for policy in (*POLICIES, LEARNED):
        if policy == LEARNED:
            loss.learn_policy([instances], seed=0)
        else:
            loss.policy = policies.get(policy, backend)
        assert_equal(loss(instances), losses, TO_TWIN)
        value, gradients = loss.value_and_grad(instances, reduce=weights)
        assert_equal(value, losses @ weights, TO_TWIN)
        found = {case.name_in_twin(name): np.asarray(gradient) for name, gradient in gradients.items()}
        assert_equal(dict(sorted(found.items())), expected, TO_TWIN)
