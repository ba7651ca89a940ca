"""Recorded graphs that leave their process: a pickle says what their types are, and another process finds them there.

A graph numbers its types and the slots of its results as one batched function met them in one process. Its pickle has,
beside the graph, the calls that the types are of: the cell by its module and name, the arguments by their keys. The
same function of the same model, in another process, traces what it has not met yet, and renumbers the graph.
"""

from __future__ import annotations

import inspect
import io
import pickle
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from types import FunctionType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from autobatch.arrays import IntArray
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.graph.words import sections
from autobatch.ir.arguments import Key
from autobatch.ops.define import Op
from autobatch.ops.operators import OPS
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.trace.calls import Calls, cell_at
from autobatch.trace.elements import Lengths
from autobatch.trace.results import Slot, SlotTable
from autobatch.trace.traces import Family

MOST_KNOWN = 16  # tables of other processes whose numbers are kept


class CarriedTypes:
    """The types of a graph that comes from another process.

    Args:
        names: of the types.
        content: a pickle of all that is needed to find them.
    """

    def __init__(self, names: tuple[str, ...], content: bytes) -> None:
        self.names, self.content = names, content

    @property
    def outlines(self) -> Sequence[str]:
        """The names."""
        return self.names

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CarriedTypes) and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.content)

    def arrays(self) -> NoReturn:
        """Refuse: they are known to a batched function alone."""
        raise GraphError(
            "a recorded graph from another process is given to the batched function that recorded it there; nothing "
            "else can read it."
        )

    def describe_range(self, r: int) -> NoReturn:
        """Refuse as well."""
        self.arrays()


class CarriedCall(NamedTuple):
    """The calls of one type.

    Attributes:
        number: of the type; name: of the cell.
        origin: what is called, see `autobatch.trace.entries.Entry`.
        keys: of the arguments, by name.
        example: the lengths of lists that the body was traced with.
        lengths: those for which the type is right, as `autobatch.trace.elements.Lengths` has them.
        kept: the products that its nodes keep for derivatives.
        signature: what graphs of the type depend on.
    """

    number: int
    name: str
    origin: tuple[Any, ...]
    keys: dict[str, Key]
    example: tuple[int, ...]
    lengths: Lengths
    kept: list[int]
    signature: Any


class Numbers(NamedTuple):
    """What the numbers of another process are here: of types, and of slots; -1 for types that no graph has."""

    types: IntArray
    slots: IntArray


