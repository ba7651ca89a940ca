"""Call forms: a few generated lines of Python that recognise how a cell is called and log the call as ints.

    def merge(left, right):
        if __type(left) is Outputs_2 and __type(right) is Outputs_2:
            for __out in pool_5: break
            else: __out = grow_5()
            __to = __log
            __to += (__out[0].ref, left[0].ref, right[0].ref)
            return __out
        return slow_merge(left, right)

The arguments keep their names, and a cell may name an argument `type` or `out`; generated code therefore uses other
names for builtins.

The functions replace methods of modules that other threads may call too. A call that passes recorded values belongs to
the recording; for any other call, the form tests whether this thread records.

A form is finer than a type: it also distinguishes a tuple of all outputs of a node (logged as one int) from a tuple
that the user made (logged as an int per value). `code` describes to the decoder what the form logged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np

from autobatch.errors import DataError, GraphError
from autobatch.ir.arguments import BY_IDENTITY, PLAIN, Fixed, Key, Static, exact, is_hashable, is_structure, parts_of
from autobatch.ir.program import DRAW, LEAVES, NODE, Attribute, CellProgram, first_leaf
from autobatch.ir.typetable import NodeType
from autobatch.ops.rows import count_rows
from autobatch.trace.awaiting import close
from autobatch.trace.decode import EACH, END, ROWS, VALUE, WORDS
from autobatch.trace.elements import Lengths
from autobatch.trace.handles import Handles, Outputs, Rows, Value, path_to_ref

IS_RECORDING = "__stage.current is __calls"  # costs 50 ns
BUILTINS: dict[str, Any] = {
    f"__{x.__name__}": x for x in (type, len, list, tuple, int, float, map, exact, Fixed, np.ndarray, np.float64)
}
BUILTINS["__rows"] = count_rows
BOOL = "bool"
LOG_INTS = {"int": "{}", "ints": "*{}.ravel().tolist()", "each": "*{}"}
LOG_FLOATS = {
    "float": "__log_float({})", "floats": "__log_floats({}.astype(__float64).tobytes())", "each": "__log_each({})",
}  # fmt: skip


@dataclass
class Leaf:
    """A part of a call's arguments, read by the expression `text`: data, values, or a list of values.

    Attributes:
        kind: "value" (a value, or all outputs of a node), "int", "ints", "float", "floats", "each", or "rows" of data.
        first: the number of the first leaf.
        refs: for "value" the expression of its ref; for "each" the name of the list of refs made by the conditions,
            empty if the elements hold only data.
        leaves: the numbers of the leaves of each ref; for "each" of all refs of one element.
    """

    kind: str
    text: str
    first: int
    refs: str = ""
    leaves: tuple[tuple[int, ...], ...] = ()


class Element(NamedTuple):
    """The matching and logging of a list element, or part of one.

    Attributes:
        tests: the conditions that match an expression against the element.
        refs: the expression of each value ref, with its leaves.
        ints, floats: the expression of each int or float, or of several with a star, with its leaf.
    """

    key: Key
    tests: list[str]
    refs: list[tuple[str, tuple[int, ...]]]
    ints: list[tuple[str, int]]
    floats: list[tuple[str, int]]


class EachData(NamedTuple):
    """The data in the elements of a list `x`; see `Element`."""

    ints: list[tuple[str, int]]
    floats: list[tuple[str, int]]


class NotAlike(Exception):
    """The elements of a list do not share a form of values and data."""


class FormReader:
    """Reads one call's arguments: their keys, the conditions that identify the form, and its leaves in order.

    Args:
        handles: gives the classes of values; constant: gives any other object a name in generated code.
        is_static: whether an argument (by name) or a value in it is part of the type.
        ragged: the arguments whose arrays have any number of rows.
        fixed: the lists (by expression) whose length the cell's body needs, and the data whose numbers it needs.
        tells_bools: whether arrays of bools make another type than those of ints.

    Attributes:
        lists: the expressions of the variadic groups, and `lengths` their lengths; `rows` those that are no lists.
        data_of: the data in list elements, by variadic group.
        of_one_length: what the elements of a list do that makes them separate arguments, by the list's expression.
    """

    def __init__(
        self,
        handles: Handles,
        constant: Callable[[Any], str],
        is_static: Callable[[str, Any], bool],
        ragged: tuple[str, ...],
        fixed: set[str],
        tells_bools: bool,
    ) -> None:
        self.tells_bools = tells_bools
        self.handles, self.constant, self.is_static = handles, constant, is_static
        self.ragged, self.fixed = ragged, fixed
        self.conditions: list[str] = []
        self.leaves: list[Leaf] = []
        self.lists: list[str] = []
        self.rows: set[str] = set()
        self.lengths: list[int] = []
        self.data_of: dict[int, EachData] = {}
        self.of_one_length: dict[str, str] = {}
        self.n_leaves = 0

    def read(self, name: str, x: Any, text: str) -> Key:
        """Read the value of the expression `text`, which is argument `name` or a part of it."""
        if self.is_static(name, x):
            return self._static(name, x, text)
        if isinstance(x, Rows):
            return self._rows_handle(x, text)
        if isinstance(x, (Value, Outputs)):
            return self._handle(x, text)
        if text in self.fixed and isinstance(x, (int, np.ndarray)):
            self.conditions.append(f"__type({text}) is {self.constant(type(x))}")
            self.conditions.append(f"__Fixed({text}) == {self.constant(Fixed(x))}")
            return Key("static", Static(Fixed(x)))
        if type(x) in (int, float):
            kind = type(x).__name__
            return self._data(kind, (), text, f"__type({text}) is __{kind}")
        if isinstance(x, np.ndarray):
            return self._array(name, x, text)
        if type(x) is list and text not in self.fixed and (key := self._each(name, x, text)) is not None:
            return key
        if is_structure(x):
            return self._container(name, x, text)
        if not isinstance(x, (*PLAIN, *BY_IDENTITY)) and not callable(x):
            if hasattr(x, "__array__"):
                raise DataError(
                    f"argument {name!r} of a cell is a {type(x).__name__} of {type(x).__module__.split('.')[0]}, and "
                    f"cells take arrays of NumPy; pass np.asarray({name}), or int({name}) for one id or label."
                )
            if isinstance(x, Awaitable):
                close([x])
                raise GraphError(f"argument {name!r} of a cell is {x!r}, which was not awaited; write await before it.")
            raise GraphError(
                f"argument {name!r} of a cell is {x!r} ({type(x).__name__}), which is no value, data or static "
                f"argument; pass what the body reads of it, or make it part of the type by naming the argument in "
                f"@ab.cell(static=...)."
            )
        return self._static(name, x, text)

    def data(self, leaves: set[int] | None) -> set[str]:
        """The expressions of these leaves, or of all, as far as they are ints of the node."""
        ints = [(leaf.text, leaf.first) for leaf in self.leaves if leaf.kind in LOG_INTS]
        ints += [(self.lists[group], leaf) for group, data in self.data_of.items() for _, leaf in data.ints]
        return {text for text, leaf in ints if leaves is None or leaf in leaves}

    def _handle(self, x: Value | Outputs, text: str) -> Key:
        self.handles.check(x)
        n = sum(1 for _ in x.key.leaves())
        self.conditions.append(f"__type({text}) is {x.class_name}")
        leaves = tuple(range(self.n_leaves, self.n_leaves + n))
        self.leaves.append(Leaf("value", text, self.n_leaves, f"{text}{path_to_ref(x.key)}", (leaves,)))
        self.n_leaves += n
        return x.key

    def _rows_handle(self, x: Rows, text: str) -> Key:
        """Read a value of any number of rows, which is logged as a list of them."""
        self.handles.check(x)
        self.conditions.append(f"__type({text}) is {x.class_name}")
        leaf = first_leaf(len(self.lists))
        self.leaves.append(Leaf("each", text, leaf, f"{text}.refs", ((leaf,),)))
        self._add_rows(x, text)
        return x.key

    def _data(self, kind: str, shape: tuple[int, ...], text: str, condition: str) -> Key:
        self.conditions.append(condition)
        self.leaves.append(Leaf(kind + "s" if shape else kind, text, self.n_leaves))
        self.n_leaves += 1
        return Key(kind, shape)

    def _array(self, name: str, x: Any, text: str) -> Key:
        if x.dtype.kind not in "fiub":
            raise DataError(
                f"argument {name!r} of a cell is an array of dtype {x.dtype}; cells take arrays of floats, ints or "
                f"bools, so convert it first."
            )
        if name in self.ragged and x.ndim:
            return self._rows(x, text)
        key, condition = self._array_key(x, text)
        self._data(key.kind, x.shape, text, condition)
        self.leaves[-1].kind = f"{key.kind}s"  # even without axes: it is not an int, and may be changed in place later
        return key

    def _array_key(self, x: Any, text: str) -> tuple[Key, str]:
        """Return the key of an array and the condition that identifies it."""
        kind, letters, dtype = self._kind_of(x)
        test = f"__type({text}) is __ndarray and {text}.shape == {x.shape} and {text}.dtype.kind in {letters!r}"
        return Key(kind, x.shape, dtype=dtype), test

    def _kind_of(self, x: Any) -> tuple[str, str, str]:
        """Return the kind of an array's key, the letters of its dtypes, and the dtype of the key."""
        if x.dtype.kind == "f":
            return "float", "f", ""
        letters = "iub" if not self.tells_bools else "b" if x.dtype.kind == "b" else "iu"
        return "int", letters, BOOL if letters == "b" else ""

    def _rows(self, x: Any, text: str) -> Key:
        """Read an array of any number of rows."""
        shape, (kind, letters, dtype) = x.shape[1:], self._kind_of(x)
        self.conditions.append(
            f"__type({text}) is __ndarray and {text}.ndim == {x.ndim} and {text}.shape[1:] == {shape} "
            f"and {text}.dtype.kind in {letters!r}"
        )
        self.leaves.append(Leaf("rows", text, first_leaf(len(self.lists))))
        self.data_of[len(self.lists)] = EachData([(text, first_leaf(len(self.lists)))], [])
        self._add_rows(x, text)
        return Key("rows", None, (Key(kind, shape, dtype=dtype),))

    def _static(self, name: str, x: Any, text: str) -> Key:
        if isinstance(x, np.ndarray) or not (isinstance(x, BY_IDENTITY) or is_hashable(x)):
            raise GraphError(
                f"argument {name!r} of a cell is {x!r} ({type(x).__name__}), and static arguments are hashable; give a "
                f"tuple or a frozenset instead."
            )
        self.conditions.append(self._is_exactly(text, x))
        return Key("static", Static(x))

    def _is_exactly(self, text: str, x: Any) -> str:
        """The condition that `text` is `x`, or equal to the bit; uses Python's operators where these are exact."""
        name = self.constant(x)
        if isinstance(x, (*BY_IDENTITY, bool, type(None))):
            return f"{text} is {name}"
        if type(x) is tuple and all(type(part) in (str, int) for part in x):
            types = self.constant(tuple(map(type, x)))
            return f"__type({text}) is __tuple and {text} == {name} and (*__map(__type, {text}),) == {types}"
        if isinstance(x, (float, complex, np.generic, tuple, frozenset)) or is_dataclass(x):
            return f"__exact({text}) == {self.constant(exact(x))}"
        return f"__type({text}) is __type({name}) and {text} == {name}"

    def _each(self, name: str, x: list[Any], text: str) -> Key | None:
        """Return the key of a list of any length if its elements share a form of values and data; else None."""
        if not x:
            self.conditions.append(f"__type({text}) is __list and not {text}")
            self._add_list(x, text)
            return Key("each", None)
        examples = {_make_up(element): element for element in x}
        whole, group = len(examples) == 1, len(self.lists)
        try:
            parts = [self._element(name, x, "x", whole, count(first_leaf(group))) for x in examples.values()]
        except NotAlike as error:
            self.of_one_length[text] = str(error)
            return None
        part = parts[0]
        if any(other.key != part.key for other in parts) or not any(True for _ in part.key.leaves()):
            self.of_one_length[text] = f"differ: {' and '.join(dict.fromkeys(str(p.key) for p in parts))}"
            return None
        refs = "0" if not part.refs else part.refs[0][0]
        each, variable = f"for x in {text} if {' and '.join(part.tests)}", f"__refs_{group}"
        if len(part.refs) > 1:
            refs, each = "ref", f"{each} for ref in ({', '.join(ref for ref, _ in part.refs)})"
        first = self._element(name, x[0], f"{text}[0]", whole, count()).tests
        conditions = [f"__type({text}) is __list", text, *first]
        conditions.append(f"__len({variable} := [{refs} {each}]) == {max(len(part.refs), 1)} * __len({text})")
        self.conditions.append(" and ".join(conditions))
        leaves = tuple(leaves for _, leaves in part.refs)
        self.leaves.append(Leaf("each", text, first_leaf(group), variable if leaves else "", leaves))
        self.data_of[group] = EachData(part.ints, part.floats)
        self._add_list(x, text)
        return Key("each", None, (part.key,))

    def _element(self, name: str, x: Any, text: str, whole: bool, leaves: Iterator[int]) -> Element:
        """Read a list element, or part of one.

        Args:
            whole: whether all outputs of a node together match by class and have one ref.
            leaves: yields the next leaf numbers.

        Raises:
            NotAlike: it is neither a value nor data.
        """
        if self.is_static(name, x):
            raise NotAlike(f"hold {x!r}, which is part of the type")
        if isinstance(x, Value | Outputs) and not isinstance(x, Rows) and (whole or isinstance(x, Value)):
            self.handles.check(x)
            own = tuple(islice(leaves, sum(1 for _ in x.key.leaves())))
            return Element(x.key, [f"__type({text}) is {x.class_name}"], [(f"{text}{path_to_ref(x.key)}", own)], [], [])
        if type(x) in (int, float):
            kind, data = type(x).__name__, [(text, next(leaves))]
            test = f"__type({text}) is __{kind}"
            return Element(Key(kind, ()), [test], [], *((data, []) if type(x) is int else ([], data)))
        if isinstance(x, np.ndarray) and x.dtype.kind in "iub":
            key, condition = self._array_key(x, text)
            return Element(key, [condition], [], [(LOG_INTS["ints"].format(text), next(leaves))], [])
        if not is_structure(x) or isinstance(x, (list, Rows)):
            raise NotAlike(f"hold {_describe(x)}")
        tests, paths = self._paths(x, text, whole)
        parts = [self._element(name, part, path, whole, leaves) for part, path in zip(parts_of(x), paths, strict=True)]
        joined = [[*chain.from_iterable(own)] for own in zip(*(part[1:] for part in parts), strict=True)]
        of_parts, refs, ints, floats = joined or ([], [], [], [])
        key = x.key if isinstance(x, Outputs) else Key.of_structure(x, [part.key for part in parts])
        return Element(key, [*tests, *of_parts], refs, ints, floats)

    def _paths(self, x: Any, text: str, whole: bool) -> tuple[list[str], list[str]]:
        """Return the conditions that `text` is a container like `x`, and the expressions of its parts."""
        cls = self.constant(type(x))
        if isinstance(x, dict):
            tests = [f"__type({text}) is {cls} and {self._is_exactly(f'(*{text},)', tuple(x))}"]
            return tests, [f"{text}[{self.constant(key)}]" for key in x]
        if is_dataclass(x):
            return [f"__type({text}) is {cls}"], [f"{text}.{f.name}" for f in fields(x)]
        is_kind = f"__type({text}) is {cls}"
        if not whole and (type(x) is tuple or isinstance(x, Outputs)):
            is_kind = f"__type({text}) in __tuples"
        return [f"{is_kind} and __len({text}) == {len(x)}"], [f"{text}[{i}]" for i in range(len(x))]

    def _add_rows(self, x: Any, text: str) -> None:
        self.rows.add(text)
        self._add_list(x, text)

    def _add_list(self, x: Any, text: str) -> None:
        self.lists.append(text)
        self.lengths.append(len(x))

    def _container(self, name: str, x: Any, text: str) -> Key:
        tests, paths = self._paths(x, text, whole=True)
        self.conditions += tests
        children = [self.read(name, part, path) for part, path in zip(parts_of(x), paths, strict=True)]
        return Key.of_structure(x, children)


