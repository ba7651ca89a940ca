"""Call forms: a few generated lines of Python that recognise how a cell is called and log the call as ints.

    def merge(left, right):
        if __type(left) is Kind_2 and __type(right) is Kind_2:
            for __out in pool_5: break
            else: __out = grow_5()
            __to = __log
            __to += (__out[0].ref, left[0].ref, right[0].ref)
            return __out
        return slow_merge(left, right)

The arguments keep their names, so even builtins have others here: a cell may call an argument `type` or `out`.

The functions stand in the modules, where other threads see them too. A call that passes recorded values belongs to the
recording; of any other, forms ask whether this thread records.

A form is finer than a type: it also tells whether a tuple is another node's whole output (one int) or was put
together by the user (an int per value). `code` tells the decoder how to read what the form logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from autobatch.errors import DataError, GraphError
from autobatch.ir.arguments import BY_IDENTITY, PLAIN, Key, Static, exact, is_hashable, is_structure
from autobatch.ir.program import DRAW, Attribute, CellProgram, Port, first_leaf
from autobatch.trace.decode import EACH, HANDLE, WORDS, make_code
from autobatch.trace.handles import Bundle, Handles, Value, path_of_ref

IS_RECORDING = "__stage.current is __calls"  # costs 50 ns
BUILTINS = {f"__{x.__name__}": x for x in (type, len, list, tuple, int, float, all, map, exact, np.ndarray)}


@dataclass
class Leaves:
    """Leaves first:first + count of the arguments, read from the expression `text`.

    `kind` is "handle" (a value, or a bundle of several), "int", "ints", "float", "floats" or "each"; the parts of
    "each" are handles whose text starts with the name of one element, `x`. `ref` is the expression of a handle's ref;
    `refs` names the list of refs in "each", where the conditions make it.
    """

    kind: str
    text: str
    first: int
    count: int
    ref: str = ""
    is_bundle: bool = False
    parts: list[Leaves] = field(default_factory=list)
    refs: str = ""


class FormReader:
    """Reads one call's arguments: their keys, the conditions that tell this form, and its leaves in order.

    Args:
        handles: names the kinds of handles in generated code; constant: names any other object.
        is_static: whether an argument (by name) or a value in it is part of the type.
        fixed: the lists (by expression) whose length the cell's body needs.
    """

    def __init__(
        self,
        handles: Handles,
        constant: Callable[[Any], str],
        is_static: Callable[[str, Any], bool],
        fixed: set[str],
    ) -> None:
        self.handles, self.constant, self.is_static, self.fixed = handles, constant, is_static, fixed
        self.conditions: list[str] = []
        self.leaves: list[Leaves] = []
        self.lists: list[str] = []
        self.n_leaves = 0

    def read(self, name: str, x: Any, text: str) -> Key:
        """Read what the expression `text` of argument `name` holds."""
        if self.is_static(name, x):
            return self._static(name, x, text)
        if isinstance(x, Value):
            self._handle(x, text, self._kind_name(x), self.leaves, self.conditions)
            return Key("value", x.shape)
        if isinstance(x, Bundle):
            self._handle(x, text, self._kind_name(x), self.leaves, self.conditions)
            return self.handles.kind_of(x).structure
        if type(x) in (int, float):
            self._condition(f"__type({text}) is __{type(x).__name__}")
            return self._data(type(x).__name__, (), text)
        if isinstance(x, np.ndarray):
            if x.dtype.kind not in "fiub":
                raise DataError(
                    f"argument {name!r} of a cell is an array of dtype {x.dtype}; cells take arrays of floats, ints or "
                    f"bools, so convert it first."
                )
            kinds = "f" if x.dtype.kind == "f" else "iub"
            self._condition(
                f"__type({text}) is __ndarray and {text}.shape == {x.shape} and {text}.dtype.kind in {kinds!r}"
            )
            return self._data("float" if kinds == "f" else "int", x.shape, text)
        if type(x) is list and text not in self.fixed and (key := self._each(x, text)) is not None:
            return key
        if is_structure(x):
            return self._container(name, x, text)
        if not isinstance(x, (*PLAIN, *BY_IDENTITY)) and not callable(x):
            raise GraphError(
                f"argument {name!r} of a cell is {x!r} ({type(x).__name__}), which is no value, data or static "
                f"argument; pass what the body reads of it, or make it part of the type by naming the argument in "
                f"@ab.cell(static=...)."
            )
        return self._static(name, x, text)

    def _condition(self, text: str) -> None:
        self.conditions.append(text)

    def _kind_name(self, handle: Any) -> str:
        return f"Kind_{self.handles.kind_of(handle).number}"

    def _handle(self, x: Any, text: str, kind: str, leaves: list[Leaves], conditions: list[str]) -> None:
        conditions.append(f"__type({text}) is {kind}")
        count = sum(1 for _ in self.handles.kind_of(x).structure.leaves())
        ref = text + path_of_ref(self.handles.kind_of(x).structure)
        leaves.append(Leaves("handle", text, self.n_leaves, count, ref, isinstance(x, Bundle)))
        self.n_leaves += count

    def _data(self, kind: str, shape: tuple[int, ...], text: str) -> Key:
        self.leaves.append(Leaves(kind + ("s" if shape else ""), text, self.n_leaves, 1))
        self.n_leaves += 1
        return Key(kind, shape)

    def _static(self, name: str, x: Any, text: str) -> Key:
        if isinstance(x, np.ndarray) or not (isinstance(x, BY_IDENTITY) or is_hashable(x)):
            raise GraphError(
                f"argument {name!r} of a cell is {x!r} ({type(x).__name__}), and static arguments are hashable; give a "
                f"tuple or a frozenset instead."
            )
        self._condition(self._is_exactly(text, x))
        return Key("static", Static(x))

    def _is_exactly(self, text: str, x: Any) -> str:
        """The condition that `text` is `x`, or like it to the bit; Python's own operators where they can tell."""
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
        """A list of any length, if its elements are alike and hold values only."""
        if not x:
            self._condition(f"__type({text}) is __list and not {text}")
            self.lists.append(text)
            return Key("each", None)
        parts, conditions, n_leaves = list[Leaves](), list[str](), self.n_leaves
        self.n_leaves = first = first_leaf(len(self.lists))
        key = self._element(x[0], "x", parts, conditions)
        alike = key is not None and all(self._element(e, "x", [], []) == key for e in x[1:])
        self.n_leaves = n_leaves
        if key is None or not alike:
            return None
        refs, test = "", f"__all([{' and '.join(conditions)} for x in {text}])"
        if isinstance(x[0], (Value, Bundle)):
            kind, refs = self._kind_name(x[0]), f"__refs_{len(self.lists)}"
            listed = f"[{parts[0].ref} for x in {text} if __type(x) is {kind}]"
            test = f"__type({text}[0]) is {kind} and __len({refs} := {listed}) == __len({text})"
        self._condition(f"__type({text}) is __list and {text} and {test}")
        self.leaves.append(Leaves("each", text, first, sum(1 for _ in key.leaves()), parts=parts, refs=refs))
        self.lists.append(text)
        return Key("each", None, (key,))

    def _element(self, x: Any, text: str, parts: list[Leaves], conditions: list[str]) -> Key | None:
        if isinstance(x, (Value, Bundle)):
            self._handle(x, text, self._kind_name(x), parts, conditions)
            return self.handles.kind_of(x).structure
        if type(x) is not tuple:
            return None
        conditions.append(f"__type({text}) is __tuple and __len({text}) == {len(x)}")
        children = [self._element(child, f"{text}[{i}]", parts, conditions) for i, child in enumerate(x)]
        return None if None in children else Key("tuple", None, tuple(c for c in children if c is not None))

    def _container(self, name: str, x: Any, text: str) -> Key:
        cls = self.constant(type(x))
        if isinstance(x, dict):
            self._condition(f"__type({text}) is {cls} and {self._is_exactly(f'(*{text},)', tuple(x))}")
            children = [self.read(name, part, f"{text}[{self.constant(key)}]") for key, part in x.items()]
        elif is_dataclass(x):
            self._condition(f"__type({text}) is {cls}")
            children = [self.read(name, getattr(x, f.name), f"{text}.{f.name}") for f in fields(x)]
        else:
            self._condition(f"__type({text}) is {cls} and __len({text}) == {len(x)}")
            children = [self.read(name, part, f"{text}[{i}]") for i, part in enumerate(x)]
        return Key.of_structure(x, children)


