"""What `explain --cell` says: what becomes of a cell, from its trace to the kernels of the cpu backend."""

from __future__ import annotations

import ast
from textwrap import indent
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.ending import run_to_the_end
from autobatch.cli.explaining import show_cells
from autobatch.cli.main import dispatch
from autobatch.cli.workload import load_workload
from autobatch.kernels.fusing import Kernel
from autobatch.kernels.stage import compile_backward, compile_forward

MODELS = ["tree-lstm", "tree-lstm-2type", "bilstm-tagger", "lattice-lstm"]


def merge(model: str) -> tuple[Any, Any]:
    """The graph of a mini-batch, and the planner."""
    workload = load_workload(model, None, dim=6, seed=0)
    loss = workload.batched("loss", "score", "reference")
    return loss.merged(workload.first(4)), loss.planner


def explain(capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, str, str]:
    """The exit status of `autobatch explain`, and what it printed."""
    status = run_to_the_end(lambda: dispatch(["explain", *words.split()]))
    return (status, *capsys.readouterr())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_every_type_is_shown_from_trace_to_source(model: str, training: bool) -> None:
    graph, planner = merge(model)
    n_nodes = 0
    for kind, count in zip(*np.unique(graph.type_id, return_counts=True), strict=True):
        name = graph.types.names[kind]
        text = show_cells(graph, planner, name, training)
        head, *_ = text.splitlines()
        assert head.startswith(f"{name}, {count} node")
        n_nodes += int(head.split()[1])
        cell = planner.plan_cell(graph.types[kind], training)
        stages = [compile_forward(cell), *([compile_backward(cell)] if training else [])]
        assert indent(str(cell.type.program), "  ") in text
        assert indent(str(cell.program), "  ") in text
        assert (cell.derivative is not None and indent(str(cell.derivative), "  ") in text) == training
        assert indent(str(cell.layout), "  ") in text
        for stage in stages:
            assert indent(str(stage), "  ") in text
        source = "\n".join(line[6:] for line in text.splitlines() if line.startswith("    | "))
        n_kernels = sum(isinstance(step, Kernel) for stage in stages for step in stage.steps)
        assert sum(isinstance(node, ast.FunctionDef) for node in ast.parse(source).body) == n_kernels
    assert n_nodes == graph.n_nodes


def test_a_cell_is_shown_with_all_its_types() -> None:
    """Words are read by one cell, leftward and rightward with other parameters."""
    graph, planner = merge("bilstm-tagger")
    both = show_cells(graph, planner, "read_word", training=False)
    parts = [show_cells(graph, planner, f"read_word#{number}", training=False) for number in (1, 2)]
    assert both == "\n\n".join(parts)
    assert ["leftward" in part for part in parts] != ["rightward" in part for part in parts]


def test_what_is_not_rewritten_is_not_shown_twice() -> None:
    graph, planner = merge("tree-lstm")
    text = show_cells(graph, planner, "node_loss", training=False)
    assert text.count("node_loss(%0") == 1
    assert "inner batches stacked\n  as traced\n" in text


def test_a_cell_that_reads_and_saves_nothing_has_no_columns() -> None:
    graph, planner = merge("tree-lstm")
    assert "\nlayout\n  no columns: " in show_cells(graph, planner, "leaf", training=False)
    assert "\nlayout\n  saved of a node" in show_cells(graph, planner, "leaf", training=True)


@pytest.mark.parametrize("training", [False, True])
def test_the_command_shows_a_cell_and_why_kernels_stay_apart(
    capsys: pytest.CaptureFixture[str], training: bool
) -> None:
    words = "tree-lstm --dim 6 --batch-size 4 --cell node_loss" + " --training" * training
    status, out, err = explain(capsys, words)
    assert (status, err) == (0, "")
    head, _, text = out.partition("\n\n")
    assert head == "tree-lstm, the first 4 instances of listops"
    assert text == show_cells(*merge("tree-lstm"), "node_loss", training) + "\n"
    assert "kernel, apart because a product stands between" in text
    assert "it reads what is only known after the loop" in text
    assert text.count("def kernel(") == 1 + training
    assert "policy" not in out


def test_an_unknown_cell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = explain(capsys, "tree-lstm --dim 6 --batch-size 4 --cell merg")
    assert status == 2
    assert err == "autobatch: there is no cell 'merg' in this mini-batch; there are leaf, node_loss, merge, sum_n.\n"
    with pytest.raises(ab.AutobatchError, match="there is no cell 'read_word#3' in this mini-batch"):
        show_cells(*merge("bilstm-tagger"), "read_word#3", training=False)


@pytest.mark.parametrize("other", ["--memory", "--plot schedule.png"])
def test_what_is_of_mini_batches_does_not_go_with_a_cell(capsys: pytest.CaptureFixture[str], other: str) -> None:
    status, out, err = explain(capsys, f"tree-lstm --cell merge {other}")
    assert (status, out) == (2, "")
    assert "--memory and --plot do not go with it" in err
