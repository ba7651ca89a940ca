"""Sum over the rows of each instance: the gradients of parameters for consecutive instances, (n, *shape)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from autobatch.arrays import LongArray, rounded
from autobatch.backends.by_instance.forms import Computed, Forms, Product, Scattered, Total
from autobatch.backends.by_instance.rows import InstanceRows, Taken, groups_of
from autobatch.backends.by_instance.sources import Source
from autobatch.backends.interpret import Frame, Interpreter
from autobatch.backends.values import Activity, Array
from autobatch.ir.precision import rounded_args
from autobatch.ir.program import NODE, SHARED, Instruction
from autobatch.ops.define import run_kernel
from autobatch.ops.indexing import sum_runs
from autobatch.params.rectangles import Rectangle


class TypeRows:
    """The rows of a type in a run that has gone backward, by instance.

    Args:
        interpreter: of the run.
        forms: of the type.
        activity: the nodes that the losses depend on; the rows of others count for nothing.
    """

    def __init__(self, interpreter: Interpreter, type_id: int, forms: Forms, activity: Activity) -> None:
        self._interpreter, self.type_id, self.forms = interpreter, type_id, forms
        self.plan, self.xp, self.put = interpreter.plan, interpreter.store.xp, interpreter.store.put
        self._active = None
        if not activity.is_whole:
            self._active = activity.rows(type_id, 0, int(np.diff(self.plan.type_ptr)[type_id]))
        self._rows: dict[int, InstanceRows] = {}
        self._ids: dict[int, Array] = {}

    def rows(self, domain: int) -> InstanceRows:
        """The rows of a domain."""
        if domain not in self._rows:
            self._rows[domain] = InstanceRows(self.plan, self.type_id, domain, self._active)
        return self._rows[domain]

    def rows_of(self, *values: int) -> InstanceRows:
        """The rows of the values that a sum reads; those of all groups among them are equally many."""
        return self.rows(max(NODE, *(self.forms.derivative.vars[value].domain for value in values)))

    @cached_property
    def frame(self) -> Frame:
        """The values that the weight stage reads, and those that it computes without a sum."""
        frame = self._interpreter.weight_frame(self.type_id)
        self._interpreter.run(frame, self.forms.common)
        return frame

    def add(self, source: Source, out: Array, first: int, is_zero: bool = False) -> None:
        """Add a contribution to gradients of the instances from `first` on.

        Args:
            out: (n, *shape), C-contiguous.
            is_zero: whether all of it is zero, and can be overwritten.
        """
        form, end = source.form, first + len(out)
        if isinstance(form, Product):
            self._add_products(form, source.where, out, first, is_zero)
        elif isinstance(form, Scattered):
            self._add_scattered(form, out, first)
        else:
            shape = self.forms.derivative.vars[form.value].shape
            places, found = self._total(form, first, end) if isinstance(form, Total) else self.compute(form, first, end)
            _add(self.put, out, places, part_of(found, shape, source.where, out.shape[1:]), is_zero)

    def _add_products(self, form: Product, where: Rectangle | None, out: Array, first: int, is_zero: bool) -> None:
        n = len(out)
        matrices = out.reshape(n, *self.sizes(form, where))
        for group in groups_of([self.rows_of(form.left, form.right)], first, first + n):
            left, right = self.factors(form, where, group.taken[0])
            left, places = left.transpose(0, 2, 1), group.instances - first
            if is_zero and _are_adjacent(places):
                self.xp.matmul(left, right, out=matrices[int(places[0]) : int(places[-1]) + 1])
            else:
                _add(self.put, matrices, places, self.xp.matmul(left, right), is_zero)

    def _total(self, form: Total, first: int, end: int) -> tuple[LongArray, Array]:
        """The instances that have rows, counted from `first`, and the sum of the rows of each."""
        own = self.rows_of(form.rows)
        filled = np.flatnonzero(own.counts[first:end])
        starts = own.ptr[first + filled] - own.ptr[first]
        rows = self.taken(form.rows, own.rows[own.ptr[first] : own.ptr[end]])
        return filled, sum_runs(self.xp, rows, self.put(starts)) if filled.size else rows

    def sizes(self, form: Product, where: Rectangle | None) -> tuple[int, int]:
        """Columns of the left and of the right factor."""
        if where is not None:
            return where.height, where.width
        m, n = self.forms.derivative.vars[form.value].shape
        return m, n

    def factors(self, form: Product, where: Rectangle | None, taken: Taken) -> tuple[Array, Array]:
        """The factors of a product for some instances: (n, rows, m) and (n, rows, k).

        Args:
            where: of the product, the part that is wanted.
            taken: the rows; the left ones are zero where they are filled up, so that these add nothing.
        """
        left, right = (self.taken(value, taken.rows) for value in (form.left, form.right))
        if taken.filled is not None:
            left[self.put(taken.filled)] = 0
        vars = self.forms.derivative.vars
        if rounded_args(vars, form.value) and self._interpreter.options.precision == "bf16":
            left, right = rounded(left, self.xp), rounded(right, self.xp)
        if left.ndim == 4:
            n, n_rows, m, k = left.shape
            left = left.transpose(0, 1, 3, 2).reshape(n, n_rows * k, m)
            right = right.reshape(n, n_rows * k, right.shape[3])
        if where is not None:
            left = left[:, :, where.row : where.row + where.height]
            right = right[:, :, where.column : where.column + where.width]
        return left, right

    def taken(self, value: int, rows: LongArray) -> Array:
        """Rows of a value, by their numbers: (*rows.shape, *shape)."""
        array = self.frame.env[value]
        if len(array) == 1:
            rows = np.zeros_like(rows)  # a value that all rows share
        return array[self.put(rows)]

    def scattered(self, form: Scattered, first: int, end: int) -> tuple[LongArray, LongArray, Array]:
        """The rows for a table of instances: the instance and the id of each, on the host, and the rows (n, width)."""
        instances = self.rows(max(NODE, self.forms.derivative.vars[form.rows].domain))
        rows = instances.rows[instances.ptr[first] : instances.ptr[end]]
        if form.ids not in self._ids:
            self._ids[form.ids] = self._interpreter.looked_up(self.frame, form.ids)
        ids = self._ids[form.ids]
        ids = ids[rows] if len(ids) > 1 else np.broadcast_to(ids, (rows.size, *ids.shape[1:]))
        values = self.taken(form.rows, rows)
        ids = np.broadcast_to(ids, values.shape[: ids.ndim])
        each = np.broadcast_to(instances.instance[rows].reshape(-1, *(1,) * (ids.ndim - 1)), ids.shape).reshape(-1)
        return each, ids.reshape(-1).astype(np.int64), values.reshape(each.size, prod(values.shape[ids.ndim :]))

    def _add_scattered(self, form: Scattered, out: Array, first: int) -> None:
        each, ids, values = self.scattered(form, first, first + len(out))
        keys, sums = sum_by_key(self.xp, self.put, (each - first) * out.shape[1] + ids, values)
        flat = out.reshape(len(out) * out.shape[1], -1)
        flat[self.put(keys)] += sums

    def compute(self, form: Computed, first: int, end: int) -> tuple[LongArray, Array]:
        """A value that is computed from sums, for each instance: (n, *shape); and the numbers from 0 to n - 1."""
        vars, env, frame = self.forms.derivative.vars, dict(self.frame.env), self.frame
        interpreter = self._interpreter
        owner = interpreter.cells.cells[self.type_id].type.owner
        for index in self.forms.needed(form.value):
            source, shape = vars[index].source, vars[index].shape
            assert isinstance(source, Instruction)
            op, args = source.op, [env[arg] for arg in source.args]
            if op.view:
                env[index] = op.kernel(self.xp, args[0], **source.static)
                continue
            out = env[index] = self.xp.zeros((end - first, *shape), interpreter.options.dtype)
            if op.sums_rows:
                self._sum(index, out, first)
            else:
                static = frame.rows.static(vars, index, interpreter.randomness, owner)
                run_kernel(op, self.xp, args, out, static)
        return np.arange(end - first), self.xp.broadcast_to(env[form.value], (end - first, *vars[form.value].shape))

    def _sum(self, index: int, out: Array, first: int) -> None:
        """Add a sum over rows, for each instance."""
        source, form = self.forms.derivative.vars[index].source, self.forms.form(index)
        assert isinstance(source, Instruction)
        if isinstance(form, Computed) and source.op.name == "row_sum_scatter":
            form = Scattered(*source.args)
        if not isinstance(form, Computed):
            self.add(Source(self.type_id, self.forms, form, None), out, first, is_zero=True)
            return
        rows = self.rows_of(*source.args)
        for number in range(len(out)):  # an op of its own: by its kernel, which adds up the rows that it is given
            own = rows.rows[rows.ptr[first + number] : rows.ptr[first + number + 1]]
            domains = [self.forms.derivative.vars[arg].domain for arg in source.args]
            args = [self.frame.env[arg] for arg in source.args]
            args = [x if domain == SHARED else x[self.put(own)] for x, domain in zip(args, domains, strict=True)]
            if own.size:
                source.op.kernel(self.xp, *args, out=out[number : number + 1], **source.static)


def part_of(whole: Array, shape: Sequence[int], where: Rectangle | None, wanted: Sequence[int]) -> Array:
    """The part of gradients (n, *shape) of a stack that is that of a parameter, (n, *wanted)."""
    if where is None:
        return whole
    matrices = whole.reshape(len(whole), shape[0], prod(shape[1:]))
    part = matrices[:, where.row : where.row + where.height, where.column : where.column + where.width]
    return part.reshape(len(whole), *wanted)


def sum_by_key(xp: Any, put: Any, keys: LongArray, rows: Array) -> tuple[LongArray, Array]:
    """Add up rows of equal keys: the keys, increasing, and the sums. The host sorts."""
    if not keys.size:
        return keys, rows
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[starts], sum_runs(xp, rows[put(order)], put(starts))


def _are_adjacent(places: LongArray) -> bool:
    """Whether increasing places lie side by side."""
    return bool(places.size == places[-1] - places[0] + 1)


def _add(put: Any, out: Array, places: LongArray, values: Array, is_zero: bool) -> None:
    """Add to some places of the first axis, increasing; or, where all are zero, store there."""
    if not places.size:
        return
    index: Any = slice(int(places[0]), int(places[-1]) + 1) if _are_adjacent(places) else put(places)
    if is_zero:
        out[index] = values
    else:
        out[index] += values
