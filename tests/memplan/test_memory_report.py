"""Test the report of `explain --memory`: what moves between cells, and where values are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.ending import run_to_the_end
from autobatch.cli.main import dispatch
from autobatch.cli.workload import load_workload
from autobatch.memplan.report import CellMemory, MemoryReport, movements, report_memory
from helpers.runs.planned import Placed, place_batch

SIZE = 12  # number of instances


def plan_model(name: str, training: bool) -> Placed:
    workload = load_workload(name, None, dim=8, seed=0)
    return place_batch(workload.model.loss, workload.first(SIZE), training, "score")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tree-lstm", "tree-lstm-2type", "bilstm-tagger", "lattice-lstm"])
def test_no_launch_only_moves_between_cells(name: str) -> None:
    """Trees, chains and folded lattices: kernels write every value and read every gradient in place.

    The exceptions are gradients that pass through unchanged: those of a sum's terms, and of a parameter that is a node.
    """
    for training in (False, True):
        found = movements(*plan_model(name, training))
        assert {m.how for m in found if not m.backward} == {"by kernel"}
        moved = [m for m in found if m.how != "by kernel"]
        kinds = {(m.how, m.source.split()[0].split("#")[0]) for m in moved}
        assert kinds <= {("gather", "sum_n"), ("gather", "parameter")}
        assert sum(m.launches for m in moved) == len({m.source for m in moved})
        assert any(m.backward for m in found) == training


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tree-lstm", "lattice-lstm"])
def test_bytes_are_those_of_the_destinations(name: str) -> None:
    plan, cells = plan_model(name, training=True)
    found = movements(plan, cells)
    bytes_of = {way: sum(m.n_bytes for m in found if m.backward == way) for way in (False, True)}
    sizes = [cell.program.vars[output].size for cell in cells.cells for output in cell.program.outputs]
    places = np.add.reduceat(np.r_[np.diff(plan.dest_ptr), 0], plan.dest_base[:-1]) * (np.diff(plan.dest_base) > 0)
    assert bytes_of[False] == bytes_of[True] == 4 * int((places * sizes).sum())


class Through(ab.Module):
    """A product that is returned as it is, next to a value that the cell passes on; one kernel writes both."""

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.random.default_rng(0).standard_normal((4, 4)))

    @ab.cell
    def product(self, x: Any) -> Any:
        return self.weight @ x, x

    @ab.cell
    def total(self, x: Any) -> Any:
        return ab.sum(x[0] * x[1])

    def run(self, x: Any) -> Any:
        return self.total(self.product(ab.tanh(x)))


def test_products_and_what_passes_through_need_launches_of_their_own() -> None:
    model = Through()
    loss = ab.batched(model.run, rewrites=())
    instances = [np.ones(4), np.zeros(4)]
    found = {(m.source, m.backward): m for m in movements(*place_batch(model.run, instances, rewrites=()))}
    assert (found["product output 0", False].how, found["product output 0", False].launches) == ("scatter", 1)
    assert (found["product output 1", False].how, found["product output 1", False].launches) == ("scatter", 0)
    assert (found["product output 0", True].how, found["product output 0", True].launches) == ("gather", 1)
    expected = np.mean([float(np.asarray(model.run(x))) for x in instances])
    assert loss.value_and_grad(instances)[0] == pytest.approx(expected, rel=1e-5)


def test_the_report_prints_cells_ways_and_totals() -> None:
    plan, cells = plan_model("tree-lstm", training=True)
    report = report_memory(plan, cells)
    lines = str(report).splitlines()
    assert "  inputs per node, 32 columns: left.1[0:8] left.0[8:16] right.0[16:24] right.1[24:32]" in lines
    assert sum(n_bytes for _, n_bytes in report.areas) == 4 * plan.size
    assert "scatter: 0 bytes, 0 launches" in lines
    assert f"gather: {4 * SIZE} bytes, 1 launches" in lines
    assert any("merge left.1 -> leaf output 1" in line for line in lines)
    again = sum(
        4 * cell.program.vars[output].size * max(0, len(plan.destinations(node, number)) - 1)
        for node in range(plan.graph.n_nodes)
        for cell in [cells.cells[plan.graph.type_id[node]]]
        for number, output in enumerate(cell.program.outputs)
    )
    assert report.written_again == again > 0


@pytest.mark.slow
def test_explain_shows_memory_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = load_workload("tree-lstm", None, dim=8, seed=0)
    loss = workload.batched("loss", "score", "reference")
    assert loss.explain(workload.first(2)).memory is None
    report = loss.explain(workload.first(2), memory=True)
    assert isinstance(report.memory, MemoryReport)
    assert str(report.memory) in str(report)
    picture = tmp_path / "memory.png"
    options = "--dim 8 --batch-size 2 --policy score --training --memory --plot"
    assert run_to_the_end(lambda: dispatch(["explain", "tree-lstm", *options.split(), str(picture)])) == 0
    assert "merge left.0 -> leaf output 0" in capsys.readouterr().out
    assert picture.read_bytes()[1:4] == b"PNG"
    cell = CellMemory("$cell^$", None, (("a block", 2, "$a^$[0:2]"),), (1, 1))
    MemoryReport((cell,), (), (), 0).plot(tmp_path / "names.png")  # Matplotlib must not read these as formulas
    with pytest.raises(ab.AutobatchError, match="cannot draw a memory plan"):
        report.memory.plot(tmp_path / "none" / "memory.png")
