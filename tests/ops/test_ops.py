"""Test ops: eager against torch, batched against eager, gradients against torch and central differences."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import autobatch as ab
from autobatch import ops
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.errors import AutobatchError, DataError, GraphError, ShapeError
from autobatch.ops.indexing import pick
from autobatch.ops.operators import OPS
from helpers.fakes.counting_backend import Counting
from helpers.programs.op_cases import CASES, OPERATORS, Case, CaseModel
from helpers.runs.ways import each

ALL = (*CASES, *OPERATORS)
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
TO_EAGER = 1e-10
SIZES = (2, 0, 1, 5)  # calls per instance


def all_roles(cases: tuple[Case, ...]) -> list[tuple[Case, tuple[str, ...]]]:
    """Return each case with each choice of which float arguments are parameters and which are values of other nodes."""
    return [
        (case, roles) for case in cases for roles in itertools.product(("value", "parameter"), repeat=len(case.shapes))
    ]


def make_parameter(data: Any, dtype: str) -> ab.Parameter:
    parameter = ab.Parameter(np.zeros(np.shape(data))).astype(dtype)
    parameter.data = data
    return parameter


class Inputs(ab.Module):
    """Arrays as parameters."""

    def __init__(self, dtype: str, *arrays: Any) -> None:
        self.all = [make_parameter(x, dtype) for x in arrays]

    def gradients(self, loss: Callable[..., Any]) -> list[Any]:
        """Return the gradient of `loss(*arrays)` for each array."""
        return list(ab.batched(lambda _: loss(*self.all), module=self).value_and_grad([None])[1].values())


def torch_gradients(loss: Callable[..., Any], *arrays: Any) -> list[Any]:
    tensors = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    return [g.numpy() for g in torch.autograd.grad(loss(*tensors), tensors)]


def draw_model(case: Case, roles: tuple[str, ...], in_cell: bool = True) -> tuple[CaseModel, list[Any]]:
    """Draw the parameters of a case, and instances with different numbers of calls."""
    rng = np.random.default_rng(0)
    return CaseModel(case, roles, rng, in_cell), [[case.arguments(rng) for _ in range(size)] for size in SIZES]


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@each("dtype", ["float32", "float64"])
@each("case", ALL)
def test_eager_is_torchs(case: Case, dtype: str) -> None:
    floats, ints = case.arguments(np.random.default_rng(0))
    expected = case.expect(*map(torch.as_tensor, floats), *map(torch.as_tensor, ints))
    for arguments in ([np.asarray(x, dtype) for x in floats], [make_parameter(x, dtype) for x in floats]):
        found = case.compute(*arguments, *ints)
        found = found.data if isinstance(found, ab.Parameter) else found  # 0 + x is x
        assert_close(found, expected, TOLERANCE[dtype])
        assert np.shape(found) == tuple(expected.shape)


@each("dtype", ["float32", "float64"])
@each("case", CASES)
def test_eager_keeps_the_dtype(case: Case, dtype: str) -> None:
    floats, ints = case.arguments(np.random.default_rng(0))
    assert case.compute(*(make_parameter(x, dtype) for x in floats), *ints).dtype == dtype


@pytest.mark.slow
@each("case, roles", all_roles(ALL))
def test_ops_in_a_cell_are_eager_and_torchs(case: Case, roles: tuple[str, ...]) -> None:
    check(case, roles, in_cell=True)


@pytest.mark.slow
@each("case, roles", [(c, roles) for c, roles in all_roles(ALL) if c in OPERATORS or len(set(roles)) == 1])
def test_ops_outside_of_cells_are_eager_and_torchs(case: Case, roles: tuple[str, ...]) -> None:
    """Each op is then its own cell. Parameters and values are only mixed for operators."""
    check(case, roles, in_cell=False)


def check(case: Case, roles: tuple[str, ...], in_cell: bool) -> None:
    """Compare batched with eager results, both and gradients with torch, and gradients with differences."""
    model, instances = draw_model(case, roles, in_cell)
    loss = ab.batched(model.loss)
    ab.testing.check_batched(model.loss, loss, instances, TO_EAGER)
    value, grads = loss.value_and_grad(instances)
    expected_value, expected_grads = model.torch_loss(instances)
    assert_close(value, expected_value, TO_EAGER)
    for found, expected in zip(grads.values(), expected_grads, strict=True):
        assert_close(found, expected, TO_EAGER)
    if case.smooth and in_cell and len(set(roles)) == 1:
        ab.testing.check_grads(loss, instances, model, np.random.default_rng(1))


@pytest.mark.slow
@each("case", CASES)
def test_kernels_need_only_what_cupy_has(case: Case) -> None:
    model, instances = draw_model(case, ("value",) * len(case.shapes))
    value, grads = ab.batched(model.loss, backend=Counting()).value_and_grad(instances)
    expected_value, expected_grads = model.torch_loss(instances)
    assert_close(value, expected_value, TO_EAGER)
    for found, expected in zip(grads.values(), expected_grads, strict=True):
        assert_close(found, expected, TO_EAGER)


def test_every_op_has_a_case() -> None:
    tested = {case.compute for case in CASES}
    named = {case.name.split()[0] for case in CASES}
    elsewhere = {"attend", "max_n", "mean_n", "sum_n", "categorical", "dropout", "slice_", "Op", "define_op"}
    elsewhere |= {"dot_n", "each", "logsumexp_n", "normal", "softmax_n"}
    assert {name for name in ops.__all__ if getattr(ops, name) not in tested} - named <= elsewhere


# Extreme inputs.

FAR = [-np.inf, -1e4, -745.0, -104.0, -88.0, -40.0, -12.0, -0.0, 0.0, 15.0, 40.0, 88.0, 104.0, 1e4, np.inf, np.nan]
ROWS = [[1e4, 0.0, -1e4], [-1e4, 0.0, 1e4], [0.0, -np.inf, 1.0], [np.nan, 0.0, 1.0], [1e38, -1e38, 0.0], [7.0] * 3]


def gelu_tanh(x: Any) -> Any:
    """Compute the tanh form without torch's sum of 1 and nearly -1."""
    return x * torch.sigmoid((8 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))


