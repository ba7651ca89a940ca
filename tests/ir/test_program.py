"""Test programs: the result of tracing a cell, its printed form, and what the checker accepts and refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import GraphError
from autobatch.ir.arguments import Key
from autobatch.ir.autodiff import differentiate
from autobatch.ir.program import NODE, SHARED, CellProgram, Constant, Incoming, Instruction, Port, Var
from autobatch.ir.program_check import check_cell, check_values
from autobatch.trace.tracer import Tracer
from helpers.programs.op_cases import CASES, Case
from helpers.runs.ways import each

RNG = np.random.default_rng(0)
E, W, GAIN = ab.Parameter(np.zeros((5, 4))), ab.Parameter(np.zeros((2, 4))), ab.Parameter(np.ones(4))
NAMES = {id(E): "embedding", id(W): "weight", id(GAIN): "gain"}
VECTOR, INT, FLOAT = Key("value", (4,)), Key("int", ()), Key("float", ())


def list_of(*elements: Key) -> Key:
    """Return the key of a list of any length, of values or tuples of values."""
    return Key("each", None, elements if len(elements) == 1 else (Key("tuple", None, elements),))


def trace(body: Callable[..., Any], *keys: Key, **named: Key) -> CellProgram:
    arguments = {**{f"x{i}": key for i, key in enumerate(keys)}, **named}
    program, _ = Tracer("cell", NAMES).trace(lambda given: body(*given.values()), arguments)
    return program


def merge(state: Any, word: Any, others: Any, keys: Any, rate: Any, ids: Any) -> Any:
    """Combine many kinds of arguments and ops."""
    h, _ = state
    x = ab.lookup(E, word) * rate + ab.sum_n(others)
    seen = ab.attend(h, keys, keys)
    table = ab.lookup(E, ids[1:])
    y = W @ (ab.tanh(x) + seen * GAIN) - 0.5
    return {"y": y, "h": h, "parts": (ab.split(table, 2)[1], np.eye(2))}


def merge_program() -> CellProgram:
    return trace(
        merge,
        state=Key("tuple", None, (VECTOR, VECTOR)),
        word=INT,
        others=list_of(VECTOR),
        keys=list_of(VECTOR),
        rate=FLOAT,
        ids=Key("int", (3,)),
    )


def test_a_program_prints_as_text() -> None:
    assert str(merge_program()).splitlines() == [
        "cell(%0 state.0: (4,), %2 others: *(4,), %3 keys: *(4,))",
        "  %1 word: () = int attribute at 0",
        "  %4 rate: () = float attribute at 0",
        "  %5 ids: (3,) = int attribute at 1",
        "  %6: (5, 4) = parameter embedding",
        "  %7: (4,) = lookup(%6, %1)",
        "  %8: (4,) = mul(%7, %4)",
        "  %9: (4,) = sum_n(%2)",
        "  %10: (4,) = add(%8, %9)",
        "  %11: *(4,) = spread(%0, %3)",
        "  %12: *(4,) = mul(%11, %3)",
        "  %13: *() = sum(%12, axis=-1, keepdims=False)",
        "  %14: () = constant 1.0",
        "  %15: *() = mul(%13, %14)",
        "  %16: *() = softmax_n(%15)",
        "  %17: *(1,) = reshape(%16, shape=(1,))",
        "  %18: *(4,) = mul(%17, %3)",
        "  %19: (4,) = sum_n(%18)",
        "  %20: (2,) = slice(%5, index=slice(1, None, None))",
        "  %21: (2, 4) = lookup(%6, %20)",
        "  %22: (4,) = tanh(%10)",
        "  %23: (4,) = parameter gain",
        "  %24: (4,) = mul(%19, %23)",
        "  %25: (4,) = add(%22, %24)",
        "  %26: (2, 4) = parameter weight",
        "  %27: (2,) = matmul(%26, %25)",
        "  %28: () = constant 0.5",
        "  %29: (2,) = sub(%27, %28)",
        "  %30: (2, 2) = slice(%21, index=(Ellipsis, slice(2, 4, None)))",
        "  %31: (2, 2) = constant of shape (2, 2)",
        "  return %29, %0, %30, %31",
    ]


def test_what_no_output_needs_is_left_out() -> None:
    program = trace(lambda x, y, n, m: (ab.exp(y), x * m)[1], VECTOR, VECTOR, INT, INT)
    assert str(program).splitlines() == [
        "cell(%0 x0: (4,))",
        "  %1 x3: () = int attribute at 0",
        "  %2: (4,) = mul(%0, %1)",
        "  return %2",
    ]
    assert program.words(is_float=False) == 1


def test_parts_of_a_program() -> None:
    program = merge_program()
    assert [program.vars[p].domain for p in program.ports] == [NODE, 0, 1]
    assert program.n_groups == 2
    assert list(map(id, program.parameters)) == list(map(id, (E, GAIN, W)))
    assert (program.words(is_float=False), program.words(is_float=True)) == (4, 1)
    assert [program.vars[o].shape for o in program.outputs] == [(2,), (4,), (2, 2), (2, 2)]


def test_what_is_computed_from_parameters_alone_has_one_row() -> None:
    program = trace(lambda x: (ab.tanh(W + 1.0) @ ab.exp(GAIN * 2.0), W @ x), VECTOR)
    assert [program.vars[o].domain for o in program.outputs] == [SHARED, NODE]


@each("role", ["value", "parameter"])
@each("case", CASES)
def test_every_traced_program_passes_the_check(case: Case, role: str) -> None:
    floats, _ = case.arguments(RNG)
    n_floats = len(floats) if role == "value" else 0
    keys = [Key("value", shape) for shape in case.shapes[:n_floats]] + [Key("int", shape) for shape, _ in case.ids]
    parameters = [ab.Parameter(x) for x in floats[n_floats:]]
    program = trace(lambda *given: case.compute(*given[:n_floats], *parameters, *given[n_floats:]), *keys)
    check_cell(program)
    check_values("backward", differentiate(program).vars, program.ties)


@each(
    "form",
    [
        lambda xs, q: ab.sum_n(xs) * ab.max_n(xs),
        lambda xs, q: ab.mean_n(xs),
        lambda xs, q: ab.attend(q, xs, xs),
        lambda xs, q: ab.attend(GAIN, xs, xs, scale=0.5),
    ],
)
def test_every_variadic_program_passes_the_check(form: Any) -> None:
    program = trace(form, list_of(VECTOR), VECTOR)
    check_cell(program)
    check_values("backward", differentiate(program).vars, program.ties)


def test_two_lists_are_tied() -> None:
    program = trace(
        lambda q, keys, values: ab.attend(q, keys, values), VECTOR, list_of(VECTOR), list_of(Key("value", (2, 3)))
    )
    check_cell(program)
    check_values("backward", differentiate(program).vars, program.ties)
    assert program.ties == ((0, 1),)
    with pytest.raises(GraphError, match=r"the domains \[0, 1\] have no rows in common"):
        check_cell(replace(program, ties=()))


# The checker, on a program with one defect.


def find(program: CellProgram, name: str) -> int:
    for i in program.instructions:
        source = program.vars[i].source
        if isinstance(source, Instruction) and source.op.name == name:
            return i
    raise AssertionError(name)


def with_var(program: CellProgram, index: int, **changes: Any) -> CellProgram:
    vars = list(program.vars)
    vars[index] = replace(vars[index], **changes)
    return replace(program, vars=tuple(vars))


def with_source(program: CellProgram, name: str, **changes: Any) -> CellProgram:
    index = find(program, name)
    return with_var(program, index, source=replace(program.vars[index].source, **changes))


BREAKS: tuple[tuple[str, Callable[[CellProgram], CellProgram], str], ...] = (
    (
        "later argument",
        lambda p: with_source(p, "tanh", args=(len(p.vars) - 1,)),
        r"tanh.* reads a value that does not come before",
    ),
    (
        "itself",
        lambda p: with_source(p, "tanh", args=(find(p, "tanh"),)),
        r"tanh.* reads a value that does not come before",
    ),
    (
        "negative argument",
        lambda p: with_source(p, "tanh", args=(-1,)),
        r"tanh.* reads a value that does not come before",
    ),
    ("shape", lambda p: with_var(p, find(p, "tanh"), shape=(5,)), r"tanh.* its shape must be \(4,\)"),
    ("arguments", lambda p: with_source(p, "tanh", args=(0, 0, 0)), r"tanh.* it has 3 arguments, but tanh takes x"),
    (
        "misfit",
        lambda p: with_source(p, "matmul", args=(find(p, "tanh"), find(p, "slice"))),
        r"arguments do not fit: .*matmul",
    ),
    (
        "domain",
        lambda p: with_var(p, find(p, "tanh"), domain=SHARED),
        r"tanh.* its domain must be -1,.* got -2",
    ),
    (
        "group domain",
        lambda p: with_var(p, find(p, "softmax_n"), domain=0),
        r"softmax_n.* its domain must be 1,.* got 0",
    ),
    ("reduced node", lambda p: with_source(p, "sum_n", args=(p.ports[0],)), r"sum_n.* the domains \[-1\] have no rows"),
    (
        "edges and nodes",
        lambda p: with_source(p, "sub", args=(p.ports[1], p.ports[0])),
        r"the domains \[0, -1\] have no rows|shape",
    ),
    ("spread to nodes", lambda p: with_source(p, "spread", args=(p.ports[0], p.ports[0])), r"spread.* the domains"),
    (
        "port number",
        lambda p: with_var(p, p.ports[1], source=Port("others", 3, 2)),
        r"others.* its port number must be 1, got 2",
    ),
    (
        "port twice",
        lambda p: with_var(p, p.ports[1], source=Port("others", 3, 0)),
        r"others.* its port number must be 1, got 0",
    ),
    ("shared port", lambda p: with_var(p, p.ports[0], domain=SHARED), r"its shape and domain must be .*-2"),
    (
        "column",
        lambda p: with_var(p, columns(p)[1], source=replace(source(p, columns(p)[1]), column=0)),
        r"words must start at 1, got 0",
    ),
    ("attribute domain", lambda p: with_var(p, columns(p)[0], domain=SHARED), r"int attribute .*shape and domain"),
    (
        "weight shape",
        lambda p: with_var(p, weight(p), shape=(4, 5)),
        r"parameter embedding.* shape and domain must be \(\(5, 4\), -2\)",
    ),
    ("constant domain", lambda p: with_var(p, constant(p), domain=NODE), r"constant 0.5.* shape and domain"),
    (
        "ids",
        lambda p: with_source(p, "lookup", args=(weight(p), p.ports[0])),
        r"neither int data nor a constant|by the rule of",
    ),
    ("gradient", lambda p: with_var(p, p.ports[0], source=Incoming(0)), r"only the backward stages have"),
    ("no outputs", lambda p: replace(p, outputs=()), r"its outputs are \(\)"),
    ("output", lambda p: replace(p, outputs=(0, len(p.vars))), r"must name some of its \d+ values"),
    ("unused", lambda p: replace(p, outputs=p.outputs[1:]), r"no output needs it"),
    (
        "added",
        lambda p: replace(p, vars=(*p.vars, Var(Constant(1.0), (), SHARED))),
        r"constant 1.0.* no output needs it",
    ),
)


def source(program: CellProgram, index: int) -> Any:
    return program.vars[index].source


def columns(program: CellProgram) -> list[int]:
    """Return the int attributes."""
    return [i for i, v in enumerate(program.vars) if getattr(v.source, "is_float", None) is False]


def weight(program: CellProgram) -> int:
    return next(i for i, v in enumerate(program.vars) if getattr(v.source, "parameter", None) is E)


def constant(program: CellProgram) -> int:
    return next(i for i, v in enumerate(program.vars) if getattr(v.source, "data", None) == 0.5)


@each("name, break_it, text", BREAKS)
def test_the_check_names_the_line_that_is_broken(name: str, break_it: Any, text: str) -> None:
    program = merge_program()
    check_cell(program)
    with pytest.raises(GraphError, match=f"^checking cell 'cell': .*({text})"):
        check_cell(break_it(program))


def test_finished_programs_are_checked_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(sys.modules[Tracer.__module__], "check_cell", lambda program: seen.append(program.name))
    for flag, expected in (("0", []), ("1", ["cell"])):
        monkeypatch.setenv("AUTOBATCH_CHECK", flag)
        trace(lambda x: x + 1.0, VECTOR)
        assert seen == expected


# Refusals of tracing.

LEAKED: list[Any] = []


def leak(given: Any) -> Any:
    LEAKED.append(given["x"])
    return given["x"]


@each(
    "body, text",
    [
        (lambda x: x + LEAKED[0], "uses a value traced in other; pass it as an argument"),
        (lambda x: None, "must return at least one value, got None"),
        (lambda x: (), r"must return at least one value, got \(\)"),
        (lambda x: 1.0 if x[0] > 0.0 else x, "Outside cells, an async function can wait for it"),
        (lambda x: x * float(x[0]), r"float\(...\) needs the number of a traced value"),
        (lambda x: x * int(x[0]), r"int\(...\) needs the number"),
        (lambda x: x * range(4)[x[0]], "an index needs the number"),
        (lambda x: np.asarray(x), "a NumPy array needs the number"),
        (lambda x: x[x], "the ids of lookup must be int arguments"),
    ],
)
def test_tracing_refuses(body: Any, text: str) -> None:
    Tracer("other", {}).trace(leak, {"x": VECTOR})
    with pytest.raises((GraphError, ab.ShapeError), match=text):
        trace(body, VECTOR)
    LEAKED.clear()
