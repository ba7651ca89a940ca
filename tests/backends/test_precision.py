"""Test bf16: its rounding by definition, which operands are rounded, and that a model learns with it.

Where sums are exact (few small whole numbers of more than 8 bits), results are bit-identical to float64 arithmetic on
rounded operands. Elsewhere, two computations may round a state between two bf16 numbers differently, which changes a
product by one part in 256.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import autobatch as ab
from autobatch.arrays import rounded
from autobatch.backends.base import Backend
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cpu.compiled_cell import CompiledCell
from autobatch.backends.cpu.step import FUNCTIONS, StepTemplate
from autobatch.backends.reference import Reference
from autobatch.blas import Chooser, choosing
from autobatch.cli import doctor
from autobatch.cli.main import commands
from autobatch.compiler.statement import Product
from autobatch.errors import BackendError
from autobatch.graph.rewrite import UNSHARED
from autobatch.system.processor import has_avx512
from helpers.fakes.noting_backend import NotingBackend
from helpers.runs.ways import each
from helpers.twins.cases import CASES, Case

Array = Any
BACKENDS: dict[str, Callable[[], Backend]] = {
    "reference": lambda: Reference(poison=True),
    "cpu": lambda: Cpu(poison=True),
}


def to_bits(x: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    return int(bits)


def from_bits(bits: int) -> float:
    (x,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(x)


def nearest(x: float) -> float:
    """Return the closest bf16 number by exact distance; ties go to an even last bit, and 2**128 becomes infinity."""
    if math.isnan(x) or math.isinf(x):
        return x
    cut = to_bits(x) & 0xFFFF0000
    above = from_bits(cut + 0x10000)
    far = Fraction(2) ** 128 if math.isinf(above) else Fraction(abs(above))
    below, up = abs(Fraction(x)) - abs(Fraction(from_bits(cut))), far - abs(Fraction(x))
    if up < below or (up == below and cut & 0x10000):
        return above
    return from_bits(cut)


def nearest_of(x: Array) -> Array:
    """Round each element of an array; return float64."""
    return np.array([nearest(float(one)) for one in np.ravel(x)], np.float64).reshape(np.shape(x))


COMPILED = (CASES[0], CASES[4])  # cases with compiled kernels
SPECIAL = (
    0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0x00000001, 0x00008000,
    0x00018000, 0x00007FFF, 0x80008001, 0x007FFFFF, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF,
)  # fmt: skip


def test_rounding_is_to_the_nearest() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    bits[::3] = (bits[::3] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)  # ties
    x = np.concatenate([np.array(SPECIAL, np.uint32), bits]).view(np.float32)
    x = x[~np.isnan(x)]
    np.testing.assert_array_equal(rounded(x).astype(np.float64), nearest_of(x))
    np.testing.assert_array_equal(np.signbit(rounded(x)), np.signbit(x))
    assert np.isnan(rounded(np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32))).all()
    assert np.isinf(x).sum() == 2


class Layer(ab.Module):
    """Products of every form, of whole numbers."""

    def __init__(self, rng: np.random.Generator, width: int = 4, depth: int = 6) -> None:
        self.weight = ab.Parameter(rng.integers(-999, 999, (depth, width)).astype(np.float32))
        self.other = ab.Parameter(rng.integers(-3, 4, (depth, width)).astype(np.float32))
        self.bias = ab.Parameter(rng.integers(-999, 999, depth).astype(np.float32))
        self.gain = ab.Parameter(rng.integers(-999, 999, depth).astype(np.float32))

    @ab.cell
    def affine(self, x: Any) -> Any:
        return ab.dot(self.gain, ab.affine(self.weight, x, self.bias))

    @ab.cell
    def matmul(self, x: Any) -> Any:
        return ab.dot(self.gain, self.weight @ x)

    @ab.cell
    def sum_of_two(self, x: Any) -> Any:
        return ab.dot(self.gain, self.weight @ x + self.other @ x)

    @ab.cell
    def transposed(self, x: Any) -> Any:
        return ab.dot(self.gain, x @ ab.transpose(self.weight))

    @ab.cell
    def columns(self, x: Any) -> Any:
        """Multiply a shared matrix by a matrix of the node."""
        product = self.weight @ ab.reshape(x, (4, 1))
        return ab.dot(self.gain, ab.reshape(product, (6,)))


FORMS = ("affine", "matmul", "sum_of_two", "transposed", "columns")


@pytest.mark.cases(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_operands_are_rounded_and_nothing_else(backend: str, form: str) -> None:
    """Forward and both gradients are bit-identical. Bias and gain need more bits than bf16 has, and keep them."""
    rng = np.random.default_rng(1)
    model = Layer(rng)
    weight, other, bias, gain = (p.data.astype(np.float64) for p in model.parameters().values())
    xs = [rng.integers(-999, 999, 4).astype(np.float32) for _ in range(7)]
    batched = ab.batched(getattr(model, form), module=model, backend=BACKENDS[backend](), precision="bf16")
    value, grads = batched.value_and_grad(xs, reduce="sum")
    x = np.stack(xs).astype(np.float64)
    y = nearest_of(x) @ nearest_of(weight).T
    if form == "sum_of_two":
        y += nearest_of(x) @ nearest_of(other).T
    if form == "affine":
        y += bias
    of_gain = y.sum(axis=0)
    np.testing.assert_array_equal(grads["gain"], of_gain.astype(np.float32))
    of_weight = np.outer(nearest_of(gain), nearest_of(x).sum(axis=0))
    np.testing.assert_array_equal(grads["weight"], of_weight.astype(np.float32))
    np.testing.assert_allclose(value, (y @ gain).sum(), rtol=1e-6)
    np.testing.assert_array_equal(grads["bias"], 7 * gain if form == "affine" else 0 * gain)
    assert np.abs(of_weight - np.outer(gain, x.sum(axis=0))).max() > 0


class Deep(ab.Module):
    """Two layers, so that a state and its gradient are rounded."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.first = ab.Parameter(rng.integers(-199, 200, (4, 4)).astype(np.float32))
        self.second = ab.Parameter(rng.integers(-3, 4, (5, 4)).astype(np.float32))
        self.gain = ab.Parameter(rng.integers(-5, 6, 5).astype(np.float32))

    @ab.cell
    def below(self, x: Any) -> Any:
        return self.first @ x

    @ab.cell
    def above(self, h: Any) -> Any:
        return ab.dot(self.gain, self.second @ h)

    def loss(self, x: Any) -> Any:
        return self.above(self.below(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_and_their_gradients_are_rounded_where_they_are_multiplied(backend: str) -> None:
    rng = np.random.default_rng(2)
    model = Deep(rng)
    first, second, gain = (p.data.astype(np.float64) for p in model.parameters().values())
    xs = [rng.integers(-199, 200, 4).astype(np.float32) for _ in range(5)]
    loss = ab.batched(model.loss, backend=BACKENDS[backend](), precision="bf16")
    value, grads = loss.value_and_grad(xs, reduce="sum")
    x = np.stack(xs).astype(np.float64)
    h = nearest_of(x) @ nearest_of(first).T
    y = nearest_of(h) @ nearest_of(second).T
    of_h = nearest_of(gain) @ nearest_of(second)
    of_first = np.outer(nearest_of(of_h), nearest_of(x).sum(axis=0))
    np.testing.assert_array_equal(grads["first"], of_first.astype(np.float32))
    of_second = np.outer(nearest_of(gain), nearest_of(h).sum(axis=0))
    np.testing.assert_array_equal(grads["second"], of_second.astype(np.float32))
    np.testing.assert_array_equal(grads["gain"], y.sum(axis=0).astype(np.float32))
    assert value == (y @ gain).sum()
    assert np.abs(nearest_of(h) - h).max() > 0


class Own(ab.Module):
    """Products other than rows times a shared matrix, which stay float32."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.a, self.b = (ab.Parameter(rng.integers(-99, 99, (3, 3)).astype(np.float32)) for _ in range(2))
        self.v = ab.Parameter(rng.integers(-999, 999, 3).astype(np.float32))

    @ab.cell
    def matrix_of_the_node(self, x: Any) -> Any:
        return ab.dot(self.v, ab.reshape(x, (3, 3)) @ self.v)

    @ab.cell
    def of_parameters(self, x: Any) -> Any:
        return ab.sum(self.a @ self.b) + ab.sum(x)


@pytest.mark.slow
@each("form", ["matrix_of_the_node", "of_parameters"])
@each("backend", BACKENDS)
def test_other_products_are_those_of_float32(backend: str, form: str) -> None:
    rng = np.random.default_rng(3)
    model = Own(rng)
    xs = [rng.integers(-999, 999, 9).astype(np.float32) for _ in range(4)]
    results = []
    for precision in ("float32", "bf16"):
        batched = ab.batched(getattr(model, form), module=model, backend=BACKENDS[backend](), precision=precision)
        value, grads = batched.value_and_grad(xs, reduce="sum")
        results.append((value, {name: np.array(gradient) for name, gradient in grads.items()}))
    assert results[0][0] == results[1][0]
    for name, gradient in results[0][1].items():
        np.testing.assert_array_equal(results[1][1][name], gradient)


def gradients(model: Any, instances: list[Any], backend: str, precision: str, **options: Any) -> dict[str, Array]:
    loss = ab.batched(model.loss, backend=BACKENDS[backend](), precision=precision, **options)
    value, grads = loss.value_and_grad(instances)
    return {"loss": np.array(value), **{name: np.array(gradient) for name, gradient in grads.items()}}


def distance(one: dict[str, Array], other: dict[str, Array]) -> float:
    """Return the largest difference between two gradients, relative to the larger norm."""
    norms = {name: max(float(np.linalg.norm(gradient)), 1e-30) for name, gradient in other.items()}
    return max(float(np.linalg.norm(one[name] - other[name])) / norm for name, norm in norms.items())


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("backend", "case"),
    [(backend, case) for backend in BACKENDS for case in CASES if backend != "cpu" or case in COMPILED],
    ids=lambda given: given if isinstance(given, str) else given.name,
)
def test_models(backend: str, case: Case) -> None:
    """Backends and policies round the same operands and differ less from each other than from float32.

    Where nodes are shared, gradients are summed before they are rounded, so sharing is off here.
    """
    model, instances = case.draw(seed=3, n_instances=6, dim=21)
    model.astype("float32")
    expected = gradients(model, instances, "reference", "bf16", policy="depth", rewrites=())
    found = gradients(model, instances, backend, "bf16", policy="agenda", rewrites=UNSHARED)
    wide = gradients(model, instances, backend, "float32")
    assert distance(found, expected) < 2**-9
    assert 4 * distance(found, expected) < distance(found, wide) < 0.05


@pytest.mark.cases(1)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_model_learns_in_bf16_as_in_float32(backend: str) -> None:
    curves = {}
    for precision in ("float32", "bf16"):
        model, instances = CASES[0].draw(seed=5, n_instances=24, dim=16)
        model.astype("float32")
        loss = ab.batched(model.loss, backend=BACKENDS[backend](), precision=precision)
        optimizer = ab.optim.Adam(model, lr=1e-2)
        curve = []
        for _ in range(40):
            value, grads = loss.value_and_grad(instances)
            optimizer.step(grads)
            curve.append(float(value))
        assert {p.data.dtype for p in model.parameters().values()} == {np.dtype(np.float32)}
        assert {np.asarray(gradient).dtype for gradient in grads.values()} == {np.dtype(np.float32)}
        curves[precision] = np.array(curve)
    assert curves["bf16"][-1] < 0.5 * curves["bf16"][0]
    assert np.abs(curves["bf16"] / curves["float32"] - 1).max() < 0.05
    assert (curves["bf16"] != curves["float32"]).any()


def fake_speeds(monkeypatch: pytest.MonkeyPatch, of_bf16: float, of_float32: dict[str, float]) -> None:
    """Fake a processor with bf16 and a table of speeds for all sizes."""
    monkeypatch.setattr(choosing, "has_bf16", lambda: True)
    speeds = {"bf16": {"packed": of_bf16}, "float32": of_float32}
    monkeypatch.setattr(Chooser, "_table", lambda self, size: {size: speeds[size.split()[0]]})


@pytest.mark.parametrize(("of_bf16", "expected"), [(59.0, False), (110.0, False), (460.0, True)])
def test_bf16_is_multiplied_as_the_measured_table_says(
    of_bf16: float, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    fake_speeds(monkeypatch, of_bf16, {"numpy": 110.0, "packed": 90.0})
    for is_gradient in (False, True):
        assert Chooser().prefers_bf16(64, 320, 128, a_flipped=is_gradient) == expected
        assert Chooser("numpy").prefers_bf16(64, 320, 128, a_flipped=is_gradient)  # without measurements
    monkeypatch.setattr(choosing, "has_bf16", lambda: False)
    assert not Chooser().prefers_bf16(64, 320, 128)


def products_of(backend: NotingBackend) -> list[StepTemplate]:
    """Return the products of rows and matrices in a backend that has run."""
    plans: list[Any] = [ran.inner for ran in backend.ran]
    cells: set[CompiledCell] = {cell for plan in plans for cell in plan.types.cells.values()}
    stages = [cell.stage(name) for cell in cells for name in ("forward", "backward")]
    return [step for stage in stages for step in stage.steps if isinstance(step.statement, Product)]


@pytest.mark.parametrize("library", ["packed", "numpy"])
def test_where_bf16_is_slower_the_same_is_computed_in_float32(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By compiled code, packed or in a library; bit-identical where sums are exact."""
    if library == "packed" and not has_avx512():
        pytest.skip("this processor has no tiles")
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    fake_speeds(monkeypatch, 59.0, {"numpy": 100.0, "packed": 110.0 if library == "packed" else 0.01 * has_avx512()})
    model, instances = CASES[0].draw(seed=3, n_instances=6, dim=21)
    model.astype("float32")
    expected = gradients(model, instances, "reference", "bf16")
    backend = NotingBackend(Cpu(poison=True))
    monkeypatch.setitem(BACKENDS, "cpu", lambda: backend)
    assert distance(gradients(model, instances, "cpu", "bf16"), expected) < 2**-9
    made = [(*choice, step.function) for template in products_of(backend) for choice, step in template.steps.items()]
    found = {(provider.name, by_bf16, function) for provider, by_bf16, function in made}
    assert found == {(library, False, FUNCTIONS["multiply_rounded"])}
    for form in FORMS:
        test_operands_are_rounded_and_nothing_else("cpu", form)


@pytest.mark.parametrize(
    ("speed", "told"),
    [
        (59.0, r'precision="bf16" is not faster: .*59 GFLOP/s instead of 100 \(numpy\)'),
        (400.0, r'precision="bf16" is 4\.0 times as fast as float32: 400 GFLOP/s'),
    ],
)
def test_the_doctor_says_whether_bf16_pays(speed: float, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "has_bf16", lambda: True)
    monkeypatch.setattr(doctor, "measure_bf16", lambda m, n, k: speed)
    monkeypatch.setattr(doctor, "measure", lambda found, m, n, k: {"numpy": 100.0})
    assert re.match(told, doctor.describe_bf16())


@pytest.mark.slow
def test_one_backend_serves_both() -> None:
    model, instances = CASES[0].draw(seed=6, n_instances=4, dim=8)
    model.astype("float32")
    for make in BACKENDS.values():
        backend = make()
        both = [ab.batched(model.loss, backend=backend, precision=p) for p in ("float32", "bf16")]
        values = [batched(instances) for _ in range(2) for batched in both]
        np.testing.assert_array_equal(values[0], values[2])
        np.testing.assert_array_equal(values[1], values[3])
        assert (values[0] != values[1]).any()


def test_what_cannot_be_is_refused() -> None:
    model, instances = CASES[0].draw(seed=7, n_instances=2, dim=4)
    with pytest.raises(BackendError, match=r"precision must be one of float32, tf32, bf16, got 'fp8'\."):
        ab.batched(model.loss, precision="fp8")
    model.astype("float64")
    with pytest.raises(BackendError, match="must be float32, got float64"):
        ab.batched(model.loss, precision="bf16")
    model.astype("float32")
    loss = ab.batched(model.loss, precision="bf16")
    model.astype("float64")
    with pytest.raises(BackendError, match="must be float32, got float64"):
        loss(instances)


def test_reports_say_so() -> None:
    model, instances = CASES[0].draw(seed=8, n_instances=2, dim=4)
    model.astype("float32")
    loss = ab.batched(model.loss, precision="bf16")
    assert "operands of matrix products rounded to bf16" in str(loss.explain(instances))
    assert "bf16" not in str(ab.batched(model.loss).explain(instances))
    profile = loss.profile(instances)
    assert "matrix products in bf16: 1 of the calls" in str(profile)
    assert profile.calls[0].precision == "bf16"


def test_the_commands_take_a_precision(tmp_path: Path) -> None:
    """The output names the precision, and a checkpoint keeps it."""
    data, out = tmp_path / "trees.txt", tmp_path / "out.jsonl"
    data.write_text("(3 (2 good) (2 film))\n(1 (2 bad) (1 (2 long) (2 film)))\n" * 16)
    small = ["tree-lstm", "--data", str(data), "--dim", "4", "--batch-size", "8", "--policy", "depth"]

    def run(*words: str) -> str:
        return CliRunner().invoke(commands, words).output

    bench = ["bench", *small, "--precision", "bf16", "--json", str(out), "--minibatches", "1", "--repeats", "1"]
    assert "bf16 products" in run(*bench)
    assert json.loads(out.read_text())["precision"] == "bf16"
    assert "--roofline does not support --precision" in run("bench", *small, "--precision", "bf16", "--roofline")
    keep = ["--checkpoint", str(tmp_path / "kept"), "--epochs"]
    assert "epoch 1" in run("train", *small, "--precision", "bf16", *keep, "1")
    told = CliRunner().invoke(commands, ["train", *small, "--precision", "float32", *keep, "2", "--resume"])
    assert "precision must be bf16 as before, got float32" in str(told.exception)
    assert "bf16 products" in run("train", *small, *keep, "2", "--resume")
