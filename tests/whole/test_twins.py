"""Every model, compiled: batched results equal eager ones and those of the PyTorch twin, and training works.

The models of `MORE` are slow here, because `test_every_way.py` compares them with their twins uncompiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.models import find_model
from helpers.runs.ways import each
from helpers.twins.cases import AWAITING, CASES, MORE, Case

SEEDS = range(3)
TO_EAGER = 1e-10
TO_TWIN = 1e-9

DECIDING = [case for case in MORE if find_model(case.model).predictor != "scores"] + AWAITING


def each_case(*cases: Case) -> pytest.MarkDecorator:
    """Run a test for each of these cases."""
    slow = pytest.mark.slow
    params = [pytest.param(case, marks=slow) if case in MORE else case for case in cases]
    return pytest.mark.parametrize("case", params, ids=lambda case: case.name)


every_case = each_case(*CASES, *MORE, *AWAITING)
scoring_case = each_case(*CASES, *MORE)
deciding_case = each_case(*DECIDING)
POLICIES = ("unbatched", "depth", "agenda")
every_policy = each("policy", POLICIES)


def relative(found: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest expected number unless that is zero."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    return float(np.max(np.abs(found - expected)) / (np.max(np.abs(expected)) or 1.0))


@pytest.mark.cases(1, 16)
@every_case
@every_policy
@each("seed", SEEDS)
def test_batched_losses_are_the_eager_ones(case: Case, policy: str, seed: int) -> None:
    model, instances = case.draw(seed, n_instances=8, dim=6)
    loss = ab.batched(model.loss, policy=policy)
    expected = [float(model.loss(instance)) for instance in instances]
    assert relative(loss(instances), expected) < TO_EAGER
    assert relative(loss(loss.record_all(instances)), expected) < TO_EAGER


@pytest.mark.cases(1, 16)
@every_case
@each("seed", SEEDS)
def test_losses_and_gradients_are_the_twins(case: Case, seed: int) -> None:
    model, instances = case.draw(seed, n_instances=8, dim=6)
    twin = case.make_twin(model.state_dict())
    twin_losses = torch.stack([twin.loss(instance) for instance in instances])
    twin_losses.mean().backward()  # type: ignore[no-untyped-call]
    expected = {name: parameter.grad for name, parameter in twin.named_parameters()}

    for policy in POLICIES:
        loss = ab.batched(model.loss, policy=policy)
        value, grads = loss.value_and_grad(instances)
        assert relative(loss(instances), twin_losses.detach()) < TO_TWIN, policy
        assert relative(value, twin_losses.detach().mean()) < TO_TWIN, policy
        assert sorted(map(case.name_in_twin, grads)) == sorted(expected), policy
        for name, gradient in grads.items():
            assert relative(gradient, expected[case.name_in_twin(name)]) < TO_TWIN, (policy, name)


@pytest.mark.cases(3)
@scoring_case
@every_policy
def test_scores_are_the_twins(case: Case, policy: str) -> None:
    model, instances = case.draw(0, n_instances=8, dim=6)
    twin = case.make_twin(model.state_dict())
    scores = case.place_scores(ab.batched(model.scores, policy=policy)(instances))
    for found, instance in zip(scores, instances, strict=True):
        expected = twin.scores(instance).detach()
        assert len(found) == len(expected)
        if len(expected):
            assert relative(found, expected) < TO_TWIN


@pytest.mark.cases(1)
@deciding_case
def test_decisions_are_the_twins(case: Case) -> None:
    """After some training steps, so that decisions differ between instances; eagerly and in rounds."""
    model, instances = case.draw(0, n_instances=12, dim=8)
    train(model, instances, n_steps=20)
    twin, spec = case.make_twin(model.state_dict()), find_model(case.model)
    given, predictor = [spec.given(instance) for instance in instances], getattr(model, spec.predictor)
    expected = [getattr(twin, spec.predictor)(one) for one in given]
    assert len(set(map(repr, expected))) > 2
    assert [ab.eager(predictor, one) for one in given] == expected
    for policy, backend in zip(POLICIES, ("reference", "cpu", "cpu"), strict=True):
        found = ab.batched(predictor, policy=policy, backend=backend)(given)
        assert (list(zip(*found, strict=True)) if isinstance(found, tuple) else found) == expected, (policy, backend)


@pytest.mark.cases(1, 16)
@every_case
def test_a_few_steps_lower_the_loss(case: Case) -> None:
    model, instances = case.draw(1, n_instances=32, dim=16)
    loss = ab.batched(model.loss)
    before = loss(instances).mean()
    train(model, instances, n_steps=30)
    assert loss(instances).mean() < 0.5 * before


def train(model: Any, instances: list[Any], n_steps: int) -> None:
    loss = ab.batched(model.loss)
    optimizer = ab.optim.Adam(model, lr=3e-2)
    graphs = loss.record_all(instances)
    for _ in range(n_steps):
        _, grads = loss.value_and_grad(graphs)
        optimizer.step(grads)
