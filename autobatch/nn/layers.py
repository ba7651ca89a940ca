"""Layers, whose parameters have torch's names, shapes and initial distributions, so that state dicts are compatible.

A layer works on the value of one node, without a batch axis, inside or outside a cell. Outside a cell, each call is one
node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from autobatch import ops
from autobatch.arguments import check_int, refusal
from autobatch.errors import ShapeError
from autobatch.keywords import checked, suggesting
from autobatch.ops.define import composite, shape_of
from autobatch.ops.linear import matmul
from autobatch.ops.randomness import check_generator
from autobatch.params.module import Module
from autobatch.params.parameter import FloatArray, Parameter
from autobatch.trace.cell import cell

MOST_NUMBERS = 2**40  # per layer; a larger one would take terabytes


class Linear(Module):
    """An affine map `weight @ x + bias` of the last axis.

    Args:
        n_in: length of the last axis of x, at least 1.
        n_out: length of the last axis of the result, at least 1.
        rng: draws `weight` and then `bias` uniformly between ±1/sqrt(n_in).
        bias: whether to add a bias; if not, the attribute `bias` is None.

    Attributes:
        weight: Parameter of shape (n_out, n_in).
        bias: Parameter of shape (n_out,), or None.

    Raises:
        ShapeError: a size is below 1.

    Source: torch.nn.Linear; same names, shapes and range.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> layer = ab.Linear(3, 2, rng=np.random.default_rng(0))
    >>> layer.weight, layer.bias
    (Parameter(shape=(2, 3), dtype=float32), Parameter(shape=(2,), dtype=float32))
    >>> layer(np.ones(3, dtype=np.float32)).shape
    (2,)
    """

    @checked()
    def __init__(self, n_in: int, n_out: int, rng: np.random.Generator, bias: bool = True) -> None:
        _check_sizes("Linear", n_in=n_in, n_out=n_out)
        check_generator(rng)
        bound = 1.0 / math.sqrt(n_in)
        self.weight = Parameter(rng.uniform(-bound, bound, (n_out, n_in)))
        self.bias = Parameter(rng.uniform(-bound, bound, n_out)) if bias else None

    def __call__(self, x: Any) -> Any:
        """Map `x` of shape (..., n_in) to shape (..., n_out)."""
        return _linear(self.weight, x, self.bias)


class Embedding(Module):
    """A table with a learned row of `dim` numbers for each of `n_rows` ids.

    Args:
        n_rows: number of ids, which start at 0; at least 1.
        dim: length of a row, at least 1.
        rng: draws `weight` from the standard normal distribution.

    Attributes:
        weight: Parameter of shape (n_rows, dim).

    Raises:
        ShapeError: a size is below 1.

    Source: torch.nn.Embedding; same name, shape and distribution.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> embedding = ab.Embedding(5, 3, rng=np.random.default_rng(0))
    >>> bool((embedding(4) == embedding.weight.data[4]).all())
    True
    >>> embedding(np.array([4, 0])).shape
    (2, 3)
    """

    @checked()
    def __init__(self, n_rows: int, dim: int, rng: np.random.Generator) -> None:
        _check_sizes("Embedding", n_rows=n_rows, dim=dim)
        check_generator(rng)
        self.weight = Parameter(rng.standard_normal((n_rows, dim)))

    def __call__(self, ids: Any) -> Any:
        """Read the row of `ids` if it is one id, shape (dim,), or the rows of an int array, shape (*ids.shape, dim)."""
        return ops.lookup(self.weight, ids)


class LayerNorm(Module):
    """Normalises `x` to mean 0 and variance 1 along its last axis, then multiplies by `weight` and adds `bias`.

    Args:
        dim: length of the last axis, at least 1.
        eps: added to the variance, so that a constant x becomes `bias`.

    Attributes:
        weight: Parameter of shape (dim,), ones at first.
        bias: Parameter of shape (dim,), zeros at first.

    Raises:
        ShapeError: `dim` is below 1.

    Source: Ba, Kiros and Hinton 2016 (arXiv:1607.06450); torch.nn.LayerNorm over one axis, with the same names, shapes
    and default `eps`.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> ab.LayerNorm(2, eps=0.0)(np.array([3.0, 7.0]))
    array([-1.,  1.])
    """

    @checked()
    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        _check_sizes("LayerNorm", dim=dim)
        if not 0.0 <= eps < math.inf:
            raise refusal("eps of LayerNorm", "a number of at least 0", eps)
        self.weight = Parameter(np.ones(dim))
        self.bias = Parameter(np.zeros(dim))
        self.eps = eps

    def __call__(self, x: Any) -> Any:
        """Normalise `x` of shape (..., dim); the result has the same shape."""
        return ops.layer_norm(x, self.weight, self.bias, eps=self.eps)


class Dropout(Module):
    """Sets each element to zero with probability `rate` in training, and scales the others by 1 / (1 - rate).

    The model's `train()` turns it on and `eval()` off, inside and outside cells, eager and batched.

    Args:
        rate: a probability, at least 0 and below 1.

    Raises:
        DataError: `rate` is out of range.

    Source: torch.nn.Dropout; masks are drawn by `ab.dropout`.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> drop = ab.Dropout(0.5)
    >>> sorted(set(drop(np.ones(100)).tolist())), set(drop.eval()(np.ones(100)).tolist())
    ([0.0, 2.0], {1.0})
    """

    @checked()
    def __init__(self, rate: float) -> None:
        if not 0 <= rate < 1:
            raise refusal("rate of Dropout", "at least 0 and below 1", rate)
        self.rate = rate

    @cell
    def __call__(self, x: Any) -> Any:
        """Apply dropout to `x`, of any shape."""
        return ops.dropout(x, self.rate)


class _RecurrentCell(Module):
    """The common parameters of recurrent cells: weights and biases of all gates, for the input and for the state.

    Each parameter stacks the rows of the subclass's `n_gates` gates. State dicts of torch.nn.LSTM and torch.nn.GRU,
    with names that end in "_l0", can be loaded as well if these have one layer and one direction.
    """

    n_gates: int
    other_names: ClassVar[Mapping[str, str]] = {
        f"{name}_l0": name for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }

    @checked()
    def __init__(self, n_in: int, n_hidden: int, rng: np.random.Generator, bias: bool = True) -> None:
        _check_sizes(type(self).__name__, n_in=n_in, n_hidden=n_hidden)
        check_generator(rng)
        bound, n_rows = 1.0 / math.sqrt(n_hidden), self.n_gates * n_hidden
        self.weight_ih = Parameter(rng.uniform(-bound, bound, (n_rows, n_in)))
        self.weight_hh = Parameter(rng.uniform(-bound, bound, (n_rows, n_hidden)))
        self.bias_ih = Parameter(rng.uniform(-bound, bound, n_rows)) if bias else None
        self.bias_hh = Parameter(rng.uniform(-bound, bound, n_rows)) if bias else None

    def _zeros(self) -> FloatArray:
        return np.zeros(self.weight_hh.shape[1], self.weight_hh.dtype)


class LSTMCell(_RecurrentCell):
    """One step of a long short-term memory: from an input and a state (h, c) to the next state.

        i, f, g, o = split(weight_ih @ x + bias_ih + weight_hh @ h + bias_hh, 4)
        c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h' = sigmoid(o) * tanh(c')

    Args:
        n_in: D, length of the input, at least 1.
        n_hidden: H, length of h and of c, at least 1.
        rng: draws `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh` in this order, uniformly between ±1/sqrt(H).
        bias: whether to add biases; if not, `bias_ih` and `bias_hh` are None.

    Attributes:
        weight_ih: Parameter of shape (4 H, D): the rows of gate i, then f, g and o.
        weight_hh: Parameter of shape (4 H, H).
        bias_ih: Parameter of shape (4 H,), or None.
        bias_hh: Parameter of shape (4 H,), or None.

    Raises:
        ShapeError: a size is below 1.

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000; torch.nn.LSTMCell, with the same
    names, shapes, gate order and range. The state dict of a one-layer torch.nn.LSTM can be loaded as well.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> lstm = ab.LSTMCell(3, 2, rng=np.random.default_rng(0))
    >>> h, c = lstm(np.ones(3, dtype=np.float32))
    >>> h, c = lstm(np.ones(3, dtype=np.float32), (h, c))
    >>> h.shape, c.shape
    ((2,), (2,))
    """

    n_gates = 4

    @suggesting()
    def __call__(self, x: Any, state: Any = None) -> Any:
        """Return the state after reading `x` (D,) in `state`, a pair (h, c) of shape (H,) each, or None for zeros."""
        return self.lstm_step(x, (self._zeros(),) * 2 if state is None else state)

    @cell
    def lstm_step(self, x: Any, state: Any) -> Any:
        """Return the state after reading x (D,) in a state (h, c)."""
        h, c = state
        gates = _linear(self.weight_ih, x, self.bias_ih) + _linear(self.weight_hh, h, self.bias_hh)
        i, f, g, o = ops.split(gates, 4)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        return ops.sigmoid(o) * ops.tanh(c), c


class GRUCell(_RecurrentCell):
    """One step of a gated recurrent unit: from an input and a state h to the next state.

        r_x, z_x, n_x = split(weight_ih @ x + bias_ih, 3)
        r_h, z_h, n_h = split(weight_hh @ h + bias_hh, 3)
        n = tanh(n_x + sigmoid(r_x + r_h) * n_h)
        z = sigmoid(z_x + z_h)
        h' = (1 - z) * n + z * h

    Args:
        n_in: D, length of the input, at least 1.
        n_hidden: H, length of h, at least 1.
        rng: draws `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh` in this order, uniformly between ±1/sqrt(H).
        bias: whether to add biases; if not, `bias_ih` and `bias_hh` are None.

    Attributes:
        weight_ih: Parameter of shape (3 H, D): the rows of gate r, then z and n.
        weight_hh: Parameter of shape (3 H, H).
        bias_ih: Parameter of shape (3 H,), or None.
        bias_hh: Parameter of shape (3 H,), or None.

    Raises:
        ShapeError: a size is below 1.

    Source: Cho et al. 2014 (arXiv:1406.1078), with the reset gate applied after the matmul; torch.nn.GRUCell, with the
    same names, shapes, gate order and range. The state dict of a one-layer torch.nn.GRU can be loaded as well.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> gru = ab.GRUCell(3, 2, rng=np.random.default_rng(0))
    >>> h = gru(np.ones(3, dtype=np.float32))
    >>> gru(np.ones(3, dtype=np.float32), h).shape
    (2,)
    """

    n_gates = 3

    @suggesting()
    def __call__(self, x: Any, state: Any = None) -> Any:
        """Return the state after reading `x` (D,) in `state`, h (H,) or None for zeros."""
        return self.gru_step(x, self._zeros() if state is None else state)

    @cell
    def gru_step(self, x: Any, state: Any) -> Any:
        """Return the state after reading x (D,) in a state h (H,)."""
        r_x, z_x, n_x = ops.split(_linear(self.weight_ih, x, self.bias_ih), 3)
        r_h, z_h, n_h = ops.split(_linear(self.weight_hh, state, self.bias_hh), 3)
        n = ops.tanh(n_x + ops.sigmoid(r_x + r_h) * n_h)
        # The formula above, with one product less.
        return n + ops.sigmoid(z_x + z_h) * (state - n)


def _linear(weight: Parameter, x: Any, bias: Parameter | None) -> Any:
    if len(shape_of(x)) > 1:
        return _linear_rows(weight, x, bias)
    return matmul(weight, x) if bias is None else ops.affine(weight, x, bias)


@composite
def _linear_rows(weight: Parameter, x: Any, bias: Parameter | None) -> Any:
    if shape_of(x)[-1] != weight.shape[1]:
        raise ShapeError(f"x of Linear must have shape (..., {weight.shape[1]}), got {shape_of(x)}.")
    product = x @ ops.transpose(weight)
    return product if bias is None else product + bias


def _check_sizes(kind: str, **sizes: int) -> None:
    """Raise a ShapeError for sizes below 1, and for arrays too large for any machine."""
    for name, size in sizes.items():
        check_int(f"{name} of {kind}", size, 1, ShapeError, below=MOST_NUMBERS)
    size = math.prod(map(int, sizes.values()))
    if size >= MOST_NUMBERS:
        raise refusal(f"size of {kind}", f"below {MOST_NUMBERS} numbers", size, ShapeError)
