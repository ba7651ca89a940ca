"""Test that layers name, shape and draw parameters like torch, and compute and differentiate the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import autobatch as ab
from autobatch.errors import CheckpointError, DataError, ShapeError
from autobatch.nn.layers import Embedding, GRUCell, LayerNorm, Linear, LSTMCell
from autobatch.params.module import Module
from autobatch.params.parameter import FloatArray
from helpers.runs.ways import each

TO_TORCH = 1e-12
N_IN, N_HIDDEN, N_ROWS = 5, 3, 7
LENGTHS = (1, 4, 2, 4)

MAKERS: dict[str, tuple[Callable[[np.random.Generator], Module], Callable[[Any], Any]]] = {
    "linear": (lambda rng: Linear(N_IN, N_HIDDEN, rng), lambda nn: nn.Linear(N_IN, N_HIDDEN)),
    "linear without bias": (
        lambda rng: Linear(N_IN, N_HIDDEN, rng, bias=False),
        lambda nn: nn.Linear(N_IN, N_HIDDEN, bias=False),
    ),
    "embedding": (lambda rng: Embedding(N_ROWS, N_IN, rng), lambda nn: nn.Embedding(N_ROWS, N_IN)),
    "layer norm": (lambda _: LayerNorm(N_IN), lambda nn: nn.LayerNorm(N_IN)),
    "layer norm, large eps": (lambda _: LayerNorm(N_IN, eps=0.3), lambda nn: nn.LayerNorm(N_IN, eps=0.3)),
    "lstm": (lambda rng: LSTMCell(N_IN, N_HIDDEN, rng), lambda nn: nn.LSTMCell(N_IN, N_HIDDEN)),
    "lstm without bias": (
        lambda rng: LSTMCell(N_IN, N_HIDDEN, rng, bias=False),
        lambda nn: nn.LSTMCell(N_IN, N_HIDDEN, bias=False),
    ),
    "gru": (lambda rng: GRUCell(N_IN, N_HIDDEN, rng), lambda nn: nn.GRUCell(N_IN, N_HIDDEN)),
    "gru without bias": (
        lambda rng: GRUCell(N_IN, N_HIDDEN, rng, bias=False),
        lambda nn: nn.GRUCell(N_IN, N_HIDDEN, bias=False),
    ),
}


class Chain(Module):
    """A layer along a sequence of inputs, which are also parameters; outputs have different weights in the loss."""

    def __init__(self, layer: Any, inputs: list[ab.Parameter]) -> None:
        self.layer = layer
        self.inputs = inputs

    def loss(self, ids: Any) -> Any:
        losses = []
        state = None
        for place, i in enumerate(ids):
            if isinstance(self.layer, Embedding):
                values = (self.layer(int(i)),)
            elif isinstance(self.layer, (LSTMCell, GRUCell)):
                state = self.layer(self.inputs[i], state)
                values = state if isinstance(state, tuple) else (state,)
            else:
                values = (self.layer(self.inputs[i]),)
            losses += [ab.sum(weigh(place, part, value.shape) * value) for part, value in enumerate(values)]
        return ab.sum_n(losses)


def weigh(place: int, part: int, shape: tuple[int, ...]) -> FloatArray:
    return np.random.default_rng((place, part)).standard_normal(shape)


def twin_loss(torch: Any, twin: Any, inputs: list[Any], ids: Any) -> Any:
    """Compute `Chain.loss` in torch."""
    total, state = 0.0, None
    for place, i in enumerate(ids):
        if isinstance(twin, torch.nn.Embedding):
            values = (twin(torch.tensor(int(i))),)
        elif isinstance(twin, (torch.nn.LSTMCell, torch.nn.GRUCell)):
            state = twin(inputs[i], state)
            values = state if isinstance(state, tuple) else (state,)
        else:
            values = (twin(inputs[i]),)
        for part, value in enumerate(values):
            total = total + (torch.from_numpy(weigh(place, part, tuple(value.shape))) * value).sum()
    return total


def make_pair(torch: Any, name: str) -> tuple[Chain, Any, list[Any]]:
    """Return a float64 layer with its twin's parameters, the twin, and seven inputs for each."""
    make, make_twin = MAKERS[name]
    torch.manual_seed(0)
    twin = make_twin(torch.nn).double()
    for parameter in twin.parameters():  # those of LayerNorm start as ones and zeros
        parameter.data += 0.1 * torch.randn_like(parameter)
    layer = make(np.random.default_rng(0)).astype("float64")
    layer.load_state_dict(twin.state_dict())
    inputs = torch.randn(N_ROWS, N_IN, dtype=torch.float64)
    chain = Chain(layer, [ab.Parameter(np.zeros(N_IN)).astype("float64") for _ in inputs])
    for parameter, tensor in zip(chain.inputs, inputs, strict=True):
        parameter.data = tensor.numpy()
    return chain, twin, [tensor.clone().requires_grad_() for tensor in inputs]


