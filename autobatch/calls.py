"""How a recorded call becomes a node: entries that stand in for cells, the forms they know, and their types.

An `Entry` stands for one cell of one module, one op, or one function made of ops. Its generated function (see
`forms`) handles the calls whose form is known. Any other takes the slow path here: arrays and parameters among
the arguments become sources, the arguments are read, the cell is traced if its type is new, and the function is
generated anew with the form added.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from autobatch.arguments import Key, Static
from autobatch.cell import Cell, NeedsLength, Tracer
from autobatch.decode import form_tables
from autobatch.errors import GraphError
from autobatch.forms import Form, FormReader, make_form, write_function
from autobatch.handles import Bundle, Kind, Value
from autobatch.module import Module, Parameter
from autobatch.ops import add
from autobatch.ops.define import Op, first_symbol
from autobatch.ops.variadic import SUM_N
from autobatch.program import CellProgram
from autobatch.typetable import NodeType, TypeTable
from autobatch.words import IntArray

MAX_FORMS = 8  # that an entry tries one after another; rarer ones take the slow path


@dataclass(eq=False)
class Entry:
    """What stands in the place of one cell, op or function of ops while programs are recorded.

    Attributes:
        name: of the cell.
        identity: tells this entry's types from others', beside the arguments.
        signature: the arguments, without the module.
        run: runs the body on arguments by name, for tracing.
        is_static: whether an argument (name, value), or a value in it, is part of the type.
        function: the generated function; replaced when a form is added.
        forms: those that the function knows.
        by_form: for each form met, a function that knows it alone.
        fixed: the list arguments whose length the body needs.
        places: the namespaces in which the function stands, with the names.
        lifts: whether arrays among the arguments become sources; else they are data.
    """

    name: str
    identity: tuple[Static, ...]
    signature: inspect.Signature
    run: Callable[[Mapping[str, Any]], Any]
    is_static: Callable[[str, Any], bool]
    function: Any = None
    forms: list[Form] = field(default_factory=list)
    by_form: dict[tuple[str, ...], Any] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    places: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    lifts: bool = True


class Calls:
    """The entries, forms, types and handles of one recorded function, and the log that its calls append to.

    Attributes:
        log: ints, see `decode`; floats: the float attributes in call order.
        types: the node types met so far.
        forms: the call forms met so far, by number.
        namespace: the globals of the generated functions.
        weight_names: the name of each parameter by its id, for print-outs.
    """

    def __init__(self) -> None:
        self.log: list[int] = []
        self.floats: list[float] = []
        self.types = TypeTable()
        self.forms: list[Form] = []
        self.weight_names: dict[int, str] = {}
        self.n_handles = 0
        self.namespace: dict[str, Any] = {
            "ndarray": np.ndarray,
            "log": self.log.append,
            "extend": self.log.extend,
            "log_float": self.floats.append,
            "extend_floats": self.floats.extend,
        }
        self._entries: dict[Any, Entry] = {}
        self._types: dict[Any, NodeType] = {}
        self._kinds: dict[Key, Kind] = {}
        self._constants: dict[Static, str] = {}
        self._sources: dict[int, tuple[Any, Value]] = {}
        self._standing: list[Entry] = []
        self._tables: tuple[IntArray, IntArray] | None = None

    def start(self, module: Module | None) -> None:
        """Empty the log for a new recording of functions that read the parameters of `module`."""
        self.log.clear()
        self.floats.clear()
        self.weight_names = {id(p): name for name, p in module.parameters().items()} if module is not None else {}

    def start_instance(self) -> None:
        """Forget the sources of the last instance, and take back handles."""
        self._sources.clear()
        for kind in self._kinds.values():
            kind.recycle()

    def form_tables(self) -> tuple[IntArray, IntArray]:
        """The codes of all forms for the decoder."""
        if self._tables is None:
            self._tables = form_tables([f.code for f in self.forms])
        return self._tables

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
                lambda arguments: _invoke(function, signature, arguments),
                lambda name, x: name in cell.static,
            )
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

    def apply_function(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function made of ops as a cell of its own; arguments that hold no value are static."""
        args = tuple(list(a) if isinstance(a, tuple) and first_symbol(a) is not None else a for a in args)
        return self._function_entry(function).function(*args, **kwargs)

    def _function_entry(self, function: Callable[..., Any]) -> Entry:
        if function not in self._entries:
            signature = inspect.signature(function)
            self._entries[function] = self._make_entry(
                (function,),
                function.__name__.lstrip("_"),
                signature,
                lambda arguments: _invoke(function, signature, arguments),
                lambda name, x: not isinstance(x, (np.ndarray, list)) and first_symbol(x) is None,
            )
        return self._entries[function]

    def _make_entry(
        self,
        identity: tuple[Any, ...],
        name: str,
        signature: inspect.Signature,
        run: Any,
        is_static: Any,
        lifts: bool = True,
    ) -> Entry:
        entry = Entry(name, tuple(Static(part) for part in identity), signature, run, is_static, lifts=lifts)
        entry.function = self._generate(entry, (), lambda *args: self._slow(entry, args))
        return entry

    def _generate(self, entry: Entry, forms: Sequence[Form], slow: Callable[..., Any]) -> Any:
        name = f"entry_{len(self.namespace)}"
        parameters = [
            p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else _Text(self.constant(p.default)))
            for p in entry.signature.parameters.values()
        ]
        header = str(inspect.Signature(parameters))[1:-1]
        source = write_function(name, header, ", ".join(entry.signature.parameters), forms)
        self.namespace[f"slow_{name}"] = slow
        exec(compile(source, f"<recording of {entry.name}>", "exec"), self.namespace)
        return self.namespace[name]

    # The slow path: the first call of each form, and calls that pass arrays or parameters.

    def _slow(self, entry: Entry, args: tuple[Any, ...]) -> Any:
        lifted = {
            name: x if entry.is_static(name, x) or not entry.lifts else self.lift(x, entry.is_static)
            for name, x in zip(entry.signature.parameters, args, strict=True)
        }
        reader = FormReader(self, entry.is_static, entry.fixed)
        keys = {name: reader.read(name, x, name) for name, x in lifted.items()}
        if tuple(reader.conditions) not in entry.by_form:
            try:
                self._add_form(entry, reader, self._type_of(entry, keys))
            except NeedsLength as needs:
                entry.fixed.add(reader.lists[needs.group])
                return self._slow(entry, tuple(lifted.values()))
        return _invoke(entry.by_form[tuple(reader.conditions)], entry.signature, lifted)

    def _add_form(self, entry: Entry, reader: FormReader, node_type: NodeType) -> None:
        handles, rebuild = self._handles_of(node_type)
        form = make_form(reader, len(self.forms), node_type.number, node_type.program, handles.number, rebuild)
        self.forms.append(form)
        self._tables = None
        entry.by_form[tuple(reader.conditions)] = self._generate(entry, [form], _refuse(entry, reader.lists))
        if len(entry.forms) < MAX_FORMS:
            entry.forms.append(form)
            entry.function = self._generate(entry, entry.forms, lambda *args: self._slow(entry, args))
            if entry in self._standing:
                self._stand([entry])

    def lift(self, x: Any, is_static: Callable[[str, Any], bool] = lambda name, x: False) -> Any:
        """`x` with arrays and parameters as source values, and NumPy's scalars as Python's."""
        if isinstance(x, (Value, Bundle)) or type(x) in (int, float, str, bool, type(None)) or is_static("", x):
            return x
        if isinstance(x, Parameter) or (isinstance(x, np.ndarray) and x.dtype.kind == "f"):
            return self._source(x)
        if isinstance(x, (np.bool_, np.integer, np.floating)):
            return x.item()
        if isinstance(x, (tuple, list)):
            parts = [self.lift(part, is_static) for part in x]
            if len({type(part) for part in parts}) > 1:
                parts = [tuple(part) if isinstance(part, Bundle) else part for part in parts]
            return Key.of_structure(x, ()).build(parts)
        if isinstance(x, dict):
            return {name: self.lift(part, is_static) for name, part in x.items()}
        if is_dataclass(x) and not isinstance(x, type):
            return Key.of_structure(x, ()).build([self.lift(getattr(x, f.name), is_static) for f in fields(x)])
        return x

    def _source(self, x: Any) -> Value:
        """The node whose output is an array or a parameter; one per instance."""
        if id(x) not in self._sources:
            arrays = not isinstance(x, Parameter)
            key = (SOURCE, None if arrays else id(x))
            if key not in self._entries:
                if arrays:
                    entry = self._make_entry(
                        (SOURCE,), "constant", ONE_ARRAY, lambda arguments: arguments["data"], _never, False
                    )
                else:
                    entry = self._make_entry((SOURCE, x), "parameter", NO_ARGUMENTS, lambda arguments: x, _never)
                self._entries[key] = entry
            self._sources[id(x)] = (x, self._entries[key].function(*([x] if arrays else [])))
        return self._sources[id(x)][1]

    # Types: one for each identity and keys; their handles.

    def _type_of(self, entry: Entry, keys: dict[str, Key]) -> NodeType:
        identity = (entry.identity, tuple(keys.items()))
        if identity not in self._types:
            tracer = Tracer(entry.name, self.weight_names)
            with self.stepped_aside():
                program, structure = tracer.trace(entry.run, keys)
            if tracer.resolved:
                groups = count()
                known = {name: _resolve(key, tracer.resolved, groups) for name, key in keys.items()}
                self._types[identity] = self._type_of(entry, known)
            else:
                self._types[identity] = self._add_type(entry, program, structure, keys)
        return self._types[identity]

    def _add_type(self, entry: Entry, program: CellProgram, structure: Any, keys: dict[str, Key]) -> NodeType:
        called, sum_type = entry.identity[0].value, -1
        if called is add and (shape := _shape_of_both(keys["args"])) is not None:
            values = {"values": Key("each", None, (Key("value", shape),))}
            sum_type = self._type_of(self._function_entry(SUM_N), values).number
        elif called is SUM_N and len(program.ports) == 1:
            sum_type = len(self.types)
        node_type = NodeType(len(self.types), entry.name, program, structure, tuple(keys.items()), sum_type)
        self.types.add(node_type)
        return node_type

    def _handles_of(self, node_type: NodeType) -> tuple[Kind, str | None]:
        """The handles that a type's nodes return and, unless that is plain tuples, what puts them together."""
        program, structure = node_type.program, node_type.structure
        shapes = [Key("value", program.vars[o].shape) for o in program.outputs]
        plain = _plain_key(structure, shapes)
        if plain is not None:
            return self.kind(plain), None
        return self.kind(Key("tuple", None, tuple(shapes))), self.constant(lambda out: _put_together(structure, out))

    def kind(self, structure: Key) -> Kind:
        """The handles for outputs of this structure."""
        if structure not in self._kinds:
            kind = self._kinds[structure] = Kind(self, len(self._kinds), structure)
            self.namespace[f"Kind_{kind.number}"] = kind.cls
            self.namespace[f"grow_{kind.number}"] = kind.grow
            self.renew(kind)
        return self._kinds[structure]

    def kind_of(self, handle: Value | Bundle) -> Kind:
        """The kind of a handle of this recorder; GraphError if another one made it."""
        if handle.calls is not self:
            raise GraphError("a value from another recording is used here; a recorded value belongs to one function.")
        return handle.kind

    def new_handle(self) -> int:
        """A number that no handle has had."""
        self.n_handles += 1
        return self.n_handles - 1

    def renew(self, kind: Kind) -> None:
        """Tell the generated functions where the next handles of a kind come from."""
        self.namespace[f"take_{kind.number}"] = kind.take

    def constant(self, x: Any) -> str:
        """The name of `x` in the generated functions."""
        key = Static(x)
        if key not in self._constants:
            name = self._constants[key] = f"constant_{len(self._constants)}"
            self.namespace[name] = x
        return self._constants[key]

    # The places in which the generated functions stand while programs are recorded.

    @contextmanager
    def in_place(self, module: Module | None) -> Iterator[None]:
        """Let the entries of all cells of `module` and its submodules stand in their place."""
        entries = []
        for owner in module.modules() if module is not None else ():
            kind: type = type(owner)
            for name, found in _cells_of(kind).items():
                if name not in vars(owner):
                    entry = self.entry(found, owner)
                    entry.places = [(vars(owner), name)]
                    entries.append(entry)
        try:
            self._stand(entries)
            self._standing = entries
            yield
        finally:
            self._standing = []
            self._step_aside(entries)

    @contextmanager
    def stepped_aside(self) -> Iterator[None]:
        """Put the cells themselves back for a while: their bodies are being traced."""
        self._step_aside(self._standing)
        try:
            yield
        finally:
            self._stand(self._standing)

    def _stand(self, entries: list[Entry]) -> None:
        for entry in entries:
            for place, name in entry.places:
                place[name] = entry.function

    def _step_aside(self, entries: list[Entry]) -> None:
        for entry in entries:
            for place, name in entry.places:
                place.pop(name, None)