TAILS: tuple[tuple[str, Callable[..., Any], Callable[..., Any], list[Any]], ...] = (
    ("sigmoid", ops.sigmoid, torch.sigmoid, FAR),
    ("softplus", ops.softplus, F.softplus, FAR),
    ("tanh", ops.tanh, torch.tanh, FAR),
    ("relu", ops.relu, torch.relu, FAR),
    ("leaky_relu", ops.leaky_relu, F.leaky_relu, FAR),
    ("elu", ops.elu, F.elu, FAR),
    ("exp", ops.exp, torch.exp, FAR),
    ("log", ops.log, torch.log, FAR),
    ("sqrt", ops.sqrt, torch.sqrt, FAR),
    ("gelu", ops.gelu, lambda x: 0.5 * x * torch.special.erfc(-x * 0.5**0.5), FAR[1:-2]),
    ("gelu tanh", lambda x: ops.gelu(x, "tanh"), gelu_tanh, FAR[1:-2]),
    ("erf", ops.erf, torch.erf, FAR),
    ("1 / x", lambda x: 1.0 / x, lambda x: 1.0 / x, FAR),
    ("softmax", ops.softmax, lambda x: x.softmax(-1), ROWS),
    ("log_softmax", ops.log_softmax, lambda x: x.log_softmax(-1), ROWS),
    *(
        (f"cross_entropy {k}", lambda x, k=k: ops.cross_entropy(x, k), lambda x, k=k: -x.log_softmax(-1)[k], ROWS)
        for k in range(3)
    ),
    ("max", ops.max, torch.amax, ROWS),
    ("layer_norm", lambda x: ops.layer_norm(x, x, x), lambda x: F.layer_norm(x, (3,), x, x), [ROWS[0], ROWS[5]]),
)


