"""Gradients of the float arrays of instances equal central differences and torch's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.trace.inputs import Held
from helpers.fakes.counting_backend import Counting
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.ways import each

BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": lambda: Reference(poison=True),
    "cpu": lambda: Cpu(poison=True),
    "counting": Counting,
}


@dataclass
class Sequence:
    """Frames of features, an array that weighs the loss, and a label."""

    frames: Any
    factor: Any
    label: int


class Tagger(ab.Module):
    """An LSTM over frames; the loss reads its state and the frames, some of them several times."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.lstm, self.output = ab.LSTMCell(3, 4, rng=rng), ab.Linear(4, 2, rng=rng)
        self.dropout = ab.Dropout(0.5)
        self.astype("float64")

    @ab.cell
    def step(self, frame: Any, state: Any) -> Any:
        return self.lstm(frame, state)

    @ab.cell
    def score(self, h: Any, label: int) -> Any:
        return ab.cross_entropy(self.output(h), label)

    def loss(self, sequence: Sequence) -> Any:
        state = (np.zeros(4), np.zeros(4))
        for frame in sequence.frames:
            state = self.step(frame, state)
        last = sequence.frames[-1]
        return sequence.factor * self.score(state[0], sequence.label) + ab.sum(last * last * sequence.frames[0])


def sequences(seed: int = 0, lengths: tuple[int, ...] = (1, 4, 2, 7)) -> list[Sequence]:
    rng = np.random.default_rng(seed)
    return [Sequence(rng.standard_normal((n, 3)), np.array(rng.uniform(0.5, 2.0)), n % 2) for n in lengths]


def by_torch(model: Tagger, batch: list[Sequence], weights: Any) -> list[Sequence]:
    """Return torch's gradients of a weighted sum of losses."""
    lstm = torch.nn.LSTMCell(3, 4, dtype=torch.float64)
    linear = torch.nn.Linear(4, 2, dtype=torch.float64)
    lstm.load_state_dict({name: torch.tensor(p.data) for name, p in model.lstm.parameters().items()})
    linear.load_state_dict({name: torch.tensor(p.data) for name, p in model.output.parameters().items()})
    found = []
    for sequence, weight in zip(batch, weights, strict=True):
        frames, factor = (torch.tensor(x, requires_grad=True) for x in (sequence.frames, sequence.factor))
        state = torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
        for frame in frames:
            state = lstm(frame[None], state)
        score = torch.nn.functional.cross_entropy(linear(state[0]), torch.tensor([sequence.label]))
        (weight * (factor * score + (frames[-1] ** 2 * frames[0]).sum())).backward()
        assert frames.grad is not None
        assert factor.grad is not None
        found.append(Sequence(frames.grad.numpy(), factor.grad.numpy(), 0))
    return found


def check_equal(found: list[Sequence], wanted: list[Sequence], tolerance: float = 1e-9) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert type(one) is Sequence
        assert one.label is None
        np.testing.assert_allclose(one.frames, other.frames, atol=tolerance)
        np.testing.assert_allclose(one.factor, other.factor, atol=tolerance)


WEIGHTS = np.array([2.0, 0.0, -1.0, 0.5])


@pytest.mark.slow
@each("options", [{}, {"max_bytes": 7000}, {"rewrites": "all"}, {"threads": 2}, {"policy": "unbatched"}])
@each("backend", BACKENDS)
def test_they_equal_torchs(backend: str, options: dict[str, Any]) -> None:
    model, batch = Tagger(), sequences()
    run = ab.batched(model.loss, backend=BACKENDS[backend](), **options)
    value, grads = run.value_and_grad(batch, reduce=WEIGHTS)
    grads = {name: np.array(g) for name, g in grads.items()}
    same, again, inputs = run.value_and_grad(batch, reduce=WEIGHTS, inputs=True)
    np.testing.assert_allclose(same, value, rtol=1e-12)
    for name, gradient in grads.items():
        np.testing.assert_allclose(again[name], gradient, atol=1e-12)
    check_equal(inputs, by_torch(model, batch, WEIGHTS))
    assert run.last is not None
    assert (run.last.parts > 1) == ("max_bytes" in options)
    check_equal(run.value_and_grad(batch, inputs=True)[2], by_torch(model, batch, np.full(4, 0.25)))
    check_equal(run.value_and_grad(batch, "sum", inputs=True)[2], by_torch(model, batch, np.ones(4)))


def differences(loss: Any, batch: list[Any], array: Any, step: float = 1e-6) -> Any:
    """Return the gradient of the mean loss with respect to an array of the batch, by central differences."""
    found = np.zeros(array.shape)
    for index in np.ndindex(array.shape):
        ends = []
        start = array[index].copy()
        for sign in (1.0, -1.0):
            array[index] = start + sign * step
            loss.step = 0
            ends.append(float(np.mean(loss(batch))))
        array[index] = start
        found[index] = (ends[0] - ends[1]) / (2 * step)
    return found


