"""A greedy decoder of fixed length, whose cells choose words that the next step looks up, in one graph."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from helpers.runs.ways import each
from host_device import HostDevice

DIM, WORDS, FIRST = 4, 7, 0
BACKENDS: list[Any] = [lambda: Reference(poison=True), lambda: Cpu(poison=True)]
if shutil.which("g++") is not None:
    BACKENDS.append(lambda: Cuda(poison=True, device=HostDevice()))


class Decoder(ab.Module):
    """An LSTM whose next input is its most likely word, or a word drawn from its distribution."""

    def __init__(self, draws: bool = False) -> None:
        rng = np.random.default_rng(0)
        self.draws = draws
        self.embedding = ab.Parameter(rng.standard_normal((WORDS, DIM)))
        self.lstm = ab.LSTMCell(DIM, DIM, rng=rng)
        self.output = ab.Linear(DIM, WORDS, rng=rng)
        self.astype("float64")

    @ab.cell
    def start(self, x: Any) -> Any:
        return ab.tanh(x), ab.tanh(-x)

    @ab.cell
    def step(self, state: Any, word: Any) -> Any:
        h, c = self.lstm(ab.lookup(self.embedding, word), state)
        logits = 3.0 * self.output(h)
        return (h, c), logits, ab.categorical(logits) if self.draws else ab.argmax(logits)

    @ab.cell
    def surprise(self, logits: Any, word: Any) -> Any:
        return ab.cross_entropy(logits, word)

    def decode(self, item: tuple[Any, int]) -> Any:
        x, n = item
        state, word, words, total = self.start(x), FIRST, [], 0.0
        for _ in range(n):
            state, logits, word = self.step(state, word)
            words.append(word)
            total = total + self.surprise(logits, word)
        return total, words

    def loss(self, item: tuple[Any, int]) -> Any:
        return self.decode(item)[0]


def draw_items() -> list[tuple[Any, int]]:
    rng = np.random.default_rng(1)
    return [(rng.standard_normal(DIM), n) for n in (3, 1, 5, 2, 5)]


def torch_decode(model: Decoder, items: list[tuple[Any, int]]) -> tuple[list[list[int]], Any, dict[str, Any]]:
    """Return the words, the mean loss and the gradients, computed with torch's LSTM cell."""
    data = {name: torch.tensor(p.data, requires_grad=True) for name, p in model.parameters().items()}
    cell = torch.nn.LSTMCell(DIM, DIM, dtype=torch.float64)
    own = {name: data[f"lstm.{name}"] for name, _ in cell.named_parameters()}
    sentences, total = [], torch.zeros((), dtype=torch.float64)
    for x, n in items:
        x = torch.as_tensor(x)
        state, word, words = (torch.tanh(x), torch.tanh(-x)), torch.tensor(FIRST), []
        for _ in range(n):
            state = torch.func.functional_call(cell, own, (data["embedding"][word], state))
            logits = 3.0 * (data["output.weight"] @ state[0] + data["output.bias"])
            word = logits.argmax()
            words.append(int(word))
            total = total - logits.log_softmax(0)[word]
        sentences.append(words)
    mean = total / len(items)
    grads = torch.autograd.grad(mean, list(data.values()))
    return sentences, mean.detach().numpy(), dict(zip(data, (g.numpy() for g in grads), strict=True))


def eager(model: Decoder, items: list[tuple[Any, int]]) -> list[Any]:
    found = []
    for key, item in enumerate(items):
        with ab.randomness(seed=2, key=key):
            found.append(model.decode(item))
    return found


@each("make", BACKENDS)
def test_words_losses_and_gradients_are_torchs(make: Any) -> None:
    compare_with_torch(make)


@pytest.mark.slow
def test_compiled_loops_give_torchs_too() -> None:
    compare_with_torch(lambda: Cpu(poison=True))


def compare_with_torch(make: Any) -> None:
    model, items = Decoder(), draw_items()
    words, mean, wanted = torch_decode(model, items)
    loss = ab.batched(model.loss, backend=make())
    value, grads = loss.value_and_grad(items)
    np.testing.assert_allclose(value, mean, rtol=1e-10)
    for name, gradient in grads.items():
        np.testing.assert_allclose(np.asarray(gradient), wanted[name], rtol=1e-10, atol=1e-12)
    _, found = ab.batched(model.decode, backend=make())(items)
    assert [list(map(int, sentence)) for sentence in found] == words
    assert len({word for sentence in words for word in sentence}) > 2


def test_gradients_are_central_differences() -> None:
    model = Decoder()
    ab.testing.check_grads(ab.batched(model.loss), draw_items(), model, np.random.default_rng(4))


@pytest.mark.slow
@each("make", BACKENDS)
@each("draws", [False, True])
def test_batched_is_one_at_a_time(make: Any, draws: bool) -> None:
    model, items = Decoder(draws), draw_items()
    wanted = eager(model, items)
    for policy in ("unbatched", "depth", "agenda"):
        run = ab.batched(model.decode, backend=make(), policy=policy, seed=2)
        totals, words = run(items)
        np.testing.assert_allclose(totals, [total for total, _ in wanted], rtol=1e-10)
        assert words == [sentence for _, sentence in wanted]
        assert {type(word) for sentence in words for word in sentence} == {np.int64}
    assert run.last is not None
    assert run.last.batches < run.last.nodes


@each("make", BACKENDS)
def test_a_plan_serves_other_words_and_no_step_is_interpreted(make: Any) -> None:
    model, items = Decoder(), draw_items()
    run = ab.batched(model.decode, backend=make())
    graphs = run.record_all(items)
    first = run(graphs)[1]
    model.parameters()["output.bias"].data = np.eye(WORDS)[3] * 50.0
    again = run(graphs)[1]
    assert again != first
    assert {int(word) for sentence in again for word in sentence} == {3}
    assert run.last is not None
    assert run.last.plan_hit
    if isinstance(run.backend, Cuda):
        assert run.last.launches == 1
