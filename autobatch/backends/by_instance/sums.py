"""Sum over the rows of each instance: the gradients of parameters for consecutive instances, (n, *shape)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from autobatch.backends.by_instance.forms import Computed, Forms, Product, Scattered, Total
from autobatch.backends.by_instance.rows import InstanceRows, groups_of
from autobatch.backends.by_instance.sources import Source
from autobatch.backends.interpret import Frame, Interpreter
from autobatch.backends.values import Activity, Array
from autobatch.ir.precision import rounded_args
from autobatch.ir.program import NODE, SHARED, Instruction
from autobatch.jit.arrays import LongArray
from autobatch.jit.bits import rounded
from autobatch.ops.define import run_kernel
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

    def add(self, source: Source, out: Array, first: int) -> None:
        """Add a contribution to gradients of the instances from `first` on.

        Args:
            out: (n, *shape), C-contiguous.
        """
        form, end = source.form, first + len(out)
        if isinstance(form, Product):
            self._add_products(form, source.where, out, first)
        elif isinstance(form, Scattered):
            self._add_scattered(form, out, first)
        elif isinstance(form, Total):
            shape = self.forms.derivative.vars[form.value].shape
            for group in groups_of([self.rows_of(form.rows)], first, end):
                total = self.taken(form.rows, group.rows[0]).sum(axis=1)
                _add(self.put, out, group.instances - first, part_of(total, shape, source.where, out.shape[1:]))
        else:
            shape = self.forms.derivative.vars[form.value].shape
            found = part_of(self.compute(form, first, end), shape, source.where, out.shape[1:])
            out += found

    def _add_products(self, form: Product, where: Rectangle | None, out: Array, first: int) -> None:
        n = len(out)
        left_size, right_size = self.sizes(form, where)
        matrices = out.reshape(n, left_size, right_size)
        for group in groups_of([self.rows_of(form.left, form.right)], first, first + n):
            left, right = self.factors(form, where, group.rows[0])
            product = self.xp.matmul(left.transpose(0, 2, 1), right)
            _add(self.put, matrices, group.instances - first, product)

    def sizes(self, form: Product, where: Rectangle | None) -> tuple[int, int]:
        """Columns of the left and of the right factor."""
        if where is not None:
            return where.height, where.width
        m, n = self.forms.derivative.vars[form.value].shape
        return m, n

    def factors(self, form: Product, where: Rectangle | None, rows: LongArray) -> tuple[Array, Array]:
        """The factors of a product for some instances: (n, rows, m) and (n, rows, k).

        Args:
            where: of the product, the part that is wanted.
            rows: [n, rows of one].
        """
        left, right = (self.taken(value, rows) for value in (form.left, form.right))
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

    def compute(self, form: Computed, first: int, end: int) -> Array:
        """A value that is computed from sums, for each instance: (n, *shape)."""
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
        return self.xp.broadcast_to(env[form.value], (end - first, *vars[form.value].shape))

    def _sum(self, index: int, out: Array, first: int) -> None:
        """Add a sum over rows, for each instance."""
        source, form = self.forms.derivative.vars[index].source, self.forms.form(index)
        assert isinstance(source, Instruction)
        if isinstance(form, Computed) and source.op.name == "row_sum_scatter":
            form = Scattered(*source.args)
        if not isinstance(form, Computed):
            self.add(Source(self.type_id, self.forms, form, None), out, first)
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
    return ordered[starts], xp.add.reduceat(rows[put(order)], put(starts), axis=0)


def _add(put: Any, out: Array, places: LongArray, values: Array) -> None:
    """Add to some places of the first axis, each once; those side by side, without an index."""
    if places.size == places[-1] - places[0] + 1:
        out[int(places[0]) : int(places[-1]) + 1] += values
    else:
        out[put(places)] += values