@dataclass(frozen=True, eq=False)
class Form:
    """One recognised way to call a cell.

    Attributes:
        conditions: what tells the form, as Python.
        body: what logs the call, as Python.
        code: for the decoder, see `decode.make_code`.
    """

    conditions: tuple[str, ...]
    body: tuple[str, ...]
    code: tuple[int, ...]


def make_form(
    reader: FormReader, number: int, type_id: int, program: CellProgram, outputs: Key, rebuild: str | None
) -> Form:
    """The form that `reader` read, of the type `type_id`.

    Args:
        outputs: the structure of the handles that it gives out; rebuild: names what puts the outputs together.
    """
    ports = {v.source.leaf: v.source.number for v in program.vars if isinstance(v.source, Port)}
    data = {v.source.leaf: v.size for v in program.vars if isinstance(v.source, Attribute)}
    logged, floats, code = [f"__out{path_of_ref(outputs)}"], list[str](), list[tuple[int, ...]]()
    conditions = list(reader.conditions)
    conditions += [f"__len({reader.lists[a]}) == __len({reader.lists[b]})" for a, b in program.ties]
    if all(leaves.kind != "handle" and not leaves.parts for leaves in reader.leaves):
        conditions.append(IS_RECORDING)
    for leaves in reader.leaves:
        if leaves.kind in ("handle", "each"):
            items = _handle_items(leaves.parts or [leaves], ports)
            if not items:
                continue
            if leaves.kind == "handle":
                logged.append(leaves.ref)
                code.append((HANDLE, *items[0][1]))
            else:
                logged.append(f"__len({leaves.text})")
                logged += [f"*{leaves.refs or f'[{part.ref} for x in {leaves.text}]'}" for part, _ in items]
                code.append((EACH, len(items), *(word for _, pairs in items for word in pairs)))
        elif leaves.first in data:
            if leaves.kind.startswith("int"):
                logged.append(LOG_DATA[leaves.kind].format(leaves.text))
                code.append((WORDS, data[leaves.first]))
            else:
                floats.append(LOG_DATA[leaves.kind].format(leaves.text))
    if program.draws and DRAW in data:
        logged.append("__draw()")
        code.append((WORDS, 1))
    body = [f"for __out in pool_{number}: break", f"else: __out = grow_{number}()"]
    body += ["__to = __log", f"__to += {_tuple(logged)}"]  # less time than a call of append for each
    body += [f"__log_floats({_tuple(floats)})"] if floats else []
    body += ["__draw()"] if program.draws and DRAW not in data else []
    body.append(f"return {rebuild}(__out)" if rebuild else "return __out")
    return Form(tuple(conditions), tuple(body), make_code(type_id, code))