@each("dtype", ["float32", "float64"])
@each("name, compute, expect, inputs", TAILS)
def test_far_from_zero(name: str, compute: Any, expect: Any, inputs: list[Any], dtype: str) -> None:
    """Infinite and NaN where torch is, exact in the tails, and without warnings, which are errors here."""
    instances = [np.asarray(x, dtype) for x in inputs]
    found = ab.batched(ab.cell(lambda x: compute(x)), module=Inputs(dtype, 1.0))(instances)
    expected = [expect(torch.as_tensor(x)).numpy() for x in instances]
    tiny = 1e-44 if dtype == "float32" else 5e-324
    np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == "float32" else 1e-13, atol=tiny)


@each(
    "name, compute, expect, inputs",
    [case for case in TAILS if case[0] in ("sigmoid", "softplus", "tanh", "relu", "elu", "softmax", "log_softmax")]
    + [case for case in TAILS if case[0].startswith("cross_entropy")],
)
def test_gradients_far_from_zero(name: str, compute: Any, expect: Any, inputs: list[Any]) -> None:
    for x in (x for x in inputs if np.isfinite(x).all() and np.max(np.abs(x)) <= 1e4):
        (found,) = Inputs("float64", x).gradients(lambda x: ops.sum(compute(x)))
        (expected,) = torch_gradients(lambda x: expect(x).sum(), x)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-16)


@each("case", [case for case in CASES if case.smooth])
def test_nan_passes_through(case: Case) -> None:
    floats, ints = case.arguments(np.random.default_rng(0))
    run = ab.batched(ab.cell(lambda arguments: case.compute(*arguments[0], *arguments[1])))
    for place in (place for place, x in enumerate(floats) if np.size(x)):
        spoilt = [x.copy() if np.ndim(x) else np.asarray(x) for x in floats]
        spoilt[place].flat[0] = np.nan
        expected = case.expect(*map(torch.as_tensor, spoilt), *map(torch.as_tensor, ints))
        np.testing.assert_array_equal(np.isnan(run([(spoilt, ints)])[0]), torch.isnan(expected))


@each("exponent", [0.0, 1.0, 2.0, 3.0])
def test_powers_of_zero_have_torchs_gradient(exponent: float) -> None:
    arrays = ([0.0, 2.0, 0.5], exponent)
    found = Inputs("float64", *arrays).gradients(lambda x, y: ops.sum(x**y))
    for gradient, expected in zip(found, torch_gradients(lambda x, y: (x**y).sum(), *arrays), strict=True):
        assert_close(gradient, expected, 1e-12)


def test_gelu_has_the_two_forms_of_torch() -> None:
    x = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(ab.gelu(x), F.gelu(torch.as_tensor(x)), rtol=1e-14)
    exact, near = ab.gelu(x, approximate="none"), ab.gelu(x, approximate="tanh")
    np.testing.assert_array_equal(exact, ab.gelu(x))
    assert 1e-5 < np.abs(exact - near).max() < 5e-4
    with pytest.raises(DataError, match=r"approximate of gelu .* 'none', 'tanh', got 'erf'\."):
        ab.gelu(x, approximate="erf")


# Data in arithmetic, ids and labels.


def batched_call(compute: Callable[..., Any], arguments: list[tuple[Any, ...]], backend: Any = "auto") -> Any:
    """Call a cell once per instance with the given arguments."""
    call = ab.cell(compute)
    return ab.batched(lambda instance: call(*instance), backend=backend)(arguments)


@each(
    "compute, x, slope",
    [
        (ops.relu, [-1.0, 4.0], [0.0, 0.25]),
        (lambda x: ops.max(x), [-1.0, 0.0, -2.0], [0.0, np.inf, 0.0]),
        (lambda x: ops.max_n([x[0], x[1]]), [-1.0, 0.0], [0.0, np.inf]),
        (lambda x: pick(x, 1, ignore=-100), [4.0, 0.0], [0.0, np.inf]),
    ],
)
@each("backend", [Reference(), Cpu()])
def test_infinite_gradients_are_those_of_chosen_elements_alone(
    compute: Any, x: list[float], slope: list[float], backend: Any
) -> None:
    model: Any = ab.Module()
    model.x = ab.Parameter(np.array(x))
    cell = ab.cell(lambda scale: ops.sum(ops.sqrt(compute(model.x * scale))))
    _, gradients = ab.batched(cell, module=model, backend=backend).value_and_grad([1.0])
    np.testing.assert_array_equal(gradients["x"], slope)


