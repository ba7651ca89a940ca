"""Test models of plain torch modules: AdamW steps equal those of one instance at a time, whatever runs the cells."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

import autobatch.torch as abt
from helpers.models.torch_modules import CASES
from helpers.runs.tensors_on_device import TorchDevice
from helpers.runs.ways import each

BOUND = 1e-10
every_model = each("name", CASES)
every_way = each("runs", ("autobatch", "torch"))


def make(name: str, runs: str = "auto") -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    return CASES[name](runs)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    found, expected = found.detach(), expected.detach()
    largest = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=0, atol=BOUND * largest)


@every_model
@every_way
@pytest.mark.parametrize("backend", ["reference", pytest.param("cpu", marks=pytest.mark.slow)])
def test_training_is_that_of_one_instance_at_a_time(name: str, runs: str, backend: str) -> None:
    check_training(*make(name, runs), backend)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_training_on_a_device_is_that_of_one_instance_at_a_time(name: str, tensors: TorchDevice) -> None:
    model, instances = make(name)
    tensors.hold(model)
    check_training(model, instances, "auto")
    assert all(p.is_contiguous() for p in model.parameters())  # which fused optimizers of GPUs need


def check_training(model: Any, instances: list[Any], backend: str) -> None:
    """Train a model by three steps, batched and one instance at a time."""
    alone = deepcopy(model)
    loss = abt.batched(model.loss, backend=backend)
    steps = [torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1) for m in (model, alone)]
    for number in range(3):
        batch = instances[number % 2 :]
        losses, expected = loss(batch), torch.stack([alone.loss(x) for x in batch])
        assert_close(losses, expected)
        for optimizer, values in zip(steps, (losses, expected), strict=True):
            optimizer.zero_grad()
            (values * torch.arange(1.0, 1 + len(batch)).to(values)).sum().backward()
        for (what, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert p.grad is not None, what
            assert_close(p.grad, q.grad)
        for optimizer in steps:
            optimizer.step()
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(p.data, q.data)


@every_model
def test_recorded_graphs_give_the_same(name: str) -> None:
    model, instances = make(name)
    loss = abt.batched(model.loss, backend="reference")
    graphs = loss.record_all(instances)
    assert torch.equal(loss(graphs), loss(instances))
    with torch.no_grad():
        assert not loss(graphs).requires_grad
        assert_close(loss(graphs), torch.stack([model.loss(x) for x in instances]))


@pytest.mark.slow
@every_model
def test_parts_that_fit_give_the_same(name: str) -> None:
    model, instances = make(name)
    whole = abt.batched(model.loss, backend="reference")
    n_bytes = whole.explain(instances, training=False).planned_bytes
    parts = abt.batched(model.loss, backend="reference", max_bytes=4 * n_bytes)
    for loss in (whole, parts):
        torch.autograd.backward(loss(instances).sum())
    assert parts.last.parts > 1
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.autograd.backward(torch.stack([model.loss(x) for x in instances]).sum())
    for found, p in zip(gradients, model.parameters(), strict=True):
        assert_close(found, 2 * p.grad)


def test_a_tree_runs_in_as_few_batches_as_with_our_own_cells() -> None:
    model, trees = make("tree")
    report = abt.batched(model.loss, backend="reference").explain(trees)
    assert report.optimal
    assert {t.name for t in report.types} == {"Leaf", "Merge", "Classify", "sum_n"}


def test_sums_over_the_words_of_a_lattice_are_folded() -> None:
    model, lattices = make("lattice")
    report = abt.batched(model.loss, backend="reference").explain(lattices)
    assert report.rewrites.folded > 0
    assert "stack" not in {t.name for t in report.types}


def test_decoding_waits_for_its_own_values() -> None:
    model, pairs = make("seq2seq")
    sources = [pair.source for pair in pairs]
    found = abt.batched(model.translate, backend="reference")(sources)
    assert {*map(len, found)} == {0, 1}

    def alone(source: list[int]) -> list[int]:
        h, memory = model.encode(source)
        word, words = model.end, list[int]()
        while len(words) < 10:
            h, logits = model.write(word, h, memory)
            word = int(logits.argmax())
            if word == model.end:
                break
            words.append(word)
        return words

    with torch.no_grad():
        assert found == [alone(source) for source in sources]


def test_policies_are_learned_and_compared() -> None:
    model, trees = make("tree")
    loss = abt.batched(model.loss, backend="reference", policy="depth")
    before = loss(trees)
    loss.learn_policy([trees], seed=0)
    assert_close(loss(trees), before.detach())
    assert loss.policy.name != "depth"


@pytest.mark.parametrize("name", ["tree", "tagger"])
def test_float32_too(name: str) -> None:
    model, instances = make(name)
    model.float()
    losses = abt.batched(model.loss, backend="reference")(instances)
    expected = torch.stack([model.loss(x) for x in instances])
    assert losses.dtype == expected.dtype == torch.float32
    assert torch.allclose(losses, expected, rtol=1e-5)
