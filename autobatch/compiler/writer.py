"""Name the arrays, sizes and addresses of a kernel, and the fields of a tile, for any target.

A tile is some rows of a type that go through all steps together.

A domain is the nodes of a type, or the edges of one of its variadic groups; each has its own rows. A tile is a record
of int64 numbers. The core fills in tiles (`native/plan/tiles.cpp`), and compiled steps read them:

    start: the number of the first node of the tile, among the nodes of the type.
    shift: elements from a place in the buffer to the place of its gradient.
    rows: per domain, the number of rows of the tile.
    inputs, gradients, saved: per domain, the element of the buffer where the first row of inputs, of their gradients
        and of residuals begins.
    forward, backward: per domain, the element of the stage's scratch memory where the first row begins.
    kept: the element of persistent scratch where the first row begins.
    output: per output, the number of its first node's pointer into the destinations.
    strip: the number of the strip of gradients that a call for all rows computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, Self

from autobatch.compiler.assignment import Spot, Storage
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.lowered import Area, Location, Lowered
from autobatch.compiler.view import View
from autobatch.ir.layout import Layout
from autobatch.ir.program import NODE, SHARED

STAGES = ("forward", "backward")  # the stages with batches; each has its own scratch memory
WEIGHTS = "weights"  # the stage of the gradients of parameters, after these


PER_DOMAIN = ("rows", "inputs", "gradients", "saved", *STAGES)


def name_fields(n_domains: int, n_outputs: int) -> tuple[str, ...]:
    """Name all fields of the tiles of a type, in order.

    >>> name_fields(2, 1)[:6]
    ('start', 'shift', 'rows_n', 'rows_0', 'inputs_n', 'inputs_0')
    """
    per_domain = (f"{quantity}_{letter_of(NODE + domain)}" for quantity in PER_DOMAIN for domain in range(n_domains))
    return "start", "shift", *per_domain, "kept_n", *(f"output_{number}" for number in range(n_outputs)), "strip"


def field_of(location: Location, stage: str) -> str:
    """Name the field that holds the beginning of the rows of an area."""
    names = {Area.BATCH: stage, Area.PERSISTENT: "kept"}
    return f"{names.get(location.area, location.area)}_{letter_of(location.domain)}"


def letter_of(domain: int) -> str:
    """Return the suffix of a domain in names: `n` for nodes, or the number of a group of edges."""
    return "n" if domain == NODE else str(domain)


ARRAYS = {
    Area.INPUTS: "buffer", Area.GRADIENTS: "buffer", Area.SAVED: "buffer",
    Area.ROW: "scratch", Area.BATCH: "scratch", Area.PERSISTENT: "kept",
    Area.SHARED: "shared", Area.INTS: "ints", Area.FLOATS: "floats",
}  # fmt: skip
"""The array that holds each area. Registers are variables, and destinations are addresses."""

LITERALS = ("0.0", "-0.0", "1.0", "-1.0", "inf", "-inf", "nan")
WINDOWS = (Area.GATHER, Area.OUTPUT)
SLOTS = {
    "buffer": "real", "scratch": "real", "kept": "real", "ptr": "int64", "dest": "index_type", "adds": "bool_",
    "shared": "real", "table": "int64", "ints": "int32", "floats": "float64",
}  # fmt: skip
"""The first slots of the memory of a stage: arrays and their types. Edges of groups and tables of rows follow."""
DATA = ("ints", "floats")  # arrays of nodes; the names of those of edges end with the number of the group
COMMON = ("buffer", "scratch", "kept", "ptr", "dest", "adds")  # the first slots, which all types share


def is_step(name: str) -> bool:
    """Return whether a slot holds a table's row stride in elements, rather than an address."""
    return name.startswith("step_")


def data_name(area: Area, domain: int) -> str:
    """Name the data of the rows of a domain: `ints` for nodes, `ints_0` for the edges of group 0."""
    return ARRAYS[area] if domain == NODE else f"{ARRAYS[area]}_{domain}"


def split_name(array: str) -> tuple[str, int]:
    """Split the name of an array into its beginning and the domain that it ends with, by default that of nodes.

    >>> split_name("ints_0"), split_name("floats")
    (('ints', 0), ('floats', -1))
    """
    what, _, group = array.partition("_")
    return what, int(group) if group else NODE


def type_of(array: str, types: Mapping[str, str] = SLOTS) -> str:
    """Return the type of the elements of an array, as sources name the type."""
    what = array.partition("_")[0]
    return "int64" if what == "segments" else types.get(array) or (types[what] if what in DATA else "real")


class Term(str):
    """The text of a sum or product, in the notation of C and Python; `parts` are the texts of its operands."""

    __slots__ = ("parts",)

    def __new__(cls, text: str, *parts: str) -> Self:
        found = super().__new__(cls, text)
        found.parts = parts
        return found

    parts: tuple[str, ...]


class Sum(Term):
    """The text of a sum."""


class Product(Term):
    """The text of a product of two factors."""


def add(terms: list[str]) -> str:
    """Write a sum; "" and "0" are omitted."""
    parts = [term for term in terms if term not in ("", "0")]
    return Sum(" + ".join(parts), *parts) if len(parts) > 1 else parts[0] if parts else "0"


def multiply(factor: str, size: str) -> str:
    """Write a product; a size of 0 or 1 is simplified."""
    if size in ("0", "1"):
        return factor if size == "1" else "0"
    return Product(f"({factor}) * {size}" if isinstance(factor, Sum) else f"{factor} * {size}", factor, size)


