"""Test the native recorder: no program crashes it, whatever its objects do meanwhile, and nothing leaks."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch._native import Cell, Form, Function, Handle, Log, RowsHandle, Shortcut, Stage, array_key
from autobatch.graph.words import sections
from autobatch.trace.forms import EACH, END, ROWS, VALUE, WORDS
from helpers.runs.entries import sizes
from helpers.runs.recordings import STAGE, Owner, value_class

ROOT = Path(__file__).parents[2]
SECONDS = 600
VALUES, ROWS_OF = value_class(), value_class(RowsHandle)
ONE = ((VALUES, -1),)
ARGS: Any = list  # binds arguments
KEY: Any = 1


def start(counts: bool = False) -> Any:
    """Return a log that records in this thread."""
    owner = Owner()
    owner.log = Log(owner)
    owner.log.begin(counts)
    STAGE.current = owner
    return owner.log


@pytest.fixture(autouse=True)
def _stage() -> Any:
    before = STAGE.current
    yield
    STAGE.current = before


def form_of(log: Any, code: tuple[int, ...], steps: tuple[Any, ...], ints: tuple[Any, ...], **parts: Any) -> Form:
    """Return a form of one argument, with a register for each loading step."""
    given: dict[str, Any] = {
        "n_arguments": 1, "n_registers": 1, "groups": (), "bounds": (), "walked": (), "lengths": set(), "floats": (),
        "outputs": ONE, "structure": 0,
    }  # fmt: skip
    return Form(log, log.add_form((0, *code, END)), steps=steps, ints=ints, **given | parts)


def list_form(log: Any, **parts: Any) -> Form:
    each = ("each", 0, (("class", 0, VALUES),), 1)
    given = {"ints": (("count", 0), ("each", 0, (0,))), "groups": (0,)}
    return form_of(log, (EACH, 1, 1, 0), (each,), **given | parts)


def decoded(log: Any) -> Any:
    return log.decode([0, len(log)], [], [], [0, 0], None)


def run_programs(first: int, stop: int) -> str:
    """Run random programs in a subprocess; return the last line that it wrote."""
    paths = os.pathsep.join(str(ROOT / name) for name in ("tests", "tools", "experiments"))
    command = [sys.executable, "-m", "helpers.runs.recordings", f"{first}:{stop}"]
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    lines = done.stdout.splitlines()
    last = next((line for line in reversed(lines) if line.isdecimal()), "none")
    assert done.returncode == 0, f"program {last} ended the process: {done.returncode}\n{done.stderr[-3000:]}"
    return lines[-1]


def test_random_programs_crash_nothing() -> None:
    assert run_programs(0, 300).startswith("counts")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 41_000, 10_000))
def test_many_random_programs_crash_nothing(first: int) -> None:
    assert run_programs(first, first + 10_000).startswith("counts")


# Forms.


@pytest.mark.parametrize(
    ("steps", "n_registers"),
    [
        ((("class", 0, VALUES),), 2),
        ((("class", 0, VALUES), ("attribute", 0, "part", 0)), 1),
        ((("each", 0, (("class", 0, int),), 3),), 1),
        ((("each", 0, (("class", 0, int), ("attribute", 0, "real", 0)), 1),), 1),
    ],
)
def test_steps_set_each_register_once(steps: tuple[Any, ...], n_registers: int) -> None:
    with pytest.raises(ValueError, match="register"):
        form_of(start(), (WORDS, 1), steps, (("int", n_registers - 1),), n_registers=n_registers)


def test_structures_are_plain() -> None:
    class Called(tuple[Any, ...]):
        def __call__(self, values: Any) -> Any:
            return values[0]

    log = start()
    ref = log.add(log.add_form((0, END)), (), ())
    form = form_of(log, (VALUE, 1, 0), (("class", 0, VALUES),), (("ref", 0),), structure=Called())
    assert isinstance(Function.record(form, (log.value(VALUES, ref, False),)), VALUES)
    deep: Any = 0
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(ValueError, match="structure"):
        form_of(log, (WORDS, 0), (), (), structure=deep)


def test_lengths_of_odd_arrays_overflow_nothing() -> None:
    log, many = start(), 2**31 - 2
    parts = ((-1, many, (None, None, 1), -1),)
    groups = (parts, *(((g, 0, (None, None, 1), g),) for g in range(8)))
    form = form_of(log, (ROWS, 0), (("rows", 0, "f", (0,)),), (("count", 0),), groups=(0,))
    assert isinstance(Function.record(form, (np.zeros((2**59, 0)),)), VALUES)
    form = form_of(log, (), (), (), groups=groups, outputs=((ROWS_OF, 8),))
    with pytest.raises(ab.DataError, match="rows goes from a cell"):
        Function.record(form, (0,))
    assert decoded(log)[2] is not None


def test_a_log_that_is_not_what_forms_say_is_refused() -> None:
    log = start()
    for ints in ((), (("int", 0),), (("int", 0),) * 3):
        log.begin(False)
        Function.record(form_of(log, (EACH, 3, 1, 0, 1, 1, 1, 2), (), ints), (2**60,))
        with pytest.raises(ValueError, match="log_ptr must lie between calls"):
            decoded(log)


def test_calls_of_which_nothing_is_left_are_forgotten() -> None:
    """Random chains in phases: some values are held for a few phases, and the nodes of all others are forgotten."""
    rng, log, n_bytes = np.random.default_rng(0), start(counts=True), list[int]()
    first, form = log.add_form((0, END)), log.add_form((0, VALUE, 1, 0, END))
    held, n_nodes = list[tuple[Handle, int]](), 0
    for k in range(400):
        log.clear()
        sources = list[int]()
        new = [log.value(VALUES, log.add(first, (), ()), False)]
        for _ in range(3):
            handle, node = held[int(rng.integers(len(held)))] if held else (new[0], n_nodes)
            sources.append(node - n_nodes)
            new.append(log.value(VALUES, log.add(form, (handle.ref,), ()), False))
        words, _, fault = log.decode([0, len(log)], [], [], [0, 0], np.zeros(n_nodes, np.int32))
        assert fault is None
        assert sections(words).edge_src.tolist() == sources
        held += zip(new, range(n_nodes, n_nodes + 4), strict=True)
        n_nodes += 4
        del new, handle
        held = [one for one in held[-12:] if rng.random() < 0.9] or held[-1:]
        log.sweep()
        if k % 7 == 0:
            of_node = np.full(n_nodes, -1, np.int32)
            of_node[[node for _, node in held]] = np.arange(len(held))
            log.renumber(of_node)
            held, n_nodes = [(handle, k) for k, (handle, _) in enumerate(held)], len(held)
        n_bytes.append(log.n_bytes)
    assert log.n_calls == 1600
    assert n_bytes[-1] == n_bytes[100] < 1600 * 12
    with pytest.raises(IndexError, match="no call made ref 0"):
        log.form_of(0)


# Changes while a call is recorded.


@pytest.mark.parametrize("others", [[], [1, 2, 3], ["text"] * 7])
def test_a_list_changes_while_its_call_is_recorded(others: list[Any]) -> None:
    log = start()
    ref = log.add(log.add_form((0, END)), (), ())
    values = [log.value(VALUES, ref, False) for _ in range(3)]
    form = list_form(log, ints=(("count", 0), ("draw",), ("each", 0, (0,))))

    def change() -> int:
        values[:] = others
        return 0

    log.draw = change
    n = len(log)
    if others:
        with pytest.raises(RuntimeError, match="a list was changed"):
            Function.record(form, (values,))
        assert len(log) == n
    else:
        Function.record(form, (values,))
        with pytest.raises(ValueError, match="log_ptr must lie between calls"):
            decoded(log)


@pytest.mark.parametrize("name", ["begin", "clear", "decode", "add", "add_form", "sweep", "record"])
def test_a_log_is_not_used_while_a_call_is_written(name: str) -> None:
    log = start()
    form = form_of(log, (WORDS, 1), (), (("draw",),))
    uses: dict[str, Callable[[], Any]] = {
        "begin": lambda: log.begin(True), "clear": log.clear, "decode": lambda: decoded(log), "sweep": log.sweep,
        "add": lambda: log.add(0, (1,), ()), "add_form": lambda: log.add_form((0, END)),
        "record": lambda: Function.record(form, (0,)),
    }  # fmt: skip
    log.draw = uses[name]
    with pytest.raises(RuntimeError, match="must not be used while"):
        Function.record(form, (0,))
    assert len(log) == 0
    log.draw = None
    Function.record(form, (0,))
    assert decoded(log)[2] is None


class Index:
    """A number that runs a function when it is read."""

    def __init__(self, number: int, act: Callable[[], Any]) -> None:
        self.number, self.act = number, act

    def __index__(self) -> int:
        self.act()
        return self.number


def test_arguments_change_while_they_are_read() -> None:
    log = start()
    number = log.add_form((0, WORDS, 3, END))
    log.add(number, [1, 2, 3], [0.5] * 1000)
    for read in (log.ints, log.floats):
        with pytest.raises(IndexError, match="positions"):
            read(Index(0, lambda: log.begin(False)), 4)
        log.add(number, [1, 2, 3], [0.5] * 1000)
    ints: list[Any] = [Index(0, lambda: ints.clear()), *range(10_000)]
    with pytest.raises(ValueError, match="ints must be"):
        log.add(number, ints, [])
    ptr: list[Any] = [Index(0, lambda: ptr.clear()), *range(10_000)]
    with pytest.raises(ValueError, match="offsets"):
        log.decode(ptr, [], [], [0, 0], None)


def test_instances_change_while_they_are_run() -> None:
    log = start()

    class Last:
        def __del__(self) -> None:
            instances.clear()

    instances: list[Any] = [0] * 1000

    def call(x: Any) -> Any:
        log.sources[x] = Last()
        return x

    structures = list[Any]()
    log.run(call, instances, {}, lambda x: x, [], [], structures, [0], [0])
    assert structures == [0, 0]


def test_nothing_that_a_call_uses_is_freed_by_it() -> None:
    owner = Owner()
    owner.log = Log(owner)
    STAGE.current = owner
    shortcut: Any

    class Key:
        def __call__(self) -> None:
            pass

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            STAGE.current = owner.log = None
            gc.collect()
            return False

    function = Function(owner.log, "f", ("x",), (), 1, ARGS, ARGS, b"\0")
    for _ in range(20):
        owner.log.functions[Key] = function
    owner.log.functions[1] = function
    shortcut = Shortcut(len, Key(), 0)
    del function
    assert shortcut([1, 2]) == 2
    STAGE.current = owner
    owner.log = log = Log(owner)
    STAGE.current = owner
    owner.log = None
    del log
    gc.collect()
    assert shortcut([1, 2]) == 2


def test_a_source_is_replaced_while_it_records() -> None:
    log = start()

    def replace(x: Any) -> Any:
        log.source = Function(log, "g", (), (), 1, ARGS, ARGS, b"")
        gc.collect()
        return None

    log.source = Function(log, "source", ("x",), (), 1, ARGS, ARGS, b"\0")
    log.source.forms = (form_of(log, (), (("same", 0, replace, 0),), ()),)
    function = Function(log, "f", ("x",), (), 1, ARGS, ARGS, b"\1")
    assert len(function(np.zeros(3))) == 1
    assert log.source.__name__ == "g"


def test_owners_that_add_functions_when_they_are_freed_free_nothing_else() -> None:
    log = start()
    function = Function(log, "f", ("x",), (), 1, ARGS, ARGS, b"\0")
    cells = [Cell.__new__(Cell) for _ in range(3)]

    class Owner:
        def __init__(self, cell: Any) -> None:
            self.cell = cell

        def __del__(self) -> None:
            log.add_cell(self.cell, None, function)

    before = sys.getrefcount(function)
    for _ in range(3):
        for cell in cells:
            log.add_cell(cell, Owner(cell), function)
        log.forget_cells()
        assert sys.getrefcount(function) == before + len(cells)
    log.forget_cells()
    assert sys.getrefcount(function) == before


# Recursion.


def test_endless_recursion_is_an_error() -> None:
    log = start()
    function = Function(log, "f", ("x",), (), 1, ARGS, ARGS, b"\1")
    function.forms = (form_of(log, (), (("same", 0, function, 0),), ()),)
    with pytest.raises(RecursionError):
        function(1)
    log.source = function
    with pytest.raises(RecursionError):
        function(np.zeros(3))
    deep: Any = np.zeros(3)
    for _ in range(200_000):
        deep = (deep,)
    with pytest.raises(RecursionError):
        Function(log, "g", ("x",), (), 1, ARGS, ARGS, b"\2")(deep)
    nested: Any = len
    for _ in range(200_000):
        nested = Shortcut(nested, KEY, 0)
    with pytest.raises(RecursionError):
        nested(())
    for wrap in (lambda x: Function(log, "f", (), (), 1, ARGS, x, b""), Log, lambda x: Shortcut(x, KEY, 0)):
        made: Any = print
        for _ in range(200_000 if wrap is not Log else 50_000):
            made = wrap(made)
        del made
    del nested
    gc.collect()


# Values.


def test_refs_of_rows_stay_as_they_are() -> None:
    log = start(True)
    log.add(log.add_form((0, END)), (), ())
    given = [0, 0, 0]
    rows = log.rows(ROWS_OF, given)
    given.clear()
    assert rows.refs == (0, 0, 0)
    with pytest.raises(TypeError):
        rows.refs[0] = "text"
    form = form_of(log, (EACH, 1, 1, 0), (("class", 0, ROWS_OF),), (("count", 0), ("refs", 0)), groups=(0,))
    Function.record(form, (rows,))
    assert log.ints(1, len(log)) == [256, 3, 0, 0, 0]


def test_a_whole_is_one_output() -> None:
    log = start()
    form = form_of(log, (), (), (), groups=(((-1, 4, (None, None, 1), -1),),), outputs=((ROWS_OF, 0),))
    rows, output, value = log.rows(ROWS_OF, [0]), Function.record(form, (0,)), log.value(VALUES, 0, False)
    for whole in (output, value, None):
        rows.whole = whole
        assert rows.whole is whole
    for one, other in ((rows, rows), (rows, log.rows(ROWS_OF, [0])), (rows, 1), (output, value), (output, output)):
        with pytest.raises(TypeError, match="whole must be one output"):
            one.whole = other


@pytest.mark.parametrize("slots", [("__dict__",), ("__weakref__",), ("x",), None])
def test_classes_with_attributes_are_not_sealed(slots: Any) -> None:
    from autobatch._native import seal

    own = {} if slots is None else {"__slots__": slots}
    with pytest.raises(TypeError, match="must have __slots__"):
        seal(type("Other", (Handle,), own))


def test_a_value_outlives_its_log() -> None:
    log = start(True)
    ref = log.add(log.add_form((0, END)), (), ())
    value, rows = log.value(VALUES, ref, False), log.rows(ROWS_OF, [ref, ref])
    stale, STAGE.current = value.ref, None
    assert stale == ref
    del log
    gc.collect()
    assert value.ref != ref
    assert rows.refs == ()
    again = start(True)
    with pytest.raises(ValueError, match="same recording"):
        value.rebind(again.value(VALUES, again.add(again.add_form((0, END)), (), ()), False))
    form = list_form(again)
    Function.record(form, ([value],))
    assert decoded(again)[2][0] == 1
    del value, rows


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_records_is_not_copied(copied: Callable[[Any], Any]) -> None:
    log = start()
    function = Function(log, "f", (), (), 1, ARGS, ARGS, b"")
    for x in (log.value(VALUES, 0, False), log.rows(ROWS_OF, [0]), log, function, form_of(log, (), (), ())):
        with pytest.raises(TypeError):
            copied(x)
    copied(ab.sum_n)
    copied(Stage())


# Garbage, memory, threads and processes.


def make_circles() -> weakref.ref[Any]:
    """Make objects of all types that refer to each other; return a weak reference to one of them."""

    def use(*args: Any) -> Any:
        return everything

    log = start(True)
    function = Function(log, "f", ("x",), (use,), 1, use, use, b"\1")
    form = form_of(log, (), (("same", 0, use, log), ("is", 0, function)), (), structure=use)
    shortcut: Any = Shortcut(use, use, 0)
    everything = [log, function, form, shortcut, log.value(VALUES, 0, False)]
    shortcut.others = everything
    log.source = log.functions[use] = log.sources[1] = function
    log.draw = use
    function.forms = (form,) * 3
    return weakref.ref(STAGE.current)


def test_circles_are_collected() -> None:
    owner = make_circles()
    STAGE.current = None
    gc.collect()
    assert owner() is None


def test_recordings_keep_nothing() -> None:
    log = start(True)
    form, made = list_form(log, structure=lambda values: values), log.add_form((0, END))
    log.draw = int
    item = (("class", 0, tuple), ("size", 0, 1), ("item", 0, 0, 1))
    loose = form_of(log, (WORDS, 2), item, (("draw",), ("int", 1)), n_registers=2)
    form_of_ints = form_of(log, (WORDS, 2), (*item, ("class", 1, int)), (("draw",), ("int", 1)), n_registers=2)
    function = Function(log, "f", ("x",), (None,), 1, lambda args, kwargs: [*args], lambda arguments: None, b"\2")
    function.forms = (form, form_of_ints)
    array, kinds = np.zeros(3), (VALUES, ROWS_OF)

    def record(n: int) -> None:
        for k in range(n):
            if k % 100 == 0:
                log.begin(True)
                log.sources.clear()
            values = [log.value(VALUES, log.add(made, (), ()), False)] * 2
            rows = log.rows(ROWS_OF, [value.ref for value in values])
            rows.whole = function(values)[0]
            for x in ((3,), (array, [array]), ("text",), "other", (1.5,)):
                function(x)
            function(x=values)
            with suppress(RuntimeError):
                Function.record(loose, (("text",),))

    memory = sizes()
    record(3000)
    gc.collect()
    counts = [sys.getrefcount(x) for x in (log, form, function, array, *kinds, None)]
    size = next(memory)
    record(20_000)
    gc.collect()
    assert next(memory) - size < 2 << 20
    now = [sys.getrefcount(x) for x in (log, form, function, array, *kinds, None)]
    assert all(abs(one - other) < 100 for one, other in zip(counts, now, strict=True))


class Model(ab.Module):
    def __init__(self) -> None:
        self.w = ab.Parameter(np.full(2, 0.5))

    @ab.cell
    def step(self, h: Any, x: Any) -> Any:
        return ab.tanh(self.w * h + x)


def program(model: Model, collects: bool = False) -> Callable[[Any], Any]:
    def run(xs: Any) -> Any:
        h: Any = np.zeros(2)
        for x in xs:
            h = model.step(h, float(x))
            if collects:
                gc.collect(0)
        return ab.sum(h)

    return run


def data(n: int) -> list[list[float]]:
    return [[0.1 * k for k in range(1 + i % 4)] for i in range(n)]


def test_garbage_is_collected_in_recordings() -> None:
    model = Model()
    plain = ab.batched(program(model), module=model)(data(8))
    assert list(ab.batched(program(model, collects=True), module=model)(data(8))) == list(plain)


def test_threads_record_beside_one_another() -> None:
    model, found, errors = Model(), dict[int, list[Any]](), list[BaseException]()
    wanted = [float(x) for x in ab.batched(program(model), module=model)(data(30))]

    def work(k: int) -> None:
        own = Model()
        batched = ab.batched(program(own), module=own)
        try:
            for _ in range(10):
                found[k] = [float(x) for x in batched(data(30))]
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    assert all(found[k] == wanted for k in range(4))


def test_a_thread_ends_while_it_records() -> None:
    def work() -> None:
        log = start(True)
        log.add(log.add_form((0, END)), (), ())
        kept.append(log.value(VALUES, 0, False))

    kept = list[Any]()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert repr(kept.pop())


def test_a_forked_process_goes_on_recording() -> None:
    log = start(True)
    form, made = list_form(log), log.add_form((0, END))
    values = [log.value(VALUES, log.add(made, (), ()), False)]
    child = os.fork()
    if child == 0:
        try:
            for _ in range(1000):
                values.append(Function.record(form, (values,)))
                del values[:-1]
            os._exit(0 if len(log) == 3001 and decoded(log)[2] is None else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert len(log) == 1


def is_refused_in_child(log: Any, in_thread: bool) -> bool:
    """Fork, and return whether the child may not use the log, in this thread or in a new one."""
    child = os.fork()
    if child == 0:
        refused = list[RuntimeError]()

        def use() -> None:
            try:
                log.begin(True)
            except RuntimeError as error:
                refused.append(error)

        if in_thread:
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
        else:
            use()
        os._exit(1 if refused else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_forked_process_uses_a_log_to_which_another_thread_wrote(in_thread: bool) -> None:
    """A log stays refused only to a process that forked in the middle of a call."""
    log = start()
    form = form_of(log, (WORDS, 1), (), (("draw",),))
    owner, is_writing, may_end, found = STAGE.current, threading.Event(), threading.Event(), list[bool]()

    def write() -> None:
        STAGE.current = owner
        Function.record(form, (0,))

    def draw() -> int:
        is_writing.set()
        assert may_end.wait(60)
        return 1

    log.draw = draw
    thread = threading.Thread(target=write)
    thread.start()
    assert is_writing.wait(60)
    assert not is_refused_in_child(log, in_thread)
    may_end.set()
    thread.join()

    def draw_in_child() -> int:
        found.append(is_refused_in_child(log, in_thread))
        return 1

    log.draw = draw_in_child
    Function.record(form, (0,))
    assert found == [True]


@pytest.mark.slow
def test_logs_are_limited() -> None:
    logs = list[Any]()
    with pytest.raises(RuntimeError, match="there are more than 65536 logs"):
        logs.extend(Log(None) for _ in range(70_000))
    del logs[100:]
    assert len(Log(None)) == 0


def test_keys_of_arrays_tell_shape_and_type() -> None:
    arrays = (np.zeros(0), np.zeros((0, 2)), np.zeros(2), np.zeros((2, 1)), np.zeros(2, np.float32), np.zeros(()))
    keys = [array_key(x) for x in arrays]
    assert None not in keys
    assert len({*keys}) == len(arrays)
    for x in (1.5, [1.5], np.zeros(2, int), np.zeros(4)[::2], np.zeros(2).view(type("Other", (np.ndarray,), {}))):
        assert array_key(x) is None
