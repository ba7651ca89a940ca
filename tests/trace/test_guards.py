"""Test guards on what cells read from Python: batched equals eager after changes; nothing is retraced without one."""

from __future__ import annotations

import copy
import datetime
import functools
import gc
import logging
import numbers
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.compiled import COMPILE
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.compiler.stage import StageProgram, compile_forward
from autobatch.plan.plan import PlannedCell
from autobatch.plan.plan_cache import DEFAULT_SIZE
from autobatch.trace import guards
from autobatch.trace.traces import MOST_TRACES
from helpers.checkers.refusals import refused
from helpers.counters.counting import count_calls
from helpers.programs import guard_cases
from helpers.programs.guard_cases import NUMBERS, OTHERS, Base, Case, model_of
from helpers.runs.recorded import guard_set_of, module_of, traced, types_of
from helpers.runs.ways import each
from helpers.twins.cases import CASES

XS = [np.random.default_rng(k).standard_normal(3) ** 2 for k in range(5)]
BACKENDS: dict[str, Callable[[], Any]] = {"reference": Reference, "cpu": Cpu}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Restore globals, and the code and defaults of functions, afterwards."""
    names = {name: value for name, value in vars(guard_cases).items() if not name.startswith("__")}
    functions = {f: (f.__code__, f.__defaults__) for f in names.values() if isinstance(f, FunctionType)}
    beta = guard_cases.SETTINGS.BETA
    yield
    for name in [name for name in vars(guard_cases) if name not in names and not name.startswith("__")]:
        delattr(guard_cases, name)
    vars(guard_cases).update(names)
    guard_cases.SETTINGS.BETA = beta
    for function, (code, defaults) in functions.items():
        function.__code__, function.__defaults__ = code, defaults


def work_of(loss: ab.Batched, compiled: list[str]) -> tuple[int, int, int]:
    """Return how many cells have been traced, compiled and planned so far."""
    return traced(loss), len(compiled), len(loss.planning._planned)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a growing list of the names of compiled cells, in order."""
    names: list[str] = []

    def compile_noted(cell: PlannedCell) -> StageProgram:
        names.append(cell.program.name)
        return compile_forward(cell)

    monkeypatch.setitem(COMPILE, "forward", compile_noted)
    return names


def check(model: Any, loss: Any, graphs: Any) -> None:
    """Check that batched runs equal eager ones, from instances and from graphs recorded earlier, with gradients."""
    eager = [model.loss(x) for x in XS]
    np.testing.assert_allclose(loss(XS), eager, rtol=1e-10)
    np.testing.assert_allclose(loss(graphs), eager, rtol=1e-10)
    value, grads = loss.value_and_grad(graphs)
    np.testing.assert_allclose(value, np.mean(eager), rtol=1e-10)
    assert grads.keys() == model.parameters().keys()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@each("case", NUMBERS)
def test_a_number_that_changes(case: str, backend: str) -> None:
    _, change, is_live = NUMBERS[case]
    model = model_of(NUMBERS[case])
    loss = ab.batched(model.loss, backend=BACKENDS[backend]())
    graphs = loss.record_all(XS)
    check(model, loss, graphs)
    before = traced(loss)
    check(model, loss, graphs)
    assert traced(loss) == before, "nothing changed"
    for value in (3.0, 4.0, 4.5, 5.0):
        change(model, value)
        check(model, loss, graphs)
        if value == 3.0:
            before = traced(loss)
    if is_live:
        assert traced(loss) == before, "it is an input since it changed first"


@pytest.mark.parametrize("backend", BACKENDS)
@each("case", OTHERS)
def test_anything_else_that_changes(case: str, backend: str) -> None:
    model = model_of(OTHERS[case])
    loss = ab.batched(model.loss, backend=BACKENDS[backend]())
    graphs = loss.record_all(XS)
    check(model, loss, graphs)
    OTHERS[case].change(model, 3.0)
    check(model, loss, graphs)
    before = traced(loss)
    check(model, loss, graphs)
    assert traced(loss) == before


