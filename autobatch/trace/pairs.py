"""Values of n by m rows inside a traced cell: `x @ y.T`, `x[:, None] + y`, and results computed from these.

In the program, such a value of shape (n, m, ...) is a value of shape (...) in a derived group, with a row for each pair
of rows (`autobatch.ops.pairs`). So n and m are not part of the type, and nothing is padded. `x.T` and `x[None]` are the
rows of x with a marker for the position of the row axis; pairs are built from them. `RULES` lists the ops on such
values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from autobatch.ir.builder import Traced
from autobatch.ops.conditions import Condition, gives_condition
from autobatch.ops.define import Op
from autobatch.ops.operators import OPS
from autobatch.ops.pairs import (
    argmax_pairs,
    max_pairs,
    multiply_pairs,
    pick_pairs,
    softmax_pairs,
    spread_pairs,
    sum_pairs,
    turn_pairs,
    weigh_pairs,
)
from autobatch.ops.reduction import axes_of, logsumexp
from autobatch.ops.shaping import reshape
from autobatch.trace.ragged import Ragged, RowBuilder, explicit, weigh

ADVICE = "scores of pairs are x @ y.T or x[:, None] + y; see the page 'Any length' of the documentation for their ops"


class Pairs(Ragged):
    """An array with an element for each pair of rows, of two values of any number of rows."""

    __slots__ = ()

    builder: PairBuilder

    @property
    def of(self) -> tuple[int, int]:
        """Return the two paired groups."""
        return self.builder.pairs[self.var.domain]

    @property
    def how(self) -> dict[str, Any]:
        """Return the static arguments of ops on these pairs."""
        return {"group": self.var.domain, "of": self.of}

    @property
    def shape(self) -> tuple[Any, ...]:
        """Return the numbers of rows, which are per-node values, followed by the shape of an element."""
        return (*map(self.builder.count, self.of), *self.var.shape)

    @property
    def ndim(self) -> int:
        return 2 + len(self.var.shape)

    def __len__(self) -> int:
        self.builder.refuse_pairs("a loop over the rows", [self])

    def __iter__(self) -> Any:
        self.builder.refuse_pairs("a loop over the rows", [self])


class PairsCondition(Condition, Pairs):
    """The result of a comparison of pairs."""

    __slots__ = ()


class Moved(Ragged):
    """A value of any number of rows whose row axis is not the first but axis `at`: `x.T` or `x[None]`."""

    __slots__ = ("at",)

    builder: PairBuilder

    def __init__(self, builder: RowBuilder, index: int, at: int = 1) -> None:
        super().__init__(builder, index)
        self.at = at

    def again(self) -> Moved:
        """Return a new object for the same value, which is distinct for derivatives."""
        return type(self)(self.builder, self.index, self.at)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Return the shape, in which the number of rows is a per-node value."""
        row = self.var.shape
        return (*row[: self.at], self.builder.count(self.var.domain), *row[self.at :])

    def __len__(self) -> int:
        self.builder.refuse_pairs("a loop over the first axis", [self])

    def __iter__(self) -> Any:
        self.builder.refuse_pairs("a loop over the first axis", [self])


class MovedCondition(Condition, Moved):
    """The result of a comparison of moved rows."""

    __slots__ = ()


