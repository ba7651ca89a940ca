"""Layers name, shape and draw their parameters as torch does, and compute the same."""

from __future__ import annotations

import numpy as np
import pytest

from autobatch.errors import ShapeError
from autobatch.layers import Linear


@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_torch(bias: bool) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch")
    twin = torch.nn.Linear(5, 3, bias=bias, dtype=torch.float64)
    layer = Linear(5, 3, rng=np.random.default_rng(0), bias=bias).astype("float64")
    x = np.random.default_rng(1).standard_normal(5)

    assert {name: array.shape for name, array in layer.state_dict().items()} == {
        name: tuple(tensor.shape) for name, tensor in twin.state_dict().items()
    }
    layer.load_state_dict(twin.state_dict())
    expected = twin(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(layer(x), expected, rtol=1e-14, atol=1e-14)


def test_linear_draws_evenly_between_its_bounds() -> None:
    layer = Linear(100, 50, rng=np.random.default_rng(0))
    assert layer.bias is not None
    for parameter in (layer.weight, layer.bias):
        assert np.abs(parameter.data).max() <= 0.1 * (1 + 1e-6)
    np.testing.assert_allclose(layer.weight.data.std(), 0.1 / np.sqrt(3), rtol=0.02)
    np.testing.assert_allclose(layer.weight.data.mean(), 0.0, atol=0.003)


def test_the_same_generator_state_gives_the_same_layer() -> None:
    first, second = (Linear(4, 3, rng=np.random.default_rng(5)).state_dict() for _ in range(2))
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


@pytest.mark.parametrize(("n_in", "n_out"), [(0, 3), (3, 0), (-1, 3)])
def test_linear_refuses_sizes_below_one(n_in: int, n_out: int) -> None:
    with pytest.raises(ShapeError, match=rf"Linear from {n_in} to {n_out} numbers; give sizes of at least 1"):
        Linear(n_in, n_out, rng=np.random.default_rng(0))
