"""Ragged values inside a traced cell: arrays whose first axis differs in length between nodes.

In the program, a ragged value of shape (n, d) is a value of shape (d,) with a row per element of a variadic group. This
is the mechanism of list arguments (`autobatch.trace.elements`), so rows of all nodes of a batch are computed together,
without padding. Ops along the other axes are ops of rows; ops along the first axis are reductions over the edges of a
node. Values that NumPy broadcasts along the first axis are spread to the rows. `RULES` lists the ops that need a rule.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn

from autobatch.ir.builder import Builder, Traced, TracedCondition
from autobatch.ir.program import NODE, SHARED, Instruction
from autobatch.ops.choosing import argmax_n, choose_rows, top_k_n
from autobatch.ops.conditions import Condition, gives_condition
from autobatch.ops.define import Op
from autobatch.ops.operators import OPS
from autobatch.ops.reduction import axes_of, logsumexp
from autobatch.ops.rows import Cut, as_cut, take_rows
from autobatch.ops.shaping import index_parts, reshape, slice_


class Ragged(Traced):
    """An array with a row per element of a list, or of the data, of each node."""

    __slots__ = ()

    builder: RowBuilder

    @property
    def shape(self) -> tuple[Any, ...]:
        """Return the number of rows, which is a per-node value, followed by the shape of a row."""
        return (self.builder.append(OPS["count_n"], [self.row], {}), *self.var.shape)

    @property
    def ndim(self) -> int:
        return 1 + len(self.var.shape)

    @property
    def row(self) -> Traced:
        """Return the placeholder for the rows."""
        return self.builder.value(self.index)

    def __len__(self) -> int:
        return len(self.builder.as_list(self))

    def __iter__(self) -> Any:
        return iter(self.builder.as_list(self))

    def __repr__(self) -> str:
        return f"<traced {describe(self)}>"


class RaggedCondition(Condition, Ragged):
    """The result of a comparison of ragged values."""

    __slots__ = ()


class RowBuilder(Builder):
    """Builds the program of a cell with ragged values.

    Attributes:
        group_names: for each variadic group, the name of the argument whose elements it holds, or from which it is
            derived.
        parts: for each group of joined slices, its sources: a group or a number of rows, the slice, and whether the
            source is a number.
    """

    def __init__(self, name: str, weight_names: Mapping[int, str]) -> None:
        super().__init__(name, weight_names=weight_names)
        self.group_names: list[str] = []
        self.parts: dict[int, list[tuple[int, Cut, bool]]] = {}
        self._derived: dict[Hashable, int] = {}

    @abstractmethod
    def as_list(self, values: Any) -> Any:
        """Return the traced list of the rows of a ragged value."""

    @abstractmethod
    def refuse(self, op: Op, values: Sequence[Traced], message: str) -> NoReturn:
        """Raise the error for an invalid op on values, some of them ragged."""

    def add_group(self, name: str) -> int:
        """Add a variadic group; return its number."""
        self.group_names.append(name)
        return len(self.group_names) - 1

    def take(self, parts: Sequence[tuple[Traced, Cut]], is_one: bool = False) -> Ragged:
        """Join slices of the rows of values; equal slices of the same groups share a group.

        Args:
            parts: the values, each with its slice.
            is_one: whether there must be exactly one row.
        """
        fixed = tuple(not isinstance(value, Ragged) for value, _ in parts)
        cuts = tuple(cut for _, cut in parts)
        sources = tuple(value.var.domain if isinstance(value, Ragged) else value.shape[0] for value, _ in parts)
        key = cuts, fixed, sources, is_one
        if key not in self._derived:
            name = next(describe_group(value) for value, _ in parts if isinstance(value, Ragged))
            self._derived[key] = group = self.add_group(name)
            self.parts[group] = list(zip(sources, cuts, fixed, strict=True))
        static = {"cuts": cuts, "fixed": fixed, "group": self._derived[key], "is_one": is_one}
        rows = [value.row if isinstance(value, Ragged) else value for value, _ in parts]
        return Ragged(self, self.append(take_rows, rows, static).index)

    def append(self, op: Op, values: list[Traced], static: dict[str, Any]) -> Traced:
        """Append an op of values that are not ragged."""
        return self._append(op, values, static)

    def at_edges(self, value: Traced, like: Traced, also_shared: bool = False) -> Traced:
        """Spread a per-node value to the edges of `like`, also one that all nodes share if `also_shared`."""
        if value.var.domain == NODE or (also_shared and value.var.domain == SHARED):
            return self.append(OPS["spread"], [value, self.value(like.index)], {})
        return value

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Traced:
        """Append `op` of `args`, some of which have rows; ShapeError if it cannot be applied along them."""
        is_elementwise = op.scalar is not None and not op.random
        rule: Rule = RULES.get(op.name, _apply_to_elements if is_elementwise else _refuse)
        result = rule(self, op, [self.wrap(arg) for arg in args], static)
        return self.condition(result) if gives_condition(op, args) else result

    def condition(self, value: Traced) -> Traced:
        """Return a value that is 0 or 1 as a condition."""
        return (RaggedCondition if isinstance(value, Ragged) else TracedCondition)(self, value.index)


Rule = Callable[[RowBuilder, Op, Sequence[Traced], dict[str, Any]], Traced]


def describe(value: Traced) -> str:
    """Format the shape of a value for messages: `(n, 3) with n rows of 'words'`."""
    if not isinstance(value, Ragged):
        return str(value.shape)
    sizes = ", ".join(map(str, ("n", *value.var.shape)))
    return f"({sizes}{',' * (value.ndim == 1)}) with n rows of {describe_group(value)!r}"


def describe_group(value: Ragged) -> str:
    """Return the name of the argument from which the rows of a value come."""
    return value.builder.group_names[value.var.domain]


def _apply_to_rows(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Ragged:
    """Append an op of rows; values of the node are spread to its rows."""
    like = next(value for value in values if isinstance(value, Ragged))
    rows = [value.row if isinstance(value, Ragged) else builder.at_edges(value, like) for value in values]
    return Ragged(builder, builder.append(op, rows, static).index)


def _apply_to_elements(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Ragged:
    """Append an element-wise op; other values broadcast to the rows as in NumPy."""
    ndim = max(value.ndim for value in values if isinstance(value, Ragged))
    return _apply_to_rows(builder, op, [_aligned(builder, op, values, value, ndim) for value in values], static)


def _aligned(builder: RowBuilder, op: Op, values: Sequence[Traced], value: Traced, ndim: int) -> Traced:
    """Drop a value's axis of length one in the place of the rows; ShapeError for another axis there."""
    if isinstance(value, Ragged):
        fits = value.ndim == ndim
    else:
        fits = value.ndim < ndim or (value.ndim == ndim and value.shape[0] == 1)
    if not fits:
        builder.refuse(
            op,
            values,
            f"the values of {op.name} must have shapes that broadcast, got {_shapes(values)}; n differs between nodes, "
            f"so an axis in the place of n must have n rows too, or length 1.",
        )
    return reshape(value, value.shape[1:]) if not isinstance(value, Ragged) and value.ndim == ndim else value


