"""Test pickles of cells: by name, as for functions; cloudpickle sends cells defined in a script by value."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from helpers.runs.ways import each

SCRIPT = """
import copy, pickle, sys
import cloudpickle
import numpy as np
import autobatch as ab

class Base(ab.Module):
    def scale(self):
        return 2.0

class Sums(Base):
    FACTOR = 3.0

    def __init__(self, rng):
        self.layer = ab.Linear(3, 3, rng=rng)

    @ab.cell
    def read(self, x, *, offset=1.0):
        return ab.tanh(self.layer(x)) * Sums.FACTOR + offset * double(x)

    @ab.cell(static=("power",))
    def error(self, states, power=2):
        return ab.sum(ab.sum_n(states) * super().scale()) * power

    def loss(self, rows):
        return self.error([self.read(row) for row in rows])

@ab.cell
def double(x):
    return x * 2.0 if x is not None else again(x)

@ab.cell
def again(x):
    return double(x)

if __name__ == "__main__":
    model = Sums(np.random.default_rng(0))
    rows = [[np.full(3, 0.1 * k) for k in range(n)] for n in (1, 2, 5)]
    for cell in (double, again, Sums.read, Sums.error):
        assert pickle.loads(pickle.dumps(cell)) is copy.copy(cell) is copy.deepcopy(cell) is cell
    assert pickle.loads(pickle.dumps(model.read)).cell is Sums.read
    value, grads = ab.batched(model.loss, backend="reference").value_and_grad(rows)
    expected = float(value), {name: np.asarray(grad) for name, grad in grads.items()}
    sent = {what!r}, model, rows, (double, again), expected
    open("sent", "wb").write(cloudpickle.dumps(sent))
"""
FRESH = """
import inspect, pickle
import numpy as np
import autobatch as ab

first, model, rows, (double, again), (expected, gradients) = pickle.load(open("sent", "rb"))
loss = ab.batched(model.loss, backend="reference")
value, grads = loss.value_and_grad(rows)
assert float(value) == expected
assert {name: np.asarray(grad).tobytes() for name, grad in grads.items()} == {
    name: gradient.tobytes() for name, gradient in gradients.items()
}
assert double.function.__globals__["again"] is again and again.function.__globals__["double"] is double
kind = type(model)
assert kind.error.static == ("power",) and repr(kind.error) == "<cell error(self, states, power=2)>"
assert repr(kind.read) == "<cell read(self, x, *, offset=1.0)>"
assert np.array_equal(again(np.ones(2)), [2.0, 2.0])
import cloudpickle
further = pickle.loads(cloudpickle.dumps(model))
assert float(ab.batched(further.loss, backend="reference").value_and_grad(rows)[0]) == expected
print("the same")
"""


class Energy(ab.Module):
    def __init__(self) -> None:
        self.weight = ab.Parameter(np.eye(3))

    @ab.cell
    def energy(self, x: Any) -> Any:
        return ab.sum(ab.tanh(self.weight @ x))


@ab.cell
def square(x: Any) -> Any:
    return ab.sum(x * x)


@each("cell", [square, Energy.energy])
def test_a_cell_of_a_module_is_found_by_its_name(cell: Any) -> None:
    content = pickle.dumps(cell)
    assert len(content) < 300
    assert b"carrier" in content
    assert pickle.loads(content) is copy.copy(cell) is copy.deepcopy(cell) is cell


def test_a_copied_module_has_the_same_cells() -> None:
    model = Energy()
    twin = copy.deepcopy(model)
    assert type(twin).energy is Energy.energy
    bound = pickle.loads(pickle.dumps(model.energy))
    assert bound.cell is Energy.energy
    assert float(bound(np.ones(3))) == float(model.energy(np.ones(3)))


def test_plain_pickle_refuses_a_cell_that_has_no_name() -> None:
    @ab.cell
    def local(x: Any) -> Any:
        return 2.0 * x

    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(local)


def test_the_carrier_of_a_cell_is_its_function_under_another_name() -> None:
    def scaled(x: Any, by: float = 3.0, *, shift: float = 1.0) -> Any:
        """Scale."""
        return by * x + shift

    scaled.mark = "kept"  # type: ignore[attr-defined]
    cell: Any = ab.cell(scaled)
    assert cell.carrier(np.ones(2)).tolist() == [4.0, 4.0]
    assert (cell.carrier.__doc__, cell.carrier.mark, cell.carrier.__name__) == ("Scale.", "kept", "scaled")
    assert cell.carrier.__qualname__ == f"{scaled.__qualname__}.carrier"
    assert not hasattr(cell.carrier, "__wrapped__")


@pytest.mark.slow
@each("first", ["model.loss", "Sums", "Sums.error", "again", "model.read", "None"])
def test_a_class_of_a_script_computes_the_same_in_another_process(first: str, tmp_path: Path) -> None:
    """Whichever object is pickled first: a class, its cells and their functions refer to each other."""
    pytest.importorskip("cloudpickle", reason="sends classes by value")
    (tmp_path / "script.py").write_text(SCRIPT.replace("{what!r}", first))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for command in (["script.py"], ["-c", FRESH]):
        found = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == "the same\n"
