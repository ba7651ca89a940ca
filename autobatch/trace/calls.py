"""How a recorded call becomes a node: entries that stand in for cells, the forms they know, and their types.

An `Entry` stands for one cell of one module, one op, or one function made of ops. Its generated function (see
`forms`) handles the calls whose form is known. Any other takes the slow path here: arrays and parameters among
the arguments become sources, and if the form is not known then either, the arguments are read, the cell is traced if
its type is new, and the function is generated anew with the form added.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, Static, is_structure, parts_of
from autobatch.ir.typetable import NodeType, TypeTable
from autobatch.ops.define import Op, first_symbol
from autobatch.ops.eager import plain_array
from autobatch.ops.operators import STAGE
from autobatch.ops.variadic import SUM_N
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.trace.cell import BoundCell, Cell, NeedsLength
from autobatch.trace.decode import FormTables, form_tables
from autobatch.trace.entries import Entry, Namespace, Stand, invoke
from autobatch.trace.forms import BUILTINS, Form, FormReader, make_form
from autobatch.trace.handles import OUTPUT_BITS, RECYCLE, Handles, Value
from autobatch.trace.traces import Traces

MAX_FORMS = 8  # that an entry tries one after another; rarer ones take the slow path


class Calls:
    """The entries, forms, types and handles of one recorded function, and the log that its calls append to.

    Attributes:
        log: ints, see `decode`; floats: the float attributes in call order.
        traces: of the cells called so far.
        forms: the call forms met so far, by number.
        namespace: the globals of the generated functions.
        handles: what calls return.
        stand: the entries that stand in the place of cells at the moment.
    """

    def __init__(self) -> None:
        self.log: list[int] = []
        self.floats: list[float] = []
        self.traces = Traces(lambda: self._function_entry(SUM_N), self._renew)
        self.forms: list[Form] = []
        self.namespace = Namespace(
            {
                **BUILTINS,
                "__stage": STAGE,
                "__calls": self,
                "__log": self.log,
                "__log_floats": self.floats.extend,
            }
        )
        self.handles = Handles(self, self.namespace.names)
        self.stand = Stand()
        self._entries: dict[Any, Entry] = {}
        self._sources: dict[Any, Value] = {}
        self._tables = form_tables([], [])
        self._recycle_at = RECYCLE

    @property
    def types(self) -> TypeTable:
        """The node types met so far."""
        return self.traces.types

    def start(self, module: Module | None) -> None:
        """Empty the log for a new recording of functions that read the parameters of `module`."""
        self._recycle_at -= len(self.log)
        self.log.clear()
        self.floats.clear()
        self.traces.name_weights(module)

    def start_instance(self) -> None:
        """Forget the sources of the last instance, number draws from 0, and take back handles."""
        self._sources.clear()
        self.namespace.names["__draw"] = count().__next__
        if len(self.log) >= self._recycle_at:
            self.handles.recycle()
            self._recycle_at = len(self.log) + RECYCLE

    def form_tables(self) -> FormTables:
        """For the decoder: the form of each handle, and the codes of all forms."""
        form_of = self.handles.form_of
        if self._tables.of.size < len(form_of):  # a new form has new handles
            self._tables = form_tables(form_of, [form.code for form in self.forms])
        return self._tables

    def type_at(self, at: int) -> NodeType:
        """The type of the node whose call was logged from this place on."""
        form = self.forms[self.handles.form_of[self.log[at] >> OUTPUT_BITS]]
        return self.types[form.code[0]]

    # Entries: one for each thing that can be called.

    def entry(self, cell: Cell, owner: Any) -> Entry:
        """The entry of a cell; `owner` is the module that it is a method of."""
        known = self._entries.get((cell, id(owner)))
        if known is None:
            signature = cell.signature
            if owner is not None:
                signature = signature.replace(parameters=list(signature.parameters.values())[1:])
            function = cell.function if owner is None else cell.function.__get__(owner)
            known = self._entries[cell, id(owner)] = self._make_entry(
                (cell, owner),
                cell.name,
                signature,
                lambda arguments: invoke(function, signature, arguments),
                lambda name, x: name in cell.static,
            )
            known.plain = cell if owner is None else BoundCell(cell, owner)
        return known

    def call_cell(self, cell: Cell, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of a cell that no entry stands in for."""
        return self.entry(cell, owner).function(*args, **kwargs)

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record one op as a cell of its own; its nodes share parameters, and numbers are data."""
        key = (op, repr(static))
        if key not in self._entries:
            self._entries[key] = self._make_entry(
                key,
                op.name,
                ANY_NUMBER,
                lambda arguments: op(*arguments["args"], **static),
                lambda name, x: isinstance(x, Parameter),
            )
        return self._entries[key].function(*args)

    def next_draw(self) -> Any:
        """Refuse to draw for a parameter or an array outside cells: its nodes would share one mask."""
        raise GraphError(
            "dropout of a parameter or an array outside a cell, where all instances share it and would share one mask; "
            "apply it to a value that a cell made, or inside a cell."
        )

    def apply_function(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function made of ops as a cell of its own; arguments that hold no value are static."""
        return self._function_entry(function).function(*args, **kwargs)

    def _function_entry(self, function: Callable[..., Any]) -> Entry:
        known = self._entries.get(function)
        if known is None:
            signature = inspect.signature(function)
            assert all(p.kind is not p.VAR_POSITIONAL for p in signature.parameters.values())  # a tuple, not a list
            known = self._entries[function] = self._make_entry(
                (function,),
                function.__name__.lstrip("_"),
                signature,
                lambda arguments: invoke(function, signature, arguments),
                lambda name, x: not isinstance(x, (np.ndarray, list)) and first_symbol(x) is None,
                lists=True,
            )
        return known

    def _make_entry(
        self,
        identity: tuple[Any, ...],
        name: str,
        signature: inspect.Signature,
        run: Any,
        is_static: Any,
        lifts: bool = True,
        lists: bool = False,
    ) -> Entry:
        entry = Entry(name, tuple(map(Static, identity)), signature, run, is_static, lifts=lifts, lists=lists)
        entry.function = self._generate(entry, [])
        return entry

    def _generate(self, entry: Entry, forms: Sequence[Form]) -> Any:
        """The function that stands in the place of an entry's cell and knows these forms."""
        return self.namespace.generate(entry, forms, lambda *args: self._slow(entry, args))

    # The slow path: the first call of each form, and calls that pass arrays or parameters.

    def _slow(self, entry: Entry, args: tuple[Any, ...]) -> Any:
        lifted = dict(zip(entry.signature.parameters, args, strict=True))
        if STAGE.current is not self:  # the caller is another thread, or traces a cell
            return invoke(entry.plain, entry.signature, lifted)
        for name, x in lifted.items():
            if entry.lists and isinstance(x, (tuple, list)) and first_symbol(x) is not None:
                x = _listed(x)
            if entry.lifts and not entry.is_static(name, x):
                lifted[name] = self.lift(x, entry.is_static)
        if any(x is not lifted[name] for name, x in zip(entry.signature.parameters, args, strict=True)):
            return invoke(entry.function, entry.signature, lifted)  # which may know a call with values
        reader, keys = self._read(entry, lifted)
        if tuple(reader.conditions) not in entry.by_form:
            try:
                self._add_form(entry, reader, self._type_of(entry, keys))
            except NeedsLength as needs:
                entry.fixed[tuple(keys.items())] = reader.lists[needs.group]
                return self._slow(entry, tuple(lifted.values()))
        return invoke(entry.by_form[tuple(reader.conditions)], entry.signature, lifted)

    def _read(self, entry: Entry, arguments: Mapping[str, Any]) -> tuple[FormReader, dict[str, Key]]:
        """Read arguments, again for each list that turns out to need its length in a call like this."""
        fixed = set[str]()
        while True:
            reader = FormReader(self.handles, self.namespace.constant, entry.is_static, fixed)
            keys = {name: reader.read(name, x, name) for name, x in arguments.items()}
            needed = entry.fixed.get(tuple(keys.items()))
            if needed is None:
                return reader, keys
            fixed.add(needed)

    def _add_form(self, entry: Entry, reader: FormReader, node_type: NodeType) -> None:
        outputs, build = self.handles.add_pool(len(self.forms), node_type)
        rebuild = None if build is None else self.namespace.constant(build)
        form = make_form(reader, len(self.forms), node_type.number, node_type.program, outputs, rebuild)
        self.forms.append(form)
        entry.by_form[tuple(reader.conditions)] = self.namespace.generate(entry, [form], _refuse(entry, reader.lists))
        if len(entry.forms) < MAX_FORMS:
            entry.forms.insert(0, form)  # those met first, such as states to begin with, are often the rarer ones
            entry.function = self._generate(entry, entry.forms)
            self.stand.renew(entry)

    def lift(self, x: Any, is_static: Callable[[str, Any], bool], is_result: bool = False) -> Any:
        """`x` with arrays and parameters as source values, and NumPy's scalars as Python's.

        In a result NumPy's floats become values too, for so they come back from a call in eager mode.
        """
        if isinstance(x, Value):
            self.handles.check(x)
            return x
        if type(x) in (int, float, str, bool, type(None)) or is_static("", x):
            return x
        if isinstance(x, Parameter):
            return self._source(x)
        if isinstance(x, np.ndarray):
            array = plain_array(x) if x.dtype.kind in "fiub" else x
            return self._source(array) if array.dtype.kind == "f" else array
        if isinstance(x, np.floating):
            return self._source(plain_array(x)) if is_result else float(x)
        if isinstance(x, (np.bool_, np.integer)):
            return x.item()
        if not is_structure(x):
            return x
        own = parts_of(x)
        parts = [self.lift(part, is_static, is_result) for part in own]
        is_same = all(map(operator.is_, parts, own)) and (type(x) in (list, dict) or not isinstance(x, (list, dict)))
        return x if is_same else Key.of_structure(x, ()).build(parts)

    def _source(self, x: Any) -> Value:
        """The node whose output is an array or a parameter; one per instance, and for equal arrays."""
        arrays = not isinstance(x, Parameter)
        content = (x.shape, x.dtype, x.tobytes()) if arrays else id(x)
        if content not in self._sources:
            key = (SOURCE, None if arrays else id(x))
            if key not in self._entries:
                if arrays:
                    entry = self._make_entry(
                        (SOURCE,), "constant", ONE_ARRAY, lambda arguments: arguments["data"], never, False
                    )
                else:
                    entry = self._make_entry((SOURCE, x), "parameter", NO_ARGUMENTS, lambda arguments: x, never)
                self._entries[key] = entry
            self._sources[content] = self._entries[key].function(*([x] if arrays else []))
        return self._sources[content]

    # Types: their forms change when cells are traced again.

    def _type_of(self, entry: Entry, keys: dict[str, Key]) -> NodeType:
        with self.stand.stepped_aside():
            return self.traces.type_of(entry, keys)

    def _renew(self, entry: Entry, before: Hashable, now: Hashable) -> None:
        """Let an entry know the forms of the types that it has now, and keep those of its types before."""
        entry.shelf[before] = entry.forms, entry.by_form, entry.function
        if now in entry.shelf:
            entry.forms, entry.by_form, entry.function = entry.shelf.pop(now)
        else:
            entry.forms, entry.by_form, entry.function = [], {}, self._generate(entry, [])
        self.stand.renew(entry)


SOURCE = "source"
NO_ARGUMENTS = inspect.Signature([])
ONE_ARRAY = inspect.Signature([inspect.Parameter("data", inspect.Parameter.POSITIONAL_ONLY)])
ANY_NUMBER = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])


def _listed(values: Sequence[Any]) -> list[Any]:
    """A sequence with values in it as a list, with arrays in the place of numbers, so that they are values too."""
    parts = list(map(_as_values, values))
    return values if type(values) is list and all(map(operator.is_, parts, values)) else parts


def _as_values(x: Any) -> Any:
    if isinstance(x, (int, float, np.number)):
        return np.asarray(float(x))
    if type(x) is not tuple:
        return x
    parts = tuple(map(_as_values, x))
    return x if all(map(operator.is_, parts, x)) else parts


def never(name: str, x: Any) -> bool:
    """Say of no argument that it is static."""
    return False


def _refuse(entry: Entry, lists: Sequence[str]) -> Callable[..., Any]:
    def slow(*args: Any) -> Any:
        raise GraphError(
            f"cell {entry.name!r} was called with lists of different lengths ({', '.join(lists)}) that its body uses "
            f"together; keys and values, for example, must be equally many."
        )

    return slow
