"""Call forms: the recognition of calls of a cell, and the ints that are logged for each call.

A form is a list of steps for the native core (`native/record/forms.h`). They test the arguments, which are in numbered
registers, and load their parts into further registers. For `merge(left, right)` of two pairs of values:

    ("class", 0, tuple), ("size", 0, 2), ("item", 0, 0, 2), ("item", 0, 1, 3), ("class", 2, Value), ("class", 3, Value),
    ("class", 1, tuple), ...

If all tests hold, the core logs the call: the ref of its result, then the ints that the writers name, ("ref", 2),
("ref", 3), ... . `code` describes this to the decoder.

A form is finer than a type: calls of one type may pass data in several ways.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain, count
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autobatch._native import Form as CallForm
from autobatch._native import Log
from autobatch.errors import DataError, GraphError
from autobatch.ir.arguments import (
    BY_IDENTITY,
    PLAIN,
    Fixed,
    Key,
    Static,
    exact,
    is_by_identity,
    is_hashable,
    is_structure,
    parts_of,
)
from autobatch.ir.program import DRAW, LEAVES, NODE, Attribute, CellProgram, first_leaf
from autobatch.ir.typetable import NodeType
from autobatch.trace.awaiting import close
from autobatch.trace.elements import Lengths
from autobatch.trace.handles import Handles, Outputs, Rows, Value

VALUE, WORDS, EACH, ROWS, END = 0, 1, 2, 3, 4
"""The codes by which a form describes logged calls to the decoder of the log; see `native/record/decode.h`."""

BOOL = "bool"
INTS = ("int", "ints", "each")
MOST_DEPTH = 2000  # of an argument; hashing a deeper key could overflow the stack of a thread
MOST = 2**62  # above the number of rows of any list
Step: TypeAlias = tuple[Any, ...]
"""A test or load: its name, the register, and operands; objects to compare bit by bit are `Static`."""


class Leaf(NamedTuple):
    """A part of a call's arguments: data, values, or a list of values.

    Attributes:
        kind: "value", "int", "ints", "float", "floats", "each", or "rows" of data.
        text: its expression.
        register: its register.
        first: the number of the first leaf.
        refs: for "each", the registers of an element's values; none if the elements hold only data.
        leaves: the leaf number of each value; for "each", of each value of one element.
    """

    kind: str
    text: str
    register: int
    first: int
    refs: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()


class Element(NamedTuple):
    """The matching and logging of a list element, or part of one.

    Attributes:
        key: the key of the element.
        refs, ints, floats: register and leaf of each value, of each int or array of ints, and of each float.
    """

    key: Key
    refs: list[tuple[int, int]]
    ints: list[tuple[int, int]]
    floats: list[tuple[int, int]]


class NotAlike(Exception):
    """The elements of a list do not share a form of values and data."""


class Steps:
    """The steps of a form, or of the elements of a list.

    Args:
        n: number of registers that are filled at the start.

    Attributes:
        steps: the steps so far.
        n_registers: number of registers in use.
    """

    def __init__(self, n: int) -> None:
        self.steps: list[Step] = []
        self.n_registers = n

    def test(self, name: str, register: int, *what: Any) -> None:
        self.steps.append((name, register, *what))

    def load(self, name: str, register: int, what: Any) -> int:
        """Append a load of a part of a register's object; return the number of the new register."""
        self.steps.append((name, register, what, self.n_registers))
        self.n_registers += 1
        return self.n_registers - 1

    def is_exactly(self, register: int, x: Any) -> None:
        """Test that a register holds `x`, or a bit-identical equal object."""
        if isinstance(x, (bool, type(None))) or is_by_identity(x):
            self.test("is", register, Static(x))
        elif type(x) is tuple and all(type(part) in (str, int) for part in x):
            self.test("plain", register, Static(x))
        # By bits: == equates 0.0 with -0.0 and, inside tuples, 1 with True; and NaN with nothing.
        elif isinstance(x, (float, complex, np.generic, tuple, frozenset)) or is_dataclass(x):
            self.test("class", register, Static(type(x)))
            self.test("same", register, Static(exact), Static(exact(x)))
        else:
            self.test("equal", register, Static(x))

    def parts(self, register: int, x: Any) -> list[int]:
        """Test that a register holds a container of the form of `x`, and load its parts; return their registers."""
        if isinstance(x, dict):
            self.test("class", register, Static(type(x)))
            self.test("keys", register, Static(tuple(x)), Static(exact))
            return [self.load("key", register, Static(key)) for key in x]
        self.test("class", register, Static(type(x)))
        if is_dataclass(x):
            return [self.load("attribute", register, Static(f.name)) for f in fields(x)]
        self.test("size", register, len(x))
        return [self.load("item", register, i) for i in range(len(x))]

    def array(self, register: int, x: Any, tells_bools: bool, is_ragged: bool = False) -> Key:
        """Test that a register holds an array of the shape and kind of `x`; return its key (if ragged, of a row)."""
        shape = x.shape[1:] if is_ragged else x.shape
        kind, letters, dtype = "float", "f", ""
        if x.dtype.kind != "f":
            letters = "iub" if not tells_bools else "b" if x.dtype.kind == "b" else "iu"
            kind, dtype = "int", BOOL if letters == "b" else ""
        self.test("rows" if is_ragged else "array", register, letters, shape)
        return Key(kind, shape, dtype=dtype)


