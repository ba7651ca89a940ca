"""Lists of any length inside a traced cell: one element stands for all, as long as the body treats all alike.

A list argument is a `TracedList`: a value with one row per edge. Functions such as `ab.sum_n` and `ab.each` take it
whole. If the body iterates over it, as in `[f(h) for h in children]`, it meets as many *elements* as the list of the
current call holds; each is the same value at another *position*. An op of elements at one position is an element at
that position. Its instruction is appended once, because the same op of the same values is found again. So `f` of all
elements is one value, and the list of these is a list of any length again, which `as_list` detects. A sum of all
elements in order, as computed by Python's `sum`, becomes `sum_n`.

Any other use of elements needs the length: elements at two positions in one op, a returned element, a single selected
element. Then the body is traced with separate values (`NeedsLength`). A body may also use the length itself, or iterate
differently for some lengths. So a body that iterates over a list is traced anew for each length it meets, and the
programs must be equal (`autobatch.trace.traces`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from autobatch.errors import ShapeError
from autobatch.ir.arguments import leaves, map_leaves
from autobatch.ir.builder import NeedsNumber, Traced, TracedCondition
from autobatch.ir.program import NODE, Attribute, Constant, Port, Weight, source_key
from autobatch.ops.conditions import Condition, gives_condition
from autobatch.ops.define import Op, Shape, static_key
from autobatch.ops.eager import EagerArray
from autobatch.ops.operators import OPS, is_zero
from autobatch.ops.ports import VariadicPort
from autobatch.ops.rows import count_rows
from autobatch.trace.pairs import PairBuilder, Pairs
from autobatch.trace.ragged import Ragged
from autobatch.trace.scanning import is_library

ASKING = ("abc", "functools", "typing")  # modules that ask for the class of an object for their caller


class NeedsLength(Exception):
    """Raised if the body of a cell needs the length of a list argument.

    Attributes:
        group: number of the variadic group of the list.
        why: description of the use of the list, a predicate of "the body".
    """

    def __init__(self, group: int, why: str) -> None:
        super().__init__(why)
        self.group, self.why = group, why


SINGLE = "uses single elements"
RANDOM = "draws random numbers for each element"
MIXED = "does not treat all elements alike"


@dataclass(eq=False)
class Lengths:
    """The lengths of lists for which a trace is valid.

    Attributes:
        walked: the variadic groups whose length matters, because the body iterates over the list.
        found: their lengths in the calls for which the body was traced and gave the same program.
    """

    walked: tuple[int, ...] = ()
    found: set[tuple[int, ...]] = field(default_factory=set)

    def of(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Select the lengths that matter from those of all lists."""
        return tuple(lengths[group] for group in self.walked)


class Position(NamedTuple):
    """The position of an element in its list.

    Attributes:
        walk: 0 if the body iterates over the list; else the number of the call of `ab.each`.
        number: counts from 1; 0 inside `ab.each`, where an element stands for all.
        is_sum: whether the value is the sum of the elements up to this one.
    """

    walk: int
    number: int
    is_sum: bool = False


FIRST = Position(0, 1)


class Element(Traced):
    """A value of one edge; see `Position`."""

    __slots__ = ("at",)

    builder: ListBuilder

    def __init__(self, builder: ListBuilder, index: int, at: Position) -> None:
        self.builder, self.index, self.at = builder, index, at

    @property
    def shape(self) -> Shape:
        """Return the per-node shape."""
        return self.builder.vars[self.index].shape

    def again(self) -> Element:
        """Return a new object for the same value, which is distinct for derivatives."""
        return type(self)(self.builder, self.index, self.at)

    def __radd__(self, other: Any) -> Any:
        if self.at == FIRST and is_zero(other):  # the first step of `sum`
            return self.builder.sum_up_to(self)
        return super().__radd__(other)


class ElementCondition(Condition, Element):
    """The result of a comparison of elements."""

    __slots__ = ()