def test_a_body_may_ask_for_the_dtype_of_a_parameter_and_whether_it_is_trainable() -> None:
    weight = ab.Parameter(np.ones(3))

    @ab.cell
    def scale(x: Any) -> Any:
        return x * (2.0 if weight.trainable else 3.0) * (1.0 if weight.dtype == np.float32 else 5.0)

    run, x = ab.batched(scale), np.ones(3)
    for trainable, dtype, expected in [(True, "float32", 2), (False, "float32", 3), (True, "float64", 10)]:
        weight.trainable = trainable
        weight.astype(dtype)
        np.testing.assert_array_equal(run([x, 2 * x]), [expected * x, 2 * expected * x])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_annealed_over_100_steps_compiles_nothing(backend: str, compiled: list[str]) -> None:
    model = model_of(NUMBERS["attribute"])
    loss = ab.batched(model.loss, backend=BACKENDS[backend]())
    graphs = loss.record_all(XS)
    counts = set()
    for step in range(100):
        model.beta = 1.0 + step / 11
        value, _ = loss.value_and_grad(graphs)
        np.testing.assert_allclose(value, np.mean([model.loss(x) for x in XS]), rtol=1e-10)
        if step > 1:
            counts.add(work_of(loss, compiled))
    assert len(counts) == 1


def test_a_number_that_did_not_change_stays_a_constant() -> None:
    model = model_of(Case(lambda m, x: x * m.beta + m.gamma, lambda m, v: None))
    model.gamma = 3.0
    loss = ab.batched(model.loss, backend="reference")
    check(model, loss, XS)
    model.beta = 4.0
    check(model, loss, XS)
    program = next(kind.program for kind in types_of(loss) if kind.name == "cell")
    assert str(program).count("constant 3.0") == 1
    assert "constant 4.0" not in str(program)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(8))
