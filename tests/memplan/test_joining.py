"""Test joined sums of products: the same results with fewer products and without copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.ir.arguments import Key
from autobatch.ir.autodiff import differentiate
from autobatch.ir.program import CellProgram, Instruction
from autobatch.ir.program_check import check_cell
from autobatch.memplan.cell.buffer_assignment import make_layout
from autobatch.memplan.cell.inputs import place_columns
from autobatch.memplan.cell.joining import join_products
from autobatch.memplan.cell.stacking import make_stacked
from autobatch.memplan.planner import MemoryPlanner
from autobatch.memplan.report import movements
from autobatch.ops.linear import affine
from autobatch.params import stacks
from autobatch.params.stacks import Stack, parts_of
from autobatch.trace.tracer import Tracer
from helpers.programs.literature_cells import SEVEN, Weights, trace_cell, tree_gru_shared
from helpers.programs.random_gates import draw_gates, draw_sums
from helpers.runs.planned import place_batch
from helpers.runs.program_runs import count_launches, draw_parameters, draw_rows, run_program, trace_types
from helpers.twins.cases import CASES, Case

TOLERANCE = 1e-12
WIDTH = 4
VECTOR = Key("value", (WIDTH,))
BODIES: dict[str, Callable[..., Any]] = {name: case.body for name, case in SEVEN.items()}
BODIES["tree-GRU with shared parameters"] = tree_gru_shared


def trace(body: Callable[..., Any], **keys: Key) -> CellProgram:
    """Trace a cell, whose first argument creates parameters by name."""
    weights = Weights(WIDTH)
    program, _ = Tracer("body", {}).trace(lambda given: body(weights, **given), keys)
    return program


def join_checked(program: CellProgram, rng: np.random.Generator) -> CellProgram:
    """Join and stack a program; check that outputs, gradients and parameters are unchanged and no join is a copy."""
    draw_parameters(program, rng)
    drawn = draw_rows(program, rng)
    before, expected = [p.data.copy() for p in program.parameters], run_program(program, drawn)
    joined = join_products(program)
    for made in (joined, make_stacked(joined)):
        check_cell(made)
        found = run_program(made, drawn)
        for one, other in ((found.outputs, expected.outputs), (found.ports, expected.ports)):
            check_equal(one, other)
        assert found.parameters.keys() == expected.parameters.keys()
        check_equal(list(found.parameters.values()), [expected.parameters[key] for key in found.parameters])
        for parameter, numbers in zip(program.parameters, before, strict=True):
            np.testing.assert_array_equal(parameter.data, numbers)
        assert stacks.refresh(parameter for parameter in made.parameters if isinstance(parameter, Stack)) == 0
    parts = {id(part) for parameter in joined.parameters for part in parts_of(parameter)}
    assert parts == {id(parameter) for parameter in program.parameters}
    assert n_products(make_stacked(joined)) <= n_products(make_stacked(program))
    assert copied_parts(make_stacked(joined)) <= copied_parts(make_stacked(program))
    return joined


def check_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None:
            assert one is other
        else:
            scale = 1 + float(np.abs(other).max(initial=0))
            np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * scale)


def n_products(program: CellProgram) -> int:
    return count_launches(program.vars, program.instructions)[0]


def copied_parts(program: CellProgram) -> int:
    """Count the parts of the program's own joins that are not computed in place."""
    columns = place_columns(program)
    joins = make_layout(program, columns, differentiate(program, frozenset(columns.inner))).joins
    return sum(len(join.copied) for value, join in joins.items() if value < len(program.vars))


def joined_inputs(program: CellProgram) -> list[tuple[str, ...]]:
    """Return the inputs of each join of vectors, naming ports."""
    found, joined = [], join_products(program)
    for index in joined.instructions:
        source = joined.vars[index].source
        if isinstance(source, Instruction) and source.op.name == "concat":
            sources = [joined.vars[arg].source for arg in source.args]
            found.append(tuple(getattr(s, "name", "computed") for s in sources))
    return found


