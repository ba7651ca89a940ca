"""Dropout, the random op. Its masks depend on its place in the program, not on when it runs; see `ops.randomness`."""

from __future__ import annotations

from typing import Any

from autobatch.errors import DataError
from autobatch.ops.define import Array, Op, Shape, composite, define_op
from autobatch.ops.operators import STAGE
from autobatch.ops.randomness import BITS, EAGER, Randomness, next_site


def _dropout_shape(x: Shape, draw: Shape, rate: float, site: int) -> Shape:
    return x


def _dropout(xp: Any, x: Array, draw: Array, out: Array, rate: float, site: int, random: Randomness) -> None:
    if not random.training:
        out[...] = x
        return
    kept = random.uniform(xp, draw, site, x.shape[1:]) >= int(rate * 2**BITS)
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
def dropout(x: Any, rate: float) -> Any:
    """Zero each element with probability `rate`, and scale the others by 1 / (1 - rate) (Srivastava et al. 2014).

    It acts in training only: `Module.eval()` turns it off in the cells of a module and `Module.train()` on, for
    recorded graphs too. Outside cells eager mode has no module; there `ab.randomness(training=False)` turns it off. The
    mask is a function of the seed, the step, the instance's key and the place in its program, so it is the same in
    eager mode and batched (see `ab.randomness`).

    Raises:
        DataError: `rate` is not in 0 <= rate < 1.
    """
    if not 0 <= rate < 1:
        raise DataError(f"dropout of rate {rate}: a rate is at least 0 and below 1.")
    if STAGE.current is not None:
        draw, site = STAGE.current.next_draw()
    elif EAGER.source.training:
        draw, site = next_site()
    else:
        return x
    return _dropout_op(x, draw, rate=float(rate), site=site)
