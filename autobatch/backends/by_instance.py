"""Compute per-instance gradients of parameters, by a weight stage with one segment of rows per instance.

Before anything runs, `reads_of` finds the types that contribute to the gradient of a parameter, and their temporary
memory. Instances are processed in chunks of bounded size, so that there are few calls of array functions, and temporary
memory does not grow with the number of instances. Readers read or scale the rows that backward leaves, before the
weight stage of a run adds them up.

Norms are computed without gradients where that is cheaper.

The gradient of a matrix is a sum over rows, G = sum_r d_r x_r', so its squared norm can be computed without G:

    |G|^2 = sum_r sum_s (d_r . d_s) (x_r . x_s)

For n rows, this takes n^2 (m + k) multiplications, and computing G takes n m k; the cheaper way is used. Rows of all
types that read the matrix are counted together in n. Any other gradient, or one with terms of several kinds, is
computed for a chunk of instances at a time; that of a table consists of the rows that are not zero.

Source: Goodfellow 2015 (arXiv:1510.01799); of sequences, Li et al. 2022 (arXiv:2110.05679), "ghost clipping".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import LongArray
from autobatch.backends.interpret import Frame, Interpreter
from autobatch.backends.options import ByInstance
from autobatch.backends.segments import AT_ONCE, InstanceRows, Taken, cut, groups_of, round_up
from autobatch.backends.values import Activity, Array, Env
from autobatch.ir.derivative import Derivative, ScatteredRows
from autobatch.ir.program import NODE, SHARED, Instruction
from autobatch.ops.linear import factors
from autobatch.params.parameter import Parameter
from autobatch.params.rectangles import Rectangle
from autobatch.params.sparse_rows import Rows
from autobatch.params.stacks import Stack, parts_of
from autobatch.plan.plan import Plan, PlannedTypes

CANCELLED = 2.0**-6  # a sum of squares below this part of its terms' magnitudes may consist of rounding errors
SCALE = 2.0**-600  # of gradients whose squares overflow a float64
INTS = 4  # the memory of the int64s for a row of a table, in floats

CountsOf: TypeAlias = Callable[[int, int], LongArray]
"""A function that counts the rows of each instance, given a type and a domain."""


@dataclass(frozen=True, eq=False)
class Source:
    """A type that contributes to the gradient of a parameter.

    Attributes:
        derivative: the derivative of the type.
        gradient: the value that holds the contribution, a single row; None if the contribution is scattered rows.
        scatters: the rows that are added to the rows of a table.
        where: the part of the contribution that belongs to the parameter, if the type reads it in a stack.
    """

    type_id: int
    derivative: Derivative
    gradient: int | None
    scatters: tuple[ScatteredRows, ...]
    where: Rectangle | None = None

    @cached_property
    def factors(self) -> tuple[int, int] | None:
        """Return the operands of a contribution that is a sum of products, else None; see `Derivative.factors`."""
        return None if self.gradient is None else self.derivative.factors(self.gradient)

    @cached_property
    def stage(self) -> list[int]:
        """Return the instructions with a row per instance on which the contribution depends, in order."""
        roots = [s.values for s in self.scatters] if self.gradient is None else [self.gradient]
        return [index for index in self.derivative.needed(roots) if index in self.derivative.by_segment]

    def domain(self, *values: int) -> int:
        """Return the domain of the rows of some operands; if several are groups, these have equally many rows."""
        return max(NODE, *(self.derivative.vars[value].domain for value in values))

    def n_products(self, counts_of: CountsOf) -> LongArray:
        """Count the products that are summed for each instance; the contribution must be a sum of products."""
        assert self.factors is not None
        inner = prod(self.derivative.vars[self.factors[0]].shape[1:])
        return inner * round_up(counts_of(self.type_id, self.domain(*self.factors)))

    def need(self, counts_of: CountsOf) -> LongArray:
        """Return the size of the temporary arrays for adding the contribution, in numbers per instance."""
        vars, found = self.derivative.vars, np.zeros_like(counts_of(self.type_id, NODE))
        for values, ids in self.scatters:
            per_row = 2 * vars[values].size + INTS * max(vars[ids].size, 1)
            found += counts_of(self.type_id, self.domain(values)) * per_row
        for index in self.stage:
            source = vars[index].source
            assert isinstance(source, Instruction)
            found += vars[index].size * (3 if self.factors is None else 1)
            if source.op.sums_rows:
                per_row = sum(vars[arg].size for arg in source.args if vars[arg].domain != SHARED)
                if source.op.name == "row_sum_matmul" and self.derivative.factors(index) is None:
                    per_row += vars[index].size  # the products are stored before they are added up
                found += round_up(counts_of(self.type_id, self.domain(*source.args))) * per_row
        return found


class Read(NamedTuple):
    """A parameter and all contributions to its gradient.

    Attributes:
        parameter: the parameter; or a stack, whose gradient contains those of several parameters.
        sources: the types that contribute.
    """

    parameter: Parameter
    sources: list[Source]

    @property
    def is_product(self) -> bool:
        """Return whether the gradient is a sum of products of rows."""
        return all(source.factors is not None for source in self.sources)

    @property
    def is_table(self) -> bool:
        """Return whether all contributions are scattered rows."""
        return all(source.gradient is None for source in self.sources)

    def need_of_norm(self, counts_of: CountsOf) -> LongArray:
        """Return the size of the temporary arrays for computing the norm, in numbers per instance."""
        size, need = prod(self.parameter.shape), np.array([source.need(counts_of) for source in self.sources])
        found: LongArray
        if self.is_table:
            found = need.sum(axis=0)
        elif not self.is_product:
            found = need.max(axis=0) + 3 * size  # the gradient, and its squares in float64
        else:
            m, *others = self.parameter.shape
            k = prod(others)
            rows = np.sum([source.n_products(counts_of) for source in self.sources], axis=0)
            found = (1 + (len(self.sources) > 1)) * rows * (m + k)
            found += np.where(by_rows(rows, m, k), 2 * rows * rows, 3 * size)
        return found


def by_rows(n: Any, m: int, k: int) -> Any:
    """Return whether to compute the norm of a sum of n products, an m by k matrix, from products of the n rows."""
    return n * (m + k) < m * k


def bytes_by_instance(plan: Plan, cells: PlannedTypes, asked: ByInstance, dtype: np.dtype[Any]) -> int:
    """Return the bytes that a run needs besides its values: for the results of the call, and temporary arrays."""

    @cache
    def counts_of(type_id: int, domain: int) -> LongArray:
        return InstanceRows(plan, type_id, domain).counts

    most = 0
    for read in reads_of(derivatives_of(plan, cells), asked.parameters, joined=asked.clips):
        needs = [read.need_of_norm(counts_of)] if asked.clips else [source.need(counts_of) for source in read.sources]
        # The norm of a product may need the gradient of one instance after all, see `_squares_by_rows`.
        extra = 3 * prod(read.parameter.shape) if asked.clips and read.is_product else 0
        # A chunk takes at most AT_ONCE numbers, or what its single instance needs.
        most = max(most, *(extra + min(int(need.sum()), max(int(need.max(initial=0)), AT_ONCE)) for need in needs))
    return asked.result_bytes + most * dtype.itemsize


def derivatives_of(plan: Plan, cells: PlannedTypes) -> dict[int, Derivative]:
    """Return the derivatives of the types that have nodes in the mini-batch."""
    present = np.flatnonzero(np.diff(plan.type_ptr)).tolist()
    found = {type_id: cells.cells[type_id].derivative for type_id in present}
    return {type_id: derivative for type_id, derivative in found.items() if derivative is not None}


def reads_of(derivatives: dict[int, Derivative], wanted: Collection[int], joined: bool) -> list[Read]:
    """Find the sources of the gradients of parameters, in no particular order.

    Args:
        derivatives: the derivatives of the types.
        wanted: the `id`s of the parameters.
        joined: whether to return a stack in place of its parts if all parts are wanted and none is read elsewhere.
    """
    whole: dict[int, Read] = {}
    readers: dict[int, set[int]] = defaultdict(set)  # for each part, the `id`s of the stacks or parameters that hold it
    for type_id, derivative in derivatives.items():
        found = [(p, Source(type_id, derivative, g, ())) for p, g in derivative.parameters]
        found += [(p, Source(type_id, derivative, None, scatters)) for p, scatters in derivative.tables]
        for index, source in found:
            parameter = derivative.parameter(index)
            whole.setdefault(id(parameter), Read(parameter, [])).sources.append(source)
            for part in parts_of(parameter):
                readers[id(part)].add(id(parameter))
    reads: dict[int, Read] = {}
    for key, (parameter, sources) in whole.items():
        parts = parts_of(parameter)
        # A stack can replace its parts only if no other parameter contains one of them: the norm of a part that is read
        # in two ways is that of the sum of both contributions.
        if joined and all(id(part) in wanted and len(readers[id(part)]) == 1 for part in parts):
            reads[key] = Read(parameter, sources)
            continue
        places = parameter.rectangles if isinstance(parameter, Stack) else (None,)
        for part, where in zip(parts, places, strict=True):
            if id(part) in wanted:
                read = reads.setdefault(id(part), Read(part, []))
                read.sources.extend(replace(source, where=where) for source in sources)
    return list(reads.values())


class InstanceWeights:
    """The weight stages of all types, per instance, in a run after its backward pass.

    Args:
        activity: the nodes that the losses depend on; the rows of other nodes are ignored.
    """

    def __init__(self, interpreter: Interpreter, activity: Activity) -> None:
        self._interpreter, self._activity = interpreter, activity
        self._xp, self._put, self._dtype = interpreter.store.xp, interpreter.store.put, interpreter.options.dtype
        self._rows: dict[tuple[int, int], InstanceRows] = {}
        self._frames: dict[int, Frame] = {}
        self._scale = 1.0  # of the gradients whose squares are summed

    def rows(self, type_id: int, domain: int) -> InstanceRows:
        """Return the rows of a domain of a type, by instance; cached."""
        if (type_id, domain) not in self._rows:
            plan, n_nodes = self._interpreter.plan, int(np.diff(self._interpreter.plan.type_ptr)[type_id])
            active = None if self._activity.is_whole else self._activity.rows(type_id, 0, n_nodes)
            self._rows[type_id, domain] = InstanceRows(plan, type_id, domain, active)
        return self._rows[type_id, domain]

    def counts(self, type_id: int, domain: int) -> Any:
        return self.rows(type_id, domain).counts

    def _frame(self, source: Source) -> Frame:
        """Return a frame with the values that a type's weight stage reads or computes without a sum; cached."""
        type_id, derivative = source.type_id, source.derivative
        if type_id not in self._frames:
            self._frames[type_id] = frame = self._interpreter.weight_frame(type_id)
            self._interpreter.run(frame, [i for i in derivative.weights if i not in derivative.by_segment])
        return self._frames[type_id]

    # Gradients.

    def add(self, source: Source, out: Array, first: int, is_zero: bool) -> None:
        """Add a contribution to the gradients of n instances from `first` on.

        Args:
            out: the gradients (n, *shape), C-contiguous.
            is_zero: whether `out` is all zero, and may be overwritten.
        """
        n, where = len(out), source.where
        if source.gradient is None:
            self._add_rows(source, out.reshape(n * out.shape[1], *out.shape[2:]), out.shape[1], first, first + n)
            return
        place = out if where is None else out.reshape(n, where.height, where.width)
        if source.factors is not None:
            self._add_products(source, place, first, is_zero)
            return
        found = self._stage(source, first, first + n)[source.gradient]
        place += found if where is None else where.of_each(found)

    def _stage(self, source: Source, first: int, end: int) -> Env:
        """Return the values of a weight stage, including those with a row for each of the instances first:end."""
        rows, frame = self.rows, self._frame(source)
        frame = frame.in_segments(end - first, lambda domain: groups_of([rows(source.type_id, domain)], first, end))
        self._interpreter.run(frame, source.stage)
        return frame.env

    def _add_products(self, source: Source, place: Array, first: int, is_zero: bool) -> None:
        """Add sums of products, which are most of the work, in place if possible."""
        for group in groups_of([self._rows_of(source)], first, first + len(place)):
            left, right = self._factors(source, group.taken[0])
            left, where = left.transpose(0, 2, 1), group.where(self._put)
            if not is_zero:
                place[where] += self._xp.matmul(left, right)
            elif isinstance(where, slice):
                self._xp.matmul(left, right, out=place[where])
            else:
                # Indexing by an array would give `matmul` a copy to write to.
                place[where] = self._xp.matmul(left, right)

    def _rows_of(self, source: Source) -> InstanceRows:
        return self.rows(source.type_id, source.domain(*(source.factors or ())))

    def _factors(self, source: Source, taken: Taken) -> tuple[Array, Array]:
        """Return the factors of a sum of products for some instances: (n, rows, m) and (n, rows, k)."""
        assert source.gradient is not None
        left, right = (self._frame(source).env[value] for value in source.factors or ())
        if source.where is not None:  # only the rows and columns of the wanted part
            row, column, height, width = source.where
            left, right = left[:, row : row + height], right[..., column : column + width]
        args = taken.of((left, right), self._put)
        return factors(*self._interpreter.rounded(source.derivative.vars, source.gradient, args))

    def _add_rows(self, source: Source, table: Any, n_ids: int, first: int, end: int) -> None:
        """Add the scattered rows of the instances first:end to the gradients of their tables.

        Args:
            table: the gradients, an array or `Rows` with n_ids rows per instance, one instance below the other.
        """
        frame, env = self._frame(source), self._stage(source, first, end)
        for values, index in source.scatters:
            ids, found = self._interpreter.looked_up(frame, index), env[values]
            if values in source.derivative.by_segment:  # ids are constant, so the rows of an instance are added up
                table_of_row = np.arange(end - first)
            else:
                instances = self.rows(source.type_id, source.domain(values))
                rows = instances.rows[instances.ptr[first] : instances.ptr[end]]
                found, ids = found[self._put(rows)], ids[rows] if len(ids) > 1 else ids
                table_of_row = instances.instance[rows] - first
            # A constant id is a single row that all rows share.
            ids = np.broadcast_to(ids, (len(table_of_row), *ids.shape[1:]))
            table_of_row = table_of_row.reshape(-1, *(1,) * (ids.ndim - 1))
            # One table holds those of all instances, one below the other; int64, because the number of its rows may
            # exceed int32.
            keys = table_of_row * n_ids + ids.astype(np.int64)
            self._interpreter.add_rows(keys, found, table)

    # Norms.

    def norms(self, reads: Sequence[Read]) -> NDArray[np.float64]:
        """Return the common norms of all gradients, per instance and on the host: float64 (B,)."""
        found = np.sqrt(self._squares(reads))
        if not np.isfinite(found).all():  # of finite numbers, the squares may still overflow
            self._scale = SCALE
            found = np.where(np.isfinite(found), found, np.sqrt(self._squares(reads)) / SCALE)
        return found

    def _squares(self, reads: Sequence[Read]) -> NDArray[np.float64]:
        """Return the sum of the squared norms of all gradients times `_scale`, as in `norms`."""
        total = self._xp.zeros(self._interpreter.plan.graph.n_instances, np.float64)
        for read in reads:
            add = self._add_squares_of_table if read.is_table else self._add_squares_of_arrays
            if read.is_product:
                add = self._add_squares_of_products
            for first, end in cut(read.need_of_norm(self.counts)):
                add(read, total[first:end], first)
        found: NDArray[np.float64] = self._interpreter.store.get(total)
        return found

    def _add_squares_of_products(self, read: Read, total: Array, first: int) -> None:
        for group in groups_of([self._rows_of(source) for source in read.sources], first, first + len(total)):
            pairs = zip(read.sources, group.taken, strict=True)
            several = zip(*(self._factors(source, taken) for source, taken in pairs), strict=True)
            # The rows of all sources are factors of one sum, because the norm is that of their sum.
            left, right = (sides[0] if len(sides) == 1 else self._xp.concatenate(sides, 1) for sides in several)
            if by_rows(left.shape[1], left.shape[2], right.shape[2]):
                found = self._squares_by_rows(left, right)
            else:
                found = self._squares_of(self._xp.matmul(left.transpose(0, 2, 1), right))
            total[group.where(self._put)] += found

    def _squares_by_rows(self, left: Array, right: Array) -> Array:
        """Return the squared norms of sums of products from products of their rows, float64 (n,).

        Where the terms cancel, or overflow although the gradient does not, the gradient is computed.
        """
        one, other = (self._xp.matmul(side, side.transpose(0, 2, 1)) for side in (left, right))
        one *= other
        found = _sums(one)
        terms = _sums(self._xp.abs(one, out=one))
        is_exact = self._interpreter.store.get((found >= CANCELLED * terms) & (terms < np.inf))
        if self._scale != 1.0:
            found *= self._scale
            found *= self._scale  # twice, because the square of the scale is 0
        for at in np.flatnonzero(~is_exact).tolist():
            found[at : at + 1] = self._squares_of(self._xp.matmul(left[at].T, right[at])[None])
        return found

    def _add_squares_of_table(self, read: Read, total: Array, first: int) -> None:
        n, (n_ids, *width) = len(total), read.parameter.shape
        rows = Rows.zeros((n * n_ids, *width), self._dtype, self._interpreter.store)
        for source in read.sources:
            self._add_rows(source, rows, n_ids, first, first + n)
        of_row = self._interpreter.store.get(self._squares_of(rows.values))
        total += self._put(np.bincount(rows.ids // n_ids, of_row, n))

    def _add_squares_of_arrays(self, read: Read, total: Array, first: int) -> None:
        whole = self._xp.zeros((len(total), *read.parameter.shape), self._dtype)
        for number, source in enumerate(read.sources):
            self.add(source, whole, first, is_zero=number == 0)
        total += self._squares_of(whole)

    def _squares_of(self, found: Array) -> Array:
        """Return the sum of the squares of each row times `_scale`, in float64: those of float32 may overflow."""
        found = found.astype(np.float64)
        if self._scale != 1.0:
            found *= self._scale
        found *= found
        return _sums(found)


def _sums(found: Array) -> Array:
    """Return the sum of each row, float64."""
    return found.reshape(len(found), prod(found.shape[1:])).sum(axis=1, dtype=np.float64)


def read_gradients(into: Mapping[int, Array], interpreter: Interpreter, activity: Activity) -> bool:
    """Add the gradients of each instance to arrays; return False, because the weight stage need not run.

    Args:
        into: by `id` of each parameter, zeros (B, *shape), C-contiguous and in the parameter's store, for the B
            instances of the run.
    """
    weights, store, options = InstanceWeights(interpreter, activity), interpreter.store, interpreter.options
    for read in reads_of(derivatives_of(interpreter.plan, interpreter.cells), into.keys(), joined=False):
        out = into[id(read.parameter)]
        for number, source in enumerate(read.sources):
            for first, end in cut(source.need(weights.counts)):
                if options.store is store:
                    # The chunks of a source cover each instance once, so `out` is still zero for the first source.
                    weights.add(source, out[first:end], first, is_zero=number == 0)
                else:
                    there = store.xp.zeros(out[first:end].shape, options.dtype)
                    weights.add(source, there, first, is_zero=True)
                    out[first:end] += store.get(there)
    return False


def scale_rows(
    parameters: frozenset[int],
    factors_of: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    interpreter: Interpreter,
    activity: Activity,
) -> bool:
    """Scale each instance's contributions to gradients by a factor that depends on the norm of its gradient.

    Args:
        parameters: the `id`s of the parameters whose gradients count for the norm.
        factors_of: returns the factors (B,), given the norms (B,), float64.

    Returns:
        True, because the weight stage adds up the scaled contributions.
    """
    derivatives = derivatives_of(interpreter.plan, interpreter.cells)
    weights = InstanceWeights(interpreter, activity)
    factors = factors_of(weights.norms(reads_of(derivatives, parameters, joined=True)))
    for type_id, derivative in derivatives.items():
        _scale_type(type_id, derivative, factors, weights, interpreter)
    return True


def _scale_type(
    type_id: int,
    derivative: Derivative,
    factors: NDArray[np.float64],
    weights: InstanceWeights,
    interpreter: Interpreter,
) -> None:
    """Multiply the saved rows of a type that are linear in the gradients by the factors of their instances.

    Each column is multiplied once, although a value may be part of another one.
    """
    layout, plan, store = interpreter.cells.cells[type_id].layout, interpreter.plan, interpreter.store
    places, buffer = [layout.saved[index] for index in derivative.linear], interpreter.values.buffer
    for domain in {place.domain for place in places}:
        width = layout.saved_width[domain - NODE]
        # Flags of the columns, between two that are never set: item i of the comparison below is whether a run of
        # columns begins or ends before column i, in turn.
        columns = np.zeros(width + 2, bool)
        for place in places:
            if place.domain == domain:
                columns[1 + place.column : 1 + place.column + place.width] = True
        instance = weights.rows(type_id, domain).instance
        first = int(plan.saved_base[plan.first_block(type_id) + domain - NODE])
        area = buffer[first : first + instance.size * width].reshape(instance.size, width)
        per_row = store.put(factors[instance].astype(buffer.dtype)[:, None])
        edges = np.flatnonzero(columns[1:] != columns[:-1]).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            area[:, begin:end] *= per_row
