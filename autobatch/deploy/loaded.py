"""Cells that were loaded from a file: they have programs instead of a body.

Tracing such a cell appends the program for its arguments' keys to the trace, so it is batched, differentiated and
compiled like the original cell. In eager mode, a call runs as a mini-batch of one.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from autobatch.api import batched
from autobatch.arguments import RAW
from autobatch.deploy.encoding import FIXED, Name, key_text, kinds_of
from autobatch.errors import GraphError
from autobatch.ir.arguments import Key, Static, is_structure, leaves, parts_of, put_together
from autobatch.ir.builder import NeedsData, Traced
from autobatch.ir.program import (
    DRAW,
    NODE,
    SHARED,
    Attribute,
    CellProgram,
    Constant,
    Instruction,
    Port,
    Weight,
    dtype_of,
    first_leaf,
    int_limit,
)
from autobatch.ops.operators import STAGE
from autobatch.ops.randomness import EAGER, next_site
from autobatch.ops.taped import Taped
from autobatch.params.module import Module
from autobatch.trace.cell import Cell
from autobatch.trace.elements import Lengths, ListBuilder, NeedsLength, TracedList
from autobatch.trace.ragged import Ragged

ENCODE = "; in Python, ab.readers.encode(instance, ab.readers.restore(model.about)) replaces strings with ids"


FLOATS = {"float", "value"}  # kinds of keys


class Variant(NamedTuple):
    """A cell's program for arguments of one key.

    Attributes:
        program: program of a node.
        structure: structure of its outputs.
        lengths: lengths of lists for which the program is valid.
        kinds: kinds of the keys, see `autobatch.deploy.encoding.kinds_of`.
    """

    program: CellProgram
    structure: Any
    lengths: Lengths
    kinds: frozenset[str]


class LoadedCell(Cell):
    """A cell loaded from a file.

    Args:
        name: name of the cell.
        signature: signature without `self`.
        variants: variants by the text of their keys.
        name_of: returns the names of modules and parameters among arguments.
        static, ragged: as for `autobatch.cell`.
    """

    def __init__(
        self, name: str, signature: inspect.Signature, variants: Mapping[str, Variant], name_of: Name,
        static: tuple[str, ...], ragged: tuple[str, ...],
    ) -> None:  # fmt: skip
        def body(owner: Any, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            try:
                return self._append(bound.arguments)
            except RAW as error:
                raise GraphError(
                    f"cannot call the loaded cell {name!r} with these arguments ({type(error).__name__}: {error}); if "
                    f"they are valid, the file is damaged, so export the model again."
                ) from error

        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        body.__name__ = body.__qualname__ = name
        body.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])  # type: ignore[attr-defined]
        super().__init__(body, static, ragged)
        self._variants, self._name_of = variants, name_of
        keys = [json.loads(text) for text in variants]
        self._kinds = {name: set[str]().union(*(_kinds(key[name]) for key in keys)) for name in signature.parameters}
        # JSON written by JavaScript has 3 for 3.0, so ints are accepted where the exported examples had only floats.
        # Arrays of floats have the kind "value".
        self.as_floats = frozenset(x for x, kinds in self._kinds.items() if "int" not in kinds and kinds & FLOATS)
        self._engines: dict[int, Any] = {}

    def run_eagerly(self, owner: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a mini-batch of this call alone; raise a GraphError during eager differentiation."""
        if STAGE.current is not None or any(isinstance(x, Taped) for x in leaves((args, kwargs))):
            raise GraphError(
                f"the loaded cell {self.name!r} cannot be differentiated in eager mode; differentiate it in a batched "
                f"function."
            )
        assert isinstance(owner, Module)
        # An engine keeps its owner alive, so no other object gets the same id.
        if id(owner) not in self._engines:
            call = partial(_call, self.__get__(owner))
            self._engines[id(owner)] = batched(call, module=owner, policy="agenda", backend="reference")
        engine = self._engines[id(owner)]
        graph = engine.recorder.record([(args, kwargs)])
        if any(engine.recorder.types[int(type_id)].program.draws for type_id in graph.type_id):
            # The engine has seed, step and draw 0, so that the key alone determines the numbers.
            graph.keys = np.array([EAGER.source.key_of(next_site()[0])])
        return _only(engine([graph]))

    @property
    def result_below(self) -> int:
        """Return the exclusive upper bound of a result that is one int, such as a label; 0 if it is not, or variants
        differ.
        """
        found = {
            int_limit(one.program.vars, one.program.outputs[one.structure]) if isinstance(one.structure, int) else 0
            for one in self._variants.values()
        }
        return found.pop() if len(found) == 1 else 0

    def _append(self, arguments: Mapping[str, Any]) -> Any:
        """Append the program for these arguments to the trace; return its outputs."""
        values = _Values(arguments, self.static)
        if any(x.element is None for x in values.lists if isinstance(x, TracedList)):
            self._make_elements(values)
            # Read again, because the keys of lists include those of their elements.
            values = _Values(arguments, self.static)
        variant = self._find(values)
        n = tuple(values.builder.length(values.group_of[group]) for group in variant.lengths.walked)
        if n and n not in variant.lengths.found:
            raise GraphError(
                f"lists must have lengths for which the cell was exported, got {max(n)} elements; export the model "
                f"with longest={max(n)}."
            )
        outputs = _append(values.builder, variant.program, values)
        return put_together(variant.structure, outputs)

    def _make_elements(self, values: _Values) -> None:
        """Give the elements of empty lists the shapes that they have in a variant whose other arguments are equal."""
        given = json.loads(key_text(values.keys, self._name_of))
        for text in self._variants:
            elements = list[Any]()
            if _differs_in_elements(given, json.loads(text), elements):
                for x, element in zip(values.lists, elements, strict=True):
                    if element is not None and isinstance(x, TracedList):
                        x.values(_shapes(element))
                return

    def _find(self, values: _Values) -> Variant:
        text = key_text(values.keys, self._name_of)
        if text in self._variants:
            return self._variants[text]
        known = frozenset[str]().union(*(variant.kinds for variant in self._variants.values()))
        # The caller catches these errors, and traces again with the data in the keys, or with separate elements.
        if FIXED in known - kinds_of(values.keys.values()):
            raise NeedsData(f"cell {self.name!r} needs numbers of its data.", values.data)
        if values.lists and "list" in known:
            own = zip(values.in_argument, values.lists, strict=True)
            found = next((one for name, one in own if "list" in self._kinds[name]), values.lists[0])
            raise NeedsLength(found.group, "was exported for separate elements")
        raise self._refuse(values.keys, json.loads(text), [json.loads(text) for text in self._variants])

    def _refuse(self, keys: Mapping[str, Key], given: Mapping[str, Any], known: list[Any]) -> GraphError:
        """Make the error for arguments of unknown kinds; name data of an unknown kind, such as a field of a request.

        Args:
            keys: the arguments. given: the same, as JSON.
            known: the arguments of each variant, as JSON.
        """
        for name, key in keys.items():
            kinds = [of_one[name] for of_one in known]
            if given[name] not in kinds and all(kind in ("int", "float") for kind, *_ in kinds):
                expected = " or ".join(dict.fromkeys(f"{kind}{shape or ''}" for kind, shape, *_ in kinds))
                texts = [part for part in (key, *key.children) if part.kind == "static"]
                is_word = any(kind == "int" for kind, *_ in kinds) and any(
                    isinstance(x.detail.value, str) for x in texts
                )
                advice = ENCODE if is_word else ""
                return GraphError(
                    f"field or argument {name!r} of the loaded cell {self.name!r} must be {expected}, as in the "
                    f"examples of its export, got {key}{advice}."
                )
        arguments = ", ".join(f"{name}: {key}" for name, key in keys.items())
        return GraphError(
            f"the loaded cell {self.name!r} must be called with arguments for which it was exported, got {arguments}; "
            f"export the model with an example that calls the cell with them."
        )


