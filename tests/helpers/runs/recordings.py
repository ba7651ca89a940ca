"""Random programs over the objects of the native recorder, which may return or raise, but must never crash.

A seed determines everything: logs, forms that are right or nearly so, functions, values, and calls of all methods. Some
arguments are `Meddler`s, whose methods use the same objects while the core compares, converts or calls them. A separate
process runs a range of seeds and prints each one before its program, so that after a crash the last one is the seed to
run again:

    PYTHONPATH=tests:tools:experiments python -m helpers.runs.recordings 4711:4712
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autobatch._native import (
    BoundCell,
    Cell,
    Form,
    Function,
    Handle,
    Layout,
    Log,
    RowsHandle,
    Rule,
    Shortcut,
    Stage,
    Tape,
    array_key,
    seal,
    seal_cells,
)  # fmt: skip
from autobatch.trace.forms import EACH, END, ROWS, VALUE, WORDS
from helpers.runs.driven import drive

N_STEPS = 40  # per program
STAGE = Stage()
TEXT = "text"  # an argument that may have a source
NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 48, 255, 256, 2**20, 2**31, 2**40, 2**62, 2**63, 2**70)


class Owner:
    """A recorder: the stage of a log.

    Args:
        world: creates the objects that tapes request.
    """

    log: Any = None

    def __init__(self, world: World | None = None) -> None:
        self.world, self.rules = world, dict[bytes, Any]()

    def __getattr__(self, name: str) -> Any:
        if self.world is None or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.world, f"make_{name.removeprefix('make_')}")


def value_class(base: type = Handle) -> Any:
    """Return a new class of values, or of rows."""
    kind = type("Value", (base,), {"__slots__": ()})
    seal(kind)
    return kind


class DrawnCell(Cell):
    """A cell that does something else when it is not recorded.

    Args:
        world: the world in which it does so.
    """

    name = "drawn"

    def __init__(self, world: World) -> None:
        self.world = world

    def call(self, owner: Any, args: Any, kwargs: Any) -> Any:
        """Do it; return the last argument."""
        self.world.meddle()
        return (owner, *args, *kwargs.values())[-1]


seal_cells(DrawnCell)


class Meddler:
    """An object whose methods all do something else first.

    Args:
        world: the world in which they do so.
        x: the object that it stands for.
    """

    def __init__(self, world: World, x: Any) -> None:
        self.world, self.x = world, x

    @property
    def part(self) -> Any:
        self.world.meddle()
        return self.x

    def __eq__(self, other: object) -> bool:
        self.world.meddle()
        return True

    def __hash__(self) -> int:
        return 1

    def __index__(self) -> int:
        self.world.meddle()
        return self.x if type(self.x) is int else 0

    def __float__(self) -> float:
        self.world.meddle()
        return 1.0

    def __bool__(self) -> bool:
        self.world.meddle()
        return True

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self.world.meddle()
        return np.arange(2)

    def __iter__(self) -> Any:
        self.world.meddle()
        yield self.x

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.world.meddle()
        return self.x if not args else args[0]

    def __del__(self) -> None:
        self.world.meddle()


class World:
    """The objects of one program.

    Args:
        seed: determines everything random.
    """

    def __init__(self, seed: int) -> None:
        self.rng, self.depth = np.random.default_rng(seed), 0
        self.counts = Counter[str]()
        self.owners = [Owner(self) for _ in range(2)]
        for owner in self.owners:
            owner.log = Log(owner)
            owner.log.begin(bool(self.rng.random() < 0.6))
        self.logs: list[Any] = [owner.log for owner in self.owners]
        self.values, self.rows = [value_class() for _ in range(2)], [value_class(RowsHandle)]
        self.forms: list[Any] = []
        self.functions: list[Any] = []
        self.handles: list[Any] = []
        self.lists: list[list[Any]] = [[], [1, 2]]
        self.codes: dict[int, tuple[int, ...]] = {}
        self.tapes: list[Any] = []
        self.cells: list[Any] = [DrawnCell(self) for _ in range(2)]
        self.having = [type("Having", (), {"cell": self.cells[0]})() for _ in range(2)]
        STAGE.current = self.owners[0]
        for _ in range(3):
            self.attempt(self.add_form)
            self.attempt(self.add_function)
        for _ in range(4):
            self.attempt(self.add_handle)

    def one_of(self, things: Any) -> Any:
        """Draw one of some things, or None if there are none."""
        return things[int(self.rng.integers(len(things)))] if len(things) else None

    def attempt(self, step: Callable[[], Any]) -> None:
        """Do a step, which may fail."""
        try:
            step()
            self.counts["done"] += 1
        except SystemError:
            raise
        except Exception as error:
            self.counts[type(error).__name__] += 1

    def run(self) -> None:
        for _ in range(N_STEPS):
            self.attempt(self.one_of(STEPS).__get__(self))
        STAGE.current = None

    def meddle(self) -> None:
        """Do another step in the middle of one."""
        if self.depth < 2 and self.rng.random() < 0.7:
            self.depth += 1
            try:
                for _ in range(int(self.rng.integers(1, 3))):
                    self.attempt(self.one_of(MEDDLING).__get__(self))
            finally:
                self.depth -= 1

    # Arguments of steps.

    def number(self) -> Any:
        """Draw a number, mostly a small one."""
        draw = self.rng.random()
        if draw < 0.1:
            return Meddler(self, int(self.rng.integers(3)))
        return self.one_of(NUMBERS) if draw < 0.3 else int(self.rng.integers(4))

    def log(self) -> Any:
        return self.one_of(self.logs) if self.rng.random() < 0.3 else self.logs[0]

    def ref(self) -> Any:
        """Draw a ref of a value, or a number."""
        known = [handle.ref for handle in self.handles[-5:]]
        return self.one_of(known) if known and self.rng.random() < 0.8 else self.number()

    def kind(self, of_rows: bool) -> Any:
        """Draw a class of values or of rows; occasionally the other kind."""
        return self.one_of(self.rows if of_rows != (self.rng.random() < 0.03) else self.values)

    def thing(self, depth: int = 0) -> Any:
        """Draw an argument of a cell."""
        draw = int(self.rng.integers(13))
        if draw < 4:
            return self.one_of(self.handles)
        if draw < 7 and depth < 2:
            parts = [self.thing(depth + 1) for _ in range(int(self.rng.integers(4)))]
            return tuple(parts) if draw == 5 else parts
        others: list[Callable[[], Any]] = [
            lambda: self.one_of(self.lists), self.number, lambda: 1.5, lambda: TEXT, lambda: np.arange(3),
            lambda: self.rng.random(2), lambda: {"a": self.one_of(self.handles)},
            lambda: Meddler(self, self.one_of(self.handles)), lambda: np.array([Meddler(self, 1)], object),
        ]  # fmt: skip
        return self.one_of(others)()

    def spoilt(self, x: Any) -> Any:
        """Replace one part of nested tuples."""
        if isinstance(x, tuple) and x and self.rng.random() < 0.9:
            k = int(self.rng.integers(len(x)))
            part = self.spoilt(x[k])
            return self.one_of([(*x[:k], part, *x[k + 1 :])] * 5 + [(*x[:k], *x[k + 1 :]), (*x, part)])
        return self.one_of([self.number, self.thing, lambda: (), lambda: (x,), lambda: self.kind(False)])()

    # Steps.

    def add_form(self) -> Any:
        """Make a form that is right or nearly so."""
        log, value, rows = self.log(), self.kind(False), self.kind(True)
        each_value, one = (("class", 0, value),), ((value, -1),)
        meddler = Meddler(self, self.one_of(self.handles))
        takes = {
            "values": (
                (VALUE, 1, 0, VALUE, 1, 1), 2, 2, (("class", 0, value), ("class", 1, value)), (),
                (("ref", 0), ("ref", 1)), (), one, 0,
            ),
            "list": (
                (EACH, 1, 1, 0), 1, 1, (("each", 0, each_value, 1),), (0,), (("count", 0), ("each", 0, (0,))), (),
                ((rows, 0), (value, -1)), (0, (1, 0)),
            ),
            "pairs": (
                (EACH, 2, 1, 0, 1, 1), 1, 1,
                (("each", 0, (("size", 0, 2), ("item", 0, 0, 1), ("item", 0, 1, 2), ("class", 1, value)), 3),),
                (0,), (("count", 0), ("each", 0, (1, 2))), (), one, meddler,
            ),
            "data": (
                (WORDS, 2), 2, 2, (("class", 0, int), ("class", 1, float)), (), (("int", 0), ("draw",)),
                (("float", 1), ("floats", 1)), one, (0,),
            ),
            "ragged": (
                (ROWS, 1), 1, 1, (("rows", 0, "iub", ()),), (0,), (("count", 0), ("ints", 0)), (), ((rows, 0),), 0,
            ),
            "rows": (
                (EACH, 1, 1, 0), 1, 1, (("class", 0, rows),), (0, ((0, 0, (None, None, -1), 0),)),
                (("count", 0), ("refs", 0)), (), ((rows, 1),), 0,
            ),
            "attribute": (
                (VALUE, 1, 0, WORDS, 1), 1, 2, (("attribute", 0, "part", 1), ("class", 1, value)), (),
                (("ref", 1), ("draw",)), (), one, 0,
            ),
            "equal": (
                (VALUE, 1, 0, EACH, 1, 1, 1), 2, 2,
                (("each", 1, each_value, 1), ("class", 0, value), ("same", 0, meddler, meddler)), (1,),
                (("ref", 0), ("count", 0), ("draw",), ("each", 1, (0,))), (), one, meddler,
            ),
            "dict": (
                (VALUE, 1, 0), 1, 2,
                (("class", 0, dict), ("keys", 0, ("a",), meddler), ("key", 0, "a", 1), ("class", 1, value)), (),
                (("ref", 1),), (("floats", 0),), one, 0,
            ),
            "things": ((WORDS, 2), 2, 2, (("equal", 0, meddler),), (), (("ints", 0),), (("floats", 1),), one, 0),
        }  # fmt: skip
        code, n, n_registers, steps, groups, ints, floats, outputs, structure = takes[self.one_of([*takes])]
        number = log.add_form((int(self.rng.integers(3)), *code, END))
        self.codes[number] = code
        walked, lengths = ((0,), {(2,), (3,)}) if groups and self.rng.random() < 0.3 else ((), set())
        args = [log, number, n, n_registers, steps, groups, (), walked, lengths, ints, floats, outputs, structure]
        for _ in range(int(self.one_of([0, 0, 0, 1, 2]))):
            k = int(self.rng.integers(1, len(args)))
            args[k] = self.spoilt(args[k])
        self.forms.append(Form(*args))
        return self.forms[-1]

    def add_function(self) -> None:
        """Make a function with some forms."""
        n = int(self.rng.integers(3))
        bind = self.one_of([lambda args, kwargs: [*args, *kwargs.values()], Meddler(self, ())])
        slow = self.one_of([lambda arguments: None, Meddler(self, 1), *self.functions[:1]])
        names, wraps = tuple("abc"[:n]), bytes(self.rng.integers(0, 8, n).tolist())
        found = Function(self.log(), "name", names, (None,) * int(self.rng.integers(3)), n, bind, slow, wraps)
        self.functions.append(found)
        self.set_forms()
        if self.rng.random() < 0.3:
            self.log().source = found
        if self.rng.random() < 0.3:
            self.log().functions[self.one_of([1, id(TEXT), Meddler(self, 1)])] = found
        if self.rng.random() < 0.3:
            self.log().treatment_of = self.one_of(
                [lambda x: 0, lambda x: 1, lambda x: 2, lambda x: "", Meddler(self, 1)]
            )
        if self.rng.random() < 0.3:
            inner, takes = self.one_of([1, Meddler(self, 1)]), int(self.rng.integers(5))
            self.functions.append(Shortcut(self.one_of(self.functions), inner, takes))

    def set_forms(self) -> None:
        """Give a function other forms."""
        function = self.one_of(self.functions)
        function.forms = tuple(self.one_of(self.forms) for _ in range(int(self.rng.integers(1, 4))))

    def call(self) -> None:
        args = [self.thing() for _ in range(int(self.rng.integers(1, 3)))]
        kwargs = {"b": args.pop()} if self.rng.random() < 0.1 else {}
        self.keep(self.one_of(self.functions)(*args, **kwargs))

    def call_well(self) -> None:
        """Call a form with arguments, some of which should match it."""
        form = self.one_of(self.forms)
        handles = [handle for handle in self.handles if type(handle) in self.values] or [None]
        one, other = self.one_of(handles), self.one_of(handles)
        listed = [self.one_of(handles) for _ in range(int(self.rng.integers(1, 4)))]
        self.lists.append(listed)
        for arguments in (
            (one, other), (listed,), ([(one, other)] * 2,), (3, 0.5), (np.arange(3),), (self.one_of(self.handles),),
            (Meddler(self, one),), (one, listed), ({"a": one},), (self.thing(), self.thing()),
        ):  # fmt: skip
            self.keep(Function.record(form, arguments))

    def record_tuple(self) -> None:
        self.keep(self.one_of(self.functions).record_tuple((self.thing(), self.thing())))

    def keep(self, made: Any) -> None:
        """Keep the values among results."""
        for part in made if isinstance(made, tuple) else (made,):
            if isinstance(part, Handle):
                self.handles.append(part)

    def add_handle(self) -> None:
        """Make a value or rows, from refs or from other values."""
        log, draw = self.log(), self.rng.random()
        if draw < 0.6:
            self.keep(log.value(self.kind(False), self.ref(), self.one_of([False, True, Meddler(self, 1)])))
        elif draw < 0.7:
            handles = [self.one_of(self.handles) for _ in range(int(self.rng.integers(4)))]
            self.keep(log.stack(self.kind(True), self.one_of([handles, handles[:1] * 3, self.thing()])))
        elif draw < 0.8:
            self.keep((*log.unstack(self.kind(False), self.one_of([*self.handles[-9:], self.thing()])),))
        else:
            refs = [self.ref() for _ in range(int(self.rng.integers(4)))]
            self.keep(log.rows(self.kind(True), self.one_of([refs, tuple(refs), Meddler(self, 1)])))

    def use_handle(self) -> None:
        """Use a method of a value."""
        handle, other = self.one_of(self.handles), self.one_of(self.handles)
        use: Any = self.one_of(["ref", "is_row", "refs", "n_rows", "rebind", "whole", "repr", "copy", "class"])
        if use == "rebind":
            handle.rebind(self.one_of([other, None]))
        elif use == "whole":
            handle.whole = self.one_of([other, None, 1])
        elif use == "repr":
            repr(handle), hash(handle), handle == other
        elif use == "copy":
            self.one_of([copy.copy, copy.deepcopy, pickle.dumps])(handle)
        elif use == "class":
            handle.__class__ = self.one_of([*self.values, *self.rows, int])
        else:
            found = getattr(handle, use)
            if use == "refs" and found is not None:
                self.lists.append([*found])

    def drop(self) -> None:
        """Delete some object."""
        things = self.one_of([self.handles, self.handles, self.forms, self.functions, self.lists])
        if things:
            del things[int(self.rng.integers(len(things)))]

    def change_list(self) -> None:
        found = self.one_of(self.lists)
        change = self.one_of(["clear", "append", "pop", "double"])
        if change == "clear":
            found.clear()
        elif change == "append":
            found.append(self.thing(1))
        elif change == "pop":
            found.pop()
        elif len(found) < 100:
            found *= 2

    def decode(self) -> None:
        """Decode the log, with arguments that may be wrong."""
        log, refs = self.log(), [self.ref() for _ in range(int(self.rng.integers(3)))]
        owner = self.one_of([None, np.zeros(int(self.rng.integers(40)), np.int32)])
        log_ptr: list[Any] = [0, len(log)]
        if self.rng.random() < 0.3:
            log_ptr.insert(1, self.number())
        slots, ptr = [0] * len(refs), [0] * (len(log_ptr) - 1) + [len(refs)]
        for part in (log_ptr, slots, ptr):
            if self.rng.random() < 0.07:
                part[int(self.rng.integers(len(part)))] = self.number()
                self.lists.append(part)
        log.decode(log_ptr, refs, slots, ptr, owner)

    def use_log(self) -> None:
        """Use another method of a log."""
        log = self.log()
        use = self.one_of([
            lambda: log.ints(self.number(), self.number()), lambda: log.ints(0, len(log)), lambda: log.sweep(),
            lambda: log.floats(0, log.n_floats), lambda: log.floats(self.number(), self.number()),
            lambda: log.form_of(self.ref()), lambda: log.uses_form(self.number()),
            lambda: log.renumber(self.rng.integers(-2, 9, int(self.rng.integers(40))).astype(np.int32)),
            lambda: log.add(self.number(), [self.ref() for _ in range(int(self.rng.integers(4)))], [self.number()]),
            lambda: log.add(0, (self.ref(), self.ref()), ()), lambda: log.add_form([self.number(), END]),
            lambda: log.add_form((0, *self.rng.integers(-1, 5, 4).tolist(), END)),
            lambda: (log.n_bytes, log.begun, log.n_instances, log.sources, log.functions, log.draw, log.source),
            lambda: array_key(self.thing()), lambda: seal(self.thing()), lambda: copy.copy(log),
        ])  # fmt: skip
        use()

    def run_log(self) -> None:
        """Run a function on some instances."""
        instances, lists = [self.thing() for _ in range(3)], [list[Any]() for _ in range(5)]
        self.lists += [instances, lists[2]]
        known = {self.kind(False): self.one_of([(0, "structure"), (0,), 1])}
        function = self.one_of([Meddler(self, 1), self.one_of(self.functions), lambda x: x])
        self.log().run(function, instances, known, Meddler(self, 1), *lists)

    def begin(self) -> None:
        """Begin a recording or a phase."""
        if self.rng.random() < 0.4:
            self.log().begin(self.one_of([False, True, Meddler(self, 1)]))
        else:
            self.log().clear()

    def set_draw(self) -> None:
        """Set the log's function that draws numbers."""
        self.log().draw = self.one_of([None, lambda: 3, Meddler(self, 1), 5, *self.functions])

    def set_stage(self) -> None:
        """Set the current stage, mostly to a recorder."""
        STAGE.current = self.one_of([*self.owners[:1] * 6, *self.owners, None, 3])

    def forget_log(self) -> None:
        """Drop a log, or replace it."""
        owner = self.one_of(self.owners)
        owner.log = self.one_of([None, Log(owner)])
        if owner.log is not None:
            self.logs[int(self.rng.integers(len(self.logs)))] = owner.log

    # Cells.

    def add_cell(self) -> None:
        """Let a function record a cell, or forget all cells."""
        if self.rng.random() < 0.1:
            self.log().forget_cells()
        owner = self.one_of([None, *self.having, *self.having, self.thing()])
        self.log().add_cell(self.one_of([*self.cells] * 4 + [self.thing()]), owner, self.one_of(self.functions))

    def call_cell(self) -> None:
        """Call a cell as a function or a method, or change the classes that have it."""
        cell, having = self.one_of(self.cells), self.one_of(self.having)
        args = [self.thing() for _ in range(int(self.rng.integers(3)))]
        use: Callable[[], Any] = self.one_of([
            lambda: cell(*args), lambda: cell(having, *args), lambda: having.cell(*args), lambda: having.cell,
            lambda: cell(*args, b=self.thing()), lambda: BoundCell(cell, self.thing())(*args, b=1),
            lambda: setattr(type(having), self.one_of(["cell", "other"]), self.one_of([*self.cells, 1])),
            lambda: self.cells.append(DrawnCell(self)), lambda: self.cells.pop(),
            lambda: copy.copy(having.cell), lambda: repr(having.cell), lambda: DrawnCell.__new__(DrawnCell)(1),
            lambda: seal_cells(self.one_of([DrawnCell, int, Meddler])), lambda: cell.__get__(self.thing()),
        ])  # fmt: skip
        self.keep(use())

    # Tapes, and the objects that they request.

    def open_tape(self) -> None:
        """Open a tape, or close one."""
        if self.tapes and self.rng.random() < 0.6:
            tape = self.one_of(self.tapes)
            self.one_of([tape.close, tape.close, tape.save])()
        else:
            begun = self.one_of([None, (0, 0), (0, 0), (self.number(), self.number()), 3])
            self.tapes.append(Tape(self.log(), begun))

    def log_call(self) -> None:
        """Log a call, of earlier values, of a form that only logs add."""
        log = self.logs[0]
        values = [handle.ref for handle in self.handles if handle.ref >> 8 < 2**31][-4:] or [0]
        code, ints = self.one_of([
            ((VALUE, 1, 0, VALUE, 1, 1), [0, 1]), ((VALUE, 2, 0, 1), [0]), ((EACH, 1, 1, 0), [2, 0, 1]),
            ((EACH, 2, 1, 0, 1, 1, WORDS, 1), [1, 0, 1, 5]), ((ROWS, 2, VALUE, 1, 0), [2, 1, 2, 3, 4, 0]),
        ])  # fmt: skip
        n, at = (1 if code[0] in (EACH, ROWS) else 0), [k for k in range(len(ints)) if ints[k] < 2]
        ints = [self.one_of(values) if k in at and k >= n and code[0] != ROWS else x for k, x in enumerate(ints)]
        if code[0] == ROWS:
            ints[-1] = self.one_of(values)
        number = log.add_form((0, *code, END))
        self.codes[number] = code
        floats = [0.5] * (number % 3)  # as in the layout of the form
        self.handles.append(log.value(self.values[0], log.add(number, ints, floats), False))

    def walk(self) -> None:
        """Record derivatives, after a few calls."""
        if self.rng.random() < 0.8:
            STAGE.current = self.owners[0]
            tape = Tape(self.logs[0], self.one_of([None, (0, 0)]))
            for _ in range(4):
                self.attempt(self.log_call)
            self.tapes.append(tape)
            tape.close()
        tape, n = self.tapes[-1] if self.rng.random() < 0.8 else self.one_of(self.tapes), int(self.rng.integers(1, 4))
        made = [number << 8 | k for _, number in tape.calls for k in range(2)]
        read = [ref for k, _ in enumerate(tape.calls) for refs in tape.refs_of(k).values() for ref in refs]
        sources: tuple[list[int], ...] = (made, [], read) if self.rng.random() < 0.5 else (read, [], [])
        refs = [
            [self.one_of(known) if known and self.rng.random() < 0.9 else self.ref() for _ in range(n)]
            for known in sources
        ]
        if self.rng.random() < 0.1:
            refs[0].append(self.number())
        parameters = (TEXT, self.owners[0])[: int(self.rng.integers(3))]
        if self.rng.random() < 0.6:
            found = tape.gradients(*refs, parameters)
        else:
            found = tape.tangents(*refs[:2], parameters, tuple(self.thing() for _ in parameters))
        for ref in refs[0]:
            self.one_of([found.total, found.total_or_zeros])(ref, (2,))
        found.of_parameter(TEXT, (2,))

    def make_layout(self, form: int) -> Any:
        """Describe the calls of a form, mostly correctly."""
        items, leaves, code, n_items = list[int](), list[int](), [*self.codes.get(form, ())], 0
        while code:
            kind, n_items = code.pop(0), n_items + 1
            n_parts, parts = (code.pop(0) if kind == EACH else 1), list[int]()
            size = code.pop(0) if kind in (WORDS, ROWS) else 0
            for _ in range(n_parts):
                n = 1 if size else code.pop(0)
                parts += [n, *range(len(leaves), len(leaves) + n)]
                leaves += range(len(leaves), len(leaves) + n)
                del code[: 0 if size else n]
            items += [kind, 0 if kind in (EACH, ROWS) else -1, size, n_parts, *parts]
        outputs = [number for k in range(2) for number in (k, k, self.one_of([-1, -1, 0, 1]), 0)]
        arguments = [number for leaf in leaves for number in (leaf, self.one_of([-1, -1, 0]), 1)]
        floats = [[0], [1, WORDS, -1, 1], [2, WORDS, -1, 1, WORDS, -1, 1]][form % 3]
        found = [n_items, *items, *floats, 2, *outputs, len(leaves), *arguments]
        self.spoil_ints(found)
        self.attempt(self.meddle)
        parameters = self.one_of([(), (TEXT,), (self.owners[0], TEXT)])
        n_lists = 0 if self.rng.random() < 0.02 else 2
        return Layout(form, n_lists, found, ((2,), (3,)), parameters, self.count_rows)

    def make_rule(
        self, layout: Any, kind: int, outputs: Any, leaves: Any, own: Any, given: Any, lengths: Any
    ) -> Any:  # fmt: skip
        """Make a rule for a derivative, mostly a correct one."""
        base = self.codes.get(layout.form, ())
        code = (*base, *[number for _ in given for number in (EACH, 1, 1, 0)])
        number = self.logs[0].add_form((1, *code, END))
        self.codes[number] = code
        n_items = sum(1 for _ in _items(base))
        results = [(0, leaf) for leaf in leaves] if kind == 0 else [(2, output) for output in outputs]
        results += [(1, n) for n in range(len(own))] if kind == 0 else []
        passed = [self.one_of([-1] * 5 + [0]) if given else -1 for _ in results]
        own_given = range(len(given))
        found = [n_items, *[x for place in range(n_items) for x in (place, -1)], self.one_of([0, 0, 1])]
        found += [0, -1] if found[-1] else []
        found += [1, 0] if self.rng.random() < 0.1 else [0]
        found += [len(given), *own_given, len(results)]
        found += [
            x
            for (of, name), by in zip(results, passed, strict=True)
            for x in (of, name, by, self.one_of([-1, -1, 0, 1]))
        ]
        self.spoil_ints(found)
        self.attempt(self.meddle)
        return Rule(
            layout, number, len(given), found, bool(self.rng.random() < 0.3),
            lambda lengths: bool(self.rng.random() < 0.8), self.count_rows,
        )  # fmt: skip

    def make_sum_form(self, shape: Any) -> Any:
        """Add a form of sums."""
        self.attempt(self.meddle)
        return self.logs[0].add_form((2, EACH, 1, 1, 0, END)) if self.rng.random() < 0.95 else self.number()

    def make_zeros(self, shape: Any) -> Any:
        self.attempt(self.meddle)
        return self.one_of(self.handles) if self.rng.random() < 0.95 else self.thing()

    def count_rows(self, group: int, lengths: Any) -> Any:
        """Draw the number of rows of a group."""
        self.attempt(self.meddle)
        return 2 if self.rng.random() < 0.9 else self.number()

    def spoil_ints(self, ints: list[Any]) -> None:
        """Occasionally change one of some ints."""
        if ints and self.rng.random() < 0.15:
            ints[int(self.rng.integers(len(ints)))] = self.number()
            self.lists.append(ints)

    def collect(self) -> None:
        gc.collect(int(self.rng.integers(2)))