class Item(NamedTuple):
    """What a form logs of one part of a call's arguments, as ints or as floats.

    Attributes:
        kind: VALUE or EACH of the decoder's codes, WORDS or ROWS for ints or floats.
        leaves: the leaves of each ref of a value or list element; else those of data.
        size: ints or floats, of the node or of each row.
        group: the variadic group of its rows.
        columns: for ROWS, the leaf of each int or float in a row.
    """

    kind: int
    leaves: tuple[tuple[int, ...], ...]
    size: int = 0
    group: int = NODE
    columns: tuple[int, ...] = ()

    def is_needed(self, program: CellProgram) -> bool:
        """Whether a program reads it."""
        return not program.leaves.keys().isdisjoint(chain(*self.leaves))

    def code(self, program: CellProgram) -> list[int]:
        """Tell the decoder how to read it for a program."""
        if self.kind in (WORDS, ROWS):
            return [self.kind, self.size]
        ports = [[len(part), *(program.leaves.get(leaf, -1) for leaf in part)] for part in self.leaves]
        return [*([EACH, len(ports)] if self.kind == EACH else [VALUE]), *chain(*ports)]


@dataclass(frozen=True, eq=False)
class Form:
    """One recognised way to call a cell.

    Attributes:
        conditions: Python expressions that identify the form.
        body: Python statements that log the call.
        code: for the decoder, see `decode.FormTables`.
        ints: what it logs, in order, after the ref of the result; floats: what it adds to the float attributes.
    """

    conditions: tuple[str, ...]
    body: tuple[str, ...]
    code: tuple[int, ...]
    ints: tuple[Item, ...]
    floats: tuple[Item, ...]