def test_a_number_may_become_an_array_and_a_number_again(seed: int, backend: str) -> None:
    rng = np.random.default_rng(seed)
    model = model_of(Case(lambda m, x: x * m.beta, lambda m, v: None))
    loss = ab.batched(model.loss, backend=BACKENDS[backend]())
    graphs = loss.record_all(XS)
    for _ in range(12):
        shape = [(), (), (1,), (3,)][rng.integers(4)]
        model.beta = rng.standard_normal(shape) if shape else float(rng.standard_normal())
        check(model, loss, XS)
    model.beta = 2.5
    check(model, loss, graphs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_follow_a_live_number(backend: str) -> None:
    model = model_of(NUMBERS["arithmetic"])
    loss = ab.batched(model.loss, backend=BACKENDS[backend]())
    for beta in (2.0, 3.0, 2.5):
        model.beta = beta
        ab.testing.check_grads(loss, XS, model, np.random.default_rng(0))


def test_switching_to_and_fro_traces_plans_and_compiles_nothing(compiled: list[str]) -> None:
    model = model_of(OTHERS["training"])
    loss = ab.batched(model.loss, backend=Cpu())
    graphs = loss.record_all(XS)
    for _ in range(2):
        check(model.train(), loss, graphs)
        check(model.eval(), loss, graphs)
    assert compiled
    before = work_of(loss, compiled)
    for _ in range(3):
        check(model.train(), loss, graphs)
        check(model.eval(), loss, graphs)
    assert work_of(loss, compiled) == before
    model.train()
    loss(graphs)
    assert loss.last is not None
    assert loss.last.plan_hit


def test_what_is_read_without_effect_compiles_nothing(compiled: list[str]) -> None:
    model = model_of(Case(lambda m, x: x * x if m.options["beta"] is not None else x, lambda m, v: None))
    loss = ab.batched(model.loss, backend=Cpu())
    check(model, loss, XS)
    assert compiled
    before = len(compiled)
    for step in range(6):
        model.options = {"beta": f"step {step}"}
        check(model, loss, XS)
    assert len(compiled) == before


@pytest.mark.parametrize("first", ["live", "constant"])
@each("case", ["attribute", "list"])
def test_a_number_that_one_cell_has_as_an_input_and_another_as_a_constant(case: str, first: str) -> None:
    read: Callable[[Any], Any] = {"attribute": lambda m: m.beta, "list": lambda m: m.numbers[1]}[case]

    class Both(Base):
        @ab.cell
        def live(self, x: Any) -> Any:
            return x * read(self)

        @ab.cell
        def constant(self, x: Any) -> Any:
            return x * float(np.exp(read(self)))

        def loss(self, x: Any) -> Any:
            second = "constant" if first == "live" else "live"
            return ab.sum(getattr(self, second)(getattr(self, first)(self.W @ self.lin(x))))

    model = Both().astype("float64")
    loss = ab.batched(model.loss, backend="reference")
    graphs = loss.record_all(XS)
    for value in (2.0, 3.0, 4.0, 5.0):
        NUMBERS[case].change(model, value)
        check(model, loss, graphs)


def test_a_list_that_changes_right_after_each_trace() -> None:
    model = model_of(OTHERS["changed list of layers"])
    loss = ab.batched(model.loss, backend="reference")
    for _ in range(4):
        np.testing.assert_allclose(loss(XS), [model.loss(x) for x in XS], rtol=1e-10)
        model.layers.reverse()


def test_a_layer_that_moves_from_one_list_to_the_next() -> None:
    def apply(layers: Any, x: Any) -> Any:
        return x if not layers else apply(layers[1:], layers[0](x))

    model = model_of(Case(lambda m, x: apply(m.layers, x) - apply(m.others, x), lambda m, v: None))
    model.others = [model.other]
    loss = ab.batched(model.loss, backend="reference")
    check(model, loss, XS)
    model.others.insert(0, model.layers.pop())
    check(model, loss, XS)


def test_what_no_cell_reads_may_change_with_every_instance_and_step() -> None:
    class Counting(Base):
        def loss(self, x: Any) -> Any:
            self.n, self.name = self.n + 1, f"instance {self.n}"
            self.numbers.append(float(x[0]))
            self.extra = object()
            return self.cell(x)

        def body(self, x: Any) -> Any:
            return x * self.beta + self.config.beta

    model = Counting().astype("float64")
    loss = ab.batched(model.loss, backend="reference")
    check(model, loss, XS)
    before = traced(loss)
    for step in range(3):
        model.config.shift = model.calls = step
        check(model, loss, XS)
    assert traced(loss) == before


@each("make", [float, lambda number: np.full(3, number)])
def test_the_sign_of_zero(make: Callable[[float], Any]) -> None:
    class Model(ab.Module):
        beta: Any

        @ab.cell
        def loss(self, x: Any) -> Any:
            return ab.sum(x / self.beta)

    model = Model()
    loss = ab.batched(model.loss, backend="reference")
    with np.errstate(divide="ignore"):
        for beta in (1.0, 2.0, 0.0, -0.0, 0.0):
            model.beta = make(beta)
            np.testing.assert_allclose(loss(XS), [model.loss(x) for x in XS])


@functools.singledispatch
def is_number(x: Any) -> bool:
    return False


is_number.register(int, lambda x: True)
is_number.register(float, lambda x: True)
is_number.register(np.ndarray, lambda x: True)


@each("is_large", [False, True])
@each("asks", [
    lambda x: isinstance(x, (int, float, np.ndarray)),
    lambda x: isinstance(x, (numbers.Number, np.ndarray)),
    lambda x: isinstance(x * 2, (int, float, np.ndarray)),
    lambda x: isinstance(x > 0, (bool, np.ndarray)),
    lambda x: hasattr(x * 2, "as_integer_ratio") or hasattr(x, "flags"),
    lambda x: type(x) in (int, float, np.ndarray),
    lambda x: is_number(x),
])  # fmt: skip
def test_the_class_of_a_number(is_large: bool, asks: Callable[[Any], bool]) -> None:
    class Model(ab.Module):
        beta: Any

        @ab.cell
        def loss(self, x: Any) -> Any:
            return ab.sum(x * (self.beta if asks(self.beta) else x * 0.0))

    model = Model()
    loss = ab.batched(model.loss, backend="reference")
    for beta in (2.0, 3.0, 4, 5.0):
        model.beta = np.full((2**17, 3), beta) if is_large else beta
        np.testing.assert_allclose(loss(XS), [model.loss(x) for x in XS], rtol=1e-6)


def test_type_of_the_model_itself_leaves_numbers_inputs() -> None:
    class Model(ab.Module):
        beta: Any

        @ab.cell
        def loss(self, x: Any) -> Any:
            return ab.sum(x * self.beta) if type(self) is Model else ab.sum(x)

    model = Model()
    loss = ab.batched(model.loss, backend="reference")
    counts = []
    for model.beta in (2.0, 3.0, 4.0, 5.0):
        np.testing.assert_allclose(loss(XS), [model.loss(x) for x in XS], rtol=1e-6)
        counts.append(traced(loss))
    assert counts[0] < counts[1] == counts[2] == counts[3]


@each("kind", [int, float, np.ndarray, list, numbers.Integral])
@each("part", ["x", "x * 2", "xs[0]", "k", "ks[0]", "y"])
def test_the_class_of_arguments(part: str, kind: type) -> None:
    code = compile(part, "part", "eval")

    @ab.cell
    def loss(x: Any, xs: Any, k: Any, ks: Any, y: Any) -> Any:
        is_one = isinstance(eval(code, {"x": x, "xs": xs, "k": k, "ks": ks, "y": y}), kind)
        return ab.sum(x) * (2.0 if is_one else 3.0)

    def program(x: Any) -> Any:
        return loss(x, [x, x], 3, [3, 4], 2.0)

    np.testing.assert_allclose(ab.batched(program, backend="reference")(XS), [program(x) for x in XS], rtol=1e-6)


def test_float32() -> None:
    model = model_of(NUMBERS["attribute"]).astype("float32")
    loss = ab.batched(model.loss, backend="reference")
    for beta in (2.0, 3.0, 4.0):
        model.beta = beta
        np.testing.assert_allclose(loss(XS), [model.loss(x.astype(np.float32)) for x in XS], rtol=1e-5)
    model.astype("float64")
    check(model, loss, XS)


def test_a_large_array_is_an_input_at_once() -> None:
    model = model_of(Case(lambda m, x: x * ab.lookup(m.table, 0), lambda m, v: None))
    model.table = np.ones((2**16, 3))
    loss = ab.batched(model.loss, backend="reference")
    check(model, loss, XS)
    before = traced(loss)
    model.table[0] = 2.0
    check(model, loss, XS)
    assert traced(loss) == before


def test_replaced_arrays_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces and plans keep the inputs of their programs, and only a limited number of these is kept."""

    class Table:
        def __init__(self, number: float) -> None:
            self.rows = np.full(3, float(number))

    class Model(ab.Module):
        def __init__(self) -> None:
            self.table = Table(0.0)

        @ab.cell
        def loss(self, x: Any) -> Any:
            return ab.sum(x * self.table.rows)

    monkeypatch.setattr(guards, "LARGE", 0)
    model = Model()
    loss, made = ab.batched(model.loss, backend="reference"), list[weakref.ref[Any]]()
    for number in range(60):
        model.table = Table(number)
        made.append(weakref.ref(model.table.rows))
        np.testing.assert_allclose(loss(XS), [model.loss(x) for x in XS], rtol=1e-6)
    gc.collect()
    assert sum(array() is not None for array in made) <= MOST_TRACES + DEFAULT_SIZE


# Signatures that change.


class Gate(Base):
    """A cell that reads one argument or both."""

    @ab.cell
    def join(self, x: Any, y: Any) -> Any:
        return self.W @ x + self.lin(y) if self.flag else self.W @ x

    def loss(self, x: Any) -> Any:
        return ab.sum(self.join(self.lin(x), ab.tanh(x)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cell_that_reads_other_arguments_now(backend: str) -> None:
    model = Gate().astype("float64")
    loss = ab.batched(model.loss, backend=BACKENDS[backend]())
    graphs = loss.record_all(XS)
    check(model, loss, graphs)
    model.flag = False
    np.testing.assert_allclose(loss(XS), [model.loss(x) for x in XS])
    with refused(
        ab.GraphError, "flag of Gate was True and is False", "'join' now has a different signature",
        "record the instances again",
    ):  # fmt: skip
        loss(graphs)
    others = loss.record_all(XS)
    check(model, loss, others)
    model.flag = True
    check(model, loss, graphs)
    with refused(ab.GraphError, "record the instances again"):
        loss(others)
    before = traced(loss)
    for flag in (False, True, False):
        model.flag = flag
        np.testing.assert_allclose(loss(XS), [model.loss(x) for x in XS])
    assert traced(loss) == before
    check(model, loss, others)


def test_a_smaller_table() -> None:
    class Words(ab.Module):
        def __init__(self) -> None:
            self.table = ab.Parameter(np.ones((5, 2)))

        @ab.cell
        def leaf(self, word: int) -> Any:
            return ab.sum(ab.lookup(self.table, word))

    model = Words()
    loss = ab.batched(model.leaf, module=model, backend="reference")
    graphs = loss.record_all([4])
    loss(graphs)
    model.table = ab.Parameter(np.ones((3, 2)))
    with refused(ab.GraphError, "record the instances again"):
        loss(graphs)
    with refused(ab.DataError, "'word'"):
        loss([4])
    assert loss([2]).tolist() == [2.0]


def test_a_body_that_fails_now() -> None:
    model = model_of(Case(lambda m, x: m.other(x), lambda m, v: None))
    loss = ab.batched(model.loss, backend="reference")
    graphs = loss.record_all(XS)
    other, model.other = model.other, ab.Linear(4, 3, np.random.default_rng(0)).astype("float64")
    with refused(ab.GraphError, "other of Model was", "cell 'cell' can no longer be traced", "shapes (3, 4) and (3,)"):
        loss(graphs)
    with refused(ab.ShapeError, "in cell 'cell'"):
        loss(XS)
    model.other = other
    check(model, loss, graphs)


class Depth(Base):
    """A function that sets what the cell reads: a number, or a new array."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.read = read

    def loss(self, x: Any) -> Any:
        self.beta = self.read(x)
        return self.cell(x)

    def body(self, x: Any) -> Any:
        return x * self.beta


@each("read", [lambda x: float(x[0]), lambda x: x[0] * np.ones(3)])
def test_what_changes_while_instances_are_recorded(read: Callable[[Any], Any]) -> None:
    model = Depth(read).astype("float64")
    loss = ab.batched(model.loss, backend="reference")
    for _ in range(4):
        with refused(ab.GraphError, "while instances were recorded, ", "pass it to the cell as an argument"):
            loss(XS)
    for x in XS[:3]:
        model.beta = read(x)  # the function sets an equal number, or a new array of equal ones
        np.testing.assert_allclose(loss([x, x]), [ab.eager(model.loss, x)] * 2)


def test_an_array_that_changes_between_two_cells_that_read_it() -> None:
    class Refilling(Base):
        @ab.cell
        def first(self, x: Any) -> Any:
            return x * self.mask

        @ab.cell
        def second(self, x: Any) -> Any:
            return ab.sum(x * self.mask)

        def loss(self, x: Any) -> Any:
            y = self.first(x)
            self.mask[:] = 3.0
            return self.second(y)

    loss = ab.batched(Refilling().loss, backend="reference")
    with refused(ab.GraphError, "while instances were recorded, mask of Refilling holds other numbers"):
        loss(XS)


def test_a_model_within_a_batch_of_64() -> None:
    model = model_of(NUMBERS["attribute"])
    loss, alone = ab.batched(model.loss, backend="reference"), ab.batched(model.loss, backend="reference")
    xs = [np.random.default_rng(k).standard_normal(3) for k in range(64)]
    for beta in (1.0, 2.0, 3.0):
        model.beta = beta
        np.testing.assert_allclose(loss(xs), [alone([x])[0] for x in xs], rtol=1e-10)
        np.testing.assert_allclose(loss(xs), [model.loss(x) for x in xs], rtol=1e-10)


def test_copies_go_by_their_own_model() -> None:
    model = model_of(NUMBERS["attribute"])
    loss = ab.batched(model.loss, backend="reference")
    for beta in (1.0, 2.0, 3.0):
        model.beta = beta
        loss(XS)
    twin = copy.deepcopy(loss)
    model.beta = 5.0
    before = loss(XS)
    assert not np.allclose(twin(XS), before)
    own = module_of(twin)
    assert own.beta == 3.0
    own.beta = 5.0
    np.testing.assert_allclose(twin(XS), before)


# Reads that cannot be guarded.

GENERATOR = np.random.default_rng(0)
DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "np.random": lambda m, x: x * np.random.rand(),  # noqa: NPY002
    "a generator of the model": lambda m, x: x * m.rng.normal(),
    "a generator in a dict": lambda m, x: x * m.options["rng"].normal(),
    "a global generator": lambda m, x: x * GENERATOR.normal(),
    "a new generator": lambda m, x: x * np.random.default_rng().normal(),
    "random": lambda m, x: x * random.gauss(0.0, 1.0),
    "random.Random": lambda m, x: x * m.random.random(),
    "time": lambda m, x: x * time.time(),
    "perf_counter": lambda m, x: x * time.perf_counter(),
    "now": lambda m, x: x * datetime.datetime.now().second,
}


