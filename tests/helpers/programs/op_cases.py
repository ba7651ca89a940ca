"""A table of calls of every op, with torch's equivalents and argument shapes; and a model that calls one case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import autobatch as ab
from autobatch import ops

torch.set_num_threads(1)  # otherwise, most of the time goes to waking threads for such small tensors

Shape = tuple[int, ...]
ROW, TABLE = np.array([0.5, -1.5, 2.0]), np.arange(12.0).reshape(4, 3) / 7


@dataclass(frozen=True)
class Case:
    """One way to call an op.

    Attributes:
        compute, expect: the op on autobatch's values, and the same on torch's tensors.
        shapes: the shapes of the float arguments.
        ids: shape and exclusive upper bound of each int argument; these follow the float arguments.
        draw: how to draw floats: "normal", "positive", or "grid", which has many equal numbers.
    """

    name: str
    compute: Callable[..., Any]
    expect: Callable[..., Any]
    shapes: tuple[Shape, ...]
    ids: tuple[tuple[Shape, int], ...] = ()
    draw: str = "normal"

    def __str__(self) -> str:
        return f"{self.name}{self.shapes}".replace(" ", "")

    def floats(self, rng: np.random.Generator, shape: Shape) -> Any:
        """Draw a float argument, away from the edges of the op's domain."""
        match self.draw:
            case "grid":
                return rng.integers(-1, 2, shape).astype(np.float64)
            case "positive":
                return rng.uniform(0.5, 1.5, shape)
        return rng.standard_normal(shape)

    def arguments(self, rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
        """Draw float arguments and int arguments."""
        ints = [rng.integers(size, size=shape) if shape else int(rng.integers(size)) for shape, size in self.ids]
        return [self.floats(rng, shape) for shape in self.shapes], ints

    @property
    def smooth(self) -> bool:
        """Return whether central differences are meaningful."""
        return self.draw != "grid"


def number(condition: Any) -> Any:
    """Convert torch's truth values to floats, as in autobatch's comparisons."""
    return condition.to(torch.float64)


def with_array(name: str, array: Any, compute: Callable[..., Any]) -> Case:
    """Return the case of an operator between a constant array and a value."""
    tensor = torch.from_numpy(array)
    return Case(name, lambda x: compute(array, x), lambda x: compute(tensor, x), ((3,),), draw="positive")


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], gain, bias)


def cross_entropy(logits: Any, label: Any) -> Any:
    flat = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), label.reshape(-1), reduction="none")
    return flat.reshape(label.shape)