# Number of products executed in the forward, backward and weight stages, without and with joined sums.
PRODUCTS = {
    "GRU": ((3, 3, 3), (2, 2, 2)),
    "LSTM": ((2, 2, 2), (1, 1, 1)),
    "MV-RNN": ((4, 6, 2), (4, 6, 2)),
    "tree-GRU inner": ((4, 4, 4), (4, 4, 4)),
    "tree-GRU leaf": ((2, 2, 2), (2, 2, 2)),
    "Tree-LSTM inner": ((2, 2, 2), (1, 1, 1)),
    "Tree-LSTM leaf": ((1, 1, 1), (1, 1, 1)),
    "tree-GRU with shared parameters": ((4, 4, 4), (4, 4, 4)),
}


def test_products_of_the_cells_of_the_literature() -> None:
    for name in BODIES:
        program = trace_cell(BODIES[name], WIDTH)
        joined = join_checked(program, np.random.default_rng(0))
        counted = []
        for made in (make_stacked(program), make_stacked(joined)):
            derivative = differentiate(made)
            stages = (made.instructions, derivative.backward, derivative.weights)
            counted.append(tuple(count_launches(derivative.vars, stage)[0] for stage in stages))
        assert tuple(counted) == PRODUCTS[name]


# Number of products in the forward stages of all types of a model, without and with joined sums.
MODELS = {
    "tree-lstm": (4, 3),
    "tree-lstm-2type": (6, 4),
    "bilstm-tagger, 1 layers": (5, 5),
    "bilstm-tagger, 2 layers": (9, 7),
    "lattice-lstm": (5, 5),
    "mv-rnn": (6, 6),
    "tree-lstm-childsum": (6, 6),
}

# Values that are copied inside cells: vectors that a product reads as one, and values that are per edge in one place
# and per node in another.
COPIES = {"mv-rnn": 2, "tree-lstm-childsum": 4}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_products_of_the_cells_of_models(case: Case) -> None:
    """In a tagger's first layer, and in a lattice, one of two products reads only a word and stays separate."""
    model, instances = case.draw(0, n_instances=4, dim=3)
    programs = trace_types(model, instances)
    joined = [join_checked(program, np.random.default_rng(0)) for program in programs]
    counted = [sum(n_products(make_stacked(p)) for p in found) for found in (programs, joined)]
    assert tuple(counted) == MODELS[case.name]


def count_joined(programs: list[CellProgram], rng: np.random.Generator) -> tuple[int, int, int]:
    """Check joined programs; return how many were joined, and the number of products before and after."""
    joined = [join_checked(program, rng) for program in programs]
    before, after = (sum(n_products(make_stacked(p)) for p in found) for found in (programs, joined))
    return sum(one is not other for one, other in zip(programs, joined, strict=True)), before, after


@pytest.mark.slow
def test_random_sums_compute_the_same() -> None:
    rng = np.random.default_rng(0)
    assert count_joined([draw_sums(rng) for _ in range(80)], rng) == (32, 378, 337)


@pytest.mark.slow
def test_random_gates_compute_the_same() -> None:
    rng = np.random.default_rng(0)
    assert count_joined([draw_gates(rng) for _ in range(60)], rng) == (10, 324, 314)


def test_joins_that_share_a_vector_have_it_between_them() -> None:
    """A GRU joins h and x, then x and r * h, which is computed in the inputs next to x."""
    assert joined_inputs(trace_cell(SEVEN["GRU"].body, WIDTH)) == [("h", "x"), ("x", "computed")]


def test_products_of_data_alone_stay_apart() -> None:
    def body(w: Weights, x: Any, h: Any, word: Any) -> Any:
        return ab.tanh(w["A"] @ ab.tanh(word) + w["B"] @ x + w["C"] @ h + w["b"])

    program = trace(body, x=VECTOR, h=VECTOR, word=Key("float", (WIDTH,)))
    joined = join_checked(program, np.random.default_rng(0))
    assert (joined_inputs(program), n_products(joined)) == ([("x", "h")], 2)


# Sums of products, given by the vectors that they multiply (of x, h and k); vectors that other products multiply; the
# number of all products, stacked and joined.
SYSTEMS: list[tuple[list[str], str, int, int]] = [
    (["xh", "xh", "xh"], "", 2, 1),
    (["xh", "xh"], "x", 2, 2),  # its product runs with those of the sums, so nothing would be saved
    (["xh", "hk"], "", 3, 2),
    (["xh", "hk", "kx"], "", 3, 3),  # a cycle
    (["xhk", "hk"], "", 3, 2),
    (["xh", "hx", "kh"], "", 3, 2),
    (["xx"], "", 1, 1),
]