@each("case", DRAWS)
def test_what_differs_from_call_to_call_is_refused(case: str) -> None:
    model = model_of(Case(DRAWS[case], lambda m, v: None))
    model.rng, model.random = np.random.default_rng(0), random.Random(0)
    model.options["rng"] = np.random.default_rng(1)
    loss = ab.batched(model.loss, backend="reference")
    what = "reads the clock" if case in ("time", "perf_counter", "now") else "draws random numbers"
    with refused(ab.GraphError, f"in cell 'cell': the body {what}", "pass the result as an argument"):
        loss(XS)


def test_what_is_the_same_every_time_is_taken() -> None:
    def body(m: Any, x: Any) -> Any:
        logging.getLogger("tests").info("a logger asks for the time")
        return x * np.random.default_rng(0).normal() + ab.dropout(x, 0.0)

    model = model_of(Case(body, lambda m, v: None))
    check(model, ab.batched(model.loss, backend="reference"), XS)


def test_a_body_may_read_objects_of_classes_that_cannot_change() -> None:
    lock = threading.RLock()

    def body(m: Any, x: Any) -> Any:
        with lock:
            return x * 2.0

    model = model_of(Case(body, lambda m, v: None))
    check(model, ab.batched(model.loss, backend="reference"), XS)


def test_classes_are_left_as_they_were() -> None:
    model = model_of(NUMBERS["config"])
    ab.batched(model.loss, backend="reference")(XS)
    for kind in (ab.Module, ab.Parameter, type(model), guard_cases.Config):
        assert "__getattribute__" not in vars(kind)