class PairBuilder(RowBuilder):
    """Builds the program of a cell that pairs rows.

    Attributes:
        pairs: the two paired groups of each group of pairs.
    """

    def __init__(self, name: str, weight_names: Any) -> None:
        super().__init__(name, weight_names)
        self.pairs: dict[int, tuple[int, int]] = {}

    def count(self, group: int) -> Traced:
        """Return the number of rows of a group."""
        rows = next(index for index, var in enumerate(self.vars) if var.domain == group)
        return self.append(OPS["count_n"], [self.value(rows)], {})

    def how(self, first: int, second: int) -> dict[str, Any]:
        """Return the static arguments of ops on pairs of rows of two groups."""
        of = first, second
        group = next((group for group, known in self.pairs.items() if known == of), None)
        if group is None:
            group = self.add_group(" and ".join(dict.fromkeys(self.group_names[part] for part in of)))
            self.pairs[group] = of
        return {"group": group, "of": of}

    def tie(self, first: int, second: int) -> None:
        """Require two groups to have the same number of rows."""
        if first != second:
            self.ties.add((min(first, second), max(first, second)))

    def refuse_pairs(self, what: str, values: Sequence[Traced], advice: str = ADVICE) -> NoReturn:
        """Raise the error for an invalid operation on values that include pairs."""
        shapes = " and ".join(map(describe_pairs, values))
        self.refuse(
            OPS["matmul"],
            values,
            f"{what} is not supported for shapes {shapes}, because the numbers of rows differ between nodes; {advice}.",
        )

    def refuse_returned(self, value: Traced) -> NoReturn:
        """Raise the error for pairs or moved rows among the results of a cell."""
        self.refuse(
            OPS["matmul"],
            [value],
            f"results of cell {self.name!r} must have n rows on the first axis only, got shape "
            f"{describe_pairs(value)}; use the value inside the cell, and return one with rows, such as "
            f"ab.softmax(x @ y.T) @ z.",
        )

    def apply(self, op: Op, args: tuple[Any, ...], static: dict[str, Any]) -> Traced:
        """Append `op` of `args`, some of which have rows."""
        values = [self.wrap(arg) for arg in args]
        if not (any(isinstance(v, (Pairs, Moved)) for v in values) or _begins_pairs(op, values, static)):
            return super().apply(op, args, static)
        is_elementwise = op.scalar is not None and not op.random
        rule: PairRule = RULES.get(op.name, _combine if is_elementwise else _refuse)
        result = rule(self, op, values, static)
        return self.condition(result) if gives_condition(op, args) else result

    def condition(self, value: Traced) -> Traced:
        """Return a value that is 0 or 1 as a condition."""
        if isinstance(value, Moved):
            return MovedCondition(self, value.index, value.at)
        return PairsCondition(self, value.index) if isinstance(value, Pairs) else super().condition(value)


PairRule = Callable[[PairBuilder, Op, Sequence[Traced], dict[str, Any]], Traced]


def describe_pairs(value: Traced) -> str:
    """Format the shape of a value for messages: `(n, m, 3)`, or `(n, n)` if both axes are rows of one value."""
    if isinstance(value, Pairs):
        first, second = value.of
        sizes: Sequence[Any] = ("n", "n" if first == second else "m", *value.var.shape)
    elif isinstance(value, Moved):
        sizes = (*value.var.shape[: value.at], "n", *value.var.shape[value.at :])
    else:
        sizes = ("n", *value.var.shape) if isinstance(value, Ragged) else value.shape
    return f"({', '.join(map(str, sizes))}{',' * (len(sizes) == 1)})"


def _begins_pairs(op: Op, values: Sequence[Traced], static: dict[str, Any]) -> bool:
    """Return whether an op on values of n rows makes pairs or moves the row axis."""
    if op.name == "slice":
        index = static["index"]
        return (index[0] if isinstance(index, tuple) and index else index) is None
    if op.name == "transpose":
        return True
    if op.scalar is None or op.random:
        return False
    # As in x[:, None] + y: x has shape (n, 1, ...), and so one axis more than y, of shape (m, ...).
    sizes = sorted({v.ndim for v in values if isinstance(v, Ragged)})
    if len(sizes) != 2 or sizes[1] != sizes[0] + 1:
        return False
    return all(v.var.shape[0] == 1 for v in values if isinstance(v, Ragged) and v.ndim == sizes[1])


def _pairs(builder: PairBuilder, value: Traced) -> Pairs:
    return Pairs(builder, value.index)


def _side(value: Traced, ndim: int) -> int | None:
    """Return the axis along which rows are broadcast to pairs with `ndim` axes; None if impossible."""
    if isinstance(value, Moved):
        return 0 if value.ndim == ndim and value.at == 1 and value.var.shape[0] == 1 else None
    if value.ndim == ndim:
        return 1 if value.var.shape[0] == 1 else None
    return 0 if value.ndim == ndim - 1 else None