LOG_DATA = {"int": "{}", "ints": "*{}.ravel().tolist()", "float": "{}", "floats": "*{}.ravel().tolist()"}


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


def _handle_items(parts: Iterable[Leaves], ports: dict[int, int]) -> list[tuple[Leaves, list[int]]]:
    """For each handle with a port that the program reads: how many, then pairs of port and output (-1: in the ref)."""
    items = []
    for part in parts:
        used = [
            (ports[part.first + k], k if part.is_bundle else -1) for k in range(part.count) if part.first + k in ports
        ]
        if used:
            items.append((part, [len(used), *(n for pair in used for n in pair)]))
    return items


def write_function(name: str, header: str, call: str, forms: Iterable[Form]) -> str:
    """The source of a function that tries `forms` in turn and calls `slow` when none fits."""
    lines = _write_branches([(form.conditions, form.body) for form in forms])
    return "\n    ".join([f"def {name}({header}):", *lines, f"return slow_{name}({call})"])


def _write_branches(branches: list[tuple[tuple[str, ...], tuple[str, ...]]]) -> list[str]:
    """Bodies under their conditions; what several begin with is asked once."""
    lines = list[str]()
    for first in dict.fromkeys(conditions[:1] for conditions, _ in branches):
        alike = [(conditions, body) for conditions, body in branches if conditions[:1] == first]
        if len(alike) == 1 or not first:
            conditions, body = alike[0]
            inner = [*body]
        else:
            conditions, inner = first, _write_branches([(conditions[1:], body) for conditions, body in alike])
        lines += [f"if {' and '.join(conditions) or 'True'}:", *(f"    {line}" for line in inner)]
    return lines