def draw_sequences() -> list[npt.NDArray[np.int64]]:
    rng = np.random.default_rng(2)
    return [rng.integers(0, N_ROWS, length) for length in LENGTHS]


@each("name", MAKERS)
def test_state_dicts_carry_over_both_ways(name: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    make, make_twin = MAKERS[name]
    layer, twin = make(np.random.default_rng(0)).astype("float64"), make_twin(torch.nn).double()
    ours, theirs = layer.state_dict(), twin.state_dict()
    assert [(key, array.shape) for key, array in ours.items()] == [(key, tuple(t.shape)) for key, t in theirs.items()]
    drawn = {key: np.random.default_rng(1).standard_normal(array.shape) for key, array in ours.items()}

    layer.load_state_dict({key: torch.from_numpy(array) for key, array in drawn.items()})
    twin.load_state_dict({key: torch.from_numpy(array) for key, array in layer.state_dict().items()})
    for key, array in drawn.items():
        np.testing.assert_array_equal(twin.state_dict()[key].numpy(), array)


@each("name", MAKERS)
def test_eager_values_equal_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    chain, twin, inputs = make_pair(torch, name)
    for ids in draw_sequences():
        expected = twin_loss(torch, twin, inputs, ids).item()
        np.testing.assert_allclose(chain.loss(ids), expected, rtol=TO_TORCH, atol=TO_TORCH)


@each("name", MAKERS)
def test_batched_values_and_gradients_equal_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    chain, twin, inputs = make_pair(torch, name)
    sequences = draw_sequences()
    twin_losses = torch.stack([twin_loss(torch, twin, inputs, ids) for ids in sequences])
    twin_losses.sum().backward()

    loss = ab.batched(chain.loss)
    value, grads = loss.value_and_grad(sequences, reduce="sum")
    np.testing.assert_allclose(loss(sequences), twin_losses.detach().numpy(), rtol=TO_TORCH, atol=TO_TORCH)
    np.testing.assert_allclose(value, twin_losses.sum().item(), rtol=TO_TORCH, atol=TO_TORCH)
    expected = {f"layer.{key}": parameter.grad for key, parameter in twin.named_parameters()}
    expected |= {f"inputs.{i}": tensor.grad for i, tensor in enumerate(inputs)}
    assert grads.keys() == expected.keys()
    for key, grad in expected.items():
        wanted = np.zeros(grads[key].shape) if grad is None else grad.numpy()
        np.testing.assert_allclose(grads[key], wanted, rtol=TO_TORCH, atol=TO_TORCH, err_msg=key)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_step_outside_a_cell_is_one_node(name: str) -> None:
    layer: Any = MAKERS[name][0](np.random.default_rng(0))

    def last(xs: Any) -> Any:
        state = None
        for x in xs:
            state = layer(x, state)
        return ab.sum(state[0] if isinstance(state, tuple) else state)

    types = ab.batched(last, module=layer).explain([np.ones((n, N_IN)) for n in LENGTHS]).types
    nodes = {kind.name: kind.nodes for kind in types if not kind.name.startswith("constant")}
    assert nodes == {f"{name}_step": sum(LENGTHS), "sum": len(LENGTHS)}


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_step_inside_a_cell_is_part_of_it(name: str) -> None:
    layer: Any = MAKERS[name][0](np.random.default_rng(0))

    @ab.cell
    def twice(x: Any) -> Any:
        return layer(x, layer(x))

    xs = np.random.default_rng(1).standard_normal((3, N_IN)).astype(np.float32)

    def summed(x: Any) -> Any:
        state = twice(x)
        return ab.sum(state[0] + state[1] if isinstance(state, tuple) else state)

    loss = ab.batched(summed, module=layer)
    ab.testing.check_batched(summed, loss, list(xs), tolerance=1e-6)
    assert f"{name}_step" not in {kind.name for kind in loss.explain(list(xs)).types}


@each("name", MAKERS)
def test_float32_stays_float32(name: str) -> None:
    chain = Chain(MAKERS[name][0](np.random.default_rng(0)), [ab.Parameter(np.ones(N_IN)) for _ in range(N_ROWS)])
    assert chain.dtype == np.float32
    value = chain.layer(1 if name == "embedding" else np.ones(N_IN, np.float32))
    assert {part.dtype for part in (value if isinstance(value, tuple) else (value,))} == {np.dtype(np.float32)}


def test_an_embedding_reads_arrays_of_ids() -> None:
    embedding = Embedding(N_ROWS, N_IN, rng=np.random.default_rng(0))
    ids = np.array([[1, 6], [1, 0]])
    np.testing.assert_array_equal(embedding(ids), embedding.weight.data[ids])


def test_an_id_beyond_the_table_is_refused() -> None:
    with pytest.raises(DataError, match=rf"lookup must be in 0\.\.{N_ROWS - 1}, got {N_ROWS}\."):
        Embedding(N_ROWS, N_IN, rng=np.random.default_rng(0))(N_ROWS)


def test_an_embedding_is_drawn_from_the_standard_normal_distribution() -> None:
    drawn = Embedding(100, 100, rng=np.random.default_rng(0)).weight.data
    np.testing.assert_allclose((drawn.mean(), drawn.std()), (0.0, 1.0), atol=0.02)


@pytest.mark.parametrize(
    ("layer", "bound"),
    [
        (Linear(100, 50, rng=np.random.default_rng(0)), 0.1),
        (LSTMCell(50, 100, rng=np.random.default_rng(0)), 0.1),
        (GRUCell(50, 100, rng=np.random.default_rng(0)), 0.1),
    ],
    ids=lambda x: type(x).__name__,
)
def test_weights_are_drawn_evenly_between_their_bounds(layer: Module, bound: float) -> None:
    assert layer.parameters()
    for parameter in layer.parameters().values():
        assert np.abs(parameter.data).max() <= bound * (1 + 1e-6)
    drawn = np.concatenate([parameter.data.ravel() for parameter in layer.parameters().values()])
    np.testing.assert_allclose(drawn.std(), bound / np.sqrt(3), rtol=0.02)
    np.testing.assert_allclose(drawn.mean(), 0.0, atol=0.003)


@each("name", MAKERS)
def test_the_same_generator_state_gives_the_same_layer(name: str) -> None:
    first, second = (MAKERS[name][0](np.random.default_rng(5)).state_dict() for _ in range(2))
    assert first.keys() == second.keys()
    for key, array in first.items():
        np.testing.assert_array_equal(array, second[key])


@each(
    "make, message",
    [
        (lambda rng: Linear(0, 3, rng), r"n_in of Linear"),
        (lambda rng: Linear(3, 0, rng), r"n_out of Linear"),
        (lambda rng: Embedding(0, 3, rng), r"n_rows of Embedding"),
        (lambda rng: Embedding(3, -1, rng), r"dim of Embedding"),
        (lambda _: LayerNorm(0), r"dim of LayerNorm"),
        (lambda rng: LSTMCell(0, 3, rng), r"n_in of LSTMCell"),
        (lambda rng: GRUCell(3, 0, rng), r"n_hidden of GRUCell"),
    ],
)
def test_sizes_below_one_are_refused(make: Callable[[np.random.Generator], Module], message: str) -> None:
    with pytest.raises(ShapeError, match=rf"^{message} must be an int of at least 1, got (0|-1)\.$"):
        make(np.random.default_rng(0))


class Recurrent(Module):
    """A recurrent cell under the name that a torch model gives a recurrent layer."""

    def __init__(self, layer: Any) -> None:
        self.rnn = layer
        self.astype("float64")

    def states(self, inputs: Any) -> Any:
        state = None
        for x in inputs:
            state = self.rnn(x, state)
        return state[0] if isinstance(state, tuple) else state


@each("kind, bias", [("LSTM", True), ("LSTM", False), ("GRU", True), ("GRU", False)])
def test_recurrent_layers_of_torch_load_into_cells(kind: str, bias: bool) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    twin = torch.nn.ModuleDict({"rnn": getattr(torch.nn, kind)(N_IN, N_HIDDEN, bias=bias, dtype=torch.float64)})
    model = Recurrent(getattr(ab, f"{kind}Cell")(N_IN, N_HIDDEN, rng=np.random.default_rng(0), bias=bias))
    assert model.load_state_dict(twin.state_dict()) == ([], [])
    inputs = np.random.default_rng(1).standard_normal((4, N_IN))
    wanted = twin["rnn"](torch.tensor(inputs))[0][-1].detach().numpy()
    np.testing.assert_allclose(np.asarray(model.states(inputs)), wanted, atol=TO_TORCH)
    assert model.load_state_dict({f"rnn.{name}": p.data for name, p in model.rnn.parameters().items()}) == ([], [])


def test_recurrent_layers_with_more_than_a_cell_holds_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    model = Recurrent(LSTMCell(N_IN, N_HIDDEN, rng=np.random.default_rng(0)))
    state = {f"rnn.{name}": x for name, x in torch.nn.LSTM(N_IN, N_HIDDEN, bidirectional=True).state_dict().items()}
    with pytest.raises(CheckpointError, match=r"Recurrent: unexpected: 'rnn\.weight_ih_l0_reverse', "):
        model.load_state_dict(state)
    assert len(model.load_state_dict(state, strict=False).unexpected_keys) == 4
    state = {**model.state_dict(), "rnn.bias_ih_l0": np.ones(4 * N_HIDDEN)}
    with pytest.raises(CheckpointError, match=r"'rnn\.bias_ih' and 'rnn\.bias_ih_l0' are one parameter"):
        model.load_state_dict(state)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: Linear(2, 3, rng),
        lambda rng: Embedding(2, 3, rng),
        lambda rng: LSTMCell(2, 3, rng),
        lambda rng: next(ab.minibatches([1, 2], 1, rng)),
    ],
)
def test_a_seed_is_no_generator(draw: Any) -> None:
    with pytest.raises(ab.DataError, match=r"rng of \w+ must be a np\.random\.Generator( or None)?, got 0\."):
        draw(0)