class _Values:
    """The arguments of a call inside a trace.

    Attributes:
        keys: keys of the arguments, by name.
        builder: builder of the trace.
        lists: lists of any length among the arguments and their parts, in order.
        in_argument: name of the argument that contains each list.
        data: leaves that are ints.
        of_leaf: leaf to its value in the trace.
        group_of: variadic group of the call to that of the trace.
    """

    def __init__(self, arguments: Mapping[str, Any], static: Collection[str]) -> None:
        self.builder: Any = STAGE.current
        assert isinstance(self.builder, ListBuilder)
        self.lists, self.in_argument = list[Any](), list[str]()
        self.data, self.of_leaf, self.group_of = set[int](), dict[int, int](), {NODE: NODE, SHARED: SHARED}
        self._next: dict[int, int] = {}
        self.keys: dict[str, Key] = {}
        for name, x in arguments.items():
            self.keys[name] = Key("static", Static(x)) if name in static else self._read(x, NODE)
            self.in_argument += [name] * (len(self.lists) - len(self.in_argument))

    def _read(self, x: Any, domain: int) -> Key:
        """Read an argument, or a part of one, in a group; return its key."""
        if isinstance(x, TracedList):
            group = self._group(x.group)
            self.lists.append(x)
            return Key("each", None, () if x.element is None else (self._read(x.element, group),))
        if isinstance(x, Ragged):
            group = self._group(x.var.domain)
            self.lists.append(x)
            return Key("rows", None, (self._read(x.row, group),))
        if isinstance(x, Traced):
            return self._read_value(x, domain)
        if is_structure(x):
            return Key.of_structure(x, [self._read(part, domain) for part in parts_of(x)])
        if type(x) in (int, float) or isinstance(x, np.ndarray):
            return self._read_value(self.builder.wrap(np.asarray(x)), domain, type(x))
        return Key("static", Static(x))

    def _read_value(self, x: Traced, domain: int, kind: type = Traced) -> Key:
        # Leaves have the numbers to which the ports of the stored program refer: per domain, in the order of reading.
        leaf = first_leaf(domain) + self._next.setdefault(domain, 0)
        self._next[domain] += 1
        self.of_leaf[leaf] = x.index
        source, vars = x.var.source, self.builder.vars
        if isinstance(source, Attribute) or kind in (int, float):
            is_float = source.is_float if isinstance(source, Attribute) else kind is float
            if not is_float:
                self.data.add(leaf)
            dtype = source.dtype if isinstance(source, Attribute) else ""
            return Key("float" if is_float else "int", x.shape, dtype=dtype)
        return Key("value", x.shape, below=int_limit(vars, x.index), dtype=dtype_of(vars, x.index))

    def _group(self, number: int) -> int:
        """Map a group of the trace to a new group of the call; return that."""
        found = len(self.lists)  # the place of the list, which the caller appends next
        self.group_of[found] = number
        return found


