"""`explain --cell` shows a cell from its trace to the kernels of the cpu backend."""

from __future__ import annotations

import re
from textwrap import indent
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.ending import run_to_the_end
from autobatch.cli.explain import COLUMNS, NO_COMPILER, TITLES, show_cells
from autobatch.cli.main import dispatch
from autobatch.cli.workload import load_workload
from autobatch.compiler.cuda.resources import GPUS, has_compiler
from autobatch.compiler.cuda.source import print_stage
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.llvm.source import StageSources
from autobatch.compiler.stage import compile_backward, compile_forward

PROGRAMS = ["traced", "simplified", "joined", "stacked", "stacked simplified"]
MODELS = ["tree-lstm", "tree-lstm-2type", "bilstm-tagger", "lattice-lstm"]


def merge(model: str) -> tuple[Any, Any]:
    """Return the graph of a mini-batch, and the planner."""
    workload = load_workload(model, None, dim=6, seed=0)
    loss = workload.batched("loss", "score", "reference")
    return loss.merged(workload.first(4)), loss.planner


def explain(capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, str, str]:
    """Run `autobatch explain`; return its exit status and output."""
    status = run_to_the_end(lambda: dispatch(["explain", *words.split()]))
    return (status, *capsys.readouterr())


@pytest.mark.slow
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
        titles = [line for line in text.splitlines()[1:] if line and not line.startswith(" ")]
        assert [title.partition(" (")[0] for title in titles] == expected_titles(training)
        assert indent(str(cell.layout), "  ") in text
        for stage in stages:
            assert indent(str(StageSources(stage, "float32")), "  ") in text
        n_kernels = sum(isinstance(step, Kernel) for stage in stages for step in stage.steps)
        assert text.count("    | define void @kernel_") == n_kernels
    assert n_nodes == graph.n_nodes


def test_a_cell_is_shown_with_all_its_types() -> None:
    """One cell reads words leftward and rightward, with different parameters."""
    graph, planner = merge("bilstm-tagger")
    both = show_cells(graph, planner, "read_word", training=False)
    parts = [show_cells(graph, planner, f"read_word#{number}", training=False) for number in (1, 2)]
    assert both == "\n\n".join(parts)
    assert ["leftward" in part for part in parts] != ["rightward" in part for part in parts]


def expected_titles(training: bool) -> list[str]:
    """Return the titles of a type's sections, in order."""
    programs = [key for key in TITLES if key in PROGRAMS]
    passes = ["lowered", "cut", "hoisted", "fused", "storage", "source"]
    stages = [f"{stage}, {TITLES[key]}" for stage in ("forward", "backward")[: 1 + training] for key in passes]
    derivatives = [TITLES[key] for key in ("derived", "derivative simplified", "recomputed")] * training
    weights = [TITLES["weights"]] * training
    return [*(TITLES[key] for key in programs), *derivatives, TITLES["layout"], *stages, *weights]


def test_what_is_not_rewritten_is_not_shown_twice() -> None:
    graph, planner = merge("tree-lstm")
    text = show_cells(graph, planner, "node_loss", training=False)
    assert text.count("node_loss(%0") == 1
    for key in PROGRAMS[1:]:
        assert f"\n{TITLES[key]} (2 instructions)\n  as before\n" in text
    assert "a loop per gate\n  as before\n" in text


def test_only_some_passes(capsys: pytest.CaptureFixture[str]) -> None:
    words = "tree-lstm --dim 6 --batch-size 4 --cell merge --training --pass fused --pass simplified"
    status, out, _ = explain(capsys, words)
    assert status == 0
    titles = [line.partition(" (")[0] for line in out.splitlines()[3:] if line and not line.startswith(" ")]
    assert titles == [TITLES["simplified"], *(f"{stage}, {TITLES['fused']}" for stage in ("forward", "backward"))]
    status, out, err = explain(capsys, "tree-lstm --pass fused")
    assert (status, out) == (2, "")
    assert "--pass requires --cell" in err


