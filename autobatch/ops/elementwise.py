"""Element-wise ops: the same scalar function for each element.

Pullbacks ignore broadcasting: differentiation sums the gradient back to the argument's shape. Arithmetic is done in the
dtype of the result, so that products of int data neither overflow nor widen floats.
"""

from __future__ import annotations

from typing import Any

from autobatch.ops.define import Array, Op, Value, composite, define_elementwise, define_op
from autobatch.ops.expression import call


def negate(xp: Any, x: Array, out: Array) -> Array:
    """Return -x, computed as a product: np.negative of NumPy 2.4 skips elements if x has a stride of 64 bytes (float64)
    or 16.
    """
    return xp.multiply(x, -1, out=out, dtype=out.dtype)


add = define_elementwise(
    "add",
    lambda x, y: x + y,
    kernel=lambda xp, x, y, out: xp.add(x, y, out=out, dtype=out.dtype),
    pullback=lambda g, out, x, y: (g, g),
    doc="""Compute x + y for each element; `+` calls it.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: 1 for both.

    >>> ab.add(np.array([1.0, 2.0]), 0.5)
    array([1.5, 2.5])
    """,
)
sub = define_elementwise(
    "sub",
    lambda x, y: x - y,
    kernel=lambda xp, x, y, out: xp.subtract(x, y, out=out, dtype=out.dtype),
    pullback=lambda g, out, x, y: (g, -g),
    doc="""Compute x - y for each element; `-` calls it.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: 1 for x, -1 for y.

    >>> ab.sub(np.array([1.0, 2.0]), 0.5)
    array([0.5, 1.5])
    """,
)
mul = define_elementwise(
    "mul",
    lambda x, y: x * y,
    kernel=lambda xp, x, y, out: xp.multiply(x, y, out=out, dtype=out.dtype),
    pullback=lambda g, out, x, y: (g * y, g * x),
    doc="""Compute x * y for each element; `*` calls it.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: y for x, x for y.

    >>> ab.mul(np.array([1.0, 2.0]), 3.0)
    array([3., 6.])
    """,
)
div = define_elementwise(
    "div", lambda x, y: x / y,
    kernel=lambda xp, x, y, out: xp.true_divide(x, y, out=out),
    pullback=lambda g, out, x, y: (g / y, -(g * out) / y),
    singular=True,
    doc="""Compute x / y for each element; `/` calls it.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: 1 / y for x, -x / y**2 for y.

    >>> ab.div(np.array([1.0, 2.0]), 4.0)
    array([0.25, 0.5 ])
    """,
)  # fmt: skip


