"""Test the source lines that record single ops outside cells, as named by `explain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab


@ab.cell
def halve(x: Any) -> Any:
    return 0.5 * x


def of_ops(x: Any) -> Any:
    y = halve(x) + 1.0
    return ab.sum(ab.tanh(y) * 2.0)


def of_a_cell(x: Any) -> Any:
    return halve(x)


def of_a_list(x: Any) -> Any:
    return ab.sum_n([halve(x) * float(k) for k in range(3)])


def of_one_op(x: Any) -> Any:
    return ab.sum_n([halve(x), halve(x)])


async def of_rounds(x: Any) -> Any:
    y = halve(x) - 1.0
    return y if await ab.value(ab.max(y)) > 0.0 else -y


def lines_of(function: Callable[[Any], Any], n: int) -> dict[int, tuple[int, tuple[str, ...]]]:
    """Return nodes and ops by line, relative to the function, for a mini-batch of n instances."""
    report = ab.batched(function, backend="reference").explain([np.ones(3) + k for k in range(n)])
    first = function.__code__.co_firstlineno
    assert {found.line.file for found in report.lines} <= {__file__}
    return {found.line.number - first: (found.nodes, found.ops) for found in report.lines}


@pytest.mark.parametrize("n", [1, 4])
def test_lines_that_record_single_ops_are_named_with_the_ops_and_counted(n: int) -> None:
    assert lines_of(of_ops, n) == {1: (n, ("add",)), 2: (3 * n, ("tanh", "mul", "sum"))}
    assert lines_of(of_a_cell, n) == lines_of(of_one_op, n) == {}
    assert lines_of(of_a_list, n) == {1: (4 * n, ("mul", "sum_n"))}


def test_lines_of_async_functions_are_named_too() -> None:
    assert lines_of(of_rounds, 2) == {1: (2, ("sub",)), 2: (4, ("max", "neg"))}


def test_the_report_says_which_function_to_put_into_a_cell() -> None:
    text = str(ab.batched(of_ops, backend="reference").explain([np.ones(3)]))
    assert "of_ops recorded 4 nodes of single ops outside of cells;" in text
    line = of_ops.__code__.co_firstlineno + 2
    assert f"test_lines.py:{line}: 3 nodes (tanh, mul, sum)" in text


def test_recordings_look_at_no_stack_unless_they_are_explained() -> None:
    batched = ab.batched(of_ops, backend="reference")
    batched.explain([np.ones(3)])
    assert not {"apply", "apply_function", "call_cell"} & vars(batched.recorder.calls).keys()
    graphs = batched.record_all([np.ones(3)])
    assert batched.explain(graphs).lines == ()


def test_an_error_while_explaining_leaves_nothing_behind() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("of the user")

    batched = ab.batched(fails, backend="reference")
    with pytest.raises(ValueError, match="of the user"):
        batched.explain([np.ones(3)])
    assert "apply" not in vars(batched.recorder.calls)