def _combine(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append an element-wise op that broadcasts rows to pairs as NumPy does."""
    rows = [value for value in values if isinstance(value, Ragged)]
    ndim = max(value.ndim for value in rows)
    found: tuple[list[int], list[int]] = [], []
    for value in rows:
        if isinstance(value, Pairs):
            if value.ndim < ndim:
                _fail(builder, op, values)
            found[0].append(value.of[0])
            found[1].append(value.of[1])
        elif (side := _side(value, ndim)) is not None:
            # Broadcast along one row axis, so the rows are those of the other.
            found[1 - side].append(value.var.domain)
        else:
            return _combine_moved(builder, op, values, static)
    if not all(found):
        return _combine_moved(builder, op, values, static)
    for groups in found:
        for first, second in pairwise(groups):
            builder.tie(first, second)
    how = builder.how(found[0][0], found[1][0])
    spread = [_at_pairs(builder, op, values, value, ndim, how) for value in values]
    return _pairs(builder, builder.append(op, spread, static))


def _at_pairs(builder: PairBuilder, op: Op, values: Any, value: Traced, ndim: int, how: dict[str, Any]) -> Traced:
    """Broadcast a value to each pair."""
    if isinstance(value, Pairs):
        return value.row
    if isinstance(value, Ragged):
        side = _side(value, ndim)
        row = value.row
        # Each row has an axis of length 1 in the place of the other row axis.
        if isinstance(value, Moved) or side == 1:
            row = reshape(row, row.shape[1:])
        found: Traced = builder.append(spread_pairs, [row], {**how, "axis": side})
        return found
    # Axes in the place of n and m, which differ between nodes, must have length 1.
    extra = max(value.ndim - (ndim - 2), 0)
    if any(size != 1 for size in value.shape[:extra]):
        _fail(builder, op, values)
    value = reshape(value, value.shape[extra:]) if extra else value
    if value.var.domain == -1:  # per node
        # The spread needs any value of the pairs, for their number; if there is none yet, make one of the rows.
        pairs = next((i for i, var in enumerate(builder.vars) if var.domain == how["group"]), None)
        if pairs is None:
            like = next(v for v in values if isinstance(v, Ragged))
            pairs = _at_pairs(builder, op, values, like, ndim, how).index
        found = builder.append(OPS["spread"], [value, builder.value(pairs)], {})
        return found
    return value


def _combine_moved(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append an element-wise op on moved rows and numbers."""
    moved = [value for value in values if isinstance(value, Ragged)]
    first = moved[0]
    alike = all(isinstance(v, Moved) and (v.at, v.ndim) == (first.at, first.ndim) for v in moved)
    if not alike or any(value.ndim for value in values if not isinstance(value, Ragged)):
        _fail(builder, op, values)
    rows = [v.row if isinstance(v, Ragged) else builder.at_edges(v, first) for v in values]
    return Moved(builder, builder.append(op, rows, static).index, first.at)


def _fail(builder: PairBuilder, op: Op, values: Sequence[Traced]) -> NoReturn:
    builder.refuse_pairs(f"{op.name}", values, "give each a shape that broadcasts with (n, m): scalar, (n, 1) or (m,)")


def _refuse(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> NoReturn:
    builder.refuse_pairs(f"{op.name}", values)


def _transpose(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append a transposition of one or two axes."""
    (value,) = values
    axes = static["axes"]
    if value.ndim > 2 or (axes is not None and tuple(a % value.ndim for a in axes) != tuple(range(value.ndim))[::-1]):
        builder.refuse_pairs("transpose", values, "transpose values with two axes, (n, d) or (n, m)")
    if isinstance(value, Pairs):
        how = builder.how(*value.of[::-1])
        return _pairs(builder, builder.append(turn_pairs, [value.row], how))
    if isinstance(value, Moved) or value.ndim == 1:
        return Ragged(builder, value.index)
    return Moved(builder, value.index)


def _multiply(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append a product that makes pairs, weighs rows by pairs, or uses transposed rows."""
    x, y = values
    if isinstance(y, Moved) and y.ndim == 2:
        if isinstance(x, Ragged) and not isinstance(x, (Pairs, Moved)) and x.ndim == 2 and x.var.shape == y.var.shape:
            how = builder.how(x.var.domain, y.var.domain)
            return _pairs(builder, builder.append(multiply_pairs, [x.row, y.row], how))
        if not isinstance(x, Ragged) and x.ndim in (1, 2):
            # w @ x.T is (x @ w.T).T, a product of each row.
            found = Ragged(builder, y.index) @ (x if x.ndim == 1 else OPS["transpose"](x, axes=None))
            return Moved(builder, found.index) if x.ndim == 2 else found
    if isinstance(x, Moved) and x.ndim == 2 and isinstance(y, Ragged) and y.ndim == 1:
        return weigh(builder, y, Ragged(builder, x.index))  # x.T @ w is the sum of the rows of x, weighted by w
    if isinstance(x, Pairs) and x.ndim == 2 and _is_rows(y):
        return _weigh(builder, x, y, axis=1)
    if isinstance(y, Pairs) and y.ndim == 2 and _is_rows(x) and x.ndim == 1:
        return _weigh(builder, y, x, axis=0)
    if isinstance(x, Pairs) and x.ndim > 2 and not isinstance(y, Ragged):
        rows = [x.row, builder.at_edges(y, x)]
        return _pairs(builder, builder.append(op, rows, static))
    builder.refuse_pairs(
        "matmul",
        values,
        "products are x @ y.T of (n, d) and (m, d), w @ y of (n, m) and (m, ...), and w @ x.T of (k, d) and (n, d); "
        "x.T @ y of (n, d) and (n, e) is ab.sum(x[:, :, None] * y[:, None], axis=0)",
    )


def _is_rows(value: Traced) -> bool:
    return isinstance(value, Ragged) and not isinstance(value, (Pairs, Moved))


def _weigh(builder: PairBuilder, weights: Pairs, rows: Traced, axis: int) -> Traced:
    """Append the weighted sums of rows along an axis."""
    builder.tie(weights.of[axis], rows.var.domain)
    kept = weights.of[1 - axis]
    like = next(i for i, var in enumerate(builder.vars) if var.domain == kept)
    values = [weights.row, builder.value(rows.index), builder.value(like)]
    return Ragged(builder, builder.append(weigh_pairs, values, {**weights.how, "axis": axis}).index)


def _reduce(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append a sum or maximum: over element axes, then over rows of the second group, then of the first."""
    (value,) = values
    axes, keepdims = axes_of(value.ndim, static["axis"]), static["keepdims"]
    if isinstance(value, Moved):
        return _reduce_moved(builder, op, value, axes, keepdims)
    inner = tuple(axis - 2 for axis in axes if axis > 1)
    if inner:
        value = _pairs(builder, builder.append(op, [value.row], {"axis": inner, "keepdims": keepdims}))
    assert isinstance(value, Pairs)
    if axes[:2] == (0, 1):
        total: Traced = builder.append(OPS[f"{op.name}_n"], [value.row], {})
        return reshape(total, (1, 1, *total.shape)) if keepdims else total
    if axes[:1] not in ((0,), (1,)):
        return value
    found = builder.append(sum_pairs if op.name == "sum" else max_pairs, [value.row], {**value.how, "axis": axes[0]})
    # With keepdims, the result has shape (1, m, ...), rows whose axis is moved, or (n, 1, ...), plain rows.
    row = reshape(found, (1, *found.shape)) if keepdims else found
    return Moved(builder, row.index) if keepdims and axes[0] == 0 else Ragged(builder, row.index)


def _reduce_moved(builder: PairBuilder, op: Op, value: Moved, axes: Sequence[int], keepdims: bool) -> Traced:
    """Append a sum or maximum of moved rows, computed on the rows themselves along the matching axes."""
    if keepdims:
        builder.refuse_pairs(f"{op.name} with keepdims", [value], "reduce the rows before their axis is moved")
    # The row axis is the first of the rows themselves, so the axes that precede it here come one later there.
    own = tuple(0 if axis == value.at else axis + (axis < value.at) for axis in axes)
    found: Traced = Ragged(builder, value.index).apply(
        op, (Ragged(builder, value.index),), {"axis": own, "keepdims": False}
    )
    at = value.at - sum(axis < value.at for axis in axes)
    return Moved(builder, found.index, at) if isinstance(found, Ragged) and at else found


def _normalise(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append a softmax along an axis of rows or of elements."""
    (value,) = values
    (axis,) = axes_of(value.ndim, static["axis"])
    if not isinstance(value, Pairs):
        _refuse(builder, op, values, static)
    if axis > 1:
        return _pairs(builder, builder.append(op, [value.row], {"axis": axis - 2}))
    if op.name == "softmax":
        return _pairs(builder, builder.append(softmax_pairs, [value.row], {**value.how, "axis": axis}))
    found: Traced = value - logsumexp(value, axis=axis, keepdims=True)
    return found


def _find_largest(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append the position of the maximum along an axis."""
    (value,), axis = values, static["axis"]
    if not isinstance(value, Pairs) or axis is None:
        builder.refuse_pairs("argmax", values, "name one axis of the pairs, such as axis=1")
    (axis,) = axes_of(value.ndim, axis)
    if axis > 1:
        return _pairs(builder, builder.append(op, [value.row], {"axis": axis - 2}))
    return Ragged(builder, builder.append(argmax_pairs, [value.row], {**value.how, "axis": axis}).index)


def _compare_labels(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append the cross-entropy of each row of pairs against a position in that row."""
    logits, label = values
    if not isinstance(logits, Pairs) or logits.ndim > 2 or not _is_rows(label) or label.ndim > 1:
        builder.refuse_pairs("cross_entropy", values, "logits of (n, m) take n labels, each a position among the m")
    own, is_checked = builder.positions(op, builder.value(label.index))
    builder.tie(logits.of[0], label.var.domain)
    chosen = builder.append(pick_pairs, [logits.row, own], {**logits.how, "is_checked": is_checked})
    found: Traced = logsumexp(logits, axis=1) - Ragged(builder, chosen.index)
    return found


def _to_elements(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append an op on single elements; ops that draw random numbers use the node's."""
    found = builder.append(op, [v.row if isinstance(v, Ragged) else v for v in values], static)
    if isinstance(values[0], Moved):
        return Moved(builder, found.index, values[0].at) if not op.random else _refuse(builder, op, values, static)
    return _pairs(builder, found)


def _reshape(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Drop leading axes of length 1 before the row axis of moved rows; raise an error for any other reshape."""
    (value,), shape = values, static["shape"]
    is_dropped = isinstance(value, Moved) and set(value.var.shape[: value.at]) == {1} and isinstance(shape[0], Traced)
    if not is_dropped:
        _refuse(builder, op, values, static)
    return Ragged(builder, reshape(Ragged(builder, value.index).row, shape[1:]).index)


def _take(builder: PairBuilder, op: Op, values: Sequence[Traced], static: dict[str, Any]) -> Traced:
    """Append a new first axis of rows, or a slice along the axes of elements of pairs."""
    (value,) = values
    index = static["index"] if isinstance(static["index"], tuple) else (static["index"],)
    if _is_rows(value) and index[0] is None and all(part == slice(None) for part in index[1:2]):
        # x[None] moves the row axis behind a new one of length 1, to which the first slice of `others` belongs.
        row = reshape(value.row, (1, *value.var.shape))
        others = (slice(None), *index[2:])
        row = builder.append(op, [row], {"index": others}) if index[2:] else row
        return Moved(builder, row.index)
    if isinstance(value, Pairs):
        index = explicit(index, value.ndim)
        if all(part == slice(None) for part in index[:2]) and len(index) > 1:
            row = builder.append(op, [value.row], {"index": index[2:]}) if index[2:] else value
            return _pairs(builder, row)
    builder.refuse_pairs("a slice", values, "slice the rows before they are paired, or the axes after (n, m)")


RULES: dict[str, PairRule] = {
    "transpose": _transpose,
    "matmul": _multiply,
    "dot": _refuse,
    "sum": _reduce,
    "max": _reduce,
    "softmax": _normalise,
    "log_softmax": _normalise,
    "argmax": _find_largest,
    "cross_entropy": _compare_labels,
    "dropout": _to_elements,
    "perturb": _to_elements,
    "stop_gradient": _to_elements,
    "reshape": _reshape,
    "slice": _take,
}
