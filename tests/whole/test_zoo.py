"""Every model of the zoo equals its PyTorch twin, eagerly and batched, on both backends, in values and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.backends.base import Backend
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from helpers.zoo.case import Case, to_torch
from helpers.zoo.cases import CASES

POLICIES = ("auto", "depth", "agenda", "sufficient", "critical", "score+both+compact", "unbatched")
RELATIVE = 1e-9
N_INSTANCES, N_ALONE = 64, 2
COMPILED = (
    "perceptron", "sum of a layer", "W @ ones", "strided weights", "scaled columns", "child-sum tree-lstm",
    "mv-rnn of full rank", "seq2seq with additive attention", "graph network, maxima",
    "character and word bilstm with a crf", "neural turing machine", "tied twice", "memory network", "hyper rnn", "ctc",
    "gates of children", "gated edges",
)  # fmt: skip

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """The twins' products are so small that several threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def draw(case: Case) -> tuple[Any, list[Any]]:
    """Draw a float64 model and instances."""
    rng = np.random.default_rng(1)
    model = case.make(rng).astype("float64")
    return model, [case.draw(rng) for _ in range(N_INSTANCES)]


@cache
def ask_twin(case: Case, start: int, stop: int) -> tuple[Any, dict[str, Any]]:
    """Return the twin's losses of some instances, and the gradients of their sum."""
    model, instances = draw(case)
    weights = to_torch(model)
    losses = torch.stack([case.twin(weights, instance) for instance in instances[start:stop]])
    losses.sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: np.zeros(w.shape) if w.grad is None else w.grad.numpy() for name, w in weights.items()}
    return losses.detach().numpy(), gradients


def assert_close(found: Any, expected: Any, what: str) -> None:
    """Check equality up to rounding, relative to the largest expected number."""
    found = np.asarray(found)
    assert found.shape == np.shape(expected), what
    error = np.max(np.abs(found - expected), initial=0.0)
    assert error <= RELATIVE * np.max(np.abs(expected), initial=1e-3), what


def check(case: Case, backend: Backend, policy: str) -> None:
    """Compare losses and gradients of all instances at once, and of some alone."""
    model, instances = draw(case)
    loss = ab.batched(model.loss, backend=backend, policy=policy)
    for start, stop in ((0, N_INSTANCES), *((i, i + 1) for i in range(N_ALONE))):
        losses, gradients = ask_twin(case, start, stop)
        assert_close(loss(instances[start:stop]), losses, "losses")
        value, found = loss.value_and_grad(instances[start:stop], reduce="sum")
        assert_close(value, losses.sum(), "sum of losses")
        assert sorted(found) == sorted(gradients)
        for name, gradient in found.items():
            assert_close(gradient, gradients[name], f"gradient of {name}")


@pytest.mark.cases(1)
@every_case
def test_eager_and_batched_on_both_backends_are_the_twin(case: Case) -> None:
    model, instances = draw(case)
    losses, _ = ask_twin(case, 0, N_INSTANCES)
    assert_close([float(model.loss(instance)) for instance in instances], losses, "losses")
    check(case, Reference(poison=True), POLICIES[CASES.index(case) % len(POLICIES)])
    check(case, Cpu(poison=True), POLICIES[(CASES.index(case) + 3) % len(POLICIES)])


def pairs() -> list[tuple[Case, str]]:
    """Return all pairs of cases and policies; the first ones have every case once, with policies in turn."""
    n = len(POLICIES)
    return [(case, POLICIES[(k + turn) % n]) for turn in range(n) for k, case in enumerate(CASES)]


@pytest.mark.cases(0, len(CASES))
@pytest.mark.parametrize("pair", pairs(), ids=lambda pair: f"{pair[0].name}-{pair[1]}")
def test_every_policy_gives_the_same(pair: tuple[Case, str]) -> None:
    case, policy = pair
    check(case, Cpu(poison=True), policy)


@pytest.mark.cases(0, 6)
@pytest.mark.parametrize("case", [case for case in CASES if case.name in COMPILED], ids=lambda case: case.name)
def test_compiled_is_the_twin(case: Case) -> None:
    check(case, Cpu(poison=True), "auto")