def _pow_pullback(g: Any, out: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return the gradients of x ** y; x ** 0 and 0 ** y are flat.

    The branches not taken are kept finite, so that no derivative multiplies 0 by infinity.
    """
    is_one = equal(y, 0.0)
    slope = where(is_one, 0.0, y * x ** where(is_one, 0.0, y - 1.0))
    base = where(equal(x, 0.0), where(greater_equal(y, 0.0), 1.0, x), x)
    return g * slope, g * out * log(base)


pow = define_elementwise(
    "pow", lambda x, y: call("power", x, y),
    kernel=lambda xp, x, y, out: xp.power(x, y, out=out, dtype=out.dtype),
    pullback=_pow_pullback,
    singular=True,
    doc="""Raise x to the power of y for each element; `**` calls it.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: y * x ** (y - 1) for x, which is 0 where y is 0; log(x) * x ** y for y, taken as 0 where x is 0 and y is
        at least 0. Second derivatives treat a gradient that is 0 for one of these reasons as constant.

    >>> ab.pow(np.array([2.0, 3.0]), 2.0)
    array([4., 9.])
    """,
)  # fmt: skip
neg = define_elementwise(
    "neg",
    lambda x: -x,
    kernel=negate,
    pullback=lambda g, out, x: (-g,),
    doc="""Compute -x for each element; unary `-` calls it.

    Shapes: any x; the result has the same shape.
    Gradient: -1.

    >>> ab.neg(np.array([1.0, -2.0]))
    array([-1.,  2.])
    """,
)
exp = define_elementwise(
    "exp",
    lambda x: call("exp", x),
    kernel=lambda xp, x, out: xp.exp(x, out=out),
    pullback=lambda g, out, x: (g * out,),
    singular=True,
    doc="""Compute the exponential of each element.

    Shapes: any x; the result has the same shape.
    Gradient: exp(x).

    >>> ab.exp(np.array([0.0, 1.0])).round(4)
    array([1.    , 2.7183])
    """,
)
log: Op = define_elementwise(
    "log",
    lambda x: call("log", x),
    kernel=lambda xp, x, out: xp.log(x, out=out),
    pullback=lambda g, out, x: (g / x,),
    singular=True,
    doc="""Compute the natural logarithm of each element.

    Shapes: any x; the result has the same shape.
    Gradient: 1 / x, which is infinite at 0.

    >>> ab.log(np.array([1.0, 10.0])).round(4)
    array([0.    , 2.3026])
    """,
)
sqrt = define_elementwise(
    "sqrt",
    lambda x: call("sqrt", x),
    kernel=lambda xp, x, out: xp.sqrt(x, out=out),
    pullback=lambda g, out, x: (0.5 * g / out,),
    singular=True,
    doc="""Compute the square root of each element.

    Shapes: any x; the result has the same shape.
    Gradient: 0.5 / sqrt(x), which is infinite at 0.

    >>> ab.sqrt(np.array([4.0, 9.0]))
    array([2., 3.])
    """,
)
tanh = define_elementwise(
    "tanh",
    lambda x: call("tanh", x),
    kernel=lambda xp, x, out: xp.tanh(x, out=out),
    pullback=lambda g, out, x: (g * (1.0 - out * out),),
    doc="""Compute the hyperbolic tangent of each element.

    Shapes: any x; the result has the same shape.
    Gradient: 1 - tanh(x) ** 2.

    >>> ab.tanh(np.array([0.0, 1.0])).round(4)
    array([0.    , 0.7616])
    """,
)
sin: Op = define_elementwise(
    "sin",
    lambda x: call("sin", x),
    kernel=lambda xp, x, out: xp.sin(x, out=out),
    pullback=lambda g, out, x: (g * cos(x),),
    doc="""Compute the sine of each element, in radians.

    Shapes: any x; the result has the same shape.
    Gradient: cos(x).

    >>> ab.sin(np.array([0.0, 1.0])).round(4)
    array([0.    , 0.8415])
    """,
)
cos: Op = define_elementwise(
    "cos",
    lambda x: call("cos", x),
    kernel=lambda xp, x, out: xp.cos(x, out=out),
    pullback=lambda g, out, x: (-g * sin(x),),
    doc="""Compute the cosine of each element, in radians.

    Shapes: any x; the result has the same shape.
    Gradient: -sin(x).

    >>> ab.cos(np.array([0.0, 1.0])).round(4)
    array([1.    , 0.5403])
    """,
)
relu = define_elementwise(
    "relu",
    lambda x: call("max", x, 0.0),
    kernel=lambda xp, x, out: xp.maximum(x, 0, out=out),
    pullback=lambda g, out, x: (where(out > 0.0, g, 0.0),),
    doc="""Return the larger of x and 0 for each element.

    Shapes: any x; the result has the same shape.
    Gradient: 1 where x is positive, else 0. The second derivative is 0, also at 0, where it is undefined.

    >>> ab.relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """,
)
softplus = define_elementwise(
    "softplus", lambda x: call("softplus", x),
    kernel=lambda xp, x, out: xp.logaddexp(x, 0, out=out),
    pullback=lambda g, out, x: (g * sigmoid(x),),
    doc="""Compute log(1 + exp(x)) for each element, without overflow.

    Shapes: any x; the result has the same shape.
    Gradient: sigmoid(x).

    >>> ab.softplus(np.array([0.0, 1000.0])).round(4)
    array([6.931e-01, 1.000e+03])
    """,
)  # fmt: skip
squared_error = define_elementwise(
    "squared_error", lambda x, y: (x - y) * (x - y),
    kernel=lambda xp, x, y, out: xp.square(xp.subtract(x, y, out=out, dtype=out.dtype), out=out),
    pullback=lambda g, out, x, y: (2.0 * g * (x - y), 2.0 * g * (y - x)),
    doc="""Compute (x - y) ** 2 for each element; `ab.sum` or `ab.mean` of it is a loss.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: 2 (x - y) for x, 2 (y - x) for y.

    >>> ab.squared_error(np.array([1.0, 2.0]), np.array([3.0, 2.0]))
    array([4., 0.])
    """,
)  # fmt: skip


def _sigmoid(xp: Any, x: Array, out: Array) -> None:
    """Compute 1 / (1 + exp(-x)) as exp(min(x, 0)) / (1 + exp(-|x|)): no overflow, exact tails, NaN is propagated."""
    xp.exp(negate(xp, xp.abs(x, out=out, dtype=out.dtype), out), out=out)
    numerator = xp.where(x < 0, out, 1)
    xp.true_divide(numerator, xp.add(out, 1, out=out), out=out)


sigmoid: Op = define_elementwise(
    "sigmoid",
    lambda x: call("sigmoid", x),
    kernel=_sigmoid,
    pullback=lambda g, out, x: (g * (out * (1.0 - out)),),
    doc="""Compute 1 / (1 + exp(-x)) for each element, without overflow.

    Shapes: any x; the result has the same shape.
    Gradient: sigmoid(x) * (1 - sigmoid(x)).

    >>> ab.sigmoid(np.array([0.0, 1.0])).round(4)
    array([0.5   , 0.7311])
    """,
)


def _define_comparison(name: str, operator: str, kernel: Any, example: str) -> Op:
    """Define an op that returns 0 or 1 in the model's float type, so that every value of a program is a float."""
    doc = f"""Return 1 where x {operator} y, else 0; `{operator}` calls it.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: none.

    >>> ab.{name}(np.array([1.0, 2.0, 3.0]), 2.0)
    array({example})
    """
    return define_elementwise(name, lambda x, y: call("select", call(name, x, y), 1.0, 0.0), kernel, doc=doc)


less = _define_comparison("less", "<", lambda xp, x, y, out: xp.less(x, y, out=out), "[1., 0., 0.]")
less_equal = _define_comparison("less_equal", "<=", lambda xp, x, y, out: xp.less_equal(x, y, out=out), "[1., 1., 0.]")
greater = _define_comparison("greater", ">", lambda xp, x, y, out: xp.greater(x, y, out=out), "[0., 0., 1.]")
greater_equal: Op = _define_comparison(
    "greater_equal", ">=", lambda xp, x, y, out: xp.greater_equal(x, y, out=out), "[0., 1., 1.]"
)
equal: Op = _define_comparison("equal", "==", lambda xp, x, y, out: xp.equal(x, y, out=out), "[0., 1., 0.]")
not_equal = _define_comparison("not_equal", "!=", lambda xp, x, y, out: xp.not_equal(x, y, out=out), "[1., 0., 1.]")


def _where(xp: Any, condition: Array, x: Array, y: Array, out: Array) -> None:
    out[...] = xp.where(condition != 0, x, y)


where: Op = define_elementwise(
    "where", lambda condition, x, y: call("select", call("not_equal", condition, 0.0), x, y),
    kernel=_where,
    # Selected, not multiplied by 0 or 1: 0 times an infinite gradient would be NaN.
    pullback=lambda g, out, condition, x, y: (None, where(condition, g, 0.0), where(condition, 0.0, g)),
    doc="""Choose x where the condition is true (not 0), else y, for each element; both are computed.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: 1 for the chosen one, 0 for the other; the condition has none, so a jump between x and y has no gradient.
        Second derivatives are 0.

    >>> x = np.array([-1.0, 2.0])
    >>> ab.where(x > 0.0, x, 0.1 * x)
    array([-0.1,  2. ])
    """,
)  # fmt: skip


def _share(g: Any, is_other: Any, is_equal: Any) -> Any:
    """Return the gradient of one of two arguments: `g` where it is chosen, half where both are equal, else 0."""
    return where(is_equal, 0.5 * g, where(is_other, 0.0, g))


abs: Op = define_elementwise(
    "abs", lambda x: call("max", x, -x),
    kernel=lambda xp, x, out: xp.abs(x, out=out, dtype=out.dtype),
    pullback=lambda g, out, x: (where(equal(x, 0.0), 0.0, where(less(x, 0.0), -g, g)),),
    doc="""Compute the absolute value of each element; Python's `abs` calls it.

    Shapes: any x; the result has the same shape.
    Gradient: 1 where x is positive, -1 where it is negative, 0 where it is 0. The second derivative is 0, also at 0,
        where it is undefined.

    >>> ab.abs(np.array([-1.0, 2.0]))
    array([1., 2.])
    """,
)  # fmt: skip
maximum: Op = define_elementwise(
    "maximum", lambda x, y: call("max", x, y),
    kernel=lambda xp, x, y, out: xp.maximum(x, y, out=out),
    pullback=lambda g, out, x, y: (_share(g, less(x, y), equal(x, y)), _share(g, greater(x, y), equal(x, y))),
    doc="""Return the larger of x and y for each element.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: 1 for the larger one, 0 for the other, 1/2 for both where they are equal. Second derivatives are 0, also
        where x and y are equal and they are undefined.

    >>> ab.maximum(np.array([-1.0, 2.0]), 0.5)
    array([0.5, 2. ])
    """,
)  # fmt: skip
minimum: Op = define_elementwise(
    "minimum", lambda x, y: -call("max", -x, -y),  # targets implement only "max"
    kernel=lambda xp, x, y, out: xp.minimum(x, y, out=out),
    pullback=lambda g, out, x, y: (_share(g, greater(x, y), equal(x, y)), _share(g, less(x, y), equal(x, y))),
    doc="""Return the smaller of x and y for each element.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: 1 for the smaller one, 0 for the other, 1/2 for both where they are equal. Second derivatives are 0, also
        where x and y are equal and they are undefined.

    >>> ab.minimum(np.array([-1.0, 2.0]), 0.5)
    array([-1. ,  0.5])
    """,
)  # fmt: skip


@composite
def clip(x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    """Limit each element of `x` to at least `low` and at most `high`; None means no limit.

    Shapes: any that broadcast together; the result has the broadcast shape.
    Gradient: 1 for x where `low <= x <= high`, else 0; 1 for a limit where it is the result. Second derivatives are 0,
        also at a limit, where they are undefined.

    >>> ab.clip(np.array([-2.0, 0.5, 3.0]), -1.0, 1.0)
    array([-1. ,  0.5,  1. ])
    """
    # Not `maximum` and `minimum`, whose gradient is shared at a limit: here it goes to x.
    x = x if low is None else where(less(x, low), low, x)
    return x if high is None else where(greater(x, high), high, x)


@composite
def leaky_relu(x: Value, slope: float = 0.01) -> Value:
    """Return `x` where it is positive, else `slope * x`.

    Shapes: any x; the result has the same shape.
    Gradient: 1 where x is positive, else `slope`. The second derivative is 0, also at 0, where it is undefined.

    >>> ab.leaky_relu(np.array([-1.0, 2.0]))
    array([-0.01,  2.  ])
    """
    return where(greater(x, 0.0), x, slope * x)


def _second(xp: Any, x: Array, y: Array, out: Array) -> None:
    out[...] = y


instead = define_elementwise(
    "instead",
    lambda x, y: y,
    kernel=_second,
    pullback=lambda g, out, x, y: (g, None),
    doc="""Return y, with the gradient of x.

    Shapes: x and y of one shape; the result has the same shape.
    Gradient: the gradient of the result for x; none for y. Second derivatives are also those of x.
    """,
)


@composite
def elu(x: Value, alpha: float = 1.0) -> Value:
    """Return `x` where it is positive, else `alpha * (exp(x) - 1)`, without cancellation near 0.

    Shapes: any x; the result has the same shape.
    Gradient: 1 where x is positive, else `alpha * exp(x)`, which is `alpha` at 0. The second derivative is 0 where x is
        positive, else `alpha * exp(x)`, which is `alpha` at 0, where it is undefined.

    >>> ab.elu(np.array([-1.0, 2.0])).round(4)
    array([-0.6321,  2.    ])
    """
    below = where(greater(x, 0.0), 0.0, x)  # so that exp does not overflow
    power = exp(below)
    # exp(x) - 1 = tanh(x / 2) * (exp(x) + 1) does not cancel near 0; its gradient is taken from exp(x) alone
    return where(greater(x, 0.0), x, alpha * instead(power, tanh(0.5 * below) * (power + 1.0)))


stop_gradient = define_op(
    "stop_gradient",
    shape=lambda x: x,
    kernel=lambda xp, x: x,
    view=True,
    doc="""Return x as a constant, through which no gradient flows.

    Shapes: any x; the result has the same shape.
    Gradient: none, on purpose.

    >>> ab.stop_gradient(np.array([1.0, 2.0]))
    array([1., 2.])
    """,
)