def unwrapped(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Convert steps to plain tuples, as the core takes them."""
    plain = (tuple(x.value if type(x) is Static else x for x in step) for step in steps)
    return tuple((*step[:2], unwrapped(step[2]), step[3]) if step[0] == "each" else step for step in plain)


class FormReader:
    """Reads one call's arguments: their keys, the steps that identify the form, and its leaves in order.

    Args:
        names: names of the arguments, which are in the first registers.
        handles: the classes of values.
        is_static: whether an argument (by name) or a value in it is part of the type.
        ragged: the arguments whose arrays have any number of rows.
        fixed: the lists (by expression) whose length the cell's body needs, and the data whose numbers it needs.
        tells_bools: whether arrays of bools and of ints are of different types.

    Attributes:
        program: the steps.
        leaves: the leaves of the arguments, in order.
        lists: the expressions of the variadic groups.
        registers: the registers of the groups.
        lengths: the lengths of the groups.
        rows: the expressions of the groups that are not lists.
        data_of: the elements of lists and the rows of arrays that hold data, by variadic group.
        of_one_length: the reasons why the elements of a list are separate arguments, by the list's expression.
    """

    def __init__(
        self,
        names: Iterable[str],
        handles: Handles,
        is_static: Callable[[str, Any], bool],
        ragged: tuple[str, ...],
        fixed: set[str],
        tells_bools: bool,
    ) -> None:
        self.names = tuple(names)
        self._register_of = {name: register for register, name in enumerate(self.names)}
        self.program = Steps(len(self._register_of))
        self.tells_bools = tells_bools
        self.handles, self.is_static = handles, is_static
        self.ragged, self.fixed = ragged, fixed
        self.leaves: list[Leaf] = []
        self.lists: list[str] = []
        self.registers: list[int] = []
        self.rows: set[str] = set()
        self.lengths: list[int] = []
        self.data_of: dict[int, Element] = {}
        self.of_one_length: dict[str, str] = {}
        self.n_leaves = 0
        self._depth = 0

    @property
    def conditions(self) -> tuple[Step, ...]:
        """Return the steps, which are equal for calls of one form."""
        return tuple(self.program.steps)

    def read(self, name: str, x: Any, text: str) -> Key:
        """Read the value of the expression `text`, which is argument `name` or a part of it; return its key."""
        register = self._register_of[text]
        if self.is_static(name, x):
            return self._static(name, x, register)
        if isinstance(x, Rows):
            return self._rows_handle(x, text, register)
        if isinstance(x, Value):
            return self._handle(x, text, register)
        if text in self.fixed and isinstance(x, (int, float, np.ndarray)):
            self.program.test("class", register, Static(type(x)))
            self.program.test("same", register, Static(Fixed), Static(Fixed(x)))
            return Key("static", Static(Fixed(x)))
        if type(x) in (int, float):
            self.program.test("class", register, Static(type(x)))
            return self._data(type(x).__name__, Key(type(x).__name__, ()), text, register)
        if isinstance(x, np.ndarray):
            return self._array(name, x, text, register)
        if type(x) is list and text not in self.fixed and (key := self._each(name, x, text, register)) is not None:
            return key
        if is_structure(x):
            return self._container(name, x, text, register)
        if not isinstance(x, (*PLAIN, *BY_IDENTITY)) and not callable(x):
            if hasattr(x, "__array__"):
                raise DataError(
                    f"arrays in argument {name!r} of a cell must be NumPy arrays, got a {type(x).__name__} of "
                    f"{type(x).__module__.split('.')[0]}; pass np.asarray({name}), or int({name}) for one id or label."
                )
            if isinstance(x, Awaitable):
                close([x])
                raise GraphError(f"argument {name!r} of a cell must be awaited, got {x!r}; write await before it.")
            raise GraphError(
                f"argument {name!r} of a cell must be a value, data or static argument, got {x!r} "
                f"({type(x).__name__}); pass the parts that the body reads, or make it part of the type by naming the "
                f"argument in @ab.cell(static=...)."
            )
        return self._static(name, x, register)

    def data(self, leaves: set[int] | None) -> set[str]:
        """Return the expressions of the ints, arrays of ints and floats among these leaves.

        If `leaves` is None, return those of all ints, or of all floats if there are no ints.
        """
        ints = [(leaf.text, leaf.first) for leaf in self.leaves if leaf.kind in INTS]
        ints += [(self.lists[group], leaf) for group, data in self.data_of.items() for _, leaf in data.ints]
        floats = [(leaf.text, leaf.first) for leaf in self.leaves if leaf.kind == "float"]
        floats += [(self.lists[group], leaf) for group, data in self.data_of.items() for _, leaf in data.floats]
        if leaves is None:
            return {text for text, _ in ints or floats}
        return {text for text, leaf in (*ints, *floats) if leaf in leaves}

    def _handle(self, x: Value, text: str, register: int) -> Key:
        self.handles.check(x)
        self.program.test("class", register, Static(type(x)))
        self.leaves.append(Leaf("value", text, register, self.n_leaves, leaves=(self.n_leaves,)))
        self.n_leaves += 1
        return x.key

    def _rows_handle(self, x: Rows, text: str, register: int) -> Key:
        """Read a value of any number of rows, which is logged as a list of them."""
        self.handles.check(x)
        self.program.test("class", register, Static(type(x)))
        leaf = first_leaf(len(self.lists))
        self.leaves.append(Leaf("each", text, register, leaf, leaves=(leaf,)))
        self.rows.add(text)
        self._add_list(x, text, register)
        return x.key

    def _data(self, kind: str, key: Key, text: str, register: int) -> Key:
        self.leaves.append(Leaf(kind, text, register, self.n_leaves))
        self.n_leaves += 1
        return key

    def _array(self, name: str, x: Any, text: str, register: int) -> Key:
        if x.dtype.kind not in "fiub":
            raise DataError(
                f"argument {name!r} of a cell must be an array of floats, ints or bools, got dtype {x.dtype}; convert "
                f"it first."
            )
        is_ragged = name in self.ragged and x.ndim > 0
        key = self.program.array(register, x, self.tells_bools, is_ragged)
        if not is_ragged:
            return self._data(f"{key.kind}s", key, text, register)
        leaf = first_leaf(len(self.lists))
        self.leaves.append(Leaf("rows", text, register, leaf))
        self.data_of[len(self.lists)] = Element(key, [], [(register, leaf)], [])
        self.rows.add(text)
        self._add_list(x, text, register)
        return Key("rows", None, (key,))

    def _static(self, name: str, x: Any, register: int) -> Key:
        if isinstance(x, np.ndarray) or not (isinstance(x, BY_IDENTITY) or is_hashable(x)):
            raise GraphError(
                f"argument {name!r} of a cell must be hashable to be static, got {x!r} ({type(x).__name__}); pass a "
                f"tuple or a frozenset instead."
            )
        self.program.is_exactly(register, x)
        return Key("static", Static(x))

    def _each(self, name: str, x: list[Any], text: str, register: int) -> Key | None:
        """Return the key of a list of any length if its elements share a form of values and data; else None."""
        if not x:
            self.program.test("empty", register)
            self._add_list(x, text, register)
            return Key("each", None)
        group, found, depth = len(self.lists), dict[Any, tuple[Element, Steps]](), self._depth
        try:
            # Elements of one make-up have the same key and steps, so one of them is read.
            for element in {_make_up(element): element for element in x}.values():
                steps = Steps(1)
                part = self._element(name, element, 0, steps, count(first_leaf(group)))
                found[part.key, tuple(steps.steps)] = part, steps
        except NotAlike as error:
            self._depth = depth
            self.of_one_length[text] = str(error)
            return None
        part, steps = next(iter(found.values()))
        if len(found) > 1 or not any(True for _ in part.key.leaves()):
            keys = dict.fromkeys(str(key) for key, _ in found)
            self.of_one_length[text] = f"differ: {' and '.join(keys)}"
            return None
        self.program.test("each", register, tuple(steps.steps), steps.n_registers)
        refs, leaves = zip(*part.refs, strict=True) if part.refs else ((), ())
        self.leaves.append(Leaf("each", text, register, first_leaf(group), refs, leaves))
        self.data_of[group] = part
        self._add_list(x, text, register)
        return Key("each", None, (part.key,))

    def _element(self, name: str, x: Any, register: int, steps: Steps, leaves: Iterator[int]) -> Element:
        """Read a list element, or part of one.

        Args:
            register: its register in the element's steps.
            leaves: yields the next leaf numbers.

        Raises:
            NotAlike: the element is neither a value nor data.
        """
        if self.is_static(name, x):
            raise NotAlike(f"hold {x!r}, which is part of the type")
        if isinstance(x, Value) and not isinstance(x, Rows):
            self.handles.check(x)
            steps.test("class", register, Static(type(x)))
            return Element(x.key, [(register, next(leaves))], [], [])
        if type(x) in (int, float):
            steps.test("class", register, Static(type(x)))
            data = [(register, next(leaves))]
            return Element(Key(type(x).__name__, ()), [], *((data, []) if type(x) is int else ([], data)))
        if isinstance(x, np.ndarray) and x.dtype.kind in "iub":
            return Element(steps.array(register, x, self.tells_bools), [], [(register, next(leaves))], [])
        if not is_structure(x) or isinstance(x, list):
            raise NotAlike(f"hold {_describe(x)}")
        self._enter(name)
        registers = steps.parts(register, x)
        parts = [self._element(name, y, at, steps, leaves) for y, at in zip(parts_of(x), registers, strict=True)]
        refs = [*chain.from_iterable(part.refs for part in parts)]
        ints = [*chain.from_iterable(part.ints for part in parts)]
        floats = [*chain.from_iterable(part.floats for part in parts)]
        self._depth -= 1
        return Element(Key.of_structure(x, [part.key for part in parts]), refs, ints, floats)

    def _add_list(self, x: Any, text: str, register: int) -> None:
        self.lists.append(text)
        self.registers.append(register)
        self.lengths.append(len(x))

    def _enter(self, name: str) -> None:
        """Count the containers around a part of an argument."""
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise GraphError(
                f"argument {name!r} of a cell must be nested at most {MOST_DEPTH} deep, got more; call a cell for each "
                f"level instead."
            )

    def _container(self, name: str, x: Any, text: str, register: int) -> Key:
        self._enter(name)
        if isinstance(x, dict):
            texts = [f"{text}[{key!r}]" for key in x]
        else:
            texts = (
                [f"{text}.{f.name}" for f in fields(x)] if is_dataclass(x) else [f"{text}[{i}]" for i in range(len(x))]
            )
        self._register_of.update(zip(texts, self.program.parts(register, x), strict=True))
        keys = [self.read(name, part, at) for part, at in zip(parts_of(x), texts, strict=True)]
        self._depth -= 1
        return Key.of_structure(x, keys)


class Item(NamedTuple):
    """The logged ints or floats of one part of a call's arguments.

    Attributes:
        kind: VALUE or EACH of the decoder's codes, WORDS or ROWS for ints or floats.
        leaves: the leaves of each ref of a value or list element; else those of data.
        size: number of ints or floats, of the node or of each row.
        group: the variadic group of its rows.
        columns: for ROWS, the leaf of each int or float in a row.
    """

    kind: int
    leaves: tuple[tuple[int, ...], ...]
    size: int = 0
    group: int = NODE
    columns: tuple[int, ...] = ()

    def is_needed(self, program: CellProgram) -> bool:
        """Return whether a program reads it."""
        return not program.leaves.keys().isdisjoint(chain(*self.leaves))

    def code(self, program: CellProgram) -> list[int]:
        """Return the code by which the decoder reads it for a program."""
        if self.kind in (WORDS, ROWS):
            return [self.kind, self.size]
        ports = [[len(part), *(program.leaves.get(leaf, -1) for leaf in part)] for part in self.leaves]
        return [*([EACH, len(ports)] if self.kind == EACH else [VALUE]), *chain(*ports)]


@dataclass(frozen=True, eq=False)
class Form:
    """One recognized way to call a cell.

    Attributes:
        conditions: the steps that identify the form.
        code: the code for the decoder.
        ints: the logged ints, in order, after the ref of the result.
        floats: the logged float attributes.
        recorder: the native form, which recognizes and logs calls; None for a form that only `Log.add` logs.
    """

    conditions: tuple[Step, ...]
    code: tuple[int, ...]
    ints: tuple[Item, ...]
    floats: tuple[Item, ...]
    recorder: CallForm | None = None


def make_form(reader: FormReader, log: Log, node_type: NodeType, lengths: Lengths, outputs: Outputs) -> Form:
    """Make the form of the call that `reader` read, which is of this type.

    Args:
        log: receives the form's code.
        lengths: the lengths of lists for which the type is valid.
        outputs: the results of calls.
    """
    program = node_type.program
    data = {v.source.leaf: v.size for v in program.vars if isinstance(v.source, Attribute)}
    group_of = {register: group for group, register in enumerate(reader.registers)}
    write_ints, ints = list[Step](), list[Item]()
    write_floats, floats = list[Step](), list[Item]()
    # `write_ints` says what the core logs, and `ints` how the decoder and tapes read it, so both need the same order;
    # so do `write_floats` and `floats`.
    for leaf in reader.leaves:
        if leaf.kind == "value":
            item = Item(VALUE, (leaf.leaves,), group=NODE)
            if item.is_needed(program):
                write_ints.append(("ref", leaf.register))
                ints.append(item)
        elif leaf.kind == "each":
            write_ints.append(("count", group_of[leaf.register]))
            if leaf.refs:
                write_ints.append(("each", leaf.register, leaf.refs))
            elif leaf.leaves:
                write_ints.append(("refs", leaf.register))
            ints.append(Item(EACH, tuple((one,) for one in leaf.leaves), group=leaf.first // LEAVES + NODE))
        elif leaf.kind.startswith("int") and leaf.first in data:
            write_ints.append((leaf.kind, leaf.register))
            ints.append(Item(WORDS, ((leaf.first,),), data[leaf.first]))
        elif leaf.kind.startswith("float") and leaf.first in data:
            write_floats.append((leaf.kind, leaf.register))
            floats.append(Item(WORDS, ((leaf.first,),), data[leaf.first]))
    if program.draws and DRAW in data:
        write_ints.append(("draw",))
        ints.append(Item(WORDS, ((DRAW,),), 1))
    for group in program.data_groups:  # data of rows follows all other attributes of a node
        (of_ints, rows), (of_floats, float_rows) = (_rows_of(reader, program, group, kind) for kind in (False, True))
        write_ints += [("count", group), *rows]
        write_floats += float_rows
        ints.append(of_ints)
        floats.append(of_floats)
    # No output needs the draw, but it is counted, so that later draws have the same numbers as in eager mode.
    if program.draws and DRAW not in data:
        write_ints.append(("count_draw",))
    # (group, other, least, most): the groups have equal lengths or, if `other` is -1, the length is in least..most.
    bounds = [(first, second, 0, 0) for first, second in program.ties]
    bounds += [(group, -1, 1, 1) for group in program.ones]
    bounds += [(group, -1, n, MOST) for group, (n, _) in program.least.items()]
    code = code_of(node_type, ints)
    recorder = CallForm(
        log, log.add_form(code), len(reader.names), reader.program.n_registers, unwrapped(reader.program.steps),
        _groups(reader, program), tuple(bounds), lengths.walked, lengths.found, tuple(write_ints), tuple(write_floats),
        outputs.kinds, outputs.structure,
    )  # fmt: skip
    return Form(reader.conditions, code, tuple(ints), tuple(floats), recorder)


def _groups(reader: FormReader, program: CellProgram) -> tuple[Any, ...]:
    """Describe the variadic groups to the core: the register of a list, or the parts of a derived group."""
    derived = program.derived
    n = max(len(reader.lists), *(group + 1 for group in derived), 0, 0)
    return tuple(
        reader.registers[group]
        if group < len(reader.lists)
        else tuple((part.group, part.n, part.cut, part.times) for part in derived.get(group, ()))
        for group in range(n)
    )


def _rows_of(reader: FormReader, program: CellProgram, group: int, is_float: bool) -> tuple[Item, list[Step]]:
    """Return the item for a variadic group's logged ints or floats, and the steps that write it."""
    attributes = [(v.source, v.size) for v in program.vars if isinstance(v.source, Attribute) and v.domain == group]
    own = {source.leaf: size for source, size in attributes if source.is_float == is_float}
    columns = tuple(leaf for leaf, size in own.items() for _ in range(size))
    item = Item(ROWS, tuple((source.leaf,) for source, _ in attributes), len(columns), group, columns)
    data = reader.data_of.get(group)
    if not own or data is None:
        return item, []
    if reader.lists[group] in reader.rows:
        return item, [("floats" if is_float else "ints", reader.registers[group])]
    # `own` is in the order of the program's attributes, which is that of the columns, not in the order of the
    # arguments.
    parts = {leaf: register for register, leaf in (data.floats if is_float else data.ints)}
    return item, [("each_floats" if is_float else "each", reader.registers[group], tuple(parts[leaf] for leaf in own))]


def code_of(node_type: NodeType, ints: Iterable[Item]) -> tuple[int, ...]:
    """Return the code that describes logged calls of a type to the decoder."""
    return (node_type.number, *chain.from_iterable(item.code(node_type.program) for item in ints), END)


def _make_up(x: Any) -> Any:
    """Return the key of a list element; elements with equal keys have parts of the same kinds."""
    if type(x) is tuple:
        return tuple(map(_make_up, x))
    if isinstance(x, Value):
        return type(x)
    if isinstance(x, np.ndarray):
        return x.shape, x.dtype.kind
    if is_structure(x):
        return type(x), (*x,) if isinstance(x, dict) else None, tuple(map(_make_up, parts_of(x)))
    return type(x)


def _describe(x: Any) -> str:
    if isinstance(x, (bool, str, type(None))):
        return f"{x!r}, which is part of the type"
    if isinstance(x, list):
        return "lists, whose lengths may differ"
    return f"a {type(x).__name__}, which is part of the type" if not isinstance(x, Rows) else "arrays of n rows"