class ListBuilder(PairBuilder):
    """Builds the program of a cell, and keeps track of the elements of lists.

    Args:
        lengths: lengths of the list arguments of the call, by variadic group.

    Attributes:
        walked: the groups whose elements the body has seen one by one, or whose length it has read.
        lists: the groups that are list arguments; others are data of any length, or rows that another node made.
    """

    def __init__(self, name: str, weight_names: Mapping[int, str], lengths: Sequence[int]) -> None:
        super().__init__(name, weight_names)
        self.lengths = tuple(lengths)
        self.lists = set[int]()
        self.walked: set[int] = set()
        self._n_each = 0
        self._mapped: list[int] = []  # the groups of the unfinished calls of `ab.each`
        self._places: list[Position] = []
        self._known: dict[Hashable, Traced] = {}
        self._repeated: dict[Hashable, tuple[type[Element], int]] = {}

    def class_of(self, x: Traced, frame: FrameType) -> type:
        """Return the class of symbols to code of libraries, and that of eager mode to users' code, where it is known.

        Raises:
            NeedsNumber: the value is computed from numbers of the model alone, so the body can have the number itself.
        """
        while (module := frame.f_globals.get("__name__")) in ASKING and frame.f_back is not None:
            frame = frame.f_back
        kind = type(x)
        if is_library(module):
            return kind
        if self.live and x.is_known():
            raise NeedsNumber("isinstance")
        source, is_array = x.var.source, bool(x.var.shape) or issubclass(kind, Ragged)
        if isinstance(source, Attribute) and not (source.is_float or source.dtype or is_array):
            return int
        # Eagerly, a computed number may be one of Python's or of NumPy's.
        return EagerArray if is_array or isinstance(source, (Attribute, Port)) else kind

    def length(self, group: int) -> int:
        """Return the length of a list in the current call; NeedsLength if it is empty, as no element shows its use."""
        if group in self.parts:
            rows = [(x if is_number else self.length(x), cut) for x, cut, is_number in self.parts[group]]
            if not (n := sum(count_rows(*part) for part in rows)):
                raise NeedsLength(group, "walks through a part of it, which has no elements")
            return n
        if not self.lengths or not self.lengths[group]:
            raise NeedsLength(group, "walks through it, and it has no elements")
        self.walked.add(group)
        return self.lengths[group]

    def argument_of(self, group: int) -> int:
        """Return the group of the list or array from which the rows of a group come; the first if there are several."""
        while group in self.parts or group in self.pairs:
            groups = [x for x, _, is_number in self.parts.get(group, ()) if not is_number]
            group = groups[0] if groups else self.pairs[group][0]
        return group

    def places(self, n: int) -> list[Position]:
        """Return the positions of the n elements of a list that a body iterates over."""
        while len(self._places) < n:
            self._places.append(Position(0, len(self._places) + 1))
        return self._places[:n]

    def refuse(self, op: Op, values: Sequence[Traced], message: str) -> NoReturn:
        """Raise NeedsLength for a list among the values; ShapeError with the message if there is none."""
        rows = [v for v in values if isinstance(v, Ragged)]
        groups = [g for v in rows for g in (v.of if isinstance(v, Pairs) else (v.var.domain,))]
        group = next((group for group in groups if group in self.lists), None)
        if group is None:
            raise ShapeError(message)
        raise NeedsLength(group, f"applies {op.name} to all of it")

    def place(self, tree: Any, at: Position) -> Any:
        """Convert values of edges to elements at a position."""
        return map_leaves(lambda x: Element(self, x.index, at), tree)

    @contextmanager
    def mapping(self, group: int) -> Iterator[Position]:
        """Map a function over a list within the context, which gives the position of the elements."""
        self._n_each += 1
        self._mapped.append(group)
        try:
            yield Position(self._n_each, 0)
        finally:
            self._mapped.pop()

    def next_draw(self) -> tuple[Traced, int]:
        """Return the attribute that numbers a node's draw, and the next site; NeedsLength inside `ab.each`."""
        if self._mapped:
            raise NeedsLength(self._mapped[-1], RANDOM)
        return super().next_draw()

    def wrap(self, x: Any) -> Traced:
        """Convert an argument of an op to a value of this program; equal constants are merged once a list is walked."""
        if isinstance(x, Traced) or not self.walked:
            return super().wrap(x)
        if isinstance(x, (int, float)):
            return self._once(("number", type(x), repr(x)), lambda: super(ListBuilder, self).wrap(x))
        new = super().wrap(x)
        return self._once(source_key(new.var.source), lambda: new) if isinstance(new.var.source, Constant) else new

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Traced:
        """Append `op` of `args`; for elements, return an element or the sum of all.

        The body runs once for each element, so ops on the second and later elements take a fast path: they are found
        by a key of the op and its arguments. Ops without elements have no key.
        """
        # The key stays empty if an argument needs the slow path below: an element at another position, a running sum,
        # a list, a ragged value or an array.
        parts: list[Any] = [op, static_key(static)] if static else [op]
        key: tuple[Hashable, ...] = ()
        at, weights = None, self._weights
        for arg in args if self.walked else ():
            kind = type(arg)
            if kind is Element or kind is ElementCondition:
                if at is None:
                    at = arg.at
                if arg.at != at or at.is_sum:
                    break
                parts += kind, arg.index
            elif kind is Traced or kind is TracedCondition:
                parts += kind, arg.index
            elif kind is float or kind is int:
                # `repr`, because 0.0 and -0.0 are equal keys.
                parts += kind, repr(arg)
            elif id(arg) in weights:
                parts += Weight, weights[id(arg)]
            else:
                break
        else:
            key = tuple(parts) if at is not None else ()
            if at is not None and key in self._repeated:
                known, index = self._repeated[key]
                return known(self, index, at)
        elements = [arg for arg in args if isinstance(arg, Element)]
        if op is OPS["add"] and len(args) == len(elements) == 2 and _continues(*elements):
            return self.sum_up_to(elements[1])
        ragged = next((arg for arg in args if isinstance(arg, Ragged)), None)
        if ragged is not None:
            if elements:
                raise NeedsLength(elements[0].var.domain, MIXED)
            return super().apply(op, args, static)
        values = [self.wrap(a) for a in args]
        is_condition = gives_condition(op, args)
        if not elements:
            result = self.append(op, values, static)
            return TracedCondition(self, result.index) if is_condition else result
        first = elements[0]
        is_map = not (op.segments or op.random or first.at.is_sum) and all(x.at == first.at for x in elements)
        if not is_map or (op.index_axis is not None and values[1].var.domain == NODE):
            raise NeedsLength(first.var.domain, RANDOM if op.random else MIXED)
        index = self.append(op, [self.at_edges(value, first) for value in values], static).index
        kind = ElementCondition if is_condition else Element
        if at is not None and key:
            self._repeated[key] = kind, index
        return kind(self, index, first.at)

    def sum_up_to(self, last: Element) -> Traced:
        """Return the sum of the elements up to this one; if it is the last, the sum over all edges."""
        if last.at.number == self.length(last.var.domain):
            return self.append(OPS["sum_n"], [self.value(last.index)], {})
        return Element(self, last.index, last.at._replace(is_sum=True))

    def as_list(self, values: Iterable[Any]) -> TracedList | list[Any]:
        """Return `values` as a traced list, if they are one or its elements in order; a list if none is an element."""
        if isinstance(values, TracedList):
            return values
        if isinstance(values, Ragged):
            return TracedList(self, self.name, values.var.domain, values.row)
        values = list(values)
        if values and type(values[0]) is Element and self._is_whole(values):
            return self.list_of(values[0], values[0])
        listed = [list(leaves(value)) for value in values]
        element = next((x for parts in listed for x in parts if isinstance(x, Element)), None)
        if element is None:
            return values
        group = element.var.domain
        # A map over the list: value k contains elements at position k only, and in the program all are the same value
        # (`trees` holds numbers of values).
        places = self.places(self.length(group))
        found = [{x.at for x in parts if isinstance(x, Element)} for parts in listed]
        trees = [map_leaves(lambda x: self.wrap(x).index, value) for value in values]
        if found != [{place} for place in places] or any(tree != trees[0] for tree in trees):
            raise NeedsLength(group, MIXED)
        return self.list_of(values[0], element)

    def _is_whole(self, values: Sequence[Any]) -> bool:
        """Return whether these are the same value at all positions of a list, in order."""
        index, n = values[0].index, self.length(values[0].var.domain)
        kinds = {*map(type, values)} == {Element}
        return kinds and [x.index for x in values] == [index] * n and [x.at for x in values] == self.places(n)

    def list_of(self, tree: Any, element: Element) -> TracedList:
        """Return the list whose elements are a tree computed from `element`; its other values are at every edge."""
        group = element.var.domain

        def at_edges(x: Any) -> Traced:
            if isinstance(x, Element) and (x.at != element.at or x.at.is_sum):
                raise NeedsLength(group, MIXED)
            return self.value(self.at_edges(self.wrap(x), element, also_shared=True).index)

        return TracedList(self, self.name, group, map_leaves(at_edges, tree))

    def append(self, op: Op, values: list[Traced], static: dict[str, Any]) -> Traced:
        """Append an op of values that are not ragged; equal instructions are merged once a list is walked."""
        if not self.walked or op.random:
            return self._append(op, values, static)
        key = op, tuple(value.index for value in values), static_key(static) if static else ""
        return self._once(key, lambda: self._append(op, values, static))

    def _once(self, key: Hashable, make: Callable[[], Traced]) -> Traced:
        """Return the value of a key, made if missing; a new object each time, because derivatives use identity."""
        if key not in self._known:
            self._known[key] = make()
        return self.value(self._known[key].index)


