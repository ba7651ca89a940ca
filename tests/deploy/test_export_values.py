"""Test all values that a trace can hold: `ab.load` reads what `ab.export` writes, or `ab.export` refuses it."""

from __future__ import annotations

import enum
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import autobatch as ab

ANY_TEXT = st.text(st.characters(), max_size=8)
FLOATS = st.floats(width=64) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7e308])
DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">f4", ">i8", "g"]


class Colour(enum.Enum):
    """An enum that is neither an int nor a str."""

    RED, BLÅ = 1, (2, "b")


class Size(enum.IntEnum):
    """An enum that is also an int."""

    SMALL, LARGE = 1, 2


class Word(enum.StrEnum):
    """An enum that is also a str."""

    YES = "ja"


def numpy_scalars() -> st.SearchStrategy[Any]:
    def scalar(kind: str, x: float) -> Any:
        with np.errstate(all="ignore"):
            return (
                np.float64(x).astype(kind)[()] if math.isfinite(x) or kind in "f2f4f8g>f4" else np.dtype(kind).type(0)
            )

    return st.builds(scalar, st.sampled_from(DTYPES), FLOATS.filter(lambda x: not abs(x) < 1e-300 or x == 0))


NUMBERS = st.integers(-(10**40), 10**40) | FLOATS | st.booleans() | numpy_scalars()
STATIC = st.recursive(
    st.none() | ANY_TEXT | NUMBERS | st.sampled_from([*Colour, *Size, *Word]),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(st.integers() | ANY_TEXT, max_size=3),
    max_leaves=5,
)


class Holding(ab.Module):
    """A model whose trace holds a number, as a factor or a constant array, with a cell that has a static argument."""

    def __init__(self, factor: Any) -> None:
        self.w = ab.Parameter(np.ones(3))
        self.factor = factor
        self.eval()

    @ab.cell(static=("how",))
    def run(self, x: Any, how: Any = Colour.RED) -> Any:
        return ab.tanh(self.w * x) * self.factor

    def one(self, instance: Any) -> Any:
        x, how = instance
        return self.run(x, how)


def is_same(x: Any, y: Any) -> bool:
    """Compare numbers including signs, except the sign of NaN, which files do not keep."""
    return bool(np.array_equal(x, y, equal_nan=True) and np.all((np.signbit(x) == np.signbit(y)) | np.isnan(x)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(factor=NUMBERS, how=STATIC)
def test_what_export_writes_load_reads(tmp_path: Path, factor: Any, how: Any) -> None:
    model, path, x = Holding(factor), tmp_path / "model.ab", np.array([0.5, -0.25, 1.0])
    try:
        expected = ab.batched(model.one, module=model, backend="reference")([(x, how)])
        ab.export(model.one, path, examples=[(x, how)], module=model)
    except ab.AutobatchError:
        return  # refused with a sentence before anything is written
    loaded = ab.load(path)
    again = ab.batched(lambda one: loaded.run(*one), module=loaded, backend="reference")
    assert is_same(again([(x, how)]), expected)


def arrays() -> st.SearchStrategy[Any]:
    """Draw arrays for a cell's constant, of any dtype, byte order and layout, that broadcast with three numbers."""

    def array(kind: str, shape: tuple[int, ...], layout: str, seed: int) -> Any:
        made = np.random.default_rng(seed).integers(0, 3, (*shape, 2)).astype(kind)[..., 0]
        made = np.asfortranarray(made) if layout == "F" else made[::-1] if layout == "reversed" and shape else made
        made = made if layout == "strided" else made.copy("K")
        made.setflags(write=layout != "read-only")
        return made

    shapes = st.sampled_from([(), (1,), (3,), (2, 3), (3, 1), (0, 3), (2, 3, 3)])
    kinds = st.sampled_from(DTYPES) | st.sampled_from([">f2", ">f8", ">i2", ">u4", ">u8", "c8", "i4,f4", "S1", "O"])
    return st.builds(
        array, kinds, shapes, st.sampled_from(["C", "F", "reversed", "strided", "read-only"]), st.integers(0, 9)
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(constant=arrays())
@example(constant=np.array([1, 2, 3], ">f8"))
@example(constant=np.array([1, 2, 3], ">i4"))
def test_arrays_that_a_cell_reads_load(tmp_path: Path, constant: Any) -> None:
    model, path, x = Holding(constant), tmp_path / "model.ab", np.array([0.5, -0.25, 1.0])
    is_number = constant.dtype.kind in "biuf"
    try:
        expected = ab.batched(model.run, module=model, backend="reference")([x])
        ab.export(model.run, path, examples=[x], module=model)
    except ab.AutobatchError:
        assert not is_number
        return
    assert is_number
    loaded = ab.load(path)
    assert is_same(ab.batched(loaded.run, module=loaded, backend="reference")([x]), expected)


@pytest.mark.parametrize("default", [Colour.BLÅ, Size.LARGE, Word.YES, None, True, 2.5, np.float32(2.5), ("a", 1), ""])
def test_defaults_of_arguments_load(tmp_path: Path, default: Any) -> None:
    class Model(ab.Module):
        def __init__(self) -> None:
            self.w = ab.Parameter(np.ones(3))

        @ab.cell(static=("how",))
        def run(self, x: Any, how: Any = default) -> Any:
            return self.w * x

    model = Model().eval()
    ab.export(model.run, tmp_path / "model.ab", examples=[np.ones(3)])
    assert np.array_equal(ab.load(tmp_path / "model.ab").run(np.ones(3)), np.ones(3))