def test_infinite_gradients_of_pairs_of_rows_are_those_of_the_largest() -> None:
    model: Any = ab.Module()
    model.w = ab.Parameter(np.array(1.0))

    @ab.cell(ragged=("rows",))
    def loss(rows: Any) -> Any:
        x, most = rows
        return ops.sum(ops.sqrt(ops.max((x * model.w) @ ops.transpose(x), axis=1) - most))

    rows = [np.arange(1.0, 1.0 + n)[:, None] for n in (2, 3)]
    _, gradients = ab.batched(loss, module=model).value_and_grad([(x, x[:, 0] * len(x)) for x in rows])
    assert gradients["w"] == np.inf


@each(
    "compute, data",
    [
        (lambda x, i, j: x * (i * j), (100_000, 100_000)),
        (lambda x, i, j: x + (i - j), (2_000_000_000, -2_000_000_000)),
        (lambda x, i, j: x * i**j, (2, -2)),
        (lambda x, i, j: x * (i / j), (1, 3)),
        (lambda x, i, j: ops.where(i == j, x, -x), (16_777_217, 16_777_216)),
        (lambda x, i, j: x * ops.squared_error(i, j), (5, -5)),
        (lambda x, mask, i: ops.where(mask, x, float(7)) * i, (np.array([1, 0, 1]), 3)),
        (lambda x, mask, i: ops.where(mask, x, 0.0) + i, (np.array([True, False, True]), 3)),
        (lambda x, ids, i: x * ops.sum(ids * ids) / i, (np.array([60_000, 50_000]), 4)),
        (lambda x, a, b: ops.sigmoid(x * a) + ops.softplus(b), (2, 3)),
        (lambda x, a, b: ops.tanh(a) * x + ops.gelu(b) + ops.relu(a), (0.5, -0.25)),
        (lambda x, table, i: x * ops.lookup(table, i), (np.array([3, 5, 7]), 2)),
        (lambda x, matrix, i: matrix @ x + i, (np.array([[1, 2, 3], [4, 5, 6]]), 1)),
        (lambda x, a, b: ops.concat((x, a)) * b, (np.array([1, 2]), 3)),
    ],
)
@each("n_instances, backend", [(1, Reference()), (3, Reference()), (3, Cpu())])
def test_ints_and_floats_of_a_node_are_numbers_like_any(
    compute: Any, data: tuple[Any, ...], n_instances: int, backend: Any
) -> None:
    x = np.array([1.0, 2.0, 3.0], np.float32)
    found = batched_call(compute, [(x, *data)] * n_instances, backend)
    assert_close(found, [compute(x, *data)] * n_instances, 1e-6)
    assert found.dtype == np.float32


@each(
    "compute, argument",
    [
        (lambda x, ids: ops.lookup(x, ids), np.array([0, 3])),
        (lambda x, ids: ops.lookup(x, ids), -1),
        (lambda x, ids: ops.lookup(x, ids[1:]), np.array([0, 3])),
        (lambda x, ids: ops.lookup(x, ids[1]), np.array([0, 3])),
        (lambda x, ids: ops.lookup(x, ops.transpose(ids)[1]), np.array([[0, 1], [2, 3]])),
        (lambda x, ids: ops.cross_entropy(x, ids), 3),
        (lambda x, ids: ops.cross_entropy(x, ops.reshape(ids, ())), np.array([3])),
    ],
)
def test_ids_out_of_range_are_refused(compute: Any, argument: Any) -> None:
    with pytest.raises(DataError, match=r"must be in 0\.\.2, got "):
        compute(np.zeros(3), argument)
    with pytest.raises(DataError, match=r"argument 'ids'.*(0\.\.2|3)"):
        batched_call(compute, [(np.zeros(3), argument)])