def _continues(before: Element, last: Element) -> bool:
    """Return whether a sum of elements so far continues with the next element."""
    so_far, at = before.at, last.at
    begun = so_far.is_sum or so_far == FIRST
    follows = at.number == so_far.number + 1 and at.walk == so_far.walk and not at.is_sum
    return begun and follows and before.index == last.index


class TracedList(VariadicPort):
    """A list of any length, inside a trace.

    For `isinstance` and `match` it is a list. An element is the same object at each access, as in a list.

    Args:
        group: the number of the variadic group.
        element: the placeholder for its elements, a tree of values per edge; None as long as the list is empty.
        make: makes the placeholder from the shape of an element.
    """

    def __init__(
        self, builder: ListBuilder, name: str, group: int, element: Any, make: Callable[[Any], Any] | None = None
    ) -> None:
        self.builder, self.name, self.group, self.element, self._make = builder, name, group, element, make
        self._elements: list[Any] = []

    @property
    def __class__(self) -> Any:
        """Return the class that `isinstance` finds; `type(x)` gives the true one."""
        return list

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError("the class of a list cannot be changed")

    def values(self, shape: Any) -> Any:
        """Return the placeholder for the elements of a list that becomes one value; `shape` describes it if the list is
        empty.

        Without `shape`, an empty list has its own type, whose body sees the same empty list as in eager mode.
        """
        lists, lengths = self.builder.lists, self.builder.lengths
        if shape is None and self.group in lists and lengths and not lengths[self.group]:
            raise NeedsLength(self.group, "makes one value of it without shape=, and it has no elements")
        if self.element is None and self._make is not None and shape is not None:
            self.element = self._make(shape)
        return self.elements()

    def elements(self) -> Any:
        """Return the placeholder for the elements, also of an empty list if its elements are known."""
        if self.element is None:
            raise NeedsLength(self.group, "maps over it, and it has no elements")
        return self.element

    def each(self, function: Callable[..., Any], lists: Sequence[Any]) -> Any:
        """Map a function over lists that include this one."""
        if not all(isinstance(x, TracedList) and x.element is not None for x in lists):
            raise NeedsLength(self.group, "maps over it together with a list of another kind")
        with self.builder.mapping(self.group) as at:
            elements = [self.builder.place(x.element, at) for x in lists]
            result = function(*elements)
        return self.builder.list_of(result, next(leaves(elements[0])))

    def like(self, element: Any) -> TracedList:
        """Return a list of the same length, with another placeholder."""
        return TracedList(self.builder, self.name, self.group, element)

    def stacked(self) -> Ragged:
        """Return the elements as one ragged value."""
        row = self.values(None)
        if not isinstance(row, Traced):
            raise ShapeError("elements of stack must be single values, got tuples; stack their parts separately.")
        return Ragged(self.builder, row.index)

    def __repr__(self) -> str:
        return f"<traced list {self.name!r} of any length>"

    def __len__(self) -> int:
        return self.builder.length(self.group)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self._placed())

    def __getitem__(self, index: Any) -> Any:
        return self._placed()[index]

    def _placed(self) -> list[Any]:
        """Return the elements at all positions."""
        places = self.builder.places(len(self))
        if not self._elements:
            self._elements = _placed(self.builder, self.element, places)
        return self._elements

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: object) -> list[Any]:
        return list(self)

    def __getattr__(self, name: str) -> Any:
        if hasattr(list, name):
            raise NeedsLength(self.group, f"calls its method {name!r}")
        raise AttributeError(f"a list has no attribute {name!r}")

    def _needs_length(self, *args: Any) -> Any:
        raise NeedsLength(self.group, "joins it with something, or compares it")

    def _changes(self, *args: Any) -> Any:
        raise NeedsLength(self.group, "changes it")

    __contains__ = __add__ = __radd__ = __mul__ = __rmul__ = __eq__ = __ne__ = _needs_length
    __lt__ = __le__ = __gt__ = __ge__ = _needs_length
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _changes


# Sequence patterns of `match` ask for a flag of the true class, which this sets; they ignore `__class__`.
Sequence.register(TracedList)


def _placed(builder: ListBuilder, tree: Any, places: Sequence[Position]) -> list[Any]:
    """Return edge values as elements at each of these positions."""
    if isinstance(tree, Traced):
        index = tree.index
        return [Element(builder, index, at) for at in places]
    if type(tree) is tuple and tree:
        return [*zip(*[_placed(builder, part, places) for part in tree], strict=True)]
    return [builder.place(tree, at) for at in places]
