"""Test compiled cells: the results of passes for simple cells, LLVM's code for a kernel, and stored kernels."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from ctypes import CFUNCTYPE, c_int64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.arrays import address_of
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.llvm.machine import find_module
from autobatch.compiler.llvm.source import StageSources
from autobatch.compiler.stage import StageProgram, compile_backward, compile_forward
from autobatch.compiler.statement import Interpreted, Product
from autobatch.compiler.view import views_of
from autobatch.plan.plan import PlannedCell
from helpers.checkers.vector_code import inner_loops, optimised
from helpers.twins.cases import CASES

FLOAT32 = np.dtype("float32")


def plan_cells(case: int, dim: int = 6) -> dict[str, PlannedCell]:
    """Plan a model's cells for training; return them by name."""
    model, instances = CASES[case].draw(seed=0, n_instances=6, dim=dim)
    return cells_of(ab.batched(model.loss, backend="reference"), instances)


def cells_of(batched: Any, instances: list[Any]) -> dict[str, PlannedCell]:
    return {cell.program.name: cell for cell in batched.prepare(instances, training=True).cells.cells}


def kinds(stage: StageProgram) -> list[str]:
    return [{Kernel: "kernel", Product: "product", Interpreted: "alone"}[type(step)] for step in stage.steps]


def test_a_tree_lstm_is_products_and_one_loop_each_way() -> None:
    """The gates are split, so that one loop over H elements holds everything except products."""
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
    assert "for every batch:" in str(StageSources(forward, "float32"))
    assert "after all batches:" in str(StageSources(backward, "float32"))


def test_sizes_are_constants_and_numbers_are_arguments() -> None:
    def source(number: float, size: int) -> StageSources:
        batched = ab.batched(ab.cell(lambda x: ab.sum(ab.tanh(number * x))), backend="reference")
        return StageSources(compile_forward(cells_of(batched, [np.ones(size)])["<lambda>"]), "float32")

    first, second, wide = source(0.25, 8), source(0.75, 8), source(0.25, 24)
    assert first.text("int32") == second.text("int32") != first.text("int64")
    assert first.text("int32") != wide.text("int32")
    assert [[*kernel.numbers] for one in (first, second) for kernel in one.kernels if kernel] == [[0.25], [0.75]]


def test_views_are_strides() -> None:
    cell = plan_cells(0)["merge"]
    found = views_of(cell.program.vars)
    slices = [v for k, v in enumerate(found) if v.value != k]
    assert slices
    assert all(view.is_contiguous and view.offset % 6 == 0 for view in slices)


SLOW = ("haswell", "skylake-avx512", "sapphirerapids", "znver5")


@ab.cell
def normalised(x: Any, gain: Any, bias: Any) -> Any:
    """Combine sums and maxima with other loops."""
    return ab.layer_norm(x, gain, bias) * ab.softmax(x) + ab.gelu(ab.log_softmax(x))


RECURRENCE = """define void @recurrence(ptr %x, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [1, %entry], [%next, %loop]
  %before = phi float [1.0, %entry], [%product, %loop]
  %place = getelementptr float, ptr %x, i64 %i
  %number = load float, ptr %place
  %product = fmul float %number, %before
  store float %product, ptr %place
  %next = add nsw i64 %i, 1
  %goes_on = icmp slt i64 %next, %n
  br i1 %goes_on, label %loop, label %end
end:
  ret void
}
"""


@pytest.mark.parametrize("processor", ["host", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_loops_are_vectorised(processor: str) -> None:
    """No loop over elements does scalar arithmetic, except on the remainder after whole vectors."""
    vectors = [tuple(np.ones(75) for _ in range(3))]
    cells = plan_cells(0, 75) | cells_of(ab.batched(lambda one: ab.sum(normalised(*one)), backend="reference"), vectors)
    for name in ("merge", "normalised"):
        for compile_stage in (compile_forward, compile_backward):
            text = StageSources(compile_stage(cells[name]), "float32").text("int32")
            loops = list(inner_loops(optimised(processor, text)))
            assert any(loop.is_packed for loop in loops)
            assert not [loop.body for loop in loops if not loop.is_vectorised], text


def test_a_loop_that_cannot_be_vectorised_is_seen() -> None:
    assert any(not loop.is_vectorised for loop in inner_loops(optimised("host", RECURRENCE)))


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
from autobatch.system.background import watch_compilation

@ab.cell
def double(x):
    return ab.tanh(2.0 * x)

compiled = []
with watch_compilation(compiled.append):
    print(ab.batched(lambda x: double(double(x)), backend="cpu")([np.ones(3), np.zeros(3)]).tolist())
print([one.what for one in compiled])
"""


def run_script(cache: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={**os.environ, "AUTOBATCH_CACHE": cache},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    cold, warm = run_script(str(tmp_path)), run_script(str(tmp_path))
    assert cold[0] == warm[0]
    assert "cell 'double' (forward)" in cold[1]
    assert warm[1] == "[]"


@pytest.mark.parametrize("cache", ["off", "/proc/nowhere"])
def test_no_cache_is_no_hindrance(cache: str) -> None:
    assert run_script(cache)[0].startswith("[[0.95")


def test_code_for_a_named_processor_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, x = ab.cell(lambda x: ab.tanh(x) * ab.exp(x)), [np.linspace(-2, 2, 37)]
    expected = ab.batched(cell, backend="reference")(x)
    monkeypatch.setenv("AUTOBATCH_CPU", "generic")
    np.testing.assert_allclose(ab.batched(cell, backend="cpu")(x), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["haswel", "i386", "help"])
def test_a_processor_that_llvm_cannot_compile_for_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM itself would end the process."""
    monkeypatch.setenv("AUTOBATCH_CPU", name)
    with pytest.raises(ab.BackendError, match=f"AUTOBATCH_CPU must be a processor that LLVM can .*, got '{name}'"):
        ab.batched(ab.cell(lambda x: ab.tanh(x)), backend="cpu")([np.ones(3)])


SUM = """define void @sum(i64 %address, i64 %x, i64 %y) {
  %place = inttoptr i64 %address to ptr
  %total = add i64 %x, %y
  store i64 %total, ptr %place
  ret void
}
"""


def test_a_full_disk_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that stores a sum of two numbers cannot be cached."""

    def save(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    monkeypatch.setattr("autobatch.system.cache.write_whole", save)
    code = find_module(SUM, "a sum")
    with pytest.warns(UserWarning, match=r"cannot cache compiled code in .* \(No space left on device\); continuing"):
        address = code.address("sum")
    function = CFUNCTYPE(None, c_int64, c_int64, c_int64)(address)
    found = np.zeros(1, np.int64)
    function(address_of(found), 2, 3)
    assert found.tolist() == [5]
    assert not list(tmp_path.rglob("*.o"))
