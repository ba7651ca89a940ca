"""Test gradients of cells and their combinations against torch, central differences and eager values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.errors import NumericError
from autobatch.graph.rewrite import PASSES
from autobatch.ir.autodiff import differentiate
from autobatch.ir.derivative import Derivative
from autobatch.ir.program import Instruction
from helpers.runs.recorded import types_of
from helpers.runs.ways import each

TOLERANCE = 1e-10


class Weights(ab.Module):
    """Parameters of all shapes; `frozen` is not trained."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.W, self.U = ab.Parameter(rng.standard_normal((3, 3))), ab.Parameter(rng.standard_normal((3, 3)))
        self.v, self.b = ab.Parameter(rng.standard_normal(3)), ab.Parameter(rng.standard_normal(3))
        self.s, self.E = ab.Parameter(rng.standard_normal(())), ab.Parameter(rng.standard_normal((4, 3)))
        self.frozen = ab.Parameter(rng.standard_normal(3), trainable=False)
        self.astype("float64")


class Torch:
    """The same parameters as tensors, and torch's functions under autobatch's names."""

    def __init__(self, weights: Weights) -> None:
        for name, parameter in weights.parameters().items():
            setattr(self, name, torch.tensor(parameter.data, requires_grad=parameter.trainable))

    def __getattr__(self, name: str) -> Any:
        return {
            "tanh": torch.tanh,
            "exp": torch.exp,
            "sum": torch.sum,
            "max": torch.amax,
            "concat": lambda parts: torch.cat(list(parts)),
            "split": lambda x, n: torch.chunk(x, n, -1),
            "stop_gradient": lambda x: x.detach(),
            "where": lambda c, x, y: torch.where(c != 0, x, y),
            "lookup": lambda table, i: table[i],
            "softmax": lambda x: x.softmax(-1),
            "transpose": lambda x: x.T,
            "dot": torch.dot,
            "outer": torch.outer,
            "reshape": lambda x, shape: x.reshape(shape),
        }[name]


