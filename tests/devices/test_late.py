"""Test that numbers which are read late behave like their scalars."""

from __future__ import annotations

import copy
import json
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autobatch.devices.late import Late
from autobatch.errors import NumericError
from helpers.runs.ways import each

SCALARS = (np.float32(1.3), np.float64(-2.5), np.float32(np.inf), np.float64(0.0))
OF_TWO: tuple[Callable[[Any, Any], Any], ...] = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
)  # fmt: skip
OF_ONE: tuple[Callable[[Any], Any], ...] = (
    float, bool, str, repr, hash, abs, operator.neg, operator.pos, np.asarray, np.isfinite, np.sqrt, math.isfinite,
    lambda x: f"{x:.3f}", lambda x: f"{x}", lambda x: x.item(), lambda x: json.dumps(x.item()),
    lambda x: x.dtype, lambda x: x.shape, lambda x: x.ndim, lambda x: x.size,
    lambda x: np.array([x, x]), lambda x: np.mean([x, x]), lambda x: np.asarray(x, np.float16), lambda x: sum([x, x]),
    copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: {x: 1}[x],
    lambda x: np.ones(3) * x, lambda x: x / np.ones((2, 2), np.float32),
)  # fmt: skip


class Read:
    """Returns a scalar and counts how often it was asked."""

    def __init__(self, scalar: Any) -> None:
        self.scalar, self.n = scalar, 0

    def __call__(self) -> Any:
        self.n += 1
        return self.scalar


def check_equal(found: Any, expected: Any) -> None:
    """Check that two results have the same type and are equal; NaN equals NaN."""
    assert type(found) is type(expected)
    assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)
    np.testing.assert_equal(found, expected)


@each("scalar", SCALARS)
@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_a_late_number_behaves_as_its_scalar(scalar: Any) -> None:
    """In every function of one number, and of two with the late number on either side."""
    for function in OF_ONE:
        check_equal(function(Late(Read(scalar))), function(scalar))
    for combine in OF_TWO:
        for other in (2, 0.5, np.float32(3), np.float64(1.3), np.arange(3.0)):
            check_equal(combine(Late(Read(scalar)), other), combine(scalar, other))
            check_equal(combine(other, Late(Read(scalar))), combine(other, scalar))
        check_equal(combine(Late(Read(scalar)), Late(Read(scalar))), combine(scalar, scalar))


def test_ints_and_rounding() -> None:
    assert int(Late(Read(np.float64(2.7)))) == 2
    check_equal(round(Late(Read(np.float64(2.71))), 1), round(np.float64(2.71), 1))
    check_equal(round(Late(Read(np.float32(2.71)))), 3)
    assert Late(Read(np.float32(5.0))) == pytest.approx(5.0)


def test_it_is_read_once_and_not_before_it_is_needed() -> None:
    read = Read(np.float32(0.5))
    late = Late(read)
    kept = [late]
    assert read.n == 0
    assert late > 0.25
    assert float(kept[0]) == 0.5
    assert read.n == 1


def test_reading_raises_each_time() -> None:
    def read() -> Any:
        raise NumericError("the loss is nan")

    late = Late(read)
    for use in (float, repr, lambda x: x + 1, np.asarray, bool):
        with pytest.raises(NumericError, match="the loss is nan"):
            use(late)