FEW: tuple[tuple[Shape, Shape], ...] = (((4, 3), (3,)), ((), (2, 3)))
PAIRS = (*FEW, ((3,), (4, 3)), ((1, 3), (4, 1)), ((), ()))
BINARY: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("add", torch.add, "normal"), ("sub", torch.sub, "normal"), ("mul", torch.mul, "normal"),
    ("div", torch.div, "positive"), ("pow", torch.pow, "positive"),
    ("squared_error", lambda x, y: (x - y) ** 2, "normal"),
    ("less", lambda x, y: number(x < y), "grid"), ("less_equal", lambda x, y: number(x <= y), "grid"),
    ("greater", lambda x, y: number(x > y), "grid"), ("greater_equal", lambda x, y: number(x >= y), "grid"),
    ("equal", lambda x, y: number(x == y), "grid"), ("not_equal", lambda x, y: number(x != y), "grid"),
    ("maximum", torch.maximum, "normal"), ("minimum", torch.minimum, "normal"),
    ("maximum", torch.maximum, "grid"), ("minimum", torch.minimum, "grid"),
)  # fmt: skip
UNARY: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("neg", torch.neg, "normal"), ("exp", torch.exp, "normal"), ("log", torch.log, "positive"),
    ("sqrt", torch.sqrt, "positive"), ("tanh", torch.tanh, "normal"), ("sigmoid", torch.sigmoid, "normal"),
    ("relu", torch.relu, "normal"), ("gelu", F.gelu, "normal"), ("erf", torch.erf, "normal"),
    ("softplus", F.softplus, "normal"), ("sin", torch.sin, "normal"), ("cos", torch.cos, "normal"),
    ("abs", torch.abs, "normal"), ("abs", torch.abs, "grid"), ("stop_gradient", lambda x: x.detach(), "grid"),
)  # fmt: skip
PRODUCTS = (
    Case("matmul", ops.matmul, torch.matmul, ((4, 3), (3,))),
    Case("matmul", ops.matmul, torch.matmul, ((3,), (3, 4))),
    Case("matmul", ops.matmul, torch.matmul, ((2, 3), (3, 4))),
    Case("matmul", ops.matmul, torch.matmul, ((3,), (3,))),
    Case("matmul rows", ops.matmul, torch.matmul, ((4, 2, 3), (3, 5))),
    Case("matmul rows and vector", ops.matmul, torch.matmul, ((4, 2, 3), (3,))),
    Case("matmul tensor", ops.matmul, torch.matmul, ((3,), (4, 3, 2))),
    Case("matmul matrix and tensor", ops.matmul, torch.matmul, ((5, 3), (2, 3, 4))),
    Case("matmul of nothing", ops.matmul, torch.matmul, ((0,), (2, 0, 3))),
    Case("matmul rows of nothing", ops.matmul, torch.matmul, ((2, 3, 0), (0, 4))),
    Case("matmul stacks", ops.matmul, torch.matmul, ((2, 3, 4), (2, 4, 2))),
    Case("matmul stacks that broadcast", ops.matmul, torch.matmul, ((2, 1, 3, 4), (3, 4, 2))),
    *(
        Case(f"einsum {text}", partial(ops.einsum, text), partial(torch.einsum, text), shapes)
        for text, shapes in (
            ("ij,j->i", ((3, 4), (4,))),
            ("ij,jk->ik", ((2, 3), (3, 4))),
            ("ij,kj->ki", ((2, 3), (4, 3))),
            ("i,i->", ((3,), (3,))),
            ("i,j->ji", ((2,), (3,))),
            ("ij,ij->i", ((2, 3), (2, 3))),
            ("bij,bjk->bik", ((2, 3, 4), (2, 4, 2))),
            ("bij,bj->bi", ((2, 3, 4), (2, 4))),
            ("i,ijk->jk", ((3,), (3, 2, 2))),
            ("bi,bj->bij", ((2, 3), (2, 4))),
            ("ijk,lk->jil", ((2, 3, 4), (5, 4))),
            ("ijk->kj", ((2, 3, 4),)),
            ("ij->", ((2, 3),)),
            ("ijk,jl->l", ((2, 3, 4), (3, 5))),
            (",i->i", ((), (3,))),
            ("hqd, hkd -> hqk", ((2, 3, 4), (2, 5, 4))),
        )
    ),
    Case("affine", ops.affine, lambda w, x, b: w @ x + b, ((4, 3), (3,), (4,))),
    Case("dot", ops.dot, torch.dot, ((3,), (3,))),
    Case("outer", ops.outer, torch.outer, ((3,), (4,))),
)
SHAPING = (
    Case("concat", lambda x, y, z: ops.concat((x, y, z)), lambda *xs: torch.cat(xs), ((2,), (3,), (1,))),
    Case("concat rows", lambda x, y: ops.concat([x, y], axis=0), lambda *xs: torch.cat(xs), ((2, 3), (1, 3))),
    Case("concat columns", lambda x, y: ops.concat([x, y]), lambda *xs: torch.cat(xs, -1), ((2, 3), (2, 1))),
    Case("concat middle", lambda x, y: ops.concat([x, y], 1), lambda *xs: torch.cat(xs, 1), ((2, 3, 2), (2, 1, 2))),
    Case("stack", lambda x, y: ops.stack([x, y]), lambda *xs: torch.stack(xs), ((3,), (3,))),
    Case("stack last", lambda x, y: ops.stack((x, y), -1), lambda *xs: torch.stack(xs, -1), ((2, 3), (2, 3))),
    Case("stack scalars", lambda x, y: ops.stack([x, y, x]), lambda x, y: torch.stack([x, y, x]), ((), ())),
    Case("split", lambda x: ops.split(x, 3)[0] * ops.split(x, 3)[2], lambda x: x[:2] * x[4:], ((6,),)),
    Case("split rows", lambda x: ops.split(x, 2)[1], lambda x: x[:, 2:], ((3, 4),)),
    Case("element", lambda x: x[1], lambda x: x[1], ((3,),)),
    Case("last element", lambda x: x[-1], lambda x: x[-1], ((3,),)),
    Case("row", lambda x: x[-2], lambda x: x[-2], ((4, 3),)),
    Case("column", lambda x: x[:, 1], lambda x: x[:, 1], ((4, 3),)),
    Case("last axis", lambda x: x[..., 0], lambda x: x[..., 0], ((4, 3),)),
    Case("new axis", lambda x: x[None, 1:], lambda x: x[None, 1:], ((3,),)),
    Case("stride", lambda x: x[::2], lambda x: x[::2], ((5,),)),
    Case("backwards", lambda x: x[::-1], lambda x: x.flip(0), ((5,),)),
    Case("empty slice", lambda x: x[2:2], lambda x: x[2:2], ((3,),)),
    Case("overlapping slices", lambda x: x[0:3] * x[1:4], lambda x: x[0:3] * x[1:4], ((5,),)),
    Case("slice of a slice", lambda x: x[1:5][1:3], lambda x: x[2:4], ((6,),)),
    Case("iteration", lambda x: sum(a * b for a, b in pairwise(x)), lambda x: x[0] * x[1] + x[1] * x[2], ((3, 2),)),
    Case("reshape", lambda x: ops.reshape(x, (3, 2)), lambda x: x.reshape(3, 2), ((2, 3),)),
    Case("flatten", lambda x: ops.reshape(x, -1), lambda x: x.reshape(-1), ((2, 3),)),
    Case("reshape a scalar", lambda x: ops.reshape(x, (1, 1)), lambda x: x.reshape(1, 1), ((),)),
    Case("transpose", ops.transpose, lambda x: x.T, ((2, 3),)),
    Case("transpose axes", lambda x: ops.transpose(x, (2, 0, -2)), lambda x: x.permute(2, 0, 1), ((2, 3, 4),)),
    Case(
        "views of views", lambda x: ops.reshape(ops.transpose(x)[1:], (2, 2))[:, 0],
        lambda x: x.T[1:].reshape(2, 2)[:, 0], ((2, 3),),
    ),
)  # fmt: skip
REDUCTIONS = (
    Case("sum", ops.sum, torch.sum, ((2, 3),)),
    Case("sum", ops.sum, torch.sum, ((),)),
    Case("sum axis", lambda x: ops.sum(x, 0), lambda x: x.sum(0), ((2, 3),)),
    Case("sum axes", lambda x: ops.sum(x, (-1, 0)), lambda x: x.sum((-1, 0)), ((2, 3, 2),)),
    Case("sum keepdims", lambda x: ops.sum(x, -1, keepdims=True), lambda x: x.sum(-1, keepdim=True), ((2, 3),)),
    Case("mean", ops.mean, torch.mean, ((2, 3),)),
    Case("mean axis", lambda x: ops.mean(x, axis=1), lambda x: x.mean(1), ((2, 3),)),
    Case("mean keepdims", lambda x: ops.mean(x, 0, True), lambda x: x.mean(0, keepdim=True), ((2, 3),)),
    Case("max", ops.max, torch.amax, ((2, 3),)),
    Case("max ties", ops.max, torch.amax, ((3, 3),), draw="grid"),
    Case("max axis", lambda x: ops.max(x, 0), lambda x: x.amax(0), ((4, 3),), draw="grid"),
    Case("max keepdims", lambda x: ops.max(x, (0, 1), True), lambda x: x.amax((0, 1), True), ((2, 3),)),
    Case("min", ops.min, torch.amin, ((2, 3),)),
    Case("min ties", lambda x: ops.min(x, 0), lambda x: x.amin(0), ((4, 3),), draw="grid"),
    Case("min keepdims", lambda x: ops.min(x, (0, 1), True), lambda x: x.amin((0, 1), True), ((2, 3),)),
    Case("argmax", lambda x: ops.add(ops.argmax(x), 0.0 * ops.sum(x)), lambda x: x.argmax() + 0.0 * x.sum(), ((2, 3),)),
    Case(
        "argmax axis",
        lambda x: ops.add(ops.argmax(x, axis=0), 0.0 * x[0]),
        lambda x: x.argmax(0) + 0.0 * x[0],
        ((4, 3),),
        draw="grid",
    ),
    Case("logsumexp", ops.logsumexp, lambda x: x.logsumexp((0, 1)), ((2, 3),)),
    Case("logsumexp axis", lambda x: ops.logsumexp(x, axis=0), lambda x: x.logsumexp(0), ((4, 3),)),
    Case("logsumexp keepdims", lambda x: ops.logsumexp(x, -1, True), lambda x: x.logsumexp(-1, True), ((2, 3),)),
    Case("softmax", ops.softmax, lambda x: x.softmax(-1), ((4,),)),
    Case("softmax axis", lambda x: ops.softmax(x, axis=0), lambda x: x.softmax(0), ((4, 3),)),
    Case("log_softmax", ops.log_softmax, lambda x: x.log_softmax(-1), ((2, 4),)),
    Case("log_softmax axis", lambda x: ops.log_softmax(x, 0), lambda x: x.log_softmax(0), ((2, 4),)),
    Case("layer_norm", ops.layer_norm, layer_norm, ((4,), (4,), (4,))),
    Case("layer_norm rows", ops.layer_norm, layer_norm, ((2, 4), (4,), (4,))),
)
CHOICES = (
    Case("gelu tanh", lambda x: ops.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"), ((2, 3),)),
    Case("clip", lambda x: ops.clip(x, -0.5, 0.5), lambda x: x.clip(-0.5, 0.5), ((2, 3),)),
    Case("clip at the limits", lambda x: ops.clip(x, -1.0, 1.0), lambda x: x.clip(-1.0, 1.0), ((4, 3),), draw="grid"),
    Case("leaky_relu", ops.leaky_relu, F.leaky_relu, ((2, 3),)),
    Case("leaky_relu at 0", lambda x: ops.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2), ((4, 3),), draw="grid"),
    Case("elu", ops.elu, F.elu, ((2, 3),)),
    Case("elu at 0", lambda x: ops.elu(x, 0.5), lambda x: F.elu(x, 0.5), ((4, 3),), draw="grid"),
    Case("clip below", lambda x: ops.clip(x, low=0.1), lambda x: x.clip(min=0.1), ((2, 3),)),
    Case("clip above", lambda x: ops.clip(x, high=0.1), lambda x: x.clip(max=0.1), ((2, 3),)),
    Case("where", ops.where, lambda c, x, y: torch.where(c != 0, x, y), ((3,), (3,), (3,)), draw="grid"),
    Case("where wide", ops.where, lambda c, x, y: torch.where(c != 0, x, y), ((4, 1), (3,), ()), draw="grid"),
    Case("where narrow", ops.where, lambda c, x, y: torch.where(c != 0, x, y), ((), (2, 3), (3,)), draw="grid"),
    Case("where number", lambda x: ops.where(x > 0, x, 0.5), lambda x: torch.where(x > 0, x, 0.5), ((5,),)),
    Case("lookup", ops.lookup, lambda t, i: t[i], ((5, 3),), ids=(((), 5),)),
    Case("lookup ids", ops.lookup, lambda t, i: t[i], ((5, 3),), ids=(((4,), 5),)),
    Case("lookup id rows", ops.lookup, lambda t, i: t[i], ((5, 3),), ids=(((2, 2), 5),)),
    Case("lookup numbers", ops.lookup, lambda t, i: t[i], ((5,),), ids=(((3,), 5),)),
    Case("lookup part of ids", lambda t, i: ops.lookup(t, i[1:]), lambda t, i: t[i[1:]], ((5, 3),), ids=(((4,), 5),)),
    Case("lookup constant", lambda t: ops.lookup(t, 3), lambda t: t[3], ((5, 3),)),
    Case("lookup constants", lambda t: ops.lookup(t, np.array([3, 0, 3])), lambda t: t[[3, 0, 3]], ((5, 3),)),
    Case("lookup argmax", lambda t, x: ops.lookup(t, ops.argmax(x)), lambda t, x: t[x.argmax()], ((5, 3), (5,))),
    Case("lookup own", lambda x: ops.lookup(x, ops.argmax(x, 1)[1]), lambda x: x[x.argmax(1)[1]], ((3, 2),)),
    Case("lookup one", lambda x: ops.lookup(ops.tanh(x), ops.argmax(x)), lambda x: x.tanh()[x.argmax()], ((1,),)),
    Case("top_k", lambda x: ops.top_k(x, 2)[0], lambda x: x.topk(2)[0], ((5,),)),
    Case("top_k lookup", lambda t, x: ops.lookup(t, ops.top_k(x, 3)[1]), lambda t, x: t[x.topk(3)[1]], ((4, 2), (4,))),
    Case(
        "cross_entropy argmax",
        lambda x: ops.cross_entropy(x, ops.argmax(x)),
        lambda x: -x.log_softmax(0)[x.argmax()],
        ((5,),),
    ),
    Case("cross_entropy", ops.cross_entropy, cross_entropy, ((5,),), ids=(((), 5),)),
    Case("cross_entropy rows", ops.cross_entropy, cross_entropy, ((3, 5),), ids=(((3,), 5),)),
    Case("cross_entropy constant", lambda x: ops.cross_entropy(x, 2), lambda x: -x.log_softmax(0)[2], ((5,),)),
)
CASES = (
    *(Case(n, getattr(ops, n), expect, p, draw=draw) for n, expect, draw in BINARY[:5] for p in PAIRS),
    *(Case(n, getattr(ops, n), expect, p, draw=draw) for n, expect, draw in BINARY[5:] for p in FEW),
    *(Case(n, getattr(ops, n), expect, (s,), draw=draw) for n, expect, draw in UNARY for s in ((2, 3), ())),
    *PRODUCTS, *SHAPING, *REDUCTIONS, *CHOICES,
)  # fmt: skip

