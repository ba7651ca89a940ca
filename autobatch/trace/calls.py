"""The calls of a recorded function: its entries, the forms of calls, and the slow path for the first call of each form.

An `Entry` stands for one cell of one module, one op, or one function built from ops. Its native function records the
calls whose form is known (see `forms`); arrays and parameters among the arguments become sources. All other calls take
the slow path in this module. If the form is still unknown after wrapping, the arguments are read, the cell is traced if
its type is new, and the native function gets the new form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import numpy as np

from autobatch._native import BoundCell, Function, Layout, Log, Rule, Tape
from autobatch.errors import GraphError, ShapeError
from autobatch.ir.arguments import Key, Static
from autobatch.ir.builder import NeedsData
from autobatch.ir.program import CellProgram, first_leaf
from autobatch.ir.typetable import NodeType
from autobatch.ops.define import Op, Shape, first_symbol, static_key
from autobatch.ops.operators import OPS, STAGE
from autobatch.ops.variadic import SUM_N
from autobatch.params.parameter import Parameter
from autobatch.trace.cell import Cell
from autobatch.trace.elements import NeedsLength
from autobatch.trace.entries import Entry, Known, invoke
from autobatch.trace.forms import EACH, Form, FormReader, Item, code_of, make_form
from autobatch.trace.handles import Handles, Rows
from autobatch.trace.inputs import FloatInput
from autobatch.trace.kept import Kept
from autobatch.trace.traces import Specialization, Traces
from autobatch.trace.wrapping import Wrapping, never, to_floats, to_values, treatment_of

if TYPE_CHECKING:
    from autobatch.trace.tape import Pattern

ONE_TYPE = "for one type, write a map, [f(h) for h in children] or ab.each(f, children), and reduce it, e.g. by sum_n"
ALIKE = "for one type, give elements of one form that hold only values, ints and floats"
A_LIST = "a list may have any length in one type"
MOST_COMPARED = 8  # earlier calls to compare with a call of a new form, to explain why it is new
ONE_TYPE_OF_TENSORS = "for one type, write a map, [f(h) for h in children], and reduce it, e.g. a sum of torch.stack"
MAX_FORMS = 256  # forms that an entry tries one after another; calls of further forms take the slow path
NO_ARGUMENTS = inspect.Signature([])
ONE_ARRAY = inspect.Signature([inspect.Parameter("data", inspect.Parameter.POSITIONAL_ONLY)])
NUMBERED_ARRAY = inspect.Signature(
    [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("data", "number")]
)
NUMBERED_ROW = inspect.Signature([inspect.Parameter("row", inspect.Parameter.POSITIONAL_ONLY)])
ANY_NUMBER = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])


class Noted(Protocol):
    """A library's notes on the instance being recorded."""

    def forget(self) -> None:
        """Read the log before the recording clears it."""


class Patching(Protocol):
    """Functions that replace a library's cells; see `autobatch.torch.patches`."""

    def applied(self, patches: Any, entry_of: Callable[[Cell, Any], Entry]) -> AbstractContextManager[None]:
        """Replace cells by functions within the context."""

    def suspended(self) -> AbstractContextManager[None]:
        """Restore the cells within the context."""

    def around(self, function: Any) -> Any:
        """Return the function, wrapped if functions of the library are."""


