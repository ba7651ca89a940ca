"""Pickles of recorded graphs for other processes.

The numbers of a graph's types and result slots are valid only for one batched function in one process. So its pickle
also describes the call that each type stands for: the cell by its module and name, the arguments by their keys. The
same function of the same model, in another process, traces the cells that are new there and renumbers the graph.
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
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.trace.calls import Calls, cell_at
from autobatch.trace.elements import Lengths
from autobatch.trace.results import Slot, SlotTable
from autobatch.trace.traces import Specialization

MOST_KNOWN = 16  # type tables of other processes whose numbers are cached


class PortableTypes:
    """The types of a graph from another process.

    Args:
        names: the names of the types.
        content: pickle of the descriptions of the types, and of the slots.
    """

    def __init__(self, names: tuple[str, ...], content: bytes) -> None:
        self.names, self.content = names, content

    @property
    def outlines(self) -> Sequence[str]:
        return self.names

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PortableTypes) and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.content)

    def arrays(self) -> NoReturn:
        """Raise a GraphError, because only a batched function knows these types."""
        raise GraphError(
            "a recorded graph from another process must be given to the batched function that recorded it there; "
            "nothing else can read it."
        )

    def describe_range(self, r: int) -> NoReturn:
        """Raise a GraphError, as `arrays` does."""
        self.arrays()


class PortableCall(NamedTuple):
    """The description of a type: the call that it stands for.

    Attributes:
        number: number of the type.
        name: name of the cell.
        origin: origin of the entry, see `autobatch.trace.entries.Entry`.
        keys: keys of the arguments, by name.
        example: lengths of lists with which the body was traced.
        lengths: lengths of lists for which the type is valid.
        kept: products that its nodes keep for derivatives.
        signature: the properties of the type that graphs depend on.
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
    """This process's numbers of another one's types and slots, indexed by their numbers there; -1 for unused types."""

    types: IntArray
    slots: IntArray


