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

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np

from autobatch.errors import DataError, GraphError
from autobatch.ir.arguments import BY_IDENTITY, PLAIN, Fixed, Key, Static, exact, is_hashable, is_structure
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
LOG_INTS = {"int": "{}", "ints": "*{}.ravel().tolist()"}
LOG_FLOATS = {"float": "__log_float({})", "floats": "__log_floats({}.astype(__float64).tobytes())"}


@dataclass
class Leaf:
    """A part of a call's arguments, read by the expression `text`: data, values, or a list of values.

    Attributes:
        kind: "value" (a value, or all outputs of a node), "int", "ints", "float", "floats", "each", or "rows" of data.
        first: the number of the first leaf.
        refs: for "value" the expression of its ref; for "each" the name of the list of refs that the conditions make.
        counts: number of leaves per ref; for "each" of all refs of one element.
    """

    kind: str
    text: str
    first: int
    refs: str = ""
    counts: tuple[int, ...] = (1,)


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
        if type(x) is list and text not in self.fixed and (key := self._each(x, text)) is not None:
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
        ints = (leaf for leaf in self.leaves if leaf.kind in LOG_INTS)
        return {leaf.text for leaf in ints if leaves is None or leaf.first in leaves}

    def _handle(self, x: Value | Outputs, text: str) -> Key:
        self.handles.check(x)
        tests, ((ref, n),) = self._tests(x, text, whole=True)
        self.conditions += tests
        self.leaves.append(Leaf("value", text, self.n_leaves, ref, (n,)))
        self.n_leaves += n
        return x.key

    def _rows_handle(self, x: Rows, text: str) -> Key:
        """Read a value of any number of rows, which is logged as a list of them."""
        self.handles.check(x)
        self.conditions.append(f"__type({text}) is {x.class_name}")
        self.leaves.append(Leaf("each", text, first_leaf(len(self.lists)), f"{text}.refs"))
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
        kind, letters = "float", "f"
        if x.dtype.kind != "f":
            kind, letters = "int", "iub" if not self.tells_bools else "b" if x.dtype.kind == "b" else "iu"
        if name in self.ragged and x.ndim:
            return self._rows(kind, letters, x, text)
        condition = f"__type({text}) is __ndarray and {text}.shape == {x.shape} and {text}.dtype.kind in {letters!r}"
        key = self._data(kind, x.shape, text, condition)
        if letters != "b":
            return key
        self.leaves[-1].kind = "ints"  # also of a single one, which is no int
        return replace(key, dtype=BOOL)

    def _rows(self, kind: str, letters: str, x: Any, text: str) -> Key:
        """Read an array of any number of rows."""
        shape, dtype = x.shape[1:], BOOL if letters == "b" else ""
        self.conditions.append(
            f"__type({text}) is __ndarray and {text}.ndim == {x.ndim} and {text}.shape[1:] == {shape} "
            f"and {text}.dtype.kind in {letters!r}"
        )
        self.leaves.append(Leaf("rows", text, first_leaf(len(self.lists))))
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

    def _each(self, x: list[Any], text: str) -> Key | None:
        """The key of a list of any length, if its elements have one form and consist of values only; else None."""
        if not x:
            self.conditions.append(f"__type({text}) is __list and not {text}")
            self._add_list(x, text)
            return Key("each", None)
        keys = {self._key(element) for element in x}
        key = keys.pop()
        if keys or key is None or not any(True for _ in key.leaves()):
            return None
        whole = len(set(map(_makeup, x))) == 1
        (first, _), (tests, refs) = self._tests(x[0], f"{text}[0]", whole), self._tests(x[0], "x", whole)
        name, each = f"__refs_{len(self.lists)}", f"for x in {text} if {' and '.join(tests)}"
        made = f"{refs[0][0]} {each}" if len(refs) == 1 else f"ref {each} for ref in ({', '.join(r for r, _ in refs)})"
        conditions = [f"__type({text}) is __list", text, *first]
        conditions.append(f"__len({name} := [{made}]) == {len(refs)} * __len({text})")
        self.conditions.append(" and ".join(conditions))
        self.leaves.append(Leaf("each", text, first_leaf(len(self.lists)), name, tuple(n for _, n in refs)))
        self._add_list(x, text)
        return Key("each", None, (key,))

    def _add_rows(self, x: Any, text: str) -> None:
        self.rows.add(text)
        self._add_list(x, text)

    def _add_list(self, x: Any, text: str) -> None:
        self.lists.append(text)
        self.lengths.append(len(x))

    def _key(self, x: Any) -> Key | None:
        """The key of a value, or of a tuple of such; None for anything else."""
        if isinstance(x, (Value, Outputs)) and not isinstance(x, Rows):
            self.handles.check(x)
            return x.key
        children = [self._key(child) for child in x] if type(x) is tuple else [None]
        return None if None in children else Key("tuple", None, tuple(c for c in children if c is not None))

    def _tests(self, x: Any, text: str, whole: bool) -> tuple[list[str], list[tuple[str, int]]]:
        """The conditions that `text` has the form of `x`, a value or tuple of such; its refs, each with its leaf count.

        Args:
            whole: all outputs of a node together are recognised by their class and have one ref.
        """
        if isinstance(x, Value) or (whole and isinstance(x, Outputs)):
            n = sum(1 for _ in x.key.leaves())
            return [f"__type({text}) is {x.class_name}"], [(f"{text}{path_to_ref(x.key)}", n)]
        parts = [self._tests(part, f"{text}[{i}]", whole) for i, part in enumerate(x)]
        is_tuple = f"__type({text}) is __tuple" if whole else f"__type({text}) in __tuples"
        tests = [f"{is_tuple} and __len({text}) == {len(x)}", *(test for tests, _ in parts for test in tests)]
        return tests, [ref for _, refs in parts for ref in refs]

    def _container(self, name: str, x: Any, text: str) -> Key:
        cls = self.constant(type(x))
        if isinstance(x, dict):
            self.conditions.append(f"__type({text}) is {cls} and {self._is_exactly(f'(*{text},)', tuple(x))}")
            children = [self.read(name, part, f"{text}[{self.constant(key)}]") for key, part in x.items()]
        elif is_dataclass(x):
            self.conditions.append(f"__type({text}) is {cls}")
            children = [self.read(name, getattr(x, f.name), f"{text}.{f.name}") for f in fields(x)]
        else:
            self.conditions.append(f"__type({text}) is {cls} and __len({text}) == {len(x)}")
            children = [self.read(name, part, f"{text}[{i}]") for i, part in enumerate(x)]
        return Key.of_structure(x, children)