class Calls:
    """The entries, forms, types and handles of one recorded function, and the log that its calls append to.

    Attributes:
        log: the log of the calls, in the native core.
        traces: the traces of the cells called so far.
        forms: the call forms met so far, by number.
        specializations: the specialization of each form.
        rules: the rules for the derivatives met so far.
        tapes: the tapes from which derivatives may still be recorded.
        open_tapes: the tapes to which calls are added.
        noted: a library's notes on the instance being recorded; None if it has none.
        handles: the classes of the values that calls return.
        wrapping: turns arrays and parameters into values.
        patches: replaces the cells of torch modules by functions while programs are recorded; None for other modules.

    Args:
        methods: classes whose methods recorded values have in addition, with precedence over their own.
        adopt: converts objects of another library to arrays, parameters or numbers, and returns anything else
            unchanged; None without such a library.
        make_portable: see `autobatch.ir.typetable.TypeTable`.
        patch: makes `patches`; None for none.
        in_rounds: whether nodes may run before all are recorded; they cannot keep products for later derivatives.
    """

    def __init__(
        self,
        methods: tuple[type, ...] = (),
        adopt: Callable[[Any], Any] | None = None,
        make_portable: Callable[[], Any] | None = None,
        in_rounds: bool = False,
        patch: Callable[[Log], Patching] | None = None,
    ) -> None:
        self.log = Log(self)
        self.traces = Traces(lambda: self._entry_of_function(SUM_N), self._renew, make_portable)
        self.types = self.traces.types
        self.forms: list[Form] = []
        self.specializations: list[Specialization] = []
        self.rules: dict[bytes, Rule] = {}
        self.open_tapes: list[Tape] = []
        self.noted: Noted | None = None
        self.tapes: WeakSet[Tape] = WeakSet()
        self._layouts: dict[int, tuple[CellProgram, Layout]] = {}
        self._sums: dict[Shape, int] = {}
        self.patches = None if patch is None else patch(self.log)
        self.adopt, self.in_rounds = adopt, in_rounds
        self.handles = Handles(self, methods)
        self.wrapping = Wrapping(self.handles, self.log.sources, self.record_source)
        self._entries: dict[Any, Entry] = {}
        self.log.treatment_of = treatment_of
        self.log.source = self._entry_of_arrays(is_ragged=False).function

    def begin(self) -> None:
        """Begin a recording with an empty log; values of earlier recordings are invalid in it."""
        self.noted = None
        self.open_tapes.clear()
        self.tapes.clear()
        self.log.begin(self.in_rounds)

    def start_phase(self) -> None:
        """Empty the log for the next phase of a recording."""
        # Both read the log, so they come before it is cleared.
        for tape in self.open_tapes:
            tape.save()
        if self.noted is not None:
            self.noted.forget()
        self.log.clear()

    @property
    def begun(self) -> tuple[int, int] | None:
        """Return the numbers of ints and floats logged before this instance; None for an async function."""
        return None if self.in_rounds else self.log.begun

    def has_kept_type(self, table: Kept) -> bool:
        """Return whether a type of nodes that read a row of this table exists."""
        return ("kept", id(table)) in self._entries

    def kept_type(self, table: Kept) -> int:
        """Return the number of the type of nodes that read a row of this table; make the type if it is missing."""
        key = "kept", id(table)
        entry = self._entries.get(key)
        if entry is None:
            run: Callable[..., Any] = lambda arguments: OPS["lookup"](table, arguments["row"])  # noqa: E731
            entry = self._add(key, Entry("kept", (Static("kept"), Static(table)), NUMBERED_ROW, run, never, key))
        return self.specialization_of(entry, {"row": Key("int", ())}, ()).node_type.number

    def type_at(self, at: int) -> NodeType:
        """Return the type of the node whose call begins at this position of the log."""
        # A call begins with the ref of its first output, and the code of a form with its type.
        (ref,) = self.log.ints(at, at + 1)
        return self.types[self.forms[self.log.form_of(ref)].code[0]]

    # Entries: one per callable.

    def entry(self, cell: Cell, owner: Any) -> Entry:
        """Return the entry of a cell; `owner` is the module that it is a method of, or None."""
        # The `id`s in keys stay unique, because the entries keep the owners, parameters and tables alive
        # (`Entry.identity`).
        known = self._entries.get((cell, id(owner)))
        if known is not None:
            return known
        signature, function = cell.signature, cell.function
        if owner is not None:
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
            function = function.__get__(owner)
        return self._add(
            (cell, id(owner)),
            Entry(
                cell.name,
                (Static(cell), Static(owner)),
                signature,
                run=lambda arguments: invoke(function, signature, arguments),
                is_static=cell.is_static,
                origin=("cell", cell, owner),
                ragged=cell.ragged,
                as_floats=cell.as_floats,
                plain=cell if owner is None else cell.__get__(owner),
            ),
        )

    def call_cell(self, cell: Cell, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of a cell: its first one in this recording, or any if functions are wrapped."""
        function = self.entry(cell, owner).function
        if cell.is_direct:
            self.log.add_cell(cell, owner, function)
            if self.patches is not None:
                function = self.patches.around(function)
        return function(*args, **kwargs)

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Any:
        """Record one op as a separate cell. Parameters are part of its type; numbers are data of its nodes.

        The index of a row of a parameter is data too, because rows are looked up. An array combined with a value of
        as many rows gets rows too, as in `x - 0.1 * gradient`, where x was read row by row.
        """
        if op.scalar is not None:
            for rows in args:
                if issubclass(type(rows), Rows):  # isinstance reads the class that a value claims to have
                    args = tuple([self._beside_rows(x, rows) for x in args])
                    break
        if op is OPS["slice"] and isinstance(args[0], Parameter) and (row := _row(args[0], **static)) is not None:
            op, args, static = OPS["lookup"], (args[0], row), {}
        return self._entry_of_op(op, static).function(*args)

    def _beside_rows(self, x: Any, rows: Rows) -> Any:
        """Wrap an array to rows if it has as many as the value `rows`; return anything else unchanged."""
        is_array = isinstance(x, FloatInput) or (isinstance(x, np.ndarray) and x.dtype.kind == "f")
        if is_array and x.ndim == rows.ndim and x.shape[0] == len(rows):
            return self.wrapping.wrap(x, is_ragged=True)
        return x

    def _entry_of_op(self, op: Op, static: dict[str, Any]) -> Entry:
        of_static = static_key(static) if static else ""
        key = (op, of_static) if static else op
        return self._entries.get(key) or self._add(
            key,
            Entry(
                op.name,
                (Static(op), Static(of_static)),
                ANY_NUMBER,
                run=lambda arguments: op(*arguments["args"], **static),
                is_static=lambda name, x: isinstance(x, Parameter),
                origin=("op", op, static),
            ),
        )

    def next_draw(self) -> Any:
        """Raise a GraphError for a draw outside cells that belongs to no node."""
        raise GraphError(
            "random numbers must belong to a node, because all instances would share those drawn outside cells; draw "
            "inside a cell, or apply ab.dropout to a result of a cell."
        )

    def apply_function(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a function built from ops as a separate cell; arguments that hold no value are static."""
        return self._entry_of_function(function).function(*args, **kwargs)

    def as_list(self, values: Iterable[Any]) -> list[Any]:
        """Convert values to a list; outside cells there are no elements of traced lists."""
        return list(values)

    def _entry_of_function(self, function: Callable[..., Any]) -> Entry:
        known = self._entries.get(function)
        if known is not None:
            return known
        signature = inspect.signature(function)
        assert all(p.kind is not p.VAR_POSITIONAL for p in signature.parameters.values())  # a tuple, not a list
        return self._add(
            function,
            Entry(
                function.__name__.lstrip("_"),
                (Static(function),),
                signature,
                run=lambda arguments: invoke(function, signature, arguments),
                is_static=lambda name, x: not isinstance(x, (np.ndarray, list)) and first_symbol(x) is None,
                origin=("function", function),
                lists=True,
            ),
        )

    def record_source(self, x: Any, is_ragged: bool) -> Any:
        """Record an array (data of its node), a parameter or an input; return its value."""
        if type(x) is np.ndarray:
            return self._entry_of_arrays(is_ragged).function(x)
        if isinstance(x, FloatInput):
            return x.read(is_ragged)
        return self._entry_of_parameter(x).function()

    def _entry_of_arrays(self, is_ragged: bool) -> Entry:
        key = ("source", is_ragged)
        known = self._entries.get(key)
        if known is not None:
            return known
        run: Callable[..., Any] = lambda arguments: arguments["data"]  # noqa: E731
        ragged, identity = ("data",) * is_ragged, (Static("source"), Static(is_ragged))
        entry = Entry("constant", identity, ONE_ARRAY, run, never, key, wraps=False, ragged=ragged)
        return self._add(key, entry)

    def _entry_of_parameter(self, parameter: Parameter) -> Entry:
        identity = Static("source"), Static(parameter)
        return self._entries.get(id(parameter)) or self._add(
            id(parameter),
            Entry("parameter", identity, NO_ARGUMENTS, lambda arguments: parameter, never, ("parameter", parameter)),
        )

    def record_input(self, data: Any, number: int, is_ragged: bool) -> tuple[Any, int]:
        """Record an input: its numbers, and the number of the read, which is an unused output.

        Returns:
            The value, and the number of the type of its node.
        """
        entry = self._entries.get(("input", is_ragged))
        if entry is None:
            run: Callable[..., Any] = lambda arguments: (arguments["data"], arguments["number"])  # noqa: E731
            ragged, identity = ("data",) * is_ragged, (Static("input"), Static(is_ragged))
            key = ("input", is_ragged)
            entry = self._add(
                key, Entry("input", identity, NUMBERED_ARRAY, run, never, key, wraps=False, ragged=ragged)
            )
        at = len(self.log)
        value, _ = entry.function(data, number)
        return value, self.type_at(at).number

    def alias(self, value: Any) -> Any:
        """Record a new value equal to another, so that its readers are known; copy propagation removes its node."""
        return self._entry_of_alias().function(value)

    def _entry_of_alias(self) -> Entry:
        key = ("alias",)
        run: Callable[..., Any] = lambda arguments: arguments["data"]  # noqa: E731
        return self._entries.get(key) or self._add(key, Entry("alias", (Static("alias"),), ONE_ARRAY, run, never, key))

    def derived(self, entry: Entry, pattern: Pattern) -> Entry:
        """Return the entry of the derivatives of the calls of an entry."""
        from autobatch.trace.tape import derived_entry

        key = ("derivative", entry, Static(pattern))
        return self._entries.get(key) or self._add(key, derived_entry(entry, pattern))

    def sum_form(self, shape: Shape) -> int:
        """Return the form of sums of any number of values of a shape, which logs their number and refs."""
        if shape not in self._sums:
            values = {"values": Key("each", None, (Key("value", shape),))}
            specialization = self.specialization_of(self._entry_of_function(SUM_N), values, ())
            self._sums[shape] = self.add_form(specialization, [Item(EACH, ((first_leaf(0),),))], ())
        return self._sums[shape]

    def add_up(self, refs: Sequence[int], shape: Shape) -> int:
        """Record the sum of one or more values of a shape; return its ref; a single value is its own sum."""
        return refs[0] if len(refs) == 1 else self.log.add(self.sum_form(shape), (len(refs), *refs), ())

    def open_tape(self, begun: tuple[int, int] | None = None) -> Tape:
        """Open a tape of the calls logged from now on, or from the position `begun` (ints and floats in the log) on."""
        tape = Tape(self.log, begun)
        self.open_tapes.append(tape)
        self.tapes.add(tape)
        return tape

    def close_tape(self, tape: Tape) -> None:
        """Close a tape and find the calls on it."""
        if tape in self.open_tapes:  # unless another recording has begun
            self.open_tapes.remove(tape)
        tape.close()

    def layout(self, form: int) -> Layout:
        from autobatch.trace.tape import make_layout

        specialization = self.specializations[form]
        program, found = specialization.node_type.program, self._layouts.get(form)
        # A cell that is retraced, or keeps products, has another program under the same form and type number.
        if found is None or found[0] is not program:
            found = self._layouts[form] = program, make_layout(form, self.forms[form], specialization)
        return found[1]

    def make_rule(self, *args: Any) -> Rule:
        """Make the rule for a derivative of the calls of a form; see `autobatch.trace.tape`."""
        from autobatch.trace.tape import make_rule

        return make_rule(self, *args)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return self.wrapping.wrap(np.zeros(shape))

    def entry_of(self, origin: tuple[Any, ...]) -> Entry:
        """Return the entry of a call made in another process; `origin` is the origin of its entry there.

        Raises:
            GraphError: the origin is valid only in the process in which it was recorded.
        """
        match origin:
            case "method", owner, path:
                bound = cell_at(owner, path)
                if not isinstance(bound, BoundCell):
                    raise GraphError(
                        f"a recorded graph from another process must be of the same model, got one in which "
                        f"{type(owner).__name__} has a cell {path!r}, which is missing here; record it with this model."
                    )
                return self.entry(bound.cell, owner)
            case "cell", cell, owner:
                return self.entry(cell, owner)
            case "op", op, static:
                return self._entry_of_op(op, static)
            case "function", function:
                return self._entry_of_function(function)
            case "source", is_ragged:
                return self._entry_of_arrays(is_ragged)
            case "parameter", parameter:
                return self._entry_of_parameter(parameter)
            case "derivative", of, pattern:
                return self.derived(self.entry_of(of), pattern)
            case ("alias",):
                return self._entry_of_alias()
        raise GraphError(
            f"a recorded graph from another process must not read {origin[0]} values, which exist only there; record "
            f"it in this process."
        )

    def _add(self, key: Any, entry: Entry) -> Entry:
        self._entries[key] = entry
        wraps = entry.wrapped() if entry.wraps else b""
        entry.function = Function(
            self.log, entry.name, entry.keywords, entry.defaults, entry.takes, entry.bind,
            lambda args: self._slow(entry, args), wraps,
        )  # fmt: skip
        if not isinstance(key, tuple):  # an op, a function or a parameter, which the core looks up
            self.log.functions[key] = entry.function
        return entry

    def _know(self, entry: Entry, known: Known) -> None:
        """Set the forms of an entry; its native function tries up to MAX_FORMS of them, the newest first.

        The earliest forms, such as those of initial states, are often rare.
        """
        entry.known = known
        entry.function.forms = tuple(form.recorder for form in reversed([*known.values()][:MAX_FORMS]))

    # The slow path: the first call of each form, and calls with arguments that the core cannot wrap.

    def _slow(self, entry: Entry, args: tuple[Any, ...]) -> Any:
        if STAGE.current is not self:  # the caller is another thread, or traces a cell
            return entry.call_plainly(args)
        given = args if self.adopt is None else [*map(self.adopt, args)]
        if all(map(is_, given, args)) and entry.wraps:
            given = self._wrapped(entry, args)
        if not all(map(is_, given, args)):
            return entry.function.record_tuple(tuple(given))  # the form with values may be known
        reader, keys = self._read(entry, dict(zip(entry.names, args, strict=True)))
        conditions = reader.conditions
        try:
            specialization = self.specialization_of(entry, keys, reader.lengths)
        except NeedsLength as needs:
            text = reader.lists[needs.group]
            if text in reader.rows:
                raise GraphError(
                    f"cell {entry.name!r} {needs.why}, but the number of rows of {text!r} differs between nodes; apply "
                    f"ops to all rows at once, or loop over the rows outside cells."
                ) from None
            # From now on, elements of this list are separate arguments; read the call again.
            entry.fixed[tuple(keys.items()), tuple(reader.lengths)] = {text}
            if reader.lengths[needs.group]:  # other lists, read next, are often fixed because this one is
                advice = ONE_TYPE if self.adopt is None else ONE_TYPE_OF_TENSORS
                why = _why_one_length(text, needs.why, reader.of_one_length, advice)
                self.types.of_one_length.setdefault(entry.name, why)
            return self._slow(entry, args)
        except NeedsData as needs:
            texts = reader.data(needs.leaves)
            if not texts:
                raise GraphError(f"in cell {entry.name!r}: {needs}") from None
            entry.fixed[tuple(keys.items()), tuple(reader.lengths)] = texts
            return self._slow(entry, args)
        if conditions not in entry.known:
            self._note_lengths(entry, keys, reader)
            self._add_form(entry, reader, specialization)
        recorder = entry.known[conditions].recorder
        assert recorder is not None
        made = Function.record(recorder, args)
        return self._refuse_lengths(entry, specialization.node_type.program, args) if made is None else made

    def _wrapped(self, entry: Entry, args: Sequence[Any]) -> list[Any]:
        """Return the arguments with values in place of arrays and parameters, and floats in place of some ints."""
        wrapped = [*args]
        for place, (name, x) in enumerate(zip(entry.names, args, strict=True)):
            if name in entry.as_floats:
                x = to_floats(x)
            if entry.lists and isinstance(x, (tuple, list)) and first_symbol(x) is not None:
                x = to_values(x)
            if not entry.is_static(name, x):
                wrapped[place] = self.wrapping.wrap(x, entry.is_static, is_ragged=name in entry.ragged)
        return wrapped

    def _note_lengths(self, entry: Entry, keys: Mapping[str, Key], reader: FormReader) -> None:
        """Note an argument for `explain` if earlier calls differ only in its length, as an array or a list."""
        if entry.name in self.types.of_one_length:
            return
        for other in self.traces.keys_of(entry, MOST_COMPARED):
            apart = [name for name, key in keys.items() if key != other[name]]
            if apart and all(_is_longer(keys[name], other[name]) for name in apart):
                advice = f"of {apart[0]}; with @ab.cell(ragged=({apart[0]!r},)) all lengths are one type"
                self.types.of_one_length[entry.name] = advice
            elif apart and all(_is_other_list(keys[name], other[name]) for name in apart):
                if keys[apart[0]].kind == "tuple":
                    self.types.of_one_length[entry.name] = f"of {apart[0]}, because it is a tuple; {A_LIST}"
                elif (why := reader.of_one_length.get(apart[0])) is not None:
                    self.types.of_one_length[entry.name] = f"of {apart[0]}, because its elements {why}; {ALIKE}"

    def _read(self, entry: Entry, arguments: Mapping[str, Any]) -> tuple[FormReader, dict[str, Key]]:
        """Read arguments; read them again if the body is known to need the length of a list, or the numbers of data."""
        fixed = set[str]()
        while True:
            tells_bools = self.adopt is not None
            reader = FormReader(arguments, self.handles, entry.is_static, entry.ragged, fixed, tells_bools)
            keys = {name: reader.read(name, x, name) for name, x in arguments.items()}
            # Parts that are read as fixed have other keys, so each turn finds another entry, until there is none.
            needed = entry.fixed.get((tuple(keys.items()), tuple(reader.lengths)))
            if needed is None:
                return reader, keys
            fixed |= needed

    def _add_form(self, entry: Entry, reader: FormReader, specialization: Specialization) -> None:
        outputs = self.handles.outputs_of(specialization.node_type)
        form = make_form(reader, self.log, specialization.node_type, specialization.lengths, outputs)
        self.forms.append(form)
        self.specializations.append(specialization)
        self._know(entry, {**entry.known, form.conditions: form})

    def add_form(self, specialization: Specialization, ints: Sequence[Item], floats: Sequence[Item]) -> int:
        """Add a form of a specialization that only derivatives record, given its logged items; return its number."""
        self.handles.outputs_of(specialization.node_type)  # raises an error for too many outputs
        code = code_of(specialization.node_type, ints)
        self.forms.append(Form((), code, tuple(ints), tuple(floats)))
        self.specializations.append(specialization)
        return self.log.add_form(code)

    def _refuse_lengths(self, entry: Entry, program: CellProgram, args: tuple[Any, ...]) -> Any:
        """Raise the error for a call of a known form whose lists or arrays have invalid lengths."""
        reader, _ = self._read(entry, dict(zip(entry.names, args, strict=True)))
        lengths, names = program.row_counts(reader.lengths), dict(enumerate(reader.lists))
        for group, parts in program.derived.items():
            names[group] = " and ".join(dict.fromkeys(f"a part of {names[p.group]}" for p in parts if p.group >= 0))
            if group in program.ones and lengths[group] != 1:
                row, of = parts[0].cut[0], parts[0].group
                raise ShapeError(
                    f"cell {entry.name!r} reads row {row} of {names[of]!r}, which must exist, got {lengths[of]} rows."
                )
        for group, (least, op) in program.least.items():
            if lengths[group] < least:
                raise ShapeError(
                    f"cell {entry.name!r} applies {op} to the rows of {names[group]!r}, which must have at least "
                    f"{least}, got {lengths[group]}; call the cell only with enough rows."
                )
        # The core refused the lengths, but not for the reasons above: two tied lists differ.
        unequal = next(tie for tie in program.ties if lengths[tie[0]] != lengths[tie[1]])
        first, second = (f"{lengths[group]} of {names[group]!r}" for group in unequal)
        raise GraphError(
            f"lists that cell {entry.name!r} combines element by element must have equal lengths, got {first} and "
            f"{second}."
        )

    # Types: their forms change when cells are traced again.

    def forget(self, gone: set[int], bound: set[int]) -> None:
        """Forget all calls of removed parameters or modules.

        Args:
            gone: `id`s of the removed objects.
            bound: `id`s of parameters that were rebound.
        """
        retired = self.traces.forget(gone, bound)
        if not gone:
            return
        for key, entry in list(self._entries.items()):
            if entry.uses(gone):
                del self._entries[key]
                self.log.functions.pop(key, None)
                entry.clear()
            elif any(form.code[0] in retired for form in entry.known.values()) or entry.former:
                self._know(entry, {c: form for c, form in entry.known.items() if form.code[0] not in retired})
                entry.former.clear()
                entry.fixed.clear()
        for number, form in enumerate(self.forms):
            if form.code[0] in retired:  # its number stays in use, but no call has it again
                self.forms[number] = Form((), form.code, form.ints, form.floats)
        self._layouts.clear()
        # The core's table owns cells, owners and functions, and would keep removed modules alive.
        self.log.forget_cells()
        self.rules.clear()

    def specialization_of(self, entry: Entry, keys: dict[str, Key], lengths: Sequence[int]) -> Specialization:
        """Return the specialization of an entry for these keys and lengths, see `Traces.specialization_of`."""
        with nullcontext() if self.patches is None else self.patches.suspended():
            return self.traces.specialization_of(entry, keys, tuple(lengths))

    def _renew(self, entry: Entry, before: Hashable, now: Hashable) -> None:
        """Switch an entry to the forms of its current types, and keep the forms of its former types."""
        entry.former[before] = entry.known
        self._know(entry, entry.former.pop(now, {}))


def cell_at(owner: Any, path: str) -> Any:
    """Return the attribute of an owner at a path, names joined by dots; None if it is missing."""
    return reduce(lambda at, name: getattr(at, name, None), path.split("."), owner)


def _why_one_length(text: str, why: str, others: Mapping[str, str], advice: str) -> str:
    """Explain which list has a type per length, and why, with a remedy.

    Args:
        others: the lists whose elements are separate arguments, with the reasons.
    """
    if not others:
        return f"of {text}, because the body {why}; {advice}"
    separate = " and ".join(f"the elements of {other} {reason}" for other, reason in others.items())
    return f"of {text}, because the body {why}, and {separate}; {ALIKE}"


def _is_longer(key: Key, other: Key) -> bool:
    """Return whether two arrays, ids or rows of floats, differ only in the length of their first axis."""
    least = {"int": 1, "value": 2}.get(key.kind, 0)
    if not least or (key.kind, key.below) != (other.kind, other.below) or len(key.detail) != len(other.detail):
        return False
    return len(key.detail) >= least and key.detail[1:] == other.detail[1:]


def _is_other_list(key: Key, other: Key) -> bool:
    """Return whether two lists of separate elements, or two plain tuples, differ in length."""
    is_list = key.kind == other.kind and key.kind in ("list", "tuple") and key.detail is None
    return is_list and len(key.children) != len(other.children)


def _row(table: Parameter, index: Any) -> int | None:
    """Return the number of the row that an index selects from a parameter; None if it is not an int in range."""
    if not isinstance(index, (int, np.integer)) or isinstance(index, bool) or not table.shape:
        return None
    row = int(index) + (table.shape[0] if index < 0 else 0)
    return row if 0 <= row < table.shape[0] else None