def width_of(area: Area, domain: int, storage: Storage, layout: Layout) -> int:
    """Return the distance between rows of an area, in floats."""
    match area:
        case Area.BATCH:
            return storage.batch_width[domain]
        case Area.PERSISTENT:
            return storage.persistent_width
        case Area.SAVED:
            return layout.saved_width[domain - NODE]
    return layout.input_width[domain - NODE]


def table_and_step(value: int) -> tuple[str, str]:
    """Name a parameter that is read by lookup, and its row stride in elements."""
    return f"table_{value}", f"step_{value}"


class Common(NamedTuple):
    """The data that all kernels of a stage share.

    Attributes:
        fields: the names of the fields of a tile.
        words: returns the ints or, if its first argument is true, the floats of data per row of a domain.
        slots: the slots of the stage's memory; kernels add the slots that they need.
    """

    lowered: Lowered
    storage: Storage
    layout: Layout
    fields: tuple[str, ...]
    words: Callable[[bool, int], int]
    slots: dict[str, int]


class Writer:
    """The names in the text of one kernel: those of arrays, sizes, fields of the tile and variables.

    Attributes:
        arrays: the array that holds each area.
    """

    arrays: Mapping[Area, str] = ARRAYS

    def __init__(self, common: Common, number: int, kernel: Kernel) -> None:
        self.lowered, self.storage, self.layout, self.fields, self.words, self.slots = common
        self.number, self.kernel = number, kernel
        self.numbers: list[float] = []
        self.literals: dict[str, str] = {}
        self.variables: dict[int, str] = {}
        self.used: dict[str, None] = {}  # the fields of a tile that the text uses
        self.arguments: dict[str, None] = {}
        self.tops: dict[str, str] = {}  # names that are set once per row, with their texts
        self.groups: set[int] = set()
        self.n_names = 0
        self.spot = Spot(number, 0)  # the block that is being written

    def slot(self, name: str) -> int:
        """Return the slot of the address of an array."""
        return self.slots.setdefault(name, len(self.slots))

    def size(self, number: int, *of: Hashable) -> str:
        """Write a size, column or width.

        Args:
            number: the size.
            of: identifies the quantity that has this size; targets may name sizes by it.
        """
        return str(number)

    def real(self, data: float) -> str:
        """Write a number of the model's float type: 0, 1, -1 and non-finite numbers as literals, others by name.

        Others are named because they may depend on the width of the model, such as the divisor of a mean.
        """
        literal = "inf" if data == math.inf else "-inf" if data == -math.inf else "nan" if data != data else repr(data)
        if literal in LITERALS:
            return self.literals.setdefault(literal, f"l{len(self.literals)}")
        self.numbers.append(data)
        return f"c{len(self.numbers) - 1}"

    def field(self, name: str) -> str:
        """Record that a field of the tile is used; return its name."""
        self.used[name] = None
        return name

    def name(self) -> str:
        """Return a new name for a range."""
        self.n_names += 1
        return f"x{self.n_names}"

    def variable(self, value: int) -> str:
        """Return the variable that holds a value of the stage."""
        return self.variables.setdefault(value, f"v{len(self.variables) + 1}")

    def address(self, operand: View, moved: str = "") -> tuple[str, str]:
        """Return the array that holds a view, and the text of the place in it where the view begins."""
        location, view = (
            self.storage.locate(operand) if operand.value not in self.storage.shared else self._shared(operand)
        )
        column = location.column + view.offset
        terms = [self.row_of(location), self.size(column, self.spot, location.area, location.domain, column), moved]
        if location.area in WINDOWS:
            name = f"{location.area}_{location.domain}"
            self.need_window(location.area, location.domain)
            return name, add([self.size(view.offset, self.spot, location.area, location.domain, view.offset), moved])
        array = (
            data_name(location.area, location.domain)
            if location.area in (Area.INTS, Area.FLOATS)
            else self.arrays[location.area]
        )
        self.arguments[array] = None
        return array, add(terms)

    def _shared(self, view: View) -> tuple[Location, View]:
        return Location(Area.SHARED, SHARED, self.storage.shared[view.value]), view

    def row_of(self, location: Location) -> str:
        """Write the place where the current row of an area begins."""
        area, domain = location.area, location.domain
        if area in (Area.ROW, Area.SHARED, *WINDOWS):
            return ""
        if area in (Area.INTS, Area.FLOATS):
            words = self.size(self.words(area is Area.FLOATS, domain), area, domain)
            if domain != NODE:
                self.groups.add(domain)
                # `e` and `r` count the edges of the tile, but the data are those of all edges of the type.
                return multiply(add([f"base_{domain}", "r" if domain == self.kernel.domain else "e"]), words)
            self.tops[f"{area}_r"] = multiply(add([self.field("start"), "r"]), words)
            return f"{area}_r"
        base = self.field(field_of(location, self.lowered.stage))
        width = self.size(width_of(area, domain, self.storage, self.layout), "row", area, domain)
        if domain != self.kernel.domain:
            return add([base, multiply("e", width)])
        self.tops[f"{base}_r"] = add([base, multiply("r", width)])
        return f"{base}_r"

    @property
    def n_rows(self) -> str:
        """Return the field of the number of rows of the kernel."""
        return self.field(f"rows_{letter_of(self.kernel.domain)}")

    @property
    def walked(self) -> list[int]:
        """Return the groups of edges that a row of the kernel walks through."""
        return sorted(self.groups - {self.kernel.domain})

    def need_window(self, area: Area, number: int) -> None:
        """Record the arrays and fields that the choice of the place of an output, or of its gradient, needs."""
        self.arguments.update(dict.fromkeys(("buffer", "scratch", "ptr", "dest")))
        self.field(f"output_{number}")
        if area is Area.GATHER:
            self.field("shift")
        else:
            self.arguments["adds"] = None
