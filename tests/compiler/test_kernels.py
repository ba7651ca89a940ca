"""Compiled cells: what the passes make of cells by hand, what LLVM makes of a kernel, and where kernels are kept."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.arrays import address_of
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.numba.loading import load
from autobatch.compiler.numba.sources import write_sources
from autobatch.compiler.stage import StageProgram, compile_backward, compile_forward
from autobatch.compiler.statement import Interpreted, Product
from autobatch.compiler.view import views_of
from autobatch.plan.plan import PlannedCell
from helpers.checkers.vector_code import compile_for, inner_loops
from helpers.twins.cases import CASES

FLOAT32 = np.dtype("float32")


def plan_cells(case: int, dim: int = 6) -> dict[str, PlannedCell]:
    """The cells of a model, planned for training, by name."""
    model, instances = CASES[case].draw(seed=0, n_instances=6, dim=dim)
    return cells_of(ab.batched(model.loss, backend="reference"), instances)


def cells_of(batched: Any, instances: list[Any]) -> dict[str, PlannedCell]:
    """The cells of a function."""
    return {cell.program.name: cell for cell in batched.prepare(instances, training=True).cells.cells}


def kinds(stage: StageProgram) -> list[str]:
    """What kind each step is."""
    return [{Kernel: "kernel", Product: "product", Interpreted: "alone"}[type(step)] for step in stage.steps]


def test_a_tree_lstm_is_products_and_one_loop_each_way() -> None:
    """The gates are cut apart, so that one loop over H elements holds all that is no product."""
    merge = plan_cells(0)["merge"]
    forward, backward = compile_forward(merge), compile_backward(merge)
    assert kinds(forward) == ["product", "kernel"]
    assert kinds(backward)[0] == "kernel"
    assert set(kinds(backward)[1:]) == {"product"}
    for stage in (forward, backward):
        for step in stage.steps:
            if isinstance(step, Kernel):
                assert [block.axes for block in step.blocks] == [(6,)]


def test_what_depends_on_words_alone_runs_once() -> None:
    cell = plan_cells(4)["read_character"]
    forward, backward = compile_forward(cell), compile_backward(cell)
    assert kinds(forward) == ["kernel", "product", "product", "kernel"]
    assert forward.n_before == 2
    assert kinds(backward) == ["kernel", "product", "product"]
    assert backward.n_after == 1
    assert "for every batch:" in str(write_sources(forward))
    assert "after all batches:" in str(write_sources(backward))


def test_one_source_serves_every_width() -> None:
    sources = [
        [s.text for s in write_sources(compile_forward(plan_cells(0, dim)["merge"])).kernels if s] for dim in (8, 24)
    ]
    assert sources[0] == sources[1]


def test_views_are_strides() -> None:
    cell = plan_cells(0)["merge"]
    found = views_of(cell.program.vars)
    slices = [v for k, v in enumerate(found) if v.value != k]
    assert slices
    assert all(view.is_contiguous and view.offset % 6 == 0 for view in slices)


SLOW = ("haswell", "skylake-avx512", "sapphirerapids", "znver5")


@ab.cell
def normalised(x: Any, gain: Any, bias: Any) -> Any:
    """Sums and largest elements between other loops."""
    return ab.layer_norm(x, gain, bias) * ab.softmax(x) + ab.gelu(ab.log_softmax(x))


RECURRENCE = """def kernel(memory, own, k):
    x = array_at(array_at(memory, int64)[0], real)
    for i in range(1, array_at(own, int64)[0]):
        x[i] = x[i] * x[i - 1]
"""


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["host", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_loops_are_vectorised(processor: str, tmp_path: Path) -> None:
    """No loop over elements does arithmetic on one at a time, but for those that whole vectors leave over."""
    vectors = [tuple(np.ones(5) for _ in range(3))]
    cells = plan_cells(0) | cells_of(ab.batched(lambda one: ab.sum(normalised(*one)), backend="reference"), vectors)
    kernels = [
        (source.text, "float32")
        for name in ("merge", "normalised")
        for compile_stage in (compile_forward, compile_backward)
        for source in write_sources(compile_stage(cells[name])).kernels
        if source is not None
    ]
    assert len(kernels) == 4
    for (text, _), code in zip(kernels, compile_for(processor, kernels, str(tmp_path)), strict=True):
        loops = list(inner_loops(code))
        assert any(loop.is_packed for loop in loops)
        assert not [loop.body for loop in loops if not loop.is_vectorised], text


def test_a_loop_that_cannot_be_vectorised_is_seen(tmp_path: Path) -> None:
    (code,) = compile_for("host", [(RECURRENCE, "float32")], str(tmp_path))
    assert any(not loop.is_vectorised for loop in inner_loops(code))


@pytest.mark.slow
@pytest.mark.parametrize("compile_stage", [compile_forward, compile_backward])
def test_no_kernel_counts_users_of_arrays(compile_stage: Any) -> None:
    """That costs two atomic instructions for each view of each row: 100 ns where the arithmetic takes 20."""
    for cell in plan_cells(0).values():
        for source in write_sources(compile_stage(cell)).kernels:
            if source is not None:
                assembly = load(source.text, "float32", "int32")._library.get_asm_str()
                assert "NRT_incref" not in assembly


@pytest.mark.slow
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_not_a_number_and_infinity_pass(number: float) -> None:
    """Compiled kernels keep NaN and infinities where plain arithmetic does."""
    model, instances = CASES[0].draw(seed=0, n_instances=4, dim=6)
    model.astype("float32")
    model.output.bias.data[0] = number
    expected = ab.batched(model.loss, backend="reference")(instances)
    found = ab.batched(model.loss, backend="cpu")(instances)
    assert not np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


SCRIPT = """
import sys
import numpy as np
import autobatch as ab
from autobatch.arrays import address_of
from autobatch.backends.cpu.backend import Cpu
from autobatch.compiler.numba.loading import load

@ab.cell
def double(x):
    return ab.tanh(2.0 * x)

run = ab.batched(lambda x: double(double(x)), backend=Cpu(jitted=True))
print(run([np.ones(3), np.zeros(3)]).tolist())
(part,) = run.prepare([np.ones(3), np.zeros(3)]).parts
(cell,) = (c for c in part.executable.types.cells.values() if c.cell.program.name == "double")
(step,) = cell.stage("forward").steps
print(load(step.source.text, "float32", "int32").cache_hits)
"""


def run_script(cache: str) -> list[str]:
    """Run a small model in a process of its own."""
    environment = {**os.environ, "AUTOBATCH_CACHE": cache}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_second_process_starts_warm(tmp_path: Path) -> None:
    cold, warm = run_script(str(tmp_path)), run_script(str(tmp_path))
    assert cold[0] == warm[0]
    assert (cold[1], warm[1]) == ("0", "1")


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["off", "/proc/nowhere"])
def test_no_cache_is_no_hindrance(cache: str) -> None:
    assert run_script(cache)[0].startswith("[[0.95")


def test_a_full_disk_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that adds two numbers, of which the source can be written and the machine code cannot."""

    def save(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    monkeypatch.setattr("autobatch.jit.internals.write_whole", save)
    source = "def kernel(memory, own, batch):\n    array_at(memory, np.int64)[0] = own + batch\n"
    with pytest.warns(UserWarning, match=r"cannot keep compiled code in .* \(No space left on device\); going on"):
        kernel = load(source, "float32", "int32")
    found = np.zeros(1, np.int64)
    kernel.ctypes(address_of(found), 2, 3)
    assert found.tolist() == [5]
    assert len(list(tmp_path.glob("kernels/*.py"))) == 1