@pytest.mark.slow
@each("backend", BACKENDS)
def test_they_equal_central_differences(backend: str) -> None:
    """With dropout, an aux result, an unused array, and an array in two places of an instance and in two instances."""
    model, rng = Tagger(), np.random.default_rng(1)
    shared, unused, once = rng.standard_normal((2, 3)), rng.standard_normal(2), rng.standard_normal((3, 3))
    batch = [(shared, [shared, unused], 1), (once, [shared, unused], 0), (once[1:], [once[:2], unused], 1)]

    def loss(instance: Any) -> Any:
        first, (second, _), label = instance
        states = [model.step(x, (np.zeros(4), np.ones(4)))[0] for part in (first, second) for x in part]
        pooled = model.dropout(ab.mean_n(states)) * 2.0 + model.dropout(ab.max_n(states))
        return model.score(pooled, label) + ab.sum(second) * 0.5, {"state": pooled}

    run = ab.batched(loss, module=model, backend=BACKENDS[backend](), seed=3)
    plain = ab.batched(lambda instance: loss(instance)[0], module=model, backend="reference", seed=3)
    (_, aux), _, inputs = run.value_and_grad(batch, has_aux=True, inputs=True)
    assert aux["state"].shape == (3, 4)
    for gradient, *_ in inputs:
        assert gradient.dtype == np.float64
    assert inputs[0][0] is inputs[0][1][0]
    assert inputs[0][2] is None
    assert [gradient.any() for _, (_, gradient), _ in inputs] == [False] * 3
    total = inputs[0][0] + inputs[1][1][0]
    np.testing.assert_allclose(total, differences(plain, batch, shared), atol=1e-7)
    third = np.zeros((3, 3))
    third[1:] += inputs[2][0]
    third[:2] += inputs[2][1][0]
    np.testing.assert_allclose(inputs[1][0] + third, differences(plain, batch, once), atol=1e-7)


@pytest.mark.slow
@each("seed", range(8))
def test_random_programs(seed: int) -> None:
    """With arrays in any structure, passed to cells or read outside; along a direction, and with parameters."""
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    batch = draw_instances(rng, model, 3)
    arrays = {id(a): a for instance in batch for a in Held(instance).arrays}
    along = {key: rng.standard_normal(a.shape) for key, a in arrays.items()}
    for backend in ("reference", "cpu"):
        run = ab.batched(model.loss, backend=BACKENDS[backend](), rewrites="all")
        grads = {name: np.array(g) for name, g in run.value_and_grad(batch, "sum")[1].items()}
        _, again, inputs = run.value_and_grad(batch, "sum", inputs=True)
        for name, gradient in grads.items():
            np.testing.assert_allclose(again[name], gradient, atol=1e-8)
        pairs = [(Held(a).arrays, Held(b).arrays) for a, b in zip(batch, inputs, strict=True)]
        slope = sum(float((along[id(a)] * g).sum()) for held, found in pairs for a, g in zip(held, found, strict=True))
        ends = []
        for step in (1e-6, -2e-6):
            for key, array in arrays.items():
                array += step * along[key]
            ends.append(float(run(batch).sum()))
        for key, array in arrays.items():
            array += 1e-6 * along[key]
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, atol=1e-5, rtol=1e-5)


def test_arrays_have_gradients_of_their_own_type() -> None:
    """A float32 model without parameters, over arrays of three float types, one of them empty."""
    batch = [(np.ones(2, dtype), np.zeros((0, 2))) for dtype in (np.float16, np.float32, np.float64)]
    run = ab.batched(lambda pair: ab.sum(pair[0] * pair[0]) + ab.sum(pair[1]), backend="reference")
    value, grads, inputs = run.value_and_grad(batch, "sum", inputs=True)
    assert float(value) == 6.0
    assert grads == {}
    for (x, empty), (gradient, nothing) in zip(batch, inputs, strict=True):
        assert gradient.dtype == x.dtype
        assert nothing.shape == empty.shape
        np.testing.assert_allclose(gradient, [2.0, 2.0])


def test_a_function_that_does_not_read_its_instance() -> None:
    run = ab.batched(lambda x: np.zeros(()), backend="reference")
    assert run.value_and_grad([np.ones(2), 3], inputs=True)[2][1] is None
    assert not run.value_and_grad([np.ones(2)], inputs=True)[2][0].any()
    run = ab.batched(lambda x: x, backend="reference")
    assert run.value_and_grad([np.array(3.0)], inputs=True)[2] == [1.0]


@pytest.mark.slow
def test_infinite_gradients_stay_where_the_loss_does_not_look() -> None:
    """The logarithm of an input 0 is an aux result, which the gradient of the loss must ignore."""
    for backend in BACKENDS.values():
        run = ab.batched(lambda x: (ab.sum(x * x), ab.log(x)), backend=backend())
        assert run.value_and_grad([np.zeros(2), np.ones(2)], "sum", has_aux=True, inputs=True)[2][0].tolist() == [0, 0]


def test_several_threads_share_a_function() -> None:
    model = Tagger()
    run = ab.batched(model.loss, backend="cpu")
    batches = [sequences(seed, (1 + seed % 3, 3)) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda batch: run.value_and_grad(batch, "sum", inputs=True)[2], batches))
    for inputs, batch in zip(found, batches, strict=True):
        check_equal(inputs, by_torch(model, batch, np.ones(2)))


def test_nothing_changes_where_inputs_are_not_asked_for() -> None:
    """A call has the same types, nodes and launches as without an earlier request for gradients of inputs."""
    model, batch = Tagger(), sequences()
    run, other = (ab.batched(model.loss, backend="reference") for _ in range(2))
    run.value_and_grad(batch, inputs=True)
    for one in (run, other):
        one.value_and_grad(batch)
    assert run.last is not None
    assert other.last is not None
    assert (run.last.nodes, run.last.launches) == (other.last.nodes, other.last.launches)