class Lib:
    """Parameters and ops in one namespace, as in `Torch`."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def __getattr__(self, name: str) -> Any:
        return getattr(self.weights, name) if name in vars(self.weights) else getattr(ab, name)


def check(weights: Weights, loss: Callable[[Any, Any], Any], instances: list[Any], **options: Any) -> ab.Batched:
    """Compare `loss(lib, instance)` batched, eagerly and in torch, and gradients also with central differences."""
    lib, twin = Lib(weights), Torch(weights)

    def ours(instance: Any) -> Any:
        return loss(lib, instance)

    run = ab.batched(ours, module=weights, backend=Reference(poison=True), **options)
    ab.testing.check_batched(ours, run, instances, TOLERANCE)
    value, grads = run.value_and_grad(instances)
    total = sum(loss(twin, instance) for instance in instances) / len(instances)
    names = [name for name, parameter in weights.parameters().items() if parameter.trainable]
    tensors = torch.autograd.grad(total + 0.0 * twin.s, [getattr(twin, name) for name in names], allow_unused=True)
    np.testing.assert_allclose(value, total.detach(), rtol=TOLERANCE, atol=TOLERANCE)
    assert list(grads) == names
    for name, tensor in zip(names, tensors, strict=True):
        expected = np.zeros(grads[name].shape) if tensor is None else tensor.numpy()
        np.testing.assert_allclose(grads[name], expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
    return run


# Bodies of a cell, for a value x (3,) from another node and an int, that run in autobatch and torch.

BODIES: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("shared expression of a parameter", lambda m, x, i: m.tanh(m.W) @ x),
    ("shared expression used twice", lambda m, x, i: (lambda A: A @ (x @ A))(m.W + m.U * m.s)),
    ("parameter twice", lambda m, x, i: m.W @ m.tanh(m.W @ x)),
    ("parameter on both sides", lambda m, x, i: (x @ m.W) * (m.W @ x)),
    ("transposed parameter", lambda m, x, i: m.transpose(m.W) @ x + m.W @ x),
    ("parameter times parameter", lambda m, x, i: (m.W @ m.U) @ x),
    ("rows of a parameter", lambda m, x, i: m.W[0] * x + m.W[1:][1] + m.W[1, 2]),
    ("halves of a parameter", lambda m, x, i: m.concat(m.split(m.reshape(m.E, (12,)), 4)[1:3])[:3] * x),
    ("parameter alone", lambda m, x, i: m.v),
    ("parameters alone", lambda m, x, i: m.sum(m.W) * m.v + m.b),
    ("scalar parameter", lambda m, x, i: m.s * x + m.s),
    ("broadcast parameter", lambda m, x, i: m.sum(m.outer(x, m.b) * m.v + m.W, 0)),
    ("broadcast value", lambda m, x, i: m.sum(m.W * x + m.E[:3] / (x * x + 1.0), 1)),
    ("frozen parameter", lambda m, x, i: m.frozen * x + m.tanh(m.frozen * m.v)),
    ("frozen alone", lambda m, x, i: m.frozen * 2.0),
    ("value three times", lambda m, x, i: x * x * x),
    (
        "value and its view",
        lambda m, x, i: x * x[::-1] if m.W is not None and not isinstance(x, torch.Tensor) else x * x.flip(0),
    ),
    ("overlapping slices", lambda m, x, i: m.concat((x[0:2] * x[1:3], x[2:] * m.v[2:]))),
    ("disjoint slices", lambda m, x, i: m.concat((x[2:], m.tanh(x[0:2])))),
    ("some of the slices", lambda m, x, i: x[1:2] * m.v),
    ("views of views", lambda m, x, i: m.reshape(m.transpose(m.outer(x, m.v))[1:], (6,))[1:][:3]),
    ("gradient stopped in a value", lambda m, x, i: m.stop_gradient(x) * x),
    ("gradient stopped in a parameter", lambda m, x, i: m.stop_gradient(m.W) @ x + m.W @ m.stop_gradient(x)),
    ("gradient stopped at the end", lambda m, x, i: m.stop_gradient(x * m.v)),
    ("choice", lambda m, x, i: m.where(x > m.v, x * m.W[0], m.b)),
    ("comparison", lambda m, x, i: (x > 0.0) * x * m.v + (m.v > m.b) * 1.0),
    ("ties of a maximum", lambda m, x, i: m.max(m.concat((x, x, m.v, m.v)), 0) * m.b),
    ("ties in a parameter", lambda m, x, i: m.max(m.concat((m.v, m.v)), 0) * x),
    ("lookup", lambda m, x, i: m.lookup(m.E, i) * x),
    ("two lookups", lambda m, x, i: m.lookup(m.E, i) * m.lookup(m.E, 2) + m.E[1]),
    ("lookup of an expression", lambda m, x, i: m.lookup(m.tanh(m.E * m.v), i) * x),
    ("lookup of a value", lambda m, x, i: m.lookup(m.outer(m.concat((x, x[:1])), m.v), i)),
    ("softmax of a parameter", lambda m, x, i: m.softmax(m.W) @ x),
    ("constant", lambda m, x, i: m.sum(x) * m.v * 0.0 + 2.0),
    ("dot products", lambda m, x, i: m.dot(x, m.v) * m.W[0] + m.dot(m.v, m.b) * x + m.dot(x, x)),
)


@pytest.mark.slow
@each("rewrites", [PASSES, ()])
@each("name, body", BODIES)
def test_one_cell(name: str, body: Any, rewrites: Any) -> None:
    """The cell is chained, so that it runs in several batches, and each value is read twice."""
    weights = Weights()
    inner = ab.cell(lambda x, i: ab.tanh(body(Lib(weights), x, i)))

    def loss(m: Any, steps: list[int]) -> Any:
        state, losses = m.tanh(m.b), [m.s]
        for i in steps:
            state = torch.tanh(body(m, state, i)) if isinstance(m, Torch) else inner(state, i)
            losses.append(m.sum(state * state))
        return sum(losses)

    run = check(weights, loss, [[0, 1, 3], [], [2], [3, 3, 1, 0, 2]], rewrites=rewrites)
    if "stopped" not in name and "ties" not in name:
        ab.testing.check_grads(run, [[0, 1, 3], [], [2]], weights, np.random.default_rng(1))


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class State:
    h: Any
    c: Any
    tag: str = "plain"


# What a cell of (m, x, i) may return, and how its caller reads it. Values have shape (3,).
STRUCTURES: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("value", lambda m, x, i: x * m.v, lambda r: r),
    ("input unchanged", lambda m, x, i: x, lambda r: r),
    ("input twice", lambda m, x, i: (x, x), lambda r: r[0] * r[1]),
    ("input and value", lambda m, x, i: (x, x * m.v), lambda r: r[0] + r[1]),
    ("view of the input", lambda m, x, i: (x[1:], x[:1]), lambda r: r[0][0] * r[1][0] + r[0]),
    ("same value twice", lambda m, x, i: (lambda y: (y, y))(x * m.v), lambda r: r[0] * r[1]),
    ("constant", lambda m, x, i: (x, 3.0, -1), lambda r: r[0] * r[1] + r[2]),
    ("constant array", lambda m, x, i: (x, np.array([1.0, 2.0, 3.0])), lambda r: r[0] * r[1]),
    ("attribute", lambda m, x, i: (x, i), lambda r: r[0] * r[1]),
    ("parameter", lambda m, x, i: (m.v, x), lambda r: r[0] * r[1]),
    ("unread output", lambda m, x, i: (x * m.v, x @ m.W, m.U, m.E), lambda r: r[0]),
    ("only one read", lambda m, x, i: (m.tanh(m.U @ x), m.exp(m.W @ x)), lambda r: r[1]),
    ("dict", lambda m, x, i: {"h": x * m.v, "n": {"b": m.b}}, lambda r: r["h"] + r["n"]["b"]),
    ("dataclass", lambda m, x, i: State(x * m.v, m.b, "made"), lambda r: r.h * r.c if r.tag == "made" else None),
    ("named tuple", lambda m, x, i: Pair(x * m.v, x), lambda r: r.first * r.second),
    ("list", lambda m, x, i: [x * m.v, x, m.b], lambda r: sum(part for part in r)),
    ("nested", lambda m, x, i: ((x * m.v, (x,)), None, "text", [m.b]), lambda r: r[0][0] + r[0][1][0] * r[3][0]),
)


@each("rewrites", [PASSES, ()])
@each("name, body, read", STRUCTURES)
def test_what_cells_return(name: str, body: Any, read: Any, rewrites: Any) -> None:
    weights = Weights()
    inner = ab.cell(lambda x, i: body(Lib(weights), x, i))

    def loss(m: Any, steps: list[int]) -> Any:
        state = m.tanh(m.b)
        for i in steps:
            result = body(m, state, i) if isinstance(m, Torch) else inner(state, i)
            if isinstance(m, Torch):
                result = tensors_in(result)
            state = m.tanh(m.sum(read(result)) * m.v)
        return m.sum(state)

    run = check(weights, loss, [[0, 1, 3], [], [2]], rewrites=rewrites)
    ab.testing.check_grads(run, [[0, 1, 3], [], [2]], weights, np.random.default_rng(1))


def tensors_in(result: Any) -> Any:
    """Convert the NumPy arrays of a structure to tensors."""
    if isinstance(result, tuple) and type(result) is tuple:
        return tuple(map(tensors_in, result))
    return torch.tensor(result) if isinstance(result, np.ndarray) else result


def test_one_parameter_in_several_cells_as_an_argument_and_outside_any() -> None:
    weights = Weights()
    first, second = ab.cell(lambda x: weights.W @ x), ab.cell(lambda x, y: ab.tanh(x @ weights.W) * y)
    within = ab.cell(lambda W, x: W @ ab.tanh(W @ x))
    outer = ab.cell(lambda x: first(x) + second(x, weights.v))

    def loss(m: Any, steps: int) -> Any:
        W, x = m.W, m.tanh(m.b)
        for _ in range(steps):
            if isinstance(m, Torch):
                x = m.tanh(W @ x) + m.tanh(x @ W) * x + W @ m.tanh(W @ x) + W @ x + m.tanh(x @ W) * m.v + W @ x
            else:
                x = m.tanh(first(x)) + second(x, x) + within(W, x) + outer(x) + W @ x
            x = m.tanh(x)
        return m.sum(x) + m.sum(W) + m.s

    run = check(weights, loss, [2, 0, 1, 3])
    ab.testing.check_grads(run, [2, 0, 1], weights, np.random.default_rng(1))


def test_a_frozen_parameter_has_no_gradient_wherever_it_is_used() -> None:
    weights = Weights()
    cell = ab.cell(lambda x, y: x * y * weights.frozen)

    def loss(m: Any, _: Any) -> Any:
        frozen = m.frozen
        inner = frozen * m.v * frozen if isinstance(m, Torch) else cell(frozen, m.v)
        return m.sum(inner) + m.sum(frozen)

    check(weights, loss, [0, 1])
    weights.v.trainable = False
    check(weights, loss, [0, 1])


def test_parameters_may_be_frozen_and_thawed_between_steps() -> None:
    weights = Weights()

    class Product(ab.Module):
        def __init__(self) -> None:
            self.left, self.right = weights.v, weights.frozen

        @ab.cell
        def loss(self, x: Any) -> Any:
            return ab.sum(self.left * self.right * x)

    run = ab.batched(Product().loss)  # a cell may be the whole function
    gradients = {"left": weights.frozen.data, "right": weights.v.data}
    for trainable in (["left"], ["left", "right"], ["right"], [], ["left"]):
        weights.v.trainable, weights.frozen.trainable = "left" in trainable, "right" in trainable
        _, grads = run.value_and_grad([np.ones(3)])
        assert list(grads) == trainable
        for name, grad in grads.items():
            np.testing.assert_array_equal(grad, gradients[name])


def test_what_the_loss_does_not_need_has_no_gradient() -> None:
    """The loss reads some nodes of a type, the other result reads some, and nothing reads the rest.

    x ── cell ── loss          the second's logarithm is NaN, which must stay out of every gradient
    y ── cell ── aux
    z ── cell
    """
    weights = Weights()
    cell = ab.cell(lambda x: (ab.log(x) * weights.v, ab.lookup(weights.E, 1) @ weights.W))

    def both(instance: float) -> Any:
        scaled = weights.s * weights.s * np.abs(weights.b.data)
        (used, _), (asked, _) = cell(scaled * instance), cell(scaled * -1.0)
        cell(scaled * -2.0)
        return ab.sum(used), asked

    for rewrites in (PASSES, ()):
        run = ab.batched(both, module=weights, backend=Reference(poison=True), rewrites=rewrites)
        (value, aux), grads = run.value_and_grad([1.0, 2.0], has_aux=True)
        assert np.isnan(aux).all()
        s, v = (torch.tensor(p.data, requires_grad=True) for p in (weights.s, weights.v))
        size = torch.tensor(np.abs(weights.b.data))
        expected = (torch.log(s * s * size) * v + torch.log(s * s * size * 2.0) * v).sum() / 2
        grad_s, grad_v = torch.autograd.grad(expected, (s, v))
        np.testing.assert_allclose(value, expected.detach(), rtol=TOLERANCE)
        np.testing.assert_allclose(grads["s"], grad_s, rtol=TOLERANCE)
        np.testing.assert_allclose(grads["v"], grad_v, rtol=TOLERANCE)
        assert not grads["W"].any()
        assert isinstance(grads["E"], ab.Rows)
        assert grads["E"].ids.tolist() == [1]  # the node is needed, but not this output
        assert not grads["E"].values.any()


def test_instances_without_a_path_to_a_parameter() -> None:
    weights = Weights()

    def loss(m: Any, instance: Any) -> Any:
        return m.sum(m.v * instance) if instance is not None else m.stop_gradient(m.s) * 2.0

    check(weights, loss, [2.0, None, 3.0])
    check(weights, loss, [None])


def test_a_gradient_that_is_nan_does_not_pass_the_check() -> None:
    """sqrt(x) at zero, times zero: the loss is 0, and its gradient is NaN."""
    model = Weights()
    model.v.data = np.zeros(3)
    run = ab.batched(lambda _: ab.sum(ab.sqrt(model.v * model.v) * 0.0), module=model)
    with pytest.raises(NumericError, match=r"sum\(grad \* v\) is nan"):
        ab.testing.check_grads(run, [None], model, np.random.default_rng(0))


# The stages: what is computed when, and what is kept in between.


def stages(body: Callable[..., Any], *arguments: Any) -> Derivative:
    """Return the derivative of a cell that was called once with these arguments."""
    run = ab.batched(lambda _: ab.cell(body)(*arguments), module=WEIGHTS)
    run([None])
    (program,) = [t.program for t in types_of(run) if t.name == "<lambda>"]
    return differentiate(program)


WEIGHTS = Weights()
X = np.zeros(3)


def ops_in(derivative: Derivative, stage: tuple[int, ...]) -> list[str]:
    sources = [derivative.vars[i].source for i in stage]
    return [source.op.name for source in sources if isinstance(source, Instruction)]


@each(
    "body, weights, n_saved",
    [
        (lambda x: WEIGHTS.W @ x, ["row_sum_outer"], 1),
        (lambda x: ab.affine(WEIGHTS.W, x, WEIGHTS.b), ["row_sum_outer", "row_sum"], 1),
        (lambda x, i: ab.lookup(WEIGHTS.E, i) * x, [], 2),
        (lambda x: WEIGHTS.frozen * x, [], 0),
        (lambda x: ab.tanh(WEIGHTS.W @ x), ["row_sum_outer"], 2),
    ],
)
def test_weight_gradients_are_sums_over_all_rows(body: Any, weights: list[str], n_saved: int) -> None:
    """There is one product per weight and step, of saved operands, and not one per batch."""
    derivative = stages(body, *(X, 1)[: body.__code__.co_argcount])
    assert [name for name in ops_in(derivative, derivative.weights) if name.startswith("row_sum")] == weights
    assert not any(name.startswith("row_sum") for name in ops_in(derivative, derivative.backward))
    assert len(derivative.saved) == n_saved
    assert len(derivative.accumulated) == len(weights)


def test_what_is_computed_of_parameters_over_and_over_is_divided_into_stages_once() -> None:
    """Through a hundred values that are each read twice, there are 2 ** 100 paths."""

    def deepen(weight: Any, times: int) -> Any:
        return deepen(ab.sin(weight) + weight, times - 1) if times else weight

    derivative = stages(lambda x: deepen(WEIGHTS.v, 100) * x, X)
    assert ops_in(derivative, derivative.weights).count("sin") <= 100


def test_a_table_that_is_only_looked_up_has_no_array_for_a_gradient() -> None:
    derivative = stages(lambda i, j: ab.lookup(WEIGHTS.E, i) * ab.lookup(WEIGHTS.E, j), 1, 2)
    ((_, scatters),) = derivative.tables
    assert (len(scatters), derivative.parameters, derivative.weights) == (2, (), ())
    assert str(derivative).splitlines()[-4:] == [
        "<lambda>, weights",
        "  gradient of %2 has %8 added at rows %1",
        "  gradient of %2 has %7 added at rows %0",
        "  saved: %3, %4, %7, %8",
    ]


@each(
    "body",
    [
        lambda i: ab.lookup(2.0 * WEIGHTS.E, i),
        lambda i: ab.lookup(ab.transpose(WEIGHTS.E), i),
        lambda i: ab.lookup(WEIGHTS.E, i) + WEIGHTS.E[0],
        lambda i: ab.lookup(WEIGHTS.E, i) @ ab.transpose(WEIGHTS.E),
    ],
)
def test_a_table_that_is_read_in_another_way_has_an_array(body: Any) -> None:
    derivative = stages(body, 1)
    assert (len(derivative.parameters), derivative.tables) == (1, ())


def test_a_derivative_prints_its_stages() -> None:
    assert str(stages(lambda x: ab.tanh(WEIGHTS.W @ x), X)).splitlines() == [
        "<lambda>, backward",
        "  %4: (3,) = gradient of output 0",
        "  %5: (3,) = mul(%3, %3)",
        "  %6: () = constant 1.0",
        "  %7: (3,) = sub(%6, %5)",
        "  %8: (3,) = mul(%4, %7)",
        "  %10: (3,) = matmul(%8, %1)",
        "  gradient of %0 is %10",
        "<lambda>, weights",
        "  %11: (3, 3) = row_sum_outer(%8, %0)",
        "  gradient of %1 is %11",
        "  saved: %3, %8",
    ]
