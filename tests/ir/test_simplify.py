"""Test simplified cells: fewer instructions, bit-identical results, and nothing necessary is removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.errors import GraphError
from autobatch.ir.arguments import Key
from autobatch.ir.autodiff import differentiate
from autobatch.ir.program import Attribute, CellProgram, Instruction, Port
from autobatch.ir.program_check import check_cell, check_derivative, check_rewritten
from autobatch.ir.simplify import (
    COMMON,
    FOLDED,
    KNOWN,
    SIMPLER,
    UNUSED,
    simplify,
    simplify_derivative,
    simplify_why,
)
from autobatch.memplan.planner import MemoryPlanner
from autobatch.ops.operators import OPS, STAGE
from autobatch.trace.tracer import Tracer
from fuzzing.specs import State
from helpers.programs.careless import make_careless
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.program_runs import Results, compute, draw_parameters, draw_rows, run_derivative, run_program
from helpers.runs.recorded import types_of
from helpers.runs.ways import each

pytestmark = pytest.mark.usefixtures("_checked")
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 5e-324, -2.5e-308, 1.5e308, 0.1]


def trace(body: Callable[..., Any], **shapes: Any) -> CellProgram:
    """Trace a cell whose arguments are named by their shapes; an argument "int" or "float" is data."""
    keys = {name: Key("value", shape) if isinstance(shape, tuple) else Key(shape, ()) for name, shape in shapes.items()}
    return Tracer("hand", {}).trace(lambda given: body(**given), keys)[0]


def ops(program: CellProgram) -> list[str]:
    sources = [program.vars[index].source for index in program.instructions]
    return [source.op.name for source in sources if isinstance(source, Instruction)]


def known(x: Any) -> Any:
    """Return a number or array as a value of the traced cell."""
    return STAGE.current.wrap(x)


W = ab.Parameter(np.arange(6.0).reshape(2, 3) / 7)
SIMPLER_CELLS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "computed twice": (lambda x: ab.sigmoid(W @ x) * ab.tanh(ab.sigmoid(W @ x)), ["matmul", "sigmoid", "tanh", "mul"]),
    "in the other order": (lambda x: (x * x[:1]) + ab.exp(x[:1] * x), ["slice", "mul", "exp", "add"]),
    "numbers": (lambda x: x * (ab.exp(known(3.0) - 1.0) * 0.5), ["mul"]),
    "times one": (lambda x: 1.0 * x * 1 / 1.0 + ab.tanh(x), ["tanh", "add"]),
    "minus zero": (lambda x: ab.tanh((x - 0.0) + (-0.0)), ["tanh"]),
    "plus zero, where it is exact": (lambda x: ab.exp(x) + (known(1.0) - 1.0), ["exp"]),
    "power of one": (lambda x: ab.tanh(x**1), ["tanh"]),
    "minus minus": (lambda x: ab.exp(OPS["neg"](-x)), ["exp"]),
    "plus minus": (lambda x: x + (-ab.exp(x)), ["exp", "sub"]),
    "minus minus a value": (lambda x: x - (-ab.exp(x)), ["exp", "add"]),
    "arrays of one number": (lambda x: x * np.ones(3) * np.array([True] * 3) / np.ones(3, np.int64), []),
    "a table that is known": (lambda x: x * ab.lookup(known(np.eye(3)), 1), ["mul"]),
    "signs of a product": (lambda x: (-x) * (-ab.exp(x)), ["exp", "mul"]),
    "both branches alike": (lambda x: ab.where(x > 0.5, ab.exp(x), ab.exp(x)), ["exp"]),
    "views of views": (lambda x: ab.reshape(ab.reshape(ab.tanh(x), (3, 1)), (1, 3)), ["tanh", "reshape"]),
    "views that are none": (lambda x: ab.transpose(ab.reshape(ab.tanh(x), (3,)))[:][...], ["tanh"]),
    "transposed twice": (lambda x: ab.transpose(ab.transpose(ab.outer(x, x), (1, 0)), (1, 0)), ["outer"]),
    "slices of slices": (lambda x: ab.exp(x[1:][::-1][:1]), ["slice", "exp"]),
    "split and joined": (lambda x: ab.tanh(ab.concat(ab.split(x, 3))), ["tanh"]),
    "neighbours joined": (lambda x: ab.concat((x[:1], x[1:2], ab.exp(x))), ["exp", "slice", "concat"]),
    "a part of a join": (lambda x: ab.concat((ab.tanh(x), x))[1:3], ["tanh", "slice"]),
    "broadcast by itself": (lambda x: x * OPS["expand"](ab.sum(x), shape=(3,)), ["sum", "mul"]),
    "stopped twice": (lambda x: ab.exp(ab.stop_gradient(ab.stop_gradient(x))), ["stop_gradient", "exp"]),
}  # fmt: skip
KEPT_CELLS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "zero added to what may be -0": (lambda x: OPS["add"](x, 0.0), ["add"]),
    "times zero": (lambda x: OPS["mul"](x, 0.0), ["mul"]),
    "minus itself": (lambda x: x - x, ["sub"]),
    "over itself": (lambda x: x / x, ["div"]),
    "minus a negative zero": (lambda x: OPS["sub"](x, -0.0), ["sub"]),
    "sum of negatives": (lambda x: -(x - ab.exp(x)), ["exp", "sub", "neg"]),
    "to the power zero": (lambda x: x**0, ["pow"]),
    "over three": (lambda x: x / 3.0, ["div"]),
    "in another order": (lambda x: (x - ab.exp(x)) * (ab.exp(x) - x), ["exp", "sub", "sub", "mul"]),
    "stopped once": (lambda x: ab.stop_gradient(x) * x, ["stop_gradient", "mul"]),
    "a constant part of a join": (lambda x: ab.concat((ab.tanh(x), np.ones(2)))[3:], ["tanh", "concat", "slice"]),
    "a join in another order": (lambda x: ab.concat((x[1:], x[:1])), ["slice", "slice", "concat"]),
    "overlapping slices": (lambda x: ab.concat((x[:2], x[1:])), ["slice", "slice", "concat"]),
    "a choice that only x makes": (lambda x: ab.where(0.0, x, 2.0), ["where"]),
    "one that broadcasts": (lambda x: ab.sum(x) * np.ones(3), ["sum", "mul"]),
}


@each("name", SIMPLER_CELLS)
def test_what_goes(name: str) -> None:
    body, expected = SIMPLER_CELLS[name]
    program = trace(body, x=(3,))
    simple, why = simplify_why(program)
    assert ops(simple) == expected
    assert why.total() > 0
    assert ops(simplify(simple)) == expected
    compare_bits(program, simple)


@each("name", KEPT_CELLS)
def test_what_stays(name: str) -> None:
    body, expected = KEPT_CELLS[name]
    program = trace(body, x=(3,))
    simple, _ = simplify_why(program)
    assert ops(simple) == expected
    compare_bits(program, simple)


def test_a_random_op_is_never_computed_once() -> None:
    program = trace(lambda x: ab.dropout(x, 0.5) + ab.dropout(x, 0.5), x=(3,))
    assert ops(simplify(program)) == ["dropout", "dropout", "add"]


def test_data_that_is_int_stays_an_op() -> None:
    """For an int n, n * 1 is a float. For a float x, x * 1 is x."""
    program = trace(lambda n, x: (n * 1, x * 1), n="int", x="float")
    assert ops(simplify(program)) == ["mul"]


def test_ports_and_attributes_stay() -> None:
    """The second branch is never taken, but its port stays. A value computed twice is computed once."""
    program = trace(lambda x, y, n: ab.where(1.0, x, y) + (n * 2.0 + n * 2.0), x=(2,), y=(2,), n="int")
    simple = simplify(program)
    assert ops(simple) == ["where", "mul", "add", "add"]
    check_rewritten(program, simple)
    alone = trace(lambda x: ab.where(1.0, ab.tanh(x), ab.exp(x)), x=(2,))
    assert ops(simplify(alone)) == ["tanh"]


def test_the_reasons_are_counted() -> None:
    program = trace(lambda x: ab.tanh(x * 1.0) + ab.tanh(OPS["neg"](-x)) * ab.exp(known(1.0) + 2.0), x=(2,))
    assert simplify_why(program).why == {KNOWN: 2, COMMON: 1, FOLDED: 2, UNUSED: 1}
    assert simplify_why(trace(lambda x: x - (-ab.exp(x)), x=(2,))).why == {SIMPLER: 1, UNUSED: 1}
    plain = trace(lambda x: ab.tanh(x), x=(2,))
    assert simplify_why(plain) == (plain, {})


def test_another_cell_is_refused() -> None:
    before = trace(lambda x, y: ab.tanh(x) * y, x=(2,), y=(2,))
    for after, what in (
        (trace(lambda x: ab.tanh(x), x=(2,)), "its ports and attributes must stay"),
        (trace(lambda x, y: (x, y), x=(2,), y=(2,)), "its outputs must stay"),
        (trace(lambda x, y: ab.sum(x * y), x=(2,), y=(2,)), "its outputs must stay"),
        (replace(before, draws=True), "its names and draws must stay"),
        (trace(lambda x, y: (W @ ab.concat((x, y))[:3]) * x, x=(2,), y=(2,)), "its rewrite reads parameters"),
    ):
        check_cell(after)
        with pytest.raises(GraphError, match=what):
            check_rewritten(before, after)


def test_a_derivative_that_reads_what_is_not_there_is_refused() -> None:
    derivative = differentiate(trace(lambda x: ab.tanh(W @ x), x=(3,)))
    check_derivative(derivative)
    for wrong, what in (
        (replace(derivative, saved=derivative.saved[:-1]), "neither saved nor made before|not saved"),
        (replace(derivative, backward=derivative.backward[1:]), "neither saved nor made before"),
        (replace(derivative, ports=(derivative.incoming[0],)), "must have the shape of %0"),
        (replace(derivative, incoming=derivative.saved[-1:]), "not the gradient of output 0"),
    ):
        with pytest.raises(GraphError, match=what):
            check_derivative(wrong)


def test_numbers_of_a_float32_model_are_rounded_once() -> None:
    """0.1 * 3 / 7, computed in float64 and rounded, is closer than with rounding after each step."""

    @ab.cell
    def scaled(x: Any) -> Any:
        return ab.sum(x * (known(0.1) * 3.0 / 7.0))

    ones = [np.ones(1, np.float32)]
    folded, stepwise = (ab.batched(scaled, planner=MemoryPlanner(simplifies=way))(ones)[0] for way in (True, False))
    assert abs(folded - 0.3 / 7) <= abs(stepwise - 0.3 / 7) < 1e-8


def draw_programs(seed: int) -> list[CellProgram]:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=seed % 2 == 0)
    loss = ab.batched(model.everything, policy="depth", rewrites=())
    loss(draw_instances(rng, model, n=4))
    return [node_type.program for node_type in types_of(loss)]


@pytest.mark.slow
@each("seed", range(12))
def test_random_cells_keep_their_bits(seed: int) -> None:
    """As drawn, and with superfluous instructions, which must all be removed."""
    rng = np.random.default_rng(seed)
    n_written = n_left = 0
    for program in draw_programs(seed):
        draw_parameters(program, rng)
        careless = make_careless(program, rng)
        simple, clean = simplify(program), simplify(careless)
        assert len(clean.instructions) <= len(simple.instructions)
        n_written, n_left = n_written + len(careless.instructions), n_left + len(clean.instructions)
        drawn = draw_rows(program, rng)
        with np.errstate(all="ignore"):
            expected = run_program(program, drawn)
        for other in (simple, careless, clean):
            check_rewritten(program, other)
            with np.errstate(all="ignore"):
                found = run_program(other, drawn)
            for x, y in zip(found.outputs, expected.outputs, strict=True):
                np.testing.assert_array_equal(np.broadcast_to(x, np.shape(y)), y)
            assert_close(found, expected)
    assert n_left < 0.8 * n_written


@pytest.mark.slow
@each("seed", range(12))
def test_derivatives_keep_their_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_before = n_after = 0
    for program in draw_programs(seed):
        draw_parameters(program, rng)
        derivative = differentiate(program)
        simple = simplify_derivative(derivative)
        check_derivative(simple)
        assert len(simple.backward) + len(simple.weights) <= len(derivative.backward) + len(derivative.weights)
        n_before += len(derivative.backward) + len(derivative.weights)
        n_after += len(simple.backward) + len(simple.weights)
        drawn = draw_rows(program, rng)
        with np.errstate(all="ignore"):
            found, expected = run_derivative(simple, drawn), run_derivative(derivative, drawn)
        assert_close(found, expected, relative=0.0)
    assert n_after < n_before


@pytest.mark.slow
@each("backend", [Reference, lambda poison: Cpu(poison)])
@each("seed", range(8))
def test_mini_batches_agree(seed: int, backend: Any) -> None:
    """Compare losses, other results and gradients with and without simplification."""
    rng = np.random.default_rng(100 + seed)
    model = draw_model(rng, smooth=True)
    instances = draw_instances(rng, model, n=4)
    found, expected = (
        ab.batched(model.everything, planner=MemoryPlanner(simplifies=way), backend=backend(poison=True))
        for way in (True, False)
    )
    (loss, aux), grads = found.value_and_grad(instances, has_aux=True)
    (other_loss, other_aux), other_grads = expected.value_and_grad(instances, has_aux=True)
    np.testing.assert_allclose(loss, other_loss, rtol=1e-12)
    for x, y in zip(flat(aux), flat(other_aux), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)
    assert grads.keys() == other_grads.keys()
    for name, gradient in grads.items():
        scale = np.max(np.abs(other_grads[name]), initial=1e-3)
        np.testing.assert_allclose(gradient, other_grads[name], rtol=0, atol=1e-12 * scale, err_msg=name)


def test_a_gate_written_twice_is_one_product() -> None:
    """sigmoid(W x) in two places: half the products and sigmoids, forward, backward and for the weight."""

    class Careless(ab.Module):
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.w = ab.Parameter(rng.standard_normal((4, 4)))
            self.astype("float64")

        @ab.cell
        def gated(self, x: Any) -> Any:
            return ab.sigmoid(x @ self.w) * x + (1.0 - ab.sigmoid(x @ self.w)) * ab.tanh(x)

        def loss(self, x: Any) -> Any:
            return ab.sum(self.gated(self.gated(x)))

    model, instances = Careless(), [np.linspace(-1, 1, 4), np.ones(4)]
    counts = {}
    for way in (True, False):
        planner = MemoryPlanner(simplifies=way, recomputes="nothing")
        loss = ab.batched(model.loss, planner=planner)
        loss.value_and_grad(instances)
        assert loss.last is not None
        cell = planner.plan_cell(next(t for t in types_of(loss) if t.name == "gated"), training=True)
        assert cell.derivative is not None
        names = ops(cell.program)
        weights = len(cell.derivative.weights)
        counts[way] = names.count("matmul"), names.count("sigmoid"), len(cell.derivative.backward), weights
    assert counts == {True: (1, 1, 14, 1), False: (2, 2, 19, 3)}


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, State):
        tree = (tree.h, tree.c)
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [x for part in tree for x in flat(part)] if isinstance(tree, (list, tuple)) else [tree]


def assert_close(found: Results, expected: Results, relative: float = 1e-12) -> None:
    """Check that gradients are equal, within `relative` of the largest."""
    assert found.parameters.keys() == expected.parameters.keys()
    pairs = [(found.parameters[key], expected.parameters[key]) for key in expected.parameters]
    for x, y in (*pairs, *zip(found.ports, expected.ports, strict=True)):
        assert (x is None) == (y is None)
        if y is not None:
            x = np.broadcast_to(x, np.shape(y))
            np.testing.assert_allclose(x, y, rtol=0, atol=relative * np.max(np.abs(y), initial=1e-3))


def compare_bits(program: CellProgram, simple: CellProgram) -> None:
    """Check that results are bit-identical on special numbers in float64; all NaN count as equal."""
    rng = np.random.default_rng(0)
    for parameter in program.parameters:
        parameter.astype("float64")
    drawn = draw_rows(program, rng)
    for _ in range(40):
        leaves = {
            (v.source.name, v.source.leaf): rng.choice(SPECIAL, size=drawn.leaves[v.source.name, v.source.leaf].shape)
            for v in program.vars
            if isinstance(v.source, (Port, Attribute))
        }
        with np.errstate(all="ignore"):
            found, expected = (compute(p, drawn._replace(leaves=leaves)) for p in (simple, program))
        for x, y in zip(found, expected, strict=True):
            x, y = np.broadcast_to(x, np.shape(y)), np.asarray(y)
            np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
            ok = ~np.isnan(y)
            np.testing.assert_array_equal(x[ok].view(np.int64), y[ok].view(np.int64))
