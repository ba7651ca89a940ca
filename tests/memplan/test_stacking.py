"""Test stacked programs: the same results from the same parameters in fewer launches."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.ir.arguments import Key
from autobatch.ir.autodiff import differentiate
from autobatch.ir.program import CellProgram, Instruction
from autobatch.ir.program_check import check_cell
from autobatch.memplan.cell.layout import lay_out, plan_cell
from autobatch.memplan.cell.layout_check import check_cell_layout
from autobatch.memplan.cell.stacking import stack_program
from autobatch.ops.linear import affine, matmul
from autobatch.params.stacks import Stack, parts_of
from autobatch.trace.tracer import Tracer
from helpers.programs.literature_cells import SEVEN, Weights, trace_cell, tree_gru_shared, tree_lstm_leaf
from helpers.programs.random_gates import draw_gates
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.programs.small_cells import draw_matmuls, draw_ops
from helpers.runs.program_runs import count_launches, draw_parameters, draw_rows, run_program, trace_types
from helpers.runs.ways import each
from helpers.twins.cases import CASES, Case

TOLERANCE = 1e-12
BODIES: dict[str, Callable[..., Any]] = {name: case.body for name, case in SEVEN.items()}
BODIES["tree-GRU with shared parameters"] = tree_gru_shared


def stack_checked(program: CellProgram, rng: np.random.Generator, elementwise: bool = True) -> CellProgram:
    """Stack a program; check that results and parameters are unchanged."""
    drawn = draw_rows(program, rng)
    before, expected = [p.data.copy() for p in program.parameters], run_program(program, drawn)
    stacked = stack_program(program, lay_out(program), elementwise)
    check_cell(stacked)
    check_interface(program, stacked)
    found = run_program(stacked, drawn)
    for parameter, numbers in zip(program.parameters, before, strict=True):
        np.testing.assert_array_equal(parameter.data, numbers)
    check_equal(found.outputs, expected.outputs)
    check_equal(found.ports, expected.ports)
    assert found.parameters.keys() == expected.parameters.keys()
    check_equal(list(found.parameters.values()), [expected.parameters[key] for key in found.parameters])
    return stacked


def check_interface(program: CellProgram, stacked: CellProgram) -> None:
    """Check that the name, ports, attributes, outputs and parameters are those of the original."""
    given = [[v for v in p.vars if not isinstance(v.source, Instruction)] for p in (program, stacked)]
    leaves = [[(v.source, v.shape, v.domain) for v in vars if hasattr(v.source, "leaf")] for vars in given]
    assert leaves[0] == leaves[1]
    assert [(p.name, p.ties, p.draws, len(p.ports)) for p in (program, stacked)] == [
        (program.name, program.ties, program.draws, len(program.ports))
    ] * 2
    outputs = [[(p.vars[o].shape, p.vars[o].domain) for o in p.outputs] for p in (program, stacked)]
    assert outputs[0] == outputs[1]
    parts = {id(part) for parameter in stacked.parameters for part in parts_of(parameter)}
    assert parts == {id(parameter) for parameter in program.parameters}


def check_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None:
            assert one is other
        else:
            scale = 1 + float(np.abs(other).max(initial=0))
            np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * scale)


def launches(program: CellProgram) -> tuple[tuple[int, int, int], ...]:
    derivative = differentiate(program)
    return (
        count_launches(program.vars, program.instructions),
        count_launches(derivative.vars, derivative.backward),
        count_launches(derivative.vars, derivative.weights),
    )


def test_cells_of_the_literature_compute_the_same() -> None:
    for name in BODIES:
        for elementwise in (True, False):
            rng = np.random.default_rng(0)
            program = trace_cell(BODIES[name], 4)
            draw_parameters(program, rng)
            stack_checked(program, rng, elementwise)


# Number of products, element-wise ops, other ops and copies in the forward, backward and weight stages, before and
# after.
LAUNCHES = {
    "GRU": (((6, 14, 0), (6, 22, 0), (6, 3, 0)), ((3, 11, 0), (3, 16, 2), (3, 2, 0))),
    "LSTM": (((8, 17, 0), (8, 28, 0), (8, 4, 0)), ((2, 9, 0), (2, 16, 2), (2, 1, 0))),
    "MV-RNN": (((4, 3, 2), (6, 5, 0), (2, 2, 0)), ((4, 3, 2), (6, 5, 0), (2, 2, 0))),
    "tree-GRU inner": (((6, 24, 0), (6, 41, 0), (6, 6, 0)), ((4, 20, 0), (4, 33, 2), (4, 4, 0))),
    "tree-GRU leaf": (((3, 11, 0), (3, 20, 0), (3, 3, 0)), ((2, 9, 0), (2, 16, 1), (2, 2, 0))),
    "Tree-LSTM inner": (((10, 22, 0), (10, 35, 0), (10, 6, 0)), ((2, 18, 0), (2, 27, 1), (2, 6, 0))),
    "Tree-LSTM leaf": (((3, 9, 0), (3, 19, 0), (3, 3, 0)), ((1, 6, 0), (1, 14, 2), (1, 1, 0))),
    "tree-GRU with shared parameters": (((6, 24, 0), (6, 41, 0), (6, 12, 0)), ((4, 24, 0), (4, 39, 2), (4, 11, 0))),
}


def test_launches_of_the_cells_of_the_literature() -> None:
    for name in BODIES:
        program = trace_cell(BODIES[name], 4)
        assert (launches(program), launches(stack_program(program, lay_out(program)))) == LAUNCHES[name]


def test_gradients_of_stacks_are_added_up_in_place() -> None:
    program = trace_cell(SEVEN["LSTM"].body, 4)
    derivative = differentiate(stack_program(program, lay_out(program)))
    assert len(derivative.accumulated) == len(derivative.parameters) == 3


def test_products_of_one_input_are_stacked_whatever_their_widths() -> None:
    """With biases as vectors and as matrices. Sizes that happen to be equal make no difference."""
    for widths in ((1, 4, 3), (3, 3, 3), (3, 4, 3)):
        for shape in ((4,), (4, 2)):
            layers = [(ab.Parameter(np.ones((n, 4))), ab.Parameter(np.ones(n))) for n in widths]
            names = {id(p): f"p{k}" for k, p in enumerate(p for layer in layers for p in layer)}

            def body(given: Any, layers: Any = layers) -> Any:
                return [affine(w, given["x"], b) if given["x"].ndim == 1 else w @ given["x"] for w, b in layers]

            program, _ = Tracer("wide", names).trace(body, {"x": Key("value", shape)})
            rng = np.random.default_rng(0)
            draw_parameters(program, rng)
            stacked = stack_checked(program, rng)
            check_cell_layout(plan_cell(program))
            assert count_launches(stacked.vars, stacked.instructions) == (1, 0, 0)


def test_products_without_rows_are_not_stacked_with_others() -> None:
    parameters = [ab.Parameter(np.ones((n, 2))) for n in (0, 3, 0, 2)]
    names = {id(p): f"p{k}" for k, p in enumerate(parameters)}
    program, _ = Tracer("none", names).trace(lambda g: [p @ g["x"] for p in parameters], {"x": Key("value", (2,))})
    stacked = stack_checked(program, np.random.default_rng(0))
    assert [p.shape for p in stacked.parameters if isinstance(p, Stack)] == [(5, 2)]


def count_stacked(programs: list[CellProgram], rng: np.random.Generator) -> tuple[int, int]:
    """Check stacked programs; return the number of instructions saved, and of stacks."""
    saved = n_stacks = 0
    for program in programs:
        stacked = stack_checked(program, rng)
        before, after = (sum(count_launches(p.vars, p.instructions)) for p in (program, stacked))
        assert after <= before
        saved += before - after
        n_stacks += sum(isinstance(parameter, Stack) for parameter in stacked.parameters)
    return saved, n_stacks


def test_random_gates_compute_the_same() -> None:
    rng = np.random.default_rng(0)
    programs = [draw_gates(rng) for _ in range(60)]
    for program in programs:
        for parameter in draw_parameters(program, rng):
            parameter.trainable = bool(rng.random() < 0.9)
    assert count_stacked(programs, rng) == (64, 44)


def test_random_products_compute_the_same() -> None:
    rng = np.random.default_rng(0)
    programs = [draw_matmuls(rng) for _ in range(60)]
    for program in programs:
        draw_parameters(program, rng)
    assert count_stacked(programs, rng) == (17, 13)


def test_random_products_sums_and_tangents_compute_the_same() -> None:
    rng = np.random.default_rng(0)
    programs = [draw_ops(rng, 20) for _ in range(15)]
    for program in programs:
        draw_parameters(program, rng)
    assert count_stacked(programs, rng) == (17, 13)


@pytest.mark.slow
def test_cells_of_random_models_compute_the_same() -> None:
    """With slices, joins, attributes, lookups, variadic ports and dropout."""
    rng = np.random.default_rng(0)
    programs: list[CellProgram] = []
    for _ in range(15):
        model = draw_model(rng, smooth=True)
        programs += trace_types(model, draw_instances(rng, model, n=4))
    assert (len(programs), *count_stacked(programs, rng)) == (349, 27, 22)


# Launches saved in the forward stages of all types of a model, and stacks. The models already use wide parameters.
MODELS = {
    "tree-lstm": (3, 0),
    "tree-lstm-2type": (5, 0),
    "bilstm-tagger, 1 layers": (2, 0),
    "bilstm-tagger, 2 layers": (4, 0),
    "lattice-lstm": (2, 0),
    "mv-rnn": (0, 0),
    "tree-lstm-childsum": (3, 2),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cells_of_models_compute_the_same(case: Case) -> None:
    model, instances = case.draw(0, n_instances=4, dim=3)
    assert count_stacked(trace_types(model, instances), np.random.default_rng(0)) == MODELS[case.name]


def test_parameters_of_two_inputs_are_one_product_per_input_and_one_stack_for_both() -> None:
    program = trace_cell(tree_gru_shared, 4)
    stacked = stack_program(program, lay_out(program))
    stacks = [parameter for parameter in stacked.parameters if isinstance(parameter, Stack)]
    assert [len(stack.parts) for stack in stacks] == [2]
    sources = [stacked.vars[i].source for i in stacked.instructions]
    products = [source for source in sources if isinstance(source, Instruction) and source.op is matmul]
    assert len(products) == 4
    assert len({source.args[0] for source in products}) == 2


def test_two_cells_that_want_the_same_parameters_have_the_same_stack() -> None:
    weights = Weights(4)
    programs = [replace(trace_with(weights, tree_lstm_leaf), name=name) for name in ("first", "second")]
    stacks = [{p for p in stack_program(q, lay_out(q)).parameters if isinstance(p, Stack)} for q in programs]
    assert stacks[0] == stacks[1]
    assert len(stacks[0]) == 2


def trace_with(weights: Weights, body: Callable[..., Any]) -> CellProgram:
    """Trace a cell that takes one vector x and shares parameters with other cells."""
    body(weights, np.zeros(weights.width, np.float32))
    tracer = Tracer(body.__name__, {id(made): name for name, made in weights.made.items()})
    program, _ = tracer.trace(lambda given: body(weights, **given), {"x": Key("value", (weights.width,))})
    return program


def test_parameters_that_are_learned_and_that_are_not_are_not_stacked() -> None:
    weights = Weights(4)
    program = trace_with(weights, lambda w, x: tuple(w[name] @ x for name in "ABCD"))
    weights["B"].trainable = weights["C"].trainable = False
    stacked = stack_checked(program, np.random.default_rng(0))
    mixed = [p for p in stacked.parameters if len({part.trainable for part in parts_of(p)}) > 1]
    assert not mixed
    assert len(stacked.parameters) <= 4


STOPPED: dict[str, Callable[..., Any]] = {
    "an input": lambda w, x: (w["A"] @ x, w["B"] @ ab.stop_gradient(x)),
    "a part of an input": lambda w, x: (w.shaped("A", (4, 2)) @ x[:2], w.shaped("B", (4, 2)) @ ab.stop_gradient(x)[:2]),
    "a parameter": lambda w, x: (w["A"] @ x, ab.stop_gradient(w["B"]) @ x, w["C"] @ x),
    "rows of a parameter": lambda w, x: (
        w.shaped("A", (8, 4))[:4] @ x,
        ab.stop_gradient(w.shaped("A", (8, 4)))[4:] @ x,
    ),
    "an operand": lambda w, x: (ab.tanh(x[:2]), ab.tanh(ab.stop_gradient(x[2:]))),
}


@each("name", STOPPED)
def test_what_has_no_gradient_is_not_put_together_with_what_has_one(name: str) -> None:
    weights = Weights(4)
    stack_checked(trace_with(weights, STOPPED[name]), np.random.default_rng(0))


def test_affine_maps_are_stacked_with_their_biases() -> None:
    weights = Weights(4)
    program = trace_with(weights, lambda w, x: tuple(affine(w[name], x, w["b" + name]) for name in "ABC"))
    draw_parameters(program, np.random.default_rng(0))
    stacked = stack_checked(program, np.random.default_rng(0))
    assert count_launches(stacked.vars, stacked.instructions) == (1, 0, 0)
    assert [len(parts_of(p)) for p in stacked.parameters] == [3, 3]


def test_rows_of_one_parameter_are_read_together_without_a_stack() -> None:
    weights = Weights(4)
    program = trace_with(weights, lambda w, x: (w.shaped("A", (8, 4))[:4] @ x, w.shaped("A", (8, 4))[4:] @ x))
    stacked = stack_checked(program, np.random.default_rng(0))
    assert count_launches(stacked.vars, stacked.instructions) == (1, 0, 0)
    assert [len(parts_of(p)) for p in stacked.parameters] == [1]


def test_a_layout_is_made_once_for_programs_of_one_form() -> None:
    first, second = trace_cell(SEVEN["LSTM"].body, 3), trace_cell(SEVEN["LSTM"].body, 3)
    assert lay_out(first).batches is lay_out(second).batches
    assert lay_out(second).memory.program is second
    assert str(lay_out(second)) == str(plan_cell(second))
    assert lay_out(trace_cell(SEVEN["LSTM"].body, 5)).batches is not lay_out(first).batches


class Pair(ab.Module):
    def __init__(self, rng: np.random.Generator) -> None:
        self.a, self.b = (ab.Parameter(rng.standard_normal((3, 3))) for _ in range(2))


@each("first, second", [(0.0, -0.0), (-0.0, 0.0), (-0.0, -0.0), (np.nan, np.nan), (1.0, 1.5)])
@pytest.mark.parametrize("use", [operator.truediv, operator.mul])
def test_only_equal_literals_are_one_operand(first: float, second: float, use: Callable[..., Any]) -> None:
    """A quotient by -0.0 has the other sign than one by 0.0."""
    rng = np.random.default_rng(0)
    model, instances = Pair(rng), list(rng.standard_normal((4, 3)))

    @ab.cell
    def both(x: Any) -> Any:
        return use(model.a @ x, first), use(model.b @ x, second)

    with np.errstate(divide="ignore"):
        expected = [np.stack(rows) for rows in zip(*map(both, instances), strict=True)]
    for backend in "cpu", "reference":
        found = ab.batched(both, module=model, backend=backend)(instances)
        for numbers, others in zip(found, expected, strict=True):
            np.testing.assert_allclose(numbers, others, rtol=1e-5)
            np.testing.assert_array_equal(np.signbit(numbers), np.signbit(others))


def test_a_layout_with_nan_is_made_once() -> None:
    weights = Weights(4)
    first, second = (trace_with(weights, lambda w, x: w["A"] @ x + np.nan) for _ in range(2))
    assert lay_out(first).batches is lay_out(second).batches
