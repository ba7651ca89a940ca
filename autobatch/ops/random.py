"""The random ops, whose draws depend on their place in the program, not on the time of the run; see `ops.randomness`.

A draw number comes from the program (`_next_draw`); the kernels hash it together with the site and the element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autobatch.arguments import is_int, refusal
from autobatch.errors import DataError, ShapeError
from autobatch.ops.define import Array, Op, Shape, Value, composite, define_op, of_values
from autobatch.ops.operators import STAGE
from autobatch.ops.randomness import BITS, Randomness, next_site
from autobatch.ops.reduction import argmax

MOST_SITES = 2**16  # per cell; a place that needs several random numbers uses site, site + MOST_SITES, ...


def _dropout_shape(x: Shape, draw: Shape, rate: float, site: int) -> Shape:
    return x


def _dropout(xp: Any, x: Array, draw: Array, out: Array, rate: float, site: int, random: Randomness) -> None:
    if not random.training:
        out[...] = x
        return
    kept = random.uniform(xp, draw, site, out.shape[1:]) >= int(rate * 2**BITS)
    xp.multiply(x, kept, out=out)
    xp.multiply(out, 1 / (1 - rate), out=out)


_dropout_op: Op = define_op(
    "dropout",
    shape=_dropout_shape,
    kernel=_dropout,
    pullback=lambda g, out, x, draw, rate, site: (_dropout_op(g, draw, rate=rate, site=site), None),
    random=True,
)


@composite
def dropout(x: Value, rate: float) -> Value:
    """Zero each element with probability `rate`, and scale the others by 1 / (1 - rate) (Srivastava et al. 2014).

    It is active in training only: `Module.eval()` turns it off in the cells of a module and `Module.train()` on, for
    recorded graphs too. Outside cells eager mode has no module; there `ab.randomness(training=False)` turns it off. The
    mask is a function of the seed, the step, the instance's key and the place in its program, so it is the same in
    eager mode and batched (see `ab.randomness`).

    Shapes: any x; the result has the same shape.
    Gradient: 1 / (1 - rate) for the kept elements, 0 for the others; all derivatives use the same mask.

    Raises:
        DataError: `rate` is not in 0 <= rate < 1.

    >>> with ab.randomness(seed=0):
    ...     ab.dropout(np.ones(4), 0.5)
    array([2., 2., 0., 2.])
    """
    if not 0 <= rate < 1:
        raise DataError(f"rate of dropout must be at least 0 and below 1, got {rate}.")
    draw, site = _next_draw()
    return _dropout_op(x, draw, rate=float(rate), site=site)


def _normal(xp: Any, draw: Array, out: Array, shape: Shape, site: int, random: Randomness) -> None:
    """Draw each number from two uniform numbers (Box and Muller 1958), which are never 0."""
    first, second = (random.uniform(xp, draw, site + k * MOST_SITES, shape) for k in range(2))
    radius = xp.sqrt(-2.0 * xp.log((first + 0.5) * 2.0**-BITS))
    out[...] = radius * xp.cos((second + 0.5) * (2.0**-BITS * 2.0 * math.pi))


_normal_op = define_op("normal", shape=lambda draw, shape, site: shape, kernel=_normal, random=True)


@of_values
def normal(shape: int | Sequence[int] = ()) -> Value:
    """Draw independent numbers from the standard normal distribution, such as the noise of a VAE.

    They depend on the seed, the step, the instance's key and the place in its program, as `dropout` does. They are
    drawn in training and in evaluation.

    Args:
        shape: the shape of the result, per node.

    Shapes: the result `shape`.
    Gradient: none, because there are no inputs.

    >>> @ab.cell
    ... def sample(mean, log_scale):
    ...     return mean + ab.exp(log_scale) * ab.normal(2)
    >>> sample(np.zeros(2), np.zeros(2)).shape
    (2,)
    """
    sizes: Any = (shape,) if is_int(shape) else tuple(shape)  # type: ignore[arg-type]
    if not all(is_int(size) and size >= 0 for size in sizes):
        raise refusal("shape of normal", "sizes of at least 0", shape, ShapeError)
    draw, site = _next_draw()
    return _normal_op(draw, shape=tuple(map(int, sizes)), site=site)


def _perturb(xp: Any, logits: Array, draw: Array, out: Array, site: int, random: Randomness) -> None:
    uniform = (random.uniform(xp, draw, site, logits.shape[1:]) + 0.5) * 2.0**-BITS
    xp.subtract(logits, xp.log(-xp.log(uniform)), out=out)


_perturb_op = define_op("perturb", shape=lambda logits, draw, site: logits, kernel=_perturb, random=True)


@composite
def categorical(logits: Value) -> Value:
    """Draw a class from the softmax of logits: an int, which `ab.lookup` takes.

    It depends on the seed, the step, the instance's key and the place in its program, as `dropout` does, and is drawn
    in training and in evaluation. It is the position of the largest logit after a random number of the Gumbel
    distribution is added to each. Rounding, in which backends differ, then matters only if the two largest sums are
    nearly equal, however many classes there are. Inverting cumulative probabilities would make it matter at every
    class.

    Shapes: logits (..., C), the result (...), ints in 0..C-1.
    Gradient: none.

    >>> with ab.randomness(seed=0):
    ...     int(ab.categorical(np.array([0.0, 9.0, 0.0])))
    1
    """
    draw, site = _next_draw()
    return argmax(_perturb_op(logits, draw, site=site), axis=-1)


def _next_draw() -> tuple[Any, int]:
    """Return the draw of the current call, and the next site in it."""
    return next_site() if STAGE.current is None else STAGE.current.next_draw()