class Carrier:
    """Writes the types of one function for other processes, and finds those of graphs that come from there.

    Args:
        calls, slots: of the function.
        named: gives the modules and parameters under its module, each with a name.
    """

    def __init__(self, calls: Calls, slots: SlotTable, named: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        self._calls, self._slots, self._named = calls, slots, named
        self._written: tuple[Any, CarriedTypes] | None = None
        self._known: dict[CarriedTypes, Numbers] = {}

    def write(self) -> CarriedTypes:
        """The types met so far, for other processes.

        Raises:
            GraphError: something that a type depends on cannot be pickled, or found by its name.
        """
        types, families = self._calls.types, self._calls.traces.families
        state = types.state, len(self._slots.shapes), sum(len(family.lengths.found) for family in families)
        if self._written is None or self._written[0] != state:
            names = {id(x): name for name, x in self._named()}
            carried = [_dumps(_describe(family), names, family.entry.name) for family in families if family.number >= 0]
            content = pickle.dumps((carried, self._slots.rows()))
            self._written = state, CarriedTypes(tuple(types.names), content)
        return self._written[1]

    def knows(self, types: CarriedTypes) -> bool:
        """Whether these types have been found before."""
        return types in self._known

    def forget(self) -> None:
        """Look up the types of other processes again, because some of their types here are retired."""
        self._known.clear()

    def find(self, types: CarriedTypes, beside: Collection[CarriedTypes]) -> None:
        """Find types of another process, and trace the cells that are new here; while nothing else is recorded.

        Args:
            beside: types that are not forgotten for these.

        Raises:
            GraphError: they are of another function, or of another model.
        """
        carried, slots = pickle.loads(types.content)
        named = dict(self._named())
        numbers = Numbers(np.full(len(types), -1, np.int32), np.zeros(len(slots), np.int32))
        for content in carried:
            call: CarriedCall = _Reader(io.BytesIO(content), named).load()
            numbers.types[call.number] = self._number_of(call)
        for number, arguments in enumerate(slots):
            numbers.slots[number] = self._slots.slot(*arguments).number
        spare = [known for known in self._known if known not in beside]
        for known in spare[: max(len(self._known) + 1 - MOST_KNOWN, 0)]:
            del self._known[known]
        self._known[types] = numbers

    def _number_of(self, call: CarriedCall) -> int:
        entry = self._calls.entry_of(call.origin)
        traces, walked = self._calls.traces, call.lengths.walked
        family = traces.family_of(entry, call.keys, call.example)
        for found in call.lengths.found:
            lengths = list(call.example)
            for group, length in zip(walked, found, strict=True):
                lengths[group] = length
            family = traces.family_of(entry, call.keys, tuple(lengths))
        traces.keep_products(family, call.kept)
        assert family.current is not None
        if repr(family.current.body.signature) != call.signature:
            raise GraphError(
                f"a recorded graph comes from a process in which cell {call.name!r} takes or gives other things than "
                f"here; record it with the same model."
            )
        return family.number

    def renumber(self, graph: Graph, memo: dict[int, Any]) -> Graph:
        """A graph of another process as one of this.

        Args:
            memo: structures that have been renumbered, by `id`, as long as the graphs live.
        """
        assert isinstance(graph.types, CarriedTypes)
        numbers, words = self._known[graph.types], graph.words.copy()
        parts = sections(words)
        parts.type_id[:] = numbers.types[parts.type_id]
        parts.out_slot[:] = numbers.slots[parts.out_slot]
        structures = tuple([self._structure(structure, numbers.slots, memo) for structure in graph.structures])
        return Graph(words, graph.floats, self._calls.types, structures, graph.keys)

    def _structure(self, x: Any, slots: IntArray, memo: dict[int, Any]) -> Any:
        found = memo.get(id(x))
        if found is None:
            if isinstance(x, Slot):
                found = self._slots.numbered(int(slots[x.number]))
            elif isinstance(x, Key):
                found = self._slots.share(
                    replace(x, children=tuple([self._structure(c, slots, memo) for c in x.children]))
                )
            else:
                found = x
            memo[id(x)] = found
        return found


def check_carried(graphs: list[Graph]) -> list[Graph]:
    """The graphs, pickled once if this is a worker of torch's loader, which would lose an error later on, and hang.

    Raises:
        GraphError: they cannot be pickled.
    """
    loading = sys.modules.get("torch.utils.data")
    if loading is not None and loading.get_worker_info() is not None:
        dump_graphs(graphs)
    return graphs


def dump_graphs(graphs: Graph | list[Graph]) -> bytes:
    """Pickle graphs.

    Raises:
        GraphError: they cannot be pickled.
    """
    try:
        return pickle.dumps(graphs)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise GraphError(
            f"cannot pickle a recorded graph: what its function returns holds something that another process "
            f"cannot find by its name ({error}); return values, numbers and texts."
        ) from error


def _describe(family: Family) -> CarriedCall:
    assert family.current is not None
    node_type, origin = family.node_type, family.entry.origin
    if origin[0] == "cell" and origin[2] is not None:
        _, cell, owner = origin
        path = cell.path
        if getattr(cell_at(owner, path), "cell", None) is cell:
            origin = "method", owner, path
    return CarriedCall(
        node_type.number, node_type.name, origin, family.keys, family.example, family.lengths,
        family.kept, repr(family.current.body.signature),
    )  # fmt: skip


def _dumps(x: Any, names: Mapping[int, str], cell: str) -> bytes:
    file = io.BytesIO()
    try:
        _Writer(file, names).dump(x)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise GraphError(
            f"cannot pickle a recorded graph: cell {cell!r} depends on something that another process cannot find by "
            f"its name ({error}); pickle the instances, and record them again."
        ) from error
    return file.getvalue()


class _Writer(pickle.Pickler):
    """Pickles with names for modules and parameters.

    Args:
        names: of these, by `id`.
    """

    def __init__(self, file: io.BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file)
        self._names = names

    def persistent_id(self, x: Any) -> tuple[str, str] | None:
        """The name of a module, a parameter or an op."""
        if id(x) in self._names:
            return "part", self._names[id(x)]
        if isinstance(x, Op) and OPS.get(name := x.name) is x:
            return "op", name
        if isinstance(x, (Module, Parameter)):
            raise pickle.PicklingError(f"{x!r}, which is no part of the module")
        return None

    def reducer_override(self, x: Any) -> Any:
        """A function that another of its name wraps is found by that."""
        if isinstance(x, FunctionType):
            module: Any = sys.modules.get(x.__module__)
            named = reduce(lambda at, name: getattr(at, name, None), x.__qualname__.split("."), module)
            if named is not None and named is not x and inspect.unwrap(named) is x:
                return inspect.unwrap, (named,)
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Reads what `_Writer` wrote.

    Args:
        named: modules and parameters, by name.
    """

    def __init__(self, file: io.BytesIO, named: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._named = named

    def persistent_load(self, pid: tuple[str, str]) -> Any:
        """The module, parameter or op of this name."""
        kind, name = pid
        if kind == "op":
            return OPS[name]
        if name not in self._named:
            raise GraphError(
                f"a recorded graph comes from a process whose model has a part {name!r}, which this one lacks; record "
                f"it with the same model."
            )
        return self._named[name]