def test_ids_beside_the_one_that_is_read_may_be_anything() -> None:
    compute = lambda x, ids: ops.lookup(x, ids[0])  # noqa: E731
    assert batched_call(compute, [(np.arange(3.0), np.array([2, 99]))]).tolist() == [2.0]


@each("label", [3, -1, np.array(3)])
def test_constant_ids_are_checked_too(label: Any) -> None:
    with pytest.raises(DataError, match=r"cross_entropy must be in 0\.\.2, got -?\d\."):
        batched_call(lambda x: ops.cross_entropy(x, label), [(np.zeros(3),)])


@each(
    "compute, arguments",
    [
        (lambda x, i: ops.lookup(x, i + 1), (1,)),
        (lambda x, i: ops.lookup(x, i), (1.0,)),
        (lambda x, i: ops.lookup(x, i), (np.array([1.0, 2.0]),)),
        (lambda x, i: ops.cross_entropy(x, ops.max(x) * 0.0), (1,)),
    ],
)
def test_ids_are_ints_that_the_call_passes(compute: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(AutobatchError, match="must be int arguments of the cell"):
        batched_call(compute, [(np.zeros(3), *arguments)])


def test_arguments_may_be_named() -> None:
    x, weight, bias = np.arange(3.0), np.ones((2, 3)), np.array([1.0, -1.0])
    calls: tuple[Callable[..., Any], ...] = (
        lambda x: ops.affine(weight, bias=bias, x=x),
        lambda x: ops.where(condition=x > 1.0, x=x, y=-x),
        lambda x: ops.cross_entropy(logits=x, label=2),
        lambda x: ops.lookup(table=x, ids=np.array([2, 0])),
        lambda x: ops.softmax(x=x, axis=0),
    )
    for compute in calls:
        assert_close(batched_call(compute, [(x,)] * 2), [compute(x)] * 2, 1e-6)


def test_eager_arguments_may_be_lists_and_numpys_ints() -> None:
    zero, two = np.array([0, 2])
    assert ops.mean([1.0, 2.0]) == 1.5
    assert ops.sum([[1.0, 2.0], [3.0, 4.0]], axis=zero).tolist() == [4.0, 6.0]
    assert [part.tolist() for part in ops.split([1.0, 2.0], two)] == [[1.0], [2.0]]
    assert ops.softmax([0.0, 0.0]).tolist() == [0.5, 0.5]


# Refusals of ops.

REFUSED: tuple[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...], type[Exception], str], ...] = (
    ("add", operator.add, ((3,), (4,)), ShapeError, r"add must .*broadcast, got \(3,\) and \(4,\)"),
    ("where", ops.where, ((2,), (3,), ()), ShapeError, r"where must .*broadcast, got \(2,\) and \(3,\) and \(\)"),
    ("matmul", ops.matmul, ((2, 3), (2,)), ShapeError, "matmul must be equal, got 3 and 2"),
    ("matmul 3-D", ops.matmul, ((2, 3, 4), (3,)), ShapeError, r"sizes, got shapes \(2, 3, 4\) and \(3,\)"),
    ("matmul stacks", ops.matmul, ((2, 3, 4), (3, 4, 2)), ShapeError, r"broadcast, got \(2,\) and \(3,\)"),
    ("einsum axes", partial(ops.einsum, "ij->i"), ((3,),), ShapeError, r"einsum .*\(3,\), got 'ij->i'"),
    ("einsum sizes", partial(ops.einsum, "i,i->"), ((3,), (2,)), ShapeError, "'i' of einsum .* got 3 and 2"),
    ("einsum twice", partial(ops.einsum, "ii->i"), ((3, 3),), ShapeError, "einsum must not repeat .* got 'ii->i'"),
    ("stack nothing", lambda x: ops.stack([]), ((2,),), ShapeError, "stack .*at least one value, got none"),
    ("stack axis", lambda x: ops.stack([x], 2), ((2,),), ShapeError, r"axis of stack .*\(2,\), got 2"),
    ("logsumexp_n", lambda x: ops.logsumexp_n([]), ((2,),), ShapeError, "logsumexp_n .*at least one value, got none"),
    ("matmul scalar", ops.matmul, ((), (4,)), ShapeError, r"matmul must be .*, got shapes \(\) and \(4,\)"),
    ("dot", ops.dot, ((3,), (4,)), ShapeError, r"dot must be vectors .*\(3,\) and \(4,\)"),
    ("outer", ops.outer, ((3, 1), (4,)), ShapeError, r"outer must be vectors, got shapes \(3, 1\) and \(4,\)"),
    ("affine weight", ops.affine, ((2, 3), (2,), (2,)), ShapeError, r"affine .*got shapes \(2, 3\) and \(2,\)"),
    ("affine bias", ops.affine, ((2, 3), (3,), (3,)), ShapeError, r"bias of affine must .*\(2,\) .* got \(3,\)"),
    ("layer_norm", ops.layer_norm, ((4,), (3,), (4,)), ShapeError, r"layer_norm .*\(4,\) .* got \(3,\) and \(4,\)"),
    ("layer_norm scalar", ops.layer_norm, ((), (), ()), ShapeError, r"layer_norm must .*shape \(\)"),
    ("label shape", lambda x: ops.cross_entropy(x, np.array([0, 1])), ((3,),), ShapeError, r"\(3,\), got \(2,\)"),
    ("lookup scalar", lambda x: ops.lookup(x, 0), ((),), ShapeError, "lookup must have rows, got a scalar"),
    ("concat", lambda x, y: ops.concat((x, y)), ((2, 3), (3, 3)), ShapeError, r"axis 1 .*\(2, 3\) and \(3, 3\)"),
    ("concat axis", lambda x: ops.concat((x, x), axis=1), ((2,),), ShapeError, r"axis of concat .*\(2,\), got 1"),
    ("concat nothing", lambda x: ops.concat(()), ((2,),), ShapeError, "concat .*at least one value, got none"),
    ("split", lambda x: ops.split(x, 2), ((3,),), ShapeError, r"n of split must .* divide 3, .* shape \(3,\), got 2"),
    ("split into none", lambda x: ops.split(x, 0), ((3,),), ShapeError, "n of split must be at least 1 .* got 0"),
    ("reshape", lambda x: ops.reshape(x, (2, 2)), ((3,),), ShapeError, "3 and 4 elements"),
    ("reshape -1", lambda x: ops.reshape(x, (2, -1)), ((3,),), ShapeError, "elements"),
    ("transpose", lambda x: ops.transpose(x, (0, 0)), ((3, 2),), ShapeError, r"transpose must .*2 axes .*got \(0, 0\)"),
    ("index", lambda x: x + ops.slice_(x, index=5), ((3,),), ShapeError, "slice of a value of shape"),
    ("index by list", lambda x: ops.slice_(x, index=[0]), ((3,),), ShapeError, "use ab.lookup"),
    ("index by bool", lambda x: ops.slice_(x, index=True), ((3,),), ShapeError, "use ab.lookup"),
    ("sum axis", lambda x: ops.sum(x, 1), ((3,),), ShapeError, "one of the 1 axes of the value, got 1"),
    ("sum twice", lambda x: ops.sum(x, (0, -2)), ((3, 2),), ShapeError, r"must differ, got \(0, -2\) .* 2 axes"),
    ("argmax of nothing", lambda x: ops.argmax(x[1:1]), ((3,),), ShapeError, "max"),
    ("top_k of few", lambda x: ops.top_k(x, 4)[0], ((3,),), ShapeError, r"4 elements for k=4, got shape \(3,\)"),
    ("top_k of rows", lambda x: ops.top_k(x, 1)[0], ((2, 3),), ShapeError, r"vector of at least 1 .*shape \(2, 3\)"),
    ("max of nothing", lambda x: ops.max(x[1:1]), ((3,),), ShapeError, "max"),
    ("softmax axis", lambda x: ops.softmax(x, 2), ((3,),), ShapeError, "axis .*1 axes .*got 2"),
)