# Cost.


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_guards_of_the_models_are_few(case: Any) -> None:
    """A check reads all places within a few calls. Only guards that look into arrays cost calls of their own."""
    model, instances = case.draw(seed=0, n_instances=3, dim=4)
    loss = ab.batched(model.loss, backend="reference")
    loss(instances)
    guard_set = guard_set_of(loss)
    assert 0 < len(guard_set.guards) <= 100
    n_deep = sum(guard.is_deep for guard in guard_set.guards)
    assert n_deep <= 2
    assert guard_set.holds()
    assert count_calls(guard_set.holds) <= 20 + 50 * n_deep


def test_a_walk_of_the_model_is_not_repeated_while_functions_stand_in_for_its_cells() -> None:
    model = model_of(NUMBERS["attribute"])
    loss = ab.batched(model.loss, backend="reference")
    loss(XS)
    before = loss.recorder.parameters()
    loss(XS)
    assert loss.recorder.parameters() is before


def test_a_clock_that_others_read_while_garbage_is_collected_is_not_the_bodys() -> None:
    """For example, Hypothesis times the garbage collector."""
    asked: list[float] = []

    def ask(phase: str, info: dict[str, int]) -> None:
        asked.append(time.perf_counter())

    def double(x: Any) -> Any:
        return [[x], [x], [x]][0][0] * 2.0

    threshold = gc.get_threshold()
    gc.callbacks.append(ask)
    gc.set_threshold(1)
    try:
        found = ab.batched(ab.cell(double))([np.ones(2)])
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(ask)
    np.testing.assert_array_equal(found, [[2.0, 2.0]])
    assert asked
    assert gc.isenabled()


