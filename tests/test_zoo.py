"""The zoo: every model gives, eagerly and batched, on both backends, what its PyTorch twin gives, and the gradients."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.executor import Backend
from autobatch.executor.cpu import Cpu
from autobatch.executor.reference import Reference
from zoo import dynamic, first, graphs, language, latent, machines, products, seq2seq, sets, taggers, transformer, trees
from zoo.case import Case, to_torch

FAMILIES = (first, products, trees, seq2seq, transformer, graphs, taggers, machines, language, sets, latent, dynamic)
CASES = [case for family in FAMILIES for case in family.CASES]
POLICIES = ("auto", "depth", "agenda", "sufficient", "critical", "score+both+compact", "unbatched")
RELATIVE = 1e-9
N_INSTANCES, N_ALONE = 64, 2
COMPILED = (
    "perceptron", "sum of a layer", "W @ ones", "strided weights", "scaled columns", "child-sum tree-lstm", "mv-rnn",
    "seq2seq with additive attention", "graph network, maxima", "character and word bilstm with a crf",
    "neural turing machine", "tied twice", "memory network", "hyper rnn", "ctc",
)  # fmt: skip

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


class Expected(NamedTuple):
    """What the twin says of some instances of a model: the losses, and the gradients of each."""

    model: Any
    instances: list[Any]
    losses: Any
    gradients: list[dict[str, Any]]

    def gradient(self, chosen: slice) -> dict[str, Any]:
        """The gradients of the sum of some losses."""
        return {name: sum(one[name] for one in self.gradients[chosen]) for name in self.gradients[0]}


@cache
def ask_twin(case: Case) -> Expected:
    rng = np.random.default_rng(1)
    model = case.make(rng).astype("float64")
    instances = [case.draw(rng) for _ in range(N_INSTANCES)]
    losses, gradients = [], []
    for instance in instances:
        weights = to_torch(model)
        loss = case.twin(weights, instance)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        gradients.append({n: np.zeros(w.shape) if w.grad is None else w.grad.numpy() for n, w in weights.items()})
    return Expected(model, instances, np.array(losses), gradients)


def assert_close(found: Any, expected: Any, what: str) -> None:
    """Equal up to rounding, relative to the largest number."""
    found = np.asarray(found)
    assert found.shape == np.shape(expected), what
    error = np.max(np.abs(found - expected), initial=0.0)
    assert error <= RELATIVE * np.max(np.abs(expected), initial=1e-3), what


def check(case: Case, backend: Backend, policy: str) -> None:
    """Compare losses and gradients of all instances at once, and of some alone."""
    twin = ask_twin(case)
    loss = ab.batched(twin.model.loss, backend=backend, policy=policy)
    for chosen in (slice(0, N_INSTANCES), *(slice(i, i + 1) for i in range(N_ALONE))):
        instances = twin.instances[chosen]
        assert_close(loss(instances), twin.losses[chosen], "losses")
        value, found = loss.value_and_grad(instances, reduce="sum")
        assert_close(value, twin.losses[chosen].sum(), "sum of losses")
        expected = twin.gradient(chosen)
        assert sorted(found) == sorted(expected)
        for name, gradient in found.items():
            assert_close(gradient, expected[name], f"gradient of {name}")


@every_case
def test_eager_losses_are_the_twins(case: Case) -> None:
    twin = ask_twin(case)
    assert_close([float(twin.model.loss(instance)) for instance in twin.instances], twin.losses, "losses")


@every_case
def test_reference_is_the_twin(case: Case) -> None:
    check(case, Reference(poison=True), POLICIES[CASES.index(case) % len(POLICIES)])


@every_case
def test_cpu_is_the_twin(case: Case) -> None:
    check(case, Cpu(poison=True, jitted=False), POLICIES[(CASES.index(case) + 3) % len(POLICIES)])


@pytest.mark.slow
@every_case
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_same(case: Case, policy: str) -> None:
    check(case, Cpu(poison=True, jitted=False), policy)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.name in COMPILED], ids=lambda case: case.name)
def test_compiled_is_the_twin(case: Case) -> None:
    check(case, Cpu(poison=True, jitted=True), "auto")