@pytest.mark.parametrize(("sums", "alone", "before", "after"), SYSTEMS)
def test_sums_are_joined_where_that_saves_products(sums: list[str], alone: str, before: int, after: int) -> None:
    def body(w: Weights, **given: Any) -> tuple[Any, ...]:
        made = [[w[f"{at} {n}"] @ given[name] for n, name in enumerate(s)] for at, s in enumerate([*sums, *alone])]
        return tuple(ab.tanh(sum(products[1:], products[0])) for products in made)

    names = sorted({*"".join(sums), *alone})
    program = trace(body, **dict.fromkeys(names, VECTOR))
    joined = join_checked(program, np.random.default_rng(0))
    assert (n_products(make_stacked(program)), n_products(make_stacked(joined))) == (before, after)
    assert (joined is program) == (before == after)


def test_a_join_of_the_cell_itself_keeps_its_order() -> None:
    """With h, x and k side by side, h and k are not adjacent."""

    def body(w: Weights, x: Any, h: Any, k: Any) -> Any:
        return ab.tanh(w["A"] @ h + w["B"] @ k) + ab.sum(ab.tanh(ab.concat((h, x, k))))

    program = trace(body, x=VECTOR, h=VECTOR, k=VECTOR)
    assert join_checked(program, np.random.default_rng(0)) is program


def test_matrices_that_something_else_reads_and_frozen_ones_stay_apart() -> None:
    def body(w: Weights, x: Any, h: Any) -> Any:
        return ab.tanh(w["A"] @ x + w["B"] @ h), w["A"] @ w["b"]

    assert joined_inputs(trace(body, x=VECTOR, h=VECTOR)) == []
    program = trace(lambda w, x, h: w["A"] @ x + w["B"] @ h, x=VECTOR, h=VECTOR)
    program.parameters[0].trainable = False
    assert join_products(program) is program
    program.parameters[1].trainable = False
    assert n_products(join_checked(program, np.random.default_rng(0))) == 1


def test_biases_of_affine_maps_are_kept() -> None:
    def body(w: Weights, x: Any, h: Any) -> Any:
        return affine(w["A"], x, w["ba"]) + affine(w["B"], h, w["bb"])

    joined = join_checked(trace(body, x=VECTOR, h=VECTOR), np.random.default_rng(0))
    names = [source.op.name for v in joined.vars if isinstance(source := v.source, Instruction)]
    assert names == ["concat", "affine", "add"]


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models_move_no_more_and_launch_less(case: Case) -> None:
    model, instances = case.draw(0, n_instances=4, dim=3)
    model.astype("float64")
    found = []
    for sums in (False, True):
        loss = ab.batched(model.loss, planner=MemoryPlanner(sums=sums), backend=Reference(poison=True))
        value, grads = loss.value_and_grad(instances)
        assert loss.last is not None
        gradients = {name: np.asarray(g).copy() for name, g in grads.items()}
        found.append((float(value), gradients, loss.last.launches, loss.last.copied_bytes))
        placed = place_batch(model.loss, instances, planner=MemoryPlanner(sums=sums))
        copies = [m for m in movements(*placed) if m.how == "copy"]
        assert len(copies) == COPIES.get(case.name, 0)
    (first, gradients, launches, moved), (other, others, fewer, less) = found
    assert first == pytest.approx(other, rel=TOLERANCE)
    check_equal(list(gradients.values()), list(others.values()))
    before, after = MODELS[case.name]
    assert (fewer < launches) == (after < before)
    assert less <= moved


def test_a_matrix_that_must_stay_contiguous_is_in_no_row() -> None:
    """The others are joined."""

    def body(weights: Weights, x: Any, h: Any, c: Any) -> Any:
        return weights["W"] @ x + weights["U"] @ h + weights["V"] @ c

    program = trace(body, x=VECTOR, h=VECTOR, c=VECTOR)
    assert n_products(join_products(program)) == 1
    program.parameters[2].stays_contiguous = True
    joined = join_products(program)
    assert n_products(joined) == 2
    assert program.parameters[2] in joined.parameters
    for parameter in program.parameters:
        parameter.stays_contiguous = True
    assert join_products(program) is program