def make_form(
    reader: FormReader, number: int, node_type: NodeType, lengths: Lengths, outputs: Key, rebuild: str | None
) -> Form:
    """The form that `reader` read, of this type.

    Args:
        lengths: those for which the type is right.
        outputs: the key of the handles that it returns.
        rebuild: the name of the function that turns a handle into what the call returns, if there is one.
    """
    program = node_type.program
    data = {v.source.leaf: v.size for v in program.vars if isinstance(v.source, Attribute)}
    logged, ints = [f"__out{path_to_ref(outputs)}"], list[Item]()
    log_floats, floats = list[str](), list[Item]()
    conditions = list(reader.conditions)
    conditions += [f"{_length(reader, program, a)} == {_length(reader, program, b)}" for a, b in program.ties]
    conditions += [f"{_length(reader, program, group)} == 1" for group in program.ones]
    conditions += [f"{_length(reader, program, group)} >= {n}" for group, (n, _) in program.least.items()]
    if lengths.walked:
        found = _tuple([f"__len({reader.lists[group]})" for group in lengths.walked])
        conditions.append(f"{found} in {reader.constant(lengths.found)}")
    if not any(leaf.refs for leaf in reader.leaves):
        conditions.append(IS_RECORDING)
    for leaf in reader.leaves:
        if leaf.kind in ("value", "each"):
            is_list = leaf.kind == "each"
            item = Item(EACH if is_list else VALUE, leaf.leaves, group=leaf.first // LEAVES + NODE)
            if is_list or item.is_needed(program):
                logged += [f"__len({leaf.text})"] * is_list + [f"{'*' * is_list}{leaf.refs}"] * bool(leaf.refs)
                ints.append(item)
        elif leaf.kind.startswith("int") and leaf.first in data:
            logged.append(LOG_INTS[leaf.kind].format(leaf.text))
            ints.append(Item(WORDS, ((leaf.first,),), data[leaf.first]))
        elif leaf.kind != "rows" and leaf.first in data:
            log_floats.append(LOG_FLOATS[leaf.kind].format(leaf.text))
            floats.append(Item(WORDS, ((leaf.first,),), data[leaf.first]))
    if program.draws and DRAW in data:
        logged.append("__draw()")
        ints.append(Item(WORDS, ((DRAW,),), 1))
    for group in program.data_groups:  # they follow all other attributes of a node
        is_array = reader.lists[group] in reader.rows
        (of_ints, rows), (of_floats, float_rows) = (_rows_of(reader, program, group, kind) for kind in (False, True))
        logged += [f"__len({reader.lists[group]})", LOG_INTS["ints" if is_array else "each"].format(rows)][
            : 1 + bool(rows)
        ]
        log_floats += [LOG_FLOATS["floats" if is_array else "each"].format(float_rows)] * bool(float_rows)
        ints.append(of_ints)
        floats.append(of_floats)
    body = [f"for __out in pool_{number}: break", f"else: __out = grow_{number}()"]
    for place, index in enumerate(program.results):
        if (group := program.vars[index].domain) >= 0:
            made = "__out" if outputs.kind == "rows" else f"__out[{place}]"
            body.append(f"{made}.resize({_length(reader, program, group)})")
    body += ["__to = __log", f"__to += {_tuple(logged)}"]  # faster than an append per int
    body += log_floats
    body += ["__draw()"] if program.draws and DRAW not in data else []
    body.append(f"return {rebuild}(__out)" if rebuild else "return __out")
    return Form(tuple(conditions), tuple(body), code_of(node_type, ints), tuple(ints), tuple(floats))


def _rows_of(reader: FormReader, program: CellProgram, group: int, is_float: bool) -> tuple[Item, str]:
    """Return the item that logs a variadic group's ints or floats, and its expression."""
    attributes = [(v.source, v.size) for v in program.vars if isinstance(v.source, Attribute) and v.domain == group]
    own = {source.leaf: size for source, size in attributes if source.is_float == is_float}
    columns = tuple(leaf for leaf, size in own.items() for _ in range(size))
    item = Item(ROWS, tuple((source.leaf,) for source, _ in attributes), len(columns), group, columns)
    text, data = reader.lists[group], reader.data_of.get(group)
    if not own or data is None:
        return item, ""
    if text in reader.rows:
        return item, text
    parts = {leaf: part for part, leaf in (data.floats if is_float else data.ints)}
    row = [parts[leaf] for leaf in own]
    if row == ["x"]:
        return item, text
    one = len(row) == 1 and not row[0].startswith("*")
    return item, f"[{row[0]} for x in {text}]" if one else f"[i for x in {text} for i in ({', '.join(row)},)]"


def code_of(node_type: NodeType, ints: Iterable[Item]) -> tuple[int, ...]:
    """Tell the decoder what is logged of the calls of a type."""
    return (node_type.number, *chain.from_iterable(item.code(node_type.program) for item in ints), END)


def _length(reader: FormReader, program: CellProgram, group: int) -> str:
    """The expression of the number of rows of a group in a call."""
    if group not in program.derived:
        return f"__len({reader.lists[group]})"
    parts = list[str]()
    for of, n, cut, times in program.derived[group]:
        parts.append(f"__rows({n if of < 0 else _length(reader, program, of)}, {cut})")
        if times >= 0:
            parts[-1] += f" * ({_length(reader, program, times)})"
    return " + ".join(parts)


def _make_up(x: Any) -> Any:
    """Return the key of a list element; elements with equal keys have parts of the same kinds."""
    if type(x) is tuple:
        return tuple(map(_make_up, x))
    if isinstance(x, np.ndarray):
        return x.shape, x.dtype.kind
    if is_structure(x) and not isinstance(x, Outputs):
        return type(x), (*x,) if isinstance(x, dict) else None, tuple(map(_make_up, parts_of(x)))
    return type(x)


def _describe(x: Any) -> str:
    """Describe a list element for messages."""
    if isinstance(x, (bool, str, type(None))):
        return f"{x!r}, which is part of the type"
    if isinstance(x, list):
        return "lists, which have lengths of their own"
    return f"a {type(x).__name__}, which is part of the type" if not isinstance(x, Rows) else "arrays of n rows"


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' * (len(items) == 1)})"