class Item(NamedTuple):
    """What a form logs of one part of a call's arguments, as ints or as floats.

    Attributes:
        kind: VALUE or EACH of the decoder's codes, WORDS or ROWS for ints or floats.
        leaves: for each ref of a value, or of an element of a list, the leaves that it stands for; else the leaf.
        size: ints or floats, of the node or of each row.
    """

    kind: int
    leaves: tuple[tuple[int, ...], ...]
    size: int = 0

    @property
    def group(self) -> int:
        """The variadic group that it has rows of."""
        return self.leaves[0][0] // LEAVES + NODE

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
    if all(leaf.kind not in ("value", "each") for leaf in reader.leaves):
        conditions.append(IS_RECORDING)
    for leaf in reader.leaves:
        if leaf.kind in ("value", "each"):
            leaves = count(leaf.first)
            item = Item(EACH if leaf.kind == "each" else VALUE, tuple(tuple(islice(leaves, n)) for n in leaf.counts))
            if leaf.kind == "each" or item.is_needed(program):
                logged += [f"__len({leaf.text})", f"*{leaf.refs}"] if leaf.kind == "each" else [leaf.refs]
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
        text, row = reader.lists[group], ((first_leaf(group),),)
        logged.append(f"__len({text})")
        ints.append(Item(ROWS, row, n_ints := program.words(False, group)))
        logged += [LOG_INTS["ints"].format(text)] if n_ints else []
        floats.append(Item(ROWS, row, n_floats := program.words(True, group)))
        log_floats += [LOG_FLOATS["floats"].format(text)] if n_floats else []
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


def _makeup(x: Any) -> Any:
    """A key of a tuple of values: equal for tuples in which the same parts are all outputs of a node."""
    return tuple(map(_makeup, x)) if type(x) is tuple else type(x)


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' * (len(items) == 1)})"