def _differs_in_elements(given: Any, known: Any, elements: list[Any]) -> bool:
    """Return whether two keys, as JSON, are equal except for elements that are missing in lists of the first.

    Args:
        elements: an output: for each list of any length, the key of its elements in `known` is appended, or None.
    """
    if isinstance(given, list) and given and given[0] in ("each", "rows"):
        if not isinstance(known, list) or known[:2] != given[:2]:
            return False
        elements.append(known[2][0] if known[2] else None)
        return not given[2] or given[2] == known[2]
    if isinstance(given, dict) and isinstance(known, dict):
        return _differs_in_elements([*given.items()], [*known.items()], elements)
    if isinstance(given, list | tuple) and isinstance(known, list | tuple):
        return len(given) == len(known) and all(map(_differs_in_elements, given, known, repeat(elements)))
    return bool(given == known)


def _kinds(key: Any) -> set[str]:
    """Return the kinds of a key, as JSON, and of its parts."""
    kind, _, *rest = key
    return {kind}.union(*map(_kinds, rest[0])) if rest else {kind}


def _shapes(key: Any) -> Any:
    """Return the shape of an element or of each of its parts; for data, the key."""
    kind, detail, children = key[:3]
    if kind in ("int", "float"):
        return Key(kind, tuple(detail), dtype="".join(key[4:]))
    return tuple(detail) if kind == "value" else tuple(map(_shapes, children))


def _append(builder: Any, program: CellProgram, values: _Values) -> list[Any]:
    """Append a program to a trace; return its outputs."""
    number, group_of = dict[int, int](), dict(values.group_of)
    for group in program.derived:
        group_of[group] = builder.add_group(f"rows of {program.name}")
    for index, var in enumerate(program.vars):
        match var.source:
            case Attribute(leaf=leaf) if leaf == DRAW:
                continue
            case Port(leaf=leaf) | Attribute(leaf=leaf):
                number[index] = values.of_leaf[leaf]
            case Weight(parameter):
                number[index] = builder.wrap(parameter).index
            case Constant(data):
                number[index] = builder.add(Constant(data), var.shape, SHARED).index
            case Instruction(op, args, static):
                if op.random:
                    draw, site = builder.next_draw()
                    static = {**static, "site": site}
                    # Arguments without a number are the skipped attributes of draws; the caller has its own.
                    number |= {arg: draw.index for arg in args if arg not in number}
                if "group" in static:
                    static = {**static, "group": group_of[static["group"]]}
                if "of" in static:
                    static = {**static, "of": tuple(group_of[group] for group in static["of"])}
                number[index] = builder.append(op, [builder.value(number[arg]) for arg in args], static).index
    builder.ties.update((group_of[first], group_of[second]) for first, second in program.ties)
    domains = [program.vars[output].domain for output in program.outputs]
    indices = [number[output] for output in program.outputs]
    return [Ragged(builder, i) if domain >= 0 else builder.value(i) for i, domain in zip(indices, domains, strict=True)]


def _call(cell: Callable[..., Any], call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    args, kwargs = call
    return cell(*args, **kwargs)


def _only(x: Any) -> Any:
    """Return the result of the only instance of a mini-batch."""
    if isinstance(x, (np.ndarray, list)):
        return x[0]
    if not is_structure(x):
        return x
    return Key.of_structure(x, ()).build([_only(part) for part in parts_of(x)])
