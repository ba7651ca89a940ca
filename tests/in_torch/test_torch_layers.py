"""Test torch layers as cells that need a whole sequence, image or set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import autobatch.torch as abt
from autobatch.errors import GraphError


def self_attention(layer: Any, x: Tensor) -> Any:
    return layer(x, x, x)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LSTM": (lambda: nn.LSTM(4, 3), (5, 4)),
    "LSTM of two layers, both ways": (lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True), (5, 4)),
    "LSTM, batch first": (lambda: nn.LSTM(4, 3, batch_first=True), (1, 5, 4)),
    "LSTM with projections": (lambda: nn.LSTM(4, 3, proj_size=2), (5, 4)),
    "LSTM without biases": (lambda: nn.LSTM(4, 3, bias=False), (5, 1, 4)),
    "GRU": (lambda: nn.GRU(4, 3), (5, 4)),
    "GRU of two layers, both ways": (lambda: nn.GRU(4, 3, num_layers=2, bidirectional=True), (5, 4)),
    "RNN": (lambda: nn.RNN(4, 3), (5, 4)),
    "RNN with rectified units": (lambda: nn.RNN(4, 3, nonlinearity="relu", bidirectional=True), (5, 4)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), (5, 4)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), (5, 4)),
    "TransformerEncoder, batch first": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        ),
        (1, 5, 4),
    ),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0), (5, 4)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (1, 4)),
    "GroupNorm of images": (lambda: nn.GroupNorm(2, 4), (1, 4, 2, 2)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4), (1, 4, 5)),
    "Conv1d": (lambda: nn.Conv1d(4, 2, 3, padding=1), (4, 5)),
    "Conv1d of groups": (lambda: nn.Conv1d(4, 4, 3, groups=2, dilation=2), (1, 4, 7)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2, stride=2), (2, 4, 6)),
    "Conv2d, reflected": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (1, 2, 4, 4)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 2, 3), (4, 5)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (1, 4, 4)),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(2), (4, 5)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="linear"), (1, 4, 3)),
}


@pytest.mark.cases(12)
@pytest.mark.parametrize("runs", ["auto", "torch"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_give_what_they_give_alone(name: str, runs: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    model: Any = nn.Module()
    model.layer = make().double()
    takes = {"Multi": self_attention, "TransformerDecoder": lambda layer, x: layer(x, 2 * x)}
    call: Any = next((call for begin, call in takes.items() if name.startswith(begin)), lambda layer, x: layer(x))
    cell: Any = abt.cell(lambda x: call(model.layer, x), runs=runs)
    xs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    abt.check_batched(lambda x: cell(x), xs, module=model, backend="reference")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_are_refused_in_a_sentence(kind: Any) -> None:
    model: Any = nn.Module()
    model.layer = abt.cell(kind(4, 3))
    batched: Any = abt.batched(lambda x: model.layer(x)[0].sum(), module=model)
    with pytest.raises(GraphError, match=r"given a PackedSequence, .* give the cell the tensor of one sequence"):
        batched([pack_sequence([torch.ones(2, 4)])])
    inside: Any = abt.cell(lambda x: model.layer(pack_sequence([x]))[1][0])
    with pytest.raises(GraphError, match="torch cannot run it"):
        abt.batched(lambda x: inside(x), module=model)([torch.ones(2, 4)])


SEQUENCES = """
import sys, torch
import autobatch.torch as abt

torch.manual_seed(0)
kind = getattr(torch.nn, sys.argv[1])
model = torch.nn.Module()
model.layer, model.plain = abt.cell(kind(4, 3, num_layers=2, bidirectional=True)), kind(4, 3)

def program(x):
    h = model.layer(x)[0]
    return h.sum() + model.plain(h[:, :4])[0].sum()

for lengths in [(1, 5, 2), (7, 7), (3, 1, 1, 6)]:
    xs = [torch.randn(n, 4, requires_grad=True) for n in lengths]
    torch.stack(list(abt.batched(program, module=model)(xs))).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in xs)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_nothing_of_a_sequence_layer_corrupts_memory(kind: str) -> None:
    environment = {**os.environ, "MALLOC_CHECK_": "3"}  # aborts the process when its memory is corrupt
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SEQUENCES, kind], capture_output=True, env=environment
    )
    assert found.returncode == 0, found.stderr.decode()[-2000:]


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("padding", [None, 1, -1])
@pytest.mark.parametrize("runs", ["", "auto", "torch"])
def test_embeddings_divide_gradients_by_the_frequency_in_one_call(
    shape: tuple[int, ...], padding: int | None, runs: str
) -> None:
    """The frequency of an id counts the ids of one instance, not of the mini-batch."""
    torch.manual_seed(0)
    layer = nn.Embedding(3, 2, padding_idx=padding, scale_grad_by_freq=True).double()
    twice = nn.Sequential(layer, nn.Tanh())
    ids = [torch.randint(3, shape) for _ in range(4)]
    seed = torch.randn(4, *shape, 2, dtype=torch.float64)

    def gradient(outputs: Tensor) -> Any:
        twice.zero_grad()
        (outputs * seed).sum().backward()  # type: ignore[no-untyped-call]
        return layer.weight.grad

    want = gradient(torch.stack([twice(x) for x in ids]))
    if runs:
        abt.cell(twice, runs=runs)
    torch.testing.assert_close(gradient(abt.batched(twice)(ids)), want)