def _reduce(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append a reduction: of rows along their axes, then, if the first axis is one of those, over the rows."""
    (value,) = values
    axes, keepdims = axes_of(value.ndim, static["axis"]), static["keepdims"]
    inner = tuple(axis - 1 for axis in axes if axis > 0)
    if inner:
        value = _apply_to_rows(builder, op, [value], {"axis": inner, "keepdims": keepdims})
    if axes[:1] != (0,) or not isinstance(value, Ragged):
        return value
    total = builder.append(OPS[f"{op.name}_n"], [value.row], {})
    return reshape(total, (1, *total.shape)) if keepdims else total


def _normalise(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Ragged:
    """Append a softmax along an axis of the rows, or over the rows."""
    (value,) = values
    (axis,) = axes_of(value.ndim, static["axis"])
    if axis > 0:
        return _apply_to_rows(builder, op, values, {"axis": axis - 1})
    if op.name == "softmax":
        return _apply_to_rows(builder, OPS["softmax_n"], values, {})
    found: Ragged = value - logsumexp(value, axis=0)
    return found


def _find_largest(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append the position of the maximum: along an axis of a row, over the rows, or over all elements."""
    (value,) = values
    axes = axes_of(value.ndim, static["axis"])
    if 0 not in axes:
        return _apply_to_rows(builder, op, values, {"axis": axes[0] - 1})
    return _at_rows(builder, argmax_n, [value], {"is_flat": len(axes) == value.ndim})


def _find_k_largest(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append the positions of the k largest rows, which are scalars."""
    if values[0].ndim > 1 or static["k"] < 1:
        builder.refuse(
            op, values, f"top_k must be given a vector and k > 0, got {_shapes(values)} and k={static['k']}."
        )
    return _at_rows(builder, top_k_n, values, static)


def _at_rows(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append an op that maps rows to a per-node value."""
    return builder.append(op, [v.row if isinstance(v, Ragged) else v for v in values], static)


def _multiply(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append a product of each row and a matrix or vector, or a weighted sum of rows."""
    x, y = values
    if isinstance(x, Ragged) and not isinstance(y, Ragged) and x.ndim > 1:
        weight = y.var.source
        if x.ndim == 2 and isinstance(weight, Instruction) and weight.op is OPS["transpose"] and y.ndim == 2:
            values = [builder.value(weight.args[0]), x]  # rows of x @ W.T are W @ row: the gradient of W needs no copy
        return _apply_to_rows(builder, op, values, static)
    if isinstance(x, Ragged) and isinstance(y, Ragged) and x.ndim == 1:
        return weigh(builder, x, y)
    builder.refuse(
        op,
        values,
        f"operands of {op.name} must both have the axis of n elements, the first one as its only axis, got "
        f"{_shapes(values)}; n differs between nodes.",
    )


def weigh(builder: RowBuilder, weights: Ragged, rows: Ragged) -> Traced:
    """Append the sum of rows, each multiplied by its weight."""
    wide = reshape(weights.row, (1,) * (rows.ndim - 1))
    product = builder.append(OPS["mul"], [wide, rows.row], {})
    return builder.append(OPS["sum_n"], [product], {})


def _look_up(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append a lookup of ids in a table, row by row, or of rows by position."""
    table, ids = values
    if not isinstance(table, Ragged):
        return _apply_to_rows(builder, op, values, static)
    own, is_checked = builder.positions(op, builder.value(ids.index))
    found = _at_rows(builder, choose_rows, [table, own], {"is_checked": is_checked})
    return Ragged(builder, found.index) if isinstance(ids, Ragged) else found


def _compare_labels(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append the cross-entropy of each row's logits against its label, or of n logits against a position."""
    logits, label = values
    if logits.ndim == 1 and not isinstance(label, Ragged) and label.ndim == 0:
        loss: Traced = logsumexp(logits, axis=0) - _look_up(builder, op, values, {})
        return loss
    if not all(isinstance(value, Ragged) for value in values) or logits.ndim < 2:
        builder.refuse(
            op,
            values,
            f"labels of cross_entropy must be one position for n logits, or one label per row for n rows of logits, "
            f"got {_shapes(values)}.",
        )
    return _apply_to_rows(builder, op, values, static)


def _norm(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Ragged:
    """Append a normalization along the last axis of rows."""
    if values[0].ndim < 2 or any(isinstance(value, Ragged) for value in values[1:]):
        _refuse(builder, op, values, static)
    return _apply_to_rows(builder, op, values, static)


def _join(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Ragged:
    """Append a join of the rows at each position, or of all rows."""
    ndims, n_rows = {value.ndim for value in values}, {isinstance(value, Ragged) for value in values}
    (axis,) = axes_of(values[0].ndim, static["axis"])
    widths = {value.shape[1:] for value in values}
    if len(ndims) > 1 or (axis > 0 and len(n_rows) > 1) or (axis == 0 and len(widths) > 1):
        builder.refuse(
            op,
            values,
            f"values of concat along axis {static['axis']} must agree in all other axes, got shapes "
            f"{_shapes(values)}; n differs between nodes.",
        )
    if axis == 0:
        return builder.take([(value, as_cut(slice(None))) for value in values])
    return _apply_to_rows(builder, op, values, {"axis": axis - 1})


def _draw(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Ragged:
    """Append an op that draws random numbers: for each node, as many as its rows have elements."""
    rows = [value.row if isinstance(value, Ragged) else value for value in values]
    return Ragged(builder, builder.append(op, rows, static).index)


def _reshape(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Ragged:
    """Append a change of the shape of rows; the first size is the number of rows, or -1."""
    (value,), shape = values, static["shape"]
    if not isinstance(value, Ragged) or not shape or not (isinstance(shape[0], Traced) or shape[0] == -1):
        _refuse(builder, op, values, static)
    return Ragged(builder, reshape(value.row, shape[1:]).index)


def explicit(index: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Replace the ellipsis in an index of a value of `ndim` axes by whole slices."""
    at = next((k for k, part in enumerate(index) if part is Ellipsis), None)
    if at is None:
        return index
    missing = ndim - sum(part is not None and part is not Ellipsis for part in index)
    return (*index[:at], *(slice(None),) * missing, *index[at + 1 :])


def _take(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append a slice: of each row, of the rows, or a single row."""
    (value,) = values
    index = explicit(index_parts(static["index"]), value.ndim)
    first, others = index[0], index[1:]
    if isinstance(first, slice):
        rows: Any = value if first == slice(None) else builder.take([(value, as_cut(first))])
        return _apply_to_rows(builder, op, [rows], {"index": others}) if others else rows
    if first is None or isinstance(first, bool):
        _refuse(builder, op, values, static)
    # For x[-1], the slice must end at None: at 0 it would be empty. The sum over the one row makes it a value of the
    # node.
    single = builder.take([(value, as_cut(slice(first, first + 1 or None)))], is_one=True)
    row = builder.append(OPS["sum_n"], [single.row], {})
    return slice_(row, index=others) if others else row


def _refuse(builder: RowBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> NoReturn:
    builder.refuse(
        op,
        values,
        f"{op.name} cannot be applied to {_shapes(values)}, because n differs between nodes; apply it to each row, by "
        f"ab.each(lambda row: ..., x), or compose it from ab.sum, ab.max and operators.",
    )


def _shapes(values: Sequence[Traced]) -> str:
    return " and ".join(map(describe, values))


RULES: dict[str, Rule] = {
    "sum": _reduce,
    "max": _reduce,
    "softmax": _normalise,
    "log_softmax": _normalise,
    "argmax": _find_largest,
    "top_k": _find_k_largest,
    "matmul": _multiply,
    "dot": _multiply,
    "lookup": _look_up,
    "cross_entropy": _compare_labels,
    "layer_norm": _norm,
    "concat": _join,
    "reshape": _reshape,
    "slice": _take,
    "dropout": _draw,
    "perturb": _draw,
    "stop_gradient": _apply_to_rows,
}