STEPS: tuple[Callable[[World], Any], ...] = (
    World.add_form, World.add_form, World.add_function, World.set_forms, World.call, World.call, World.call,
    World.call_well, World.call_well, World.call_well, World.record_tuple, World.add_handle, World.use_handle,
    World.drop, World.change_list, World.decode, World.decode, World.use_log, World.use_log, World.run_log, World.begin,
    World.set_draw, World.set_stage, World.set_stage, World.forget_log, World.collect, World.open_tape, World.walk,
    World.walk, World.walk, World.add_cell, World.call_cell, World.call_cell, drive,
)  # fmt: skip
MEDDLING: tuple[Callable[[World], Any], ...] = (
    World.begin, World.decode, World.change_list, World.change_list, World.drop, World.call, World.call_well,
    World.use_log, World.set_stage, World.collect, World.set_forms, World.set_draw, World.forget_log, World.run_log,
    World.open_tape, World.walk, World.add_cell, World.call_cell, drive,
)  # fmt: skip


def _items(code: tuple[int, ...]) -> Iterator[int]:
    """Yield the kinds of the items of a code."""
    left = [*code]
    while left:
        kind = left.pop(0)
        yield kind
        n_parts = left.pop(0) if kind != VALUE else 1
        for _ in range(n_parts if kind in (VALUE, EACH) else 0):
            del left[: 1 + left[0]]


def main(start: int, stop: int) -> None:
    """Run the programs of these seeds; print each seed before its program."""
    counts = Counter[str]()
    sys.unraisablehook = lambda unraisable: None
    for seed in range(start, stop):
        os.write(1, f"{seed}\n".encode())
        world = World(seed)
        world.run()
        counts += world.counts
    os.write(1, f"counts {dict(counts)}\n".encode())


if __name__ == "__main__":
    main(*map(int, sys.argv[1].split(":")))