def inheriting(read: str) -> tuple[Any, type]:
    """Return a model whose cell reads `gain` from `super()`, and the class that defines it."""

    class Upper(ab.Module):
        gain: Any = 2.0

        def scale(self, x: Any) -> Any:
            return x * 2.0

    class Beside(Upper):
        gain: Any = 3.0

    class Lower(Upper):
        def inner(self, x: Any) -> Any:
            return x * super().gain

        @property
        def of_property(self) -> Any:
            return super().gain

        def by_name(self) -> Any:
            return getattr(super(), "gain")  # noqa: B009

        def or_else(self, otherwise: float) -> Any:
            return getattr(super(), "shift", otherwise)

        def body(self, x: Any) -> Any:
            return {
                "attribute": lambda: self.inner(x),
                "arguments": lambda: x * super(Lower, self).gain,
                "property": lambda: x * self.of_property,
                "getattr": lambda: x * self.by_name(),
                "missing": lambda: x * self.or_else(5.0),
            }[read]()

        @ab.cell
        def loss(self, x: Any) -> Any:
            return ab.sum(self.body(x)) + ab.sum(super().scale(x))

    class Both(Lower, Beside):
        pass

    return Both(), Beside


@pytest.mark.parametrize("read", ["attribute", "arguments", "property", "getattr", "missing"])
def test_what_is_read_from_super(read: str) -> None:
    model, beside = inheriting(read)
    loss = ab.batched(model.loss)
    upper = beside.__bases__[0]
    changes: list[Callable[[], None]] = [
        lambda: None,
        lambda: setattr(beside, "gain", 7.0),
        lambda: setattr(beside, "shift", 11.0),
        lambda: setattr(upper, "scale", lambda self, x: x * 13.0),
        lambda: setattr(beside, "scale", lambda self, x: x * 17.0),
        lambda: delattr(beside, "gain"),
    ]
    for change in changes:
        change()
        np.testing.assert_allclose(loss(XS), [model.loss(x) for x in XS], rtol=1e-5)
        before = traced(loss)
        loss(XS)
        assert traced(loss) == before


