"""Random programs over the objects of the native recorder: they end in results or exceptions, and never in a crash.

A number says all that is drawn: logs, forms that are right or nearly so, functions, values, and calls of all methods.
Some arguments are `Meddler`s, whose methods use the same objects while the core compares, converts or calls them. A
process of its own runs a range of numbers, and writes each before its program, so that the last one of a process that
died is the number to run again:

PYTHONPATH=tests:tools:experiments python -m helpers.runs.recordings 4711:4712
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch._native import Form, Function, Handle, Log, RowsHandle, Shortcut, Stage, array_key, seal
from autobatch.trace.decode import EACH, END, ROWS, VALUE, WORDS

N_STEPS = 40  # of a program
STAGE = Stage()
TEXT = "text"  # an argument that may have a source
NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 48, 255, 256, 2**20, 2**31, 2**40, 2**62, 2**63, 2**70)


class Owner:
    """What records: the stage of a log."""

    log: Any = None


def value_class(base: type = Handle) -> Any:
    """A class of values, or of rows."""
    kind = type("Value", (base,), {"__slots__": ()})
    seal(kind)
    return kind


class Meddler:
    """An object all of whose methods do something else first.

    Args:
        world: in which it does so.
        x: what it stands for.
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
        seed: says all that is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.rng, self.depth = np.random.default_rng(seed), 0
        self.counts = Counter[str]()
        self.owners = [Owner() for _ in range(2)]
        for owner in self.owners:
            owner.log = Log(owner)
            owner.log.begin(bool(self.rng.random() < 0.6))
        self.logs: list[Any] = [owner.log for owner in self.owners]
        self.values, self.rows = [value_class() for _ in range(2)], [value_class(RowsHandle)]
        self.forms: list[Any] = []
        self.functions: list[Any] = []
        self.handles: list[Any] = []
        self.lists: list[list[Any]] = [[], [1, 2]]
        STAGE.current = self.owners[0]
        for _ in range(3):
            self.attempt(self.add_form)
            self.attempt(self.add_function)
        for _ in range(4):
            self.attempt(self.add_handle)

    def one_of(self, things: Any) -> Any:
        """One of some things."""
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
        """Do all steps of the program."""
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

    # What steps take.

    def number(self) -> Any:
        """A number, most often a small one."""
        draw = self.rng.random()
        if draw < 0.1:
            return Meddler(self, int(self.rng.integers(3)))
        return self.one_of(NUMBERS) if draw < 0.3 else int(self.rng.integers(4))

    def log(self) -> Any:
        """One of the logs."""
        return self.one_of(self.logs) if self.rng.random() < 0.3 else self.logs[0]

    def ref(self) -> Any:
        """A ref of a value, or a number."""
        known = [handle.ref for handle in self.handles[-5:]]
        return self.one_of(known) if known and self.rng.random() < 0.8 else self.number()

    def kind(self, of_rows: bool) -> Any:
        """A class of values, or of rows; at times another one."""
        return self.one_of(self.rows if of_rows != (self.rng.random() < 0.03) else self.values)

    def thing(self, depth: int = 0) -> Any:
        """Some argument of a cell."""
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
        """Nested tuples with one part that is another."""
        if isinstance(x, tuple) and x and self.rng.random() < 0.9:
            k = int(self.rng.integers(len(x)))
            part = self.spoilt(x[k])
            return self.one_of([(*x[:k], part, *x[k + 1 :])] * 5 + [(*x[:k], *x[k + 1 :]), (*x, part)])
        return self.one_of([self.number, self.thing, lambda: (), lambda: (x,), lambda: self.kind(False)])()

    # Steps.

    def add_form(self) -> Any:
        """Make a form that is right, or one that is nearly so."""
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
        walked, lengths = ((0,), {(2,), (3,)}) if groups and self.rng.random() < 0.3 else ((), set())
        args = [log, number, n, n_registers, steps, groups, (), walked, lengths, ints, floats, outputs, structure]
        for _ in range(int(self.one_of([0, 0, 0, 1, 2]))):
            k = int(self.rng.integers(1, len(args)))
            args[k] = self.spoilt(args[k])
        self.forms.append(Form(*args))
        return self.forms[-1]

    def add_function(self) -> None:
        """Make a function, with some forms."""
        n = int(self.rng.integers(3))
        bind = self.one_of([lambda args, kwargs: [*args, *kwargs.values()], Meddler(self, ())])
        slow = self.one_of([lambda arguments: None, Meddler(self, 1), *self.functions[:1]])
        names, lifts = tuple("abc"[:n]), bytes(self.rng.integers(0, 8, n).tolist())
        found = Function(self.log(), "name", names, (None,) * int(self.rng.integers(3)), n, bind, slow, lifts)
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
            inner, takes = self.one_of([1, Meddler(self, 1)]), int(self.rng.integers(3))
            self.functions.append(Shortcut(self.one_of(self.functions), inner, takes))

    def set_forms(self) -> None:
        """Give a function other forms."""
        function = self.one_of(self.functions)
        function.forms = tuple(self.one_of(self.forms) for _ in range(int(self.rng.integers(1, 4))))

    def call(self) -> None:
        """Call a function."""
        args = [self.thing() for _ in range(int(self.rng.integers(1, 3)))]
        kwargs = {"b": args.pop()} if self.rng.random() < 0.1 else {}
        self.keep(self.one_of(self.functions)(*args, **kwargs))

    def call_well(self) -> None:
        """Call a form with arguments of which some should suit it."""
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
        """Call a function with a tuple."""
        self.keep(self.one_of(self.functions).record_tuple((self.thing(), self.thing())))

    def keep(self, made: Any) -> None:
        """Keep the values among results."""
        for part in made if isinstance(made, tuple) else (made,):
            if isinstance(part, Handle):
                self.handles.append(part)

    def add_handle(self) -> None:
        """Make a value or rows, by refs or from other values."""
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
        """Use the methods of a value."""
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
        """Change a list."""
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
        """Decode the log, or try to."""
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
        """Run a function of some instances."""
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
        """Set what numbers draws."""
        self.log().draw = self.one_of([None, lambda: 3, Meddler(self, 1), 5, *self.functions])

    def set_stage(self) -> None:
        """Set the stage, most often to what records."""
        STAGE.current = self.one_of([*self.owners[:1] * 6, *self.owners, None, 3])

    def forget_log(self) -> None:
        """Drop a log, or put another one in its place."""
        owner = self.one_of(self.owners)
        owner.log = self.one_of([None, Log(owner)])
        if owner.log is not None:
            self.logs[int(self.rng.integers(len(self.logs)))] = owner.log

    def collect(self) -> None:
        """Collect garbage."""
        gc.collect(int(self.rng.integers(2)))


STEPS: tuple[Callable[[World], Any], ...] = (
    World.add_form, World.add_form, World.add_function, World.set_forms, World.call, World.call, World.call,
    World.call_well, World.call_well, World.call_well, World.record_tuple, World.add_handle, World.use_handle,
    World.drop, World.change_list, World.decode, World.decode, World.use_log, World.use_log, World.run_log, World.begin,
    World.set_draw, World.set_stage, World.set_stage, World.forget_log, World.collect,
)  # fmt: skip
MEDDLING: tuple[Callable[[World], Any], ...] = (
    World.begin, World.decode, World.change_list, World.change_list, World.drop, World.call, World.call_well,
    World.use_log, World.set_stage, World.collect, World.set_forms, World.set_draw, World.forget_log, World.run_log,
)  # fmt: skip


def main(start: int, stop: int) -> None:
    """Run the programs of these numbers; write each before."""
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