OPERATORS = (
    *(
        Case(name, compute, compute, ((3,), (3,)), draw="positive")
        for name, compute in (
            ("x + y", lambda x, y: x + y), ("x - y", lambda x, y: x - y), ("x * y", lambda x, y: x * y),
            ("x / y", lambda x, y: x / y), ("x ** y", lambda x, y: x**y), ("x @ y", lambda x, y: x @ y),
            ("sum", lambda x, y: sum([x, y, x])),
        )
    ),
    *(
        Case(name, compute, compute, ((3,),), draw="positive")
        for name, compute in (
            ("-x", lambda x: -x), ("0 + x", lambda x: 0 + x), ("x + 0.0", lambda x: x + 0.0),
            ("2 + x", lambda x: 2 + x), ("x + 2.5", lambda x: x + 2.5), ("1 - x", lambda x: 1 - x),
            ("x - 1", lambda x: x - 1), ("2 * x", lambda x: 2 * x), ("x * 0.5", lambda x: x * 0.5),
            ("1 / x", lambda x: 1 / x), ("x / 4", lambda x: x / 4), ("x ** 2", lambda x: x**2),
            ("abs(x)", lambda x: abs(1 - x)), ("x.sum()", lambda x: x.sum()), ("x.mean()", lambda x: x.mean()),
            ("x.max()", lambda x: x.max()), ("x.min()", lambda x: x.min()), ("x.T", lambda x: x[None].T),
            ("x.reshape(1, 3)", lambda x: x.reshape(1, 3)), ("x.reshape(-1)", lambda x: x[None].reshape(-1)),
            ("x ** 0.5", lambda x: x**0.5), ("2 ** x", lambda x: 2**x), ("x ** -1", lambda x: x**-1),
        )
    ),
    *(
        Case(name, compute, lambda x, compute=compute: number(compute(x)), ((3,),), draw="grid")
        for name, compute in (
            ("x < 0", lambda x: x < 0), ("x <= 0", lambda x: x <= 0), ("x > 0", lambda x: x > 0),
            ("x >= 0", lambda x: x >= 0), ("x == 0", lambda x: x == 0), ("x != 0", lambda x: x != 0),
            ("~(x > 0)", lambda x: ~(1 * x > 0)), ("x > 0 & x < 1", lambda x: (1 * x > 0) & (1 * x < 1)),
            ("x > 0 | x < 0", lambda x: (1 * x > 0) | (1 * x < 0)),
            ("x > 0 ^ x < 1", lambda x: (1 * x > 0) ^ (1 * x < 1)),
            ("0 < x", lambda x: 0 < x), ("0 >= x", lambda x: 0 >= x), ("0 == x", lambda x: 0 == x),  # noqa: SIM300
        )
    ),
    *(with_array(name, array, compute) for name, array, compute in (
        ("array + x", ROW, lambda a, x: a + x), ("x + array", ROW, lambda a, x: x + a),
        ("array - x", ROW, lambda a, x: a - x), ("array * x", TABLE, lambda a, x: a * x),
        ("array / x", ROW, lambda a, x: a / x), ("x / array", ROW, lambda a, x: x / a),
        ("array @ x", TABLE, lambda a, x: a @ x), ("x @ array", TABLE.T, lambda a, x: x @ a),
    )),
    *(
        Case(f"np.{name}", getattr(np, name), getattr(torch, name), ((3,),), draw="positive")
        for name in ("negative", "exp", "log", "sqrt", "tanh", "abs", "sin", "cos")
    ),
    *(
        Case(f"np.{name}", getattr(np, name), getattr(torch, name), ((3,), (3,)), draw="positive")
        for name in ("add", "subtract", "multiply", "true_divide", "matmul", "maximum", "minimum")
    ),
    Case("np.power", np.power, torch.pow, ((3,), (3,)), draw="positive"),
    Case("np.less", np.less, lambda x, y: number(x < y), ((3,), (3,)), draw="grid"),
    Case("np.equal", np.equal, lambda x, y: number(x == y), ((3,), (3,)), draw="grid"),
    Case("np.float64 * x", lambda x: np.float64(2.5) * x, lambda x: 2.5 * x, ((3,),)),
    Case("np.float32 - x", lambda x: np.float32(2.5) - x, lambda x: 2.5 - x, ((3,),)),
    Case("x ** np.int64", lambda x: x ** np.int64(3), lambda x: x**3, ((3,),)),
)  # fmt: skip