def test_a_class_that_a_property_names() -> None:
    class Settings:
        gain = 2.0

    class Model(ab.Module):
        @property
        def gain(self) -> float:
            return Settings.gain

        @ab.cell
        def loss(self, x: Any) -> Any:
            return ab.sum(x * self.gain)

    model = Model()
    loss = ab.batched(model.loss)
    for Settings.gain in (2.0, 5.0, 7.0):
        np.testing.assert_allclose(loss(XS), [model.loss(x) for x in XS], rtol=1e-5)


class Scaled(ab.Module):
    """A cell, and a method that another cell calls."""

    def __init__(self) -> None:
        self.w = ab.Parameter(np.ones(3))

    @ab.cell
    def scale(self, x: Any) -> Any:
        return ab.sum(x * self.w)

    @ab.cell
    def shift(self, x: Any) -> Any:
        return self.scale(x) + 1.0

    def halve(self, x: Any) -> Any:
        return 0.5 * ab.sum(x * self.w)

    @ab.cell
    def half(self, x: Any) -> Any:
        return self.halve(x)


class Narrow(Scaled):
    """A subclass that inherits everything."""


@pytest.mark.parametrize(("called", "replaced"), [("scale", "scale"), ("shift", "scale"), ("half", "halve")])
@pytest.mark.parametrize("kind", [Scaled, Narrow])
def test_what_a_class_replaces(called: str, replaced: str, kind: type[Scaled], monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell or method is replaced in its class or a subclass, by a cell and by a plain method, and then restored."""
    model, instances = kind(), [np.arange(3.0)]
    loss = ab.batched(lambda x: getattr(model, called)(x), module=model)
    before = loss(instances)
    for new in (ab.cell(lambda self, x: -ab.sum(x * self.w)), lambda self, x: 7.0 * ab.sum(x * self.w)):
        with monkeypatch.context() as patch:
            patch.setattr(kind, replaced, new)
            expected = getattr(model, called)(instances[0])
            assert expected != before
            np.testing.assert_allclose(loss(instances), [expected])
        np.testing.assert_allclose(loss(instances), before)


def test_attributes_of_the_keys_of_a_dict() -> None:
    class Key:
        beta = 2.0

    class Model(ab.Module):
        def __init__(self) -> None:
            self.weights = {Key(): 2.0}

        @ab.cell
        def loss(self, x: Any) -> Any:
            return ab.sum(x) * sum(key.beta * weight for key, weight in self.weights.items())

    model = Model()
    loss = ab.batched(model.loss, backend="reference")
    for (key,) in [tuple(model.weights)] * 3:
        np.testing.assert_allclose(loss(XS), [model.loss(x) for x in XS], rtol=1e-6)
        key.beta += 1.0
