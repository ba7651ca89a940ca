"""Test that an op's scalar expression equals its kernel, and that invalid expressions are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autobatch.compiler.printing import show_expression
from autobatch.ops.define import Op, define_elementwise, run_kernel
from autobatch.ops.expression import Call, Expression, Number, Read, call, leaves, replace_leaves, trace_scalar
from autobatch.ops.operators import OPS

ELEMENTWISE = [op for op in OPS.values() if op.scalar is not None]
VALUES = np.array([-2.5, -1.0, -0.0, 0.0, 0.25, 1.0, 3.0, np.nan, np.inf, -np.inf])


def show(tree: Expression) -> str:
    """Format an expression with arguments x0, x1, ..."""
    return show_expression(tree, lambda leaf: f"x{leaf.number}" if isinstance(leaf, Read) else str(leaf.data))  # type: ignore[attr-defined]


def evaluate(tree: Expression, args: list[np.float64]) -> Any:
    """Evaluate an expression with NumPy and the kernels of the ops named like its functions."""

    def value(tree: Expression) -> Any:
        match tree:
            case Read(number):
                return args[number]
            case Number(data):
                return np.float64(data)
            case Call("select", (condition, x, y)):
                return value(x) if value(condition) else value(y)
            case Call(name, parts):
                given = [value(part) for part in parts]
                by_name = {"max": "maximum", "negate": "negative"}.get(name, name)
                if hasattr(np, by_name):
                    return getattr(np, by_name)(*given)
                out = np.empty((1, 1))
                OPS[name].kernel(np, *(np.array([[x]]) for x in given), out=out)
                return out[0, 0]
        raise TypeError(tree)

    return value(tree)


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_an_expression_is_what_the_kernel_computes(op: Op) -> None:
    assert op.scalar is not None
    columns = [column.reshape(-1) for column in np.meshgrid(*[VALUES] * len(op.names))]
    out = np.empty(columns[0].size)
    with np.errstate(all="ignore"):
        run_kernel(op, np, columns, out, {})
        found = [evaluate(op.scalar, list(args)) for args in zip(*columns, strict=True)]
    np.testing.assert_allclose(found, out, rtol=1e-15)
    read = {leaf.number for leaf in leaves(op.scalar) if isinstance(leaf, Read)}
    assert read == set(range(op.name == "instead", len(op.names))), "of its first argument, that op has the gradient"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("add", "x0 + x1"),
        ("neg", "-x0"),
        ("sigmoid", "sigmoid(x0)"),
        ("relu", "max(x0, 0.0)"),
        ("pow", "power(x0, x1)"),
        ("less", "1.0 if x0 < x1 else 0.0"),
        ("where", "x1 if x0 != 0.0 else x2"),
    ],
)
def test_expressions_of_ops(name: str, text: str) -> None:
    scalar = OPS[name].scalar
    assert scalar is not None
    assert show(scalar) == text


X, Y, Z = Read(0), Read(1), Read(2)


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (X - (Y - Z), "x0 - (x1 - x2)"),
        (X - Y - Z, "x0 - x1 - x2"),
        (X / (Y * Z), "x0 / (x1 * x2)"),
        ((X + Y) * -Z, "(x0 + x1) * -x2"),
        (-(X + Y), "-(x0 + x1)"),
        (1.0 / call("sqrt", X + 0.5), "1.0 / sqrt(x0 + 0.5)"),
        (call("select", call("less", X + Y, Z), X, Y) * 2.0, "(x0 if x0 + x1 < x2 else x1) * 2.0"),
    ],
)
def test_parentheses_are_where_the_tree_needs_them(tree: Expression, text: str) -> None:
    assert show(tree) == text
    numbers = {"x0": np.float64(1.5), "x1": np.float64(-2.0), "x2": np.float64(0.75)}
    assert eval(text, {"sqrt": np.sqrt, **numbers}) == evaluate(tree, list(numbers.values()))


def test_trees_are_values() -> None:
    assert trace_scalar(lambda x, y: 2.0 * (x - y)) == call("multiply", 2.0, call("subtract", X, Y))
    assert list(leaves(2.0 * (X - Y))) == [Number(2.0), X, Y]
    assert replace_leaves(X * X, lambda leaf: Number(3.0)) == call("multiply", 3.0, 3.0)


@pytest.mark.parametrize(
    ("scalar", "claim"),
    [
        (lambda x: call("cosine", x), "must be one of add, .*, got 'cosine'"),
        (lambda x: call("tanh", x, x), "calls 'tanh' with 2 arguments"),
        (lambda x: call("select", x, x, 0.0), "first argument of 'select', .* must be a comparison"),
        (lambda x: call("less", x, 0.0) * 2.0, "first argument of 'select', .* must be a comparison"),
    ],
)
def test_what_is_no_expression_is_refused_where_an_op_is_defined(scalar: Any, claim: str) -> None:
    with pytest.raises(ValueError, match=claim):
        define_elementwise("wrong", scalar, kernel=lambda xp, x, out: None)
    assert "wrong" not in OPS