class TypeTranslator:
    """Writes the types of one function for other processes, and finds the types of graphs from other processes.

    Args:
        calls, slots: the calls and slots of the function.
        named: returns the parts of its module, modules and parameters, each with its name.
    """

    def __init__(self, calls: Calls, slots: SlotTable, named: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        self._calls, self._slots, self._named = calls, slots, named
        self._written: tuple[Any, PortableTypes] | None = None
        self._known: dict[PortableTypes, Numbers] = {}

    def write(self) -> PortableTypes:
        """Return the types met so far, for other processes; cached until there are new ones.

        Raises:
            GraphError: something that a type depends on cannot be pickled, or found by its name.
        """
        types, specializations = self._calls.types, self._calls.traces.specializations
        state = (
            types.state,
            len(self._slots.shapes),
            sum(len(specialization.lengths.found) for specialization in specializations),
        )
        if self._written is None or self._written[0] != state:
            names = {id(x): name for name, x in self._named()}
            calls = [
                _dumps(_describe(specialization), names, specialization.entry.name)
                for specialization in specializations
                if specialization.number >= 0
            ]
            content = pickle.dumps((calls, self._slots.rows()))
            self._written = state, PortableTypes(tuple(types.names), content)
        return self._written[1]

    def knows(self, types: PortableTypes) -> bool:
        """Return whether `find` has found these types before."""
        return types in self._known

    def forget(self) -> None:
        """Drop the cached numbers, because some of the types here are retired."""
        self._known.clear()

    def find(self, types: PortableTypes, beside: Collection[PortableTypes]) -> None:
        """Find types of another process, and trace the cells that are new here. Call it while nothing else is recorded.

        Args:
            beside: types to keep in the cache.

        Raises:
            GraphError: the types belong to another function or model.
        """
        calls, slots = pickle.loads(types.content)
        named = dict(self._named())
        numbers = Numbers(np.full(len(types), -1, np.int32), np.zeros(len(slots), np.int32))
        for content in calls:
            call: PortableCall = _Reader(io.BytesIO(content), named).load()
            numbers.types[call.number] = self._number_of(call)
        for number, arguments in enumerate(slots):
            numbers.slots[number] = self._slots.slot(*arguments).number
        # The oldest come first.
        spare = [known for known in self._known if known not in beside]
        for known in spare[: max(len(self._known) + 1 - MOST_KNOWN, 0)]:
            del self._known[known]
        self._known[types] = numbers

    def _number_of(self, call: PortableCall) -> int:
        entry = self._calls.entry_of(call.origin)
        traces, walked = self._calls.traces, call.lengths.walked
        specialization = traces.specialization_of(entry, call.keys, call.example)
        # The type must be valid here for all lengths of lists for which it was valid there.
        for found in call.lengths.found:
            lengths = list(call.example)
            for group, length in zip(walked, found, strict=True):
                lengths[group] = length
            specialization = traces.specialization_of(entry, call.keys, tuple(lengths))
        # Before signatures are compared, because kept products are outputs, which are part of them.
        traces.keep_products(specialization, call.kept)
        assert specialization.current is not None
        if repr(specialization.current.body.signature) != call.signature:
            raise GraphError(
                f"cell {call.name!r} must have the signature that it has in the process of a recorded graph, got "
                f"another one; record it with the same model."
            )
        return specialization.number

    def renumber(self, graph: Graph, memo: dict[int, Any]) -> Graph:
        """Convert a graph of another process to the numbers of this one.

        Args:
            memo: cache of renumbered structures, by `id`; valid as long as the graphs live.
        """
        assert isinstance(graph.types, PortableTypes)
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


def check_portable(graphs: list[Graph]) -> list[Graph]:
    """Return the graphs; in a worker of torch's DataLoader, check that they can be pickled.

    The loader pickles them later, in a thread that would lose the error, so the loader would hang.

    Raises:
        GraphError: the graphs cannot be pickled.
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
            f"cannot pickle a recorded graph: results of its function must not hold objects that another process "
            f"cannot find by their names ({error}); return values, numbers and strings."
        ) from error


def _describe(specialization: Specialization) -> PortableCall:
    assert specialization.current is not None
    node_type, origin = specialization.node_type, specialization.entry.origin
    if origin[0] == "cell" and origin[2] is not None:
        _, cell, owner = origin
        path = cell.path
        # Such a cell is found on its owner by its path, so it need not be pickled itself.
        if getattr(cell_at(owner, path), "cell", None) is cell:
            origin = "method", owner, path
    return PortableCall(
        node_type.number, node_type.name, origin, specialization.keys, specialization.example, specialization.lengths,
        specialization.kept, repr(specialization.current.body.signature),
    )  # fmt: skip


def _dumps(x: Any, names: Mapping[int, str], cell: str) -> bytes:
    file = io.BytesIO()
    try:
        _Writer(file, names).dump(x)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise GraphError(
            f"cannot pickle a recorded graph: cell {cell!r} must not depend on objects that another process cannot "
            f"find by their names ({error}); pickle the instances, and record them there."
        ) from error
    return file.getvalue()


class _Writer(pickle.Pickler):
    """A pickler that writes modules, parameters and ops by name.

    Args:
        names: names of modules and parameters, by `id`.
    """

    def __init__(self, file: io.BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file)
        self._names = names

    def persistent_id(self, x: Any) -> str | None:
        """Return the name of a module or a parameter; None for anything else."""
        if id(x) in self._names:
            return self._names[id(x)]
        if isinstance(x, (Module, Parameter)):
            raise pickle.PicklingError(f"{x!r} must be a part of the module")
        return None

    def reducer_override(self, x: Any) -> Any:
        """Pickle a function that another one of the same name wraps as the `unwrap` of that other function."""
        if isinstance(x, FunctionType):
            module: Any = sys.modules.get(x.__module__)
            named = reduce(lambda at, name: getattr(at, name, None), x.__qualname__.split("."), module)
            if named is not None and named is not x and inspect.unwrap(named) is x:
                return inspect.unwrap, (named,)
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Reads the pickles of `_Writer`.

    Args:
        named: modules and parameters, by name.
    """

    def __init__(self, file: io.BytesIO, named: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._named = named

    def persistent_load(self, name: str) -> Any:
        """Return the module or parameter of this name."""
        if name not in self._named:
            raise GraphError(
                f"a recorded graph from another process must be of the same model, got one with a part {name!r}, which "
                f"is missing here; record it with this model."
            )
        return self._named[name]