def test_why_a_pass_shortened_a_program_is_told() -> None:
    """A gate that is written twice is computed once, in all later sections."""
    weight = ab.Parameter(np.eye(3))

    @ab.cell
    def gated(x: Any) -> Any:
        return ab.sigmoid(weight @ x) * x + ab.tanh(ab.sigmoid(weight @ x) * 1.0)

    loss = ab.batched(lambda x: ab.sum(gated(x)))
    text = show_cells(loss.merged([np.ones(3)]), loss.planner, "gated", training=True)
    simplified = text.split(TITLES["simplified"])[1]
    assert simplified.startswith(" (5 instructions, 2 computed twice, 1 known)")
    assert simplified.count("= sigmoid(") == simplified.split("weights: ")[0].count("= sigmoid(")
    assert text.split("forward, lowered")[1].split("forward, cut")[0].count("sigmoid(") == 1
    fused = text.split("forward, fused")[1].split("\n\n")[0]
    assert "neighbours that are not fused:\n    %" in fused
    assert "is a product, which a library computes" in fused


def test_reasons_are_told_for_each_pair() -> None:
    graph, planner = merge("tree-lstm")
    text = show_cells(graph, planner, "node_loss", training=True, passes=["fused", "weights"])
    forward, backward, weights = text.split("neighbours ")[1:]
    assert "is a max, known only after its loop" in forward
    assert "one loop goes over 10, the other over one element" in forward
    assert "is a sum, known only after its loop" in backward
    assert weights.startswith("are not fused: each step runs once over all rows")


def test_a_cell_that_reads_and_saves_nothing_has_no_columns() -> None:
    graph, planner = merge("tree-lstm")
    assert "\nlayout\n  no columns: " in show_cells(graph, planner, "leaf", training=False)
    assert "\nlayout\n  saved of a node" in show_cells(graph, planner, "leaf", training=True)


@pytest.mark.cases(1)
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
    assert re.search(r"%\d+ is a product, which a library computes\n", text)
    assert re.search(r"%\d+ is a max, known only after its loop\n", text)
    assert text.count("| define void @kernel_") == 1 + training
    assert "policy" not in out


@pytest.mark.slow
def test_the_kernels_of_the_cuda_backend_are_shown_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    words = "tree-lstm --dim 6 --batch-size 4 --cell merge --training --backend cuda --pass source"
    status, out, _ = explain(capsys, words)
    assert status == 0
    graph, planner = merge("tree-lstm")
    (kind,) = (kind for kind, name in enumerate(graph.types.names) if name == "merge")
    cell = planner.plan_cell(graph.types[kind], True)
    for stage in (compile_forward(cell), compile_backward(cell)):
        source = print_stage(stage)
        assert indent(str(source), "  ") in out
        code = [line for text in source.texts.values() for line in text.splitlines()]
        assert code
        assert all(f"    | {line}\n" in out for line in code)
    assert out.count("__device__") == 2


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="needs nvcc")
def test_a_table_says_what_kernels_need_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    words = "tree-lstm --dim 6 --batch-size 4 --cell merge --training --backend cuda --pass resources"
    status, out, _ = explain(capsys, words)
    assert status == 0
    head, *rows = out.split(f"{TITLES['resources']}\n")[1].splitlines()
    assert head.split("  ")[-1] == COLUMNS[-1]
    assert [row.split()[:4] for row in rows] == [
        [f"{stage},", "step", step, gpu] for stage, step in (("forward", "1"), ("backward", "0")) for gpu in GPUS
    ]
    for row in rows:
        threads, registers, spilled_bytes, shared_bytes = map(int, row.split()[4:])
        assert (threads, spilled_bytes) == (8, 0)
        assert 0 < registers < 256
        assert shared_bytes > 0


def test_without_a_compiler_a_line_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    words = "tree-lstm --dim 6 --batch-size 4 --cell leaf --backend cuda --pass resources"
    status, out, _ = explain(capsys, words)
    assert status == 0
    assert out.endswith(f"\n\n{TITLES['resources']}\n  {NO_COMPILER}\n")


def test_an_unknown_cell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = explain(capsys, "tree-lstm --dim 6 --batch-size 4 --cell merg")
    assert status == 2
    assert err == "autobatch: cell must be one of the mini-batch's cells leaf, node_loss, merge, sum_n, got 'merg'.\n"
    with pytest.raises(ab.AutobatchError, match=r"cell must be .*, got 'read_word#3'"):
        show_cells(*merge("bilstm-tagger"), "read_word#3", training=False)


@pytest.mark.parametrize("other", ["--memory", "--plot schedule.png"])
def test_what_is_of_mini_batches_does_not_go_with_a_cell(capsys: pytest.CaptureFixture[str], other: str) -> None:
    status, out, err = explain(capsys, f"tree-lstm --cell merge {other}")
    assert (status, out) == (2, "")
    assert "cannot be combined with --cell" in err