class CaseModel(ab.Module):
    """Calls one case repeatedly; each float argument is a parameter, or a value that another node made from one.

    Args:
        roles: for each float argument, "parameter" or "value".
        in_cell: whether the op is called in a cell, or directly by the recorded function.
    """

    def __init__(self, case: Case, roles: Sequence[str], rng: np.random.Generator, in_cell: bool = True) -> None:
        self.case, self.roles, self.in_cell = case, roles, in_cell
        floats, ints = case.arguments(rng)
        self.factors = [ab.Parameter(x) for x in floats]
        self.weights = np.cos(np.arange(np.size(case.compute(*floats, *ints)), dtype=np.float64))
        self.weights = self.weights.reshape(np.shape(case.compute(*floats, *ints)))
        self.astype("float64")

    @ab.cell
    def scaled(self, factor: Any, x: Any) -> Any:
        return factor * x

    @ab.cell
    def weighed(self, floats: Any, ints: Any) -> Any:
        return self.weigh(floats, ints)

    def weigh(self, floats: Any, ints: Any) -> Any:
        """Return a number that depends on every element of the result and on every argument."""
        arguments = [
            p if role == "parameter" else x for p, x, role in zip(self.factors, floats, self.roles, strict=True)
        ]
        total = ops.sum(self.case.compute(*arguments, *ints) * self.weights)
        for x in arguments:
            total = total + 0.1 * ops.sum(x)
        return total

    def loss(self, instance: list[tuple[list[Any], list[Any]]]) -> Any:
        losses, first = [], None
        for floats, ints in instance:
            values = [self.scaled(p, x) for p, x in zip(self.factors, floats, strict=True)]
            first = values[0] if first is None else first
            call = self.weighed if self.in_cell else self.weigh
            losses.append(call(tuple(values), tuple(ints)))
            losses.append(call((first, *values[1:]), tuple(ints)))  # a value with several readers
        return ab.sum_n(losses, shape=())

    def torch_loss(self, instances: list[Any]) -> tuple[Any, list[Any]]:
        """Compute the loss in torch, with its gradients."""
        factors = [torch.tensor(p.data, requires_grad=True) for p in self.factors]
        total = torch.zeros((), dtype=torch.float64)
        for instance in instances:
            first = None
            for floats, ints in instance:
                values = [p * torch.as_tensor(x) for p, x in zip(factors, floats, strict=True)]
                first = values[0] if first is None else first
                for reader in (values, [first, *values[1:]]):
                    arguments = [
                        p if role == "parameter" else x for p, x, role in zip(factors, reader, self.roles, strict=True)
                    ]
                    out = self.case.expect(*arguments, *(torch.as_tensor(i) for i in ints))
                    total = total + (out * torch.as_tensor(self.weights)).sum() + 0.1 * sum(x.sum() for x in arguments)
        total = total / len(instances)
        return total.detach().numpy(), [g.numpy() for g in torch.autograd.grad(total, factors)]