@each("name, compute, shapes, kind, text", REFUSED)
def test_refused(name: str, compute: Any, shapes: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        compute(*(ab.Parameter(np.zeros(shape)) for shape in shapes))
    with pytest.raises(kind, match=f"in cell '.*{text}"):
        batched_call(lambda *arrays: compute(*arrays), [tuple(np.zeros(shape) for shape in shapes)])


@each("use", [np.sinh, np.add.reduce, lambda x: np.exp(x, out=np.zeros(3)), lambda x: np.add(x, x, where=False)])
def test_numpy_functions_that_are_no_ops_are_refused(use: Any) -> None:
    with pytest.raises(GraphError, match="which it does not support"):
        use(ab.Parameter(np.zeros(3)))
    with pytest.raises(GraphError, match=r"in cell .*which it does not support"):
        batched_call(lambda x: use(x), [(np.zeros(3),)])


@each("constant", [None, "text", object(), np.array(["text"])])
def test_constants_are_numbers(constant: Any) -> None:
    with pytest.raises(GraphError, match="number"):
        batched_call(lambda x: x * 2.0 == constant, [(np.zeros(3),)])


def test_adding_zero_is_nothing() -> None:
    parameter = ab.Parameter([1.0])
    assert (0 + parameter) is parameter
    assert (parameter + 0.0) is parameter
    assert (parameter + False) is not parameter


INFINITE = [
    ((-np.inf, -np.inf), -np.inf), ((np.inf, 0.0), np.inf), ((np.inf, -np.inf), np.inf), ((-np.inf, 1.0), 1.0),
    ((np.nan, 0.0), np.nan),
]  # fmt: skip


@each("numbers, expected", INFINITE)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_logsumexp_is_infinite_where_the_sum_is(numbers: tuple[float, float], expected: float, backend: str) -> None:
    """Over an array, over two values, over a list in a cell, and over ragged rows."""

    @ab.cell(ragged=("rows",))
    def total(x: Any, listed: Any, rows: Any) -> Any:
        return ab.logsumexp(x), ab.logsumexp_n([x[0], x[1]]), ab.logsumexp_n(listed), ab.logsumexp(rows, axis=0)[0]

    instances = [(np.array(row[:2]), [*row], np.array(row)[:, None]) for row in (numbers, (1.0, 2.0, 3.0))]
    found = ab.batched(lambda instance: total(*instance), backend=backend)(instances)
    for column, finite in zip(found, (2.0, 2.0, 3.0, 3.0), strict=True):
        others = np.array([1.0, 2.0, 3.0][: int(finite)])
        np.testing.assert_allclose(column, [expected, np.log(np.exp(others).sum())], rtol=1e-5)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(total(*instances[0]), [expected] * 4, rtol=1e-5)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"add\(\): missing a required argument: 'x'"):
        ops.add(y=1.0)


def test_ops_are_pickled_by_name() -> None:
    for op in ab.tanh, ab.where, ab.lookup, OPS["spread"]:
        assert pickle.loads(pickle.dumps(op)) is copy.copy(op) is copy.deepcopy(op) is op
    earlier = ab.ops.define_op("pickled once", shape=lambda x: x, kernel=lambda xp, x, out: xp.exp(x, out=out))
    again = ab.ops.define_op("pickled once", shape=lambda x: x, kernel=lambda xp, x, out: xp.exp(x, out=out))
    try:
        with pytest.raises(pickle.PicklingError, match="'pickled once' cannot be pickled"):
            pickle.dumps(earlier)
        written = pickle.dumps(again)
    finally:
        del OPS["pickled once"]
    with pytest.raises(GraphError, match="'pickled once' must be defined before"):
        pickle.loads(written)