SOURCE = "source"
NO_ARGUMENTS = inspect.Signature([])
ONE_ARRAY = inspect.Signature([inspect.Parameter("data", inspect.Parameter.POSITIONAL_ONLY)])
ANY_NUMBER = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])


class _Text:
    """Prints as a name; a signature's default in generated source."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


@cache
def _cells_of(kind: type) -> dict[str, Cell]:
    """The cells among the methods of a class, by name."""
    members = {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}
    return {name: member for name, member in members.items() if isinstance(member, Cell)}


def _never(name: str, x: Any) -> bool:
    return False


def _refuse(entry: Entry, lists: Sequence[str]) -> Callable[..., Any]:
    def slow(*args: Any) -> Any:
        raise GraphError(
            f"cell {entry.name!r} was called with lists of different lengths ({', '.join(lists)}) that its body uses "
            f"together; keys and values, for example, must be equally many."
        )

    return slow


def _invoke(function: Callable[..., Any], signature: inspect.Signature, arguments: Mapping[str, Any]) -> Any:
    """Call `function` with arguments by name, each passed as its kind wants."""
    args, kwargs = list[Any](), dict[str, Any]()
    for name, parameter in signature.parameters.items():
        match parameter.kind:
            case parameter.VAR_POSITIONAL:
                args += arguments[name]
            case parameter.VAR_KEYWORD:
                kwargs |= arguments[name]
            case parameter.KEYWORD_ONLY:
                kwargs[name] = arguments[name]
            case _:
                args.append(arguments[name])
    return function(*args, **kwargs)


def _resolve(key: Key, resolved: Mapping[int, Key], groups: Iterator[int]) -> Key:
    """`key` with the elements of empty lists that the body's `shape=` told."""
    if key.kind == "each":
        element = resolved.get(next(groups))
        return key if element is None else Key("each", None, (element,))
    return Key(key.kind, key.detail, tuple(_resolve(child, resolved, groups) for child in key.children))


def _shape_of_both(key: Key) -> tuple[int, ...] | None:
    """The shape of two values of one shape; None for any other arguments."""
    kinds = {child.kind for child in key.children}
    shapes = {child.detail for child in key.children}
    return shapes.pop() if kinds == {"value"} and len(shapes) == 1 else None


def _plain_key(structure: Any, shapes: list[Key]) -> Key | None:
    """The key of a structure of outputs made of plain tuples only."""
    if isinstance(structure, int):
        return shapes[structure]
    if not isinstance(structure, tuple):
        return None
    children = [_plain_key(part, shapes) for part in structure]
    return None if None in children else Key("tuple", None, tuple(c for c in children if c is not None))


def _put_together(structure: Any, outputs: tuple[Value, ...]) -> Any:
    """What the cell returned, with recorded values in place of output numbers."""
    if isinstance(structure, int):
        return outputs[structure]
    if isinstance(structure, Static):
        return structure.value
    if isinstance(structure, tuple):
        return tuple(_put_together(part, outputs) for part in structure)
    return structure.build([_put_together(part, outputs) for part in structure.children])
