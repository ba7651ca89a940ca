"""Say how much memory the gradients of instances take on their way, before anything runs.

Instances are taken together as long as what they need is small, so that a call takes few array functions, and memory
that does not grow with the number of instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, TypeAlias

import numpy as np

from autobatch.arrays import LongArray
from autobatch.backends.by_instance.forms import Computed, Product, Scattered, Total
from autobatch.backends.by_instance.rows import InstanceRows, cut, round_up
from autobatch.backends.by_instance.sources import Read, Source, forms_of, reads_of
from autobatch.backends.options import ByInstance
from autobatch.ir.program import NODE
from autobatch.params.parameter import Parameter
from autobatch.plan.plan import Plan, PlannedTypes

AT_ONCE = 1 << 18
"""Numbers that several instances may need together: 1 MiB of float32, which a core's cache holds."""
INTS = 4  # what the int64s for a row of a table count as, in floats

CountsOf: TypeAlias = Callable[[int, int], LongArray]
"""The rows of each instance, given a type and a domain."""


def bytes_by_instance(plan: Plan, cells: PlannedTypes, asked: ByInstance, dtype: np.dtype[Any]) -> int:
    """The bytes that a run takes beside its values: the results of the whole mini-batch, and what is on its way."""
    forms, found = forms_of(plan, cells), dict[tuple[int, int], LongArray]()

    def counts_of(type_id: int, domain: int) -> LongArray:
        if (type_id, domain) not in found:
            found[type_id, domain] = InstanceRows(plan, type_id, domain).counts
        return found[type_id, domain]

    most = 0
    for read in reads_of(forms, asked.parameters, joined=asked.clips):
        needs = [need_of_norm(read, counts_of)] if asked.clips else [need_of_sum(s, counts_of) for s in read.sources]
        most = max(most, *(min(int(need.sum()), max(int(need.max(initial=0)), AT_ONCE)) for need in needs))
    return asked.result_bytes + most * dtype.itemsize


def chunks(need: LongArray) -> Iterator[tuple[int, int]]:
    """The first and the end of instances that are taken together."""
    return cut(need, AT_ONCE)


def need_of_sum(source: Source, counts_of: CountsOf) -> LongArray:
    """The numbers that are on their way while a contribution is added to the gradient of each instance."""
    vars = source.forms.derivative.vars
    match source.form:
        case Product(value):
            return _rows_of_factors(source, counts_of) * _columns_of_factors(source) + vars[value].size
        case Total(_, rows):
            return (_counts(source, counts_of, rows) + 1) * vars[rows].size
        case Scattered(rows, ids):
            return _counts(source, counts_of, rows) * (2 * vars[rows].size + INTS * max(vars[ids].size, 1))
        case Computed(value):
            need = np.zeros_like(counts_of(source.type_id, NODE))
            for index in source.forms.needed(value):
                form = source.forms.form(index)
                need += 2 * vars[index].size
                if not isinstance(form, Computed):
                    need += need_of_sum(source._replace(form=form), counts_of)
            return need


def need_of_norm(read: Read, counts_of: CountsOf) -> LongArray:
    """The numbers that are on their way while the norm of the gradient of each instance is computed."""
    sources, size = read.sources, prod(read.parameter.shape)
    kinds = {type(source.form) for source in sources}
    if kinds == {Product}:
        rows = np.sum([_rows_of_factors(source, counts_of) for source in sources], axis=0)
        width = max(_columns_of_factors(source) for source in sources)
        m, k = matrix_of(read.parameter)
        squares: LongArray = np.where(by_rows(rows, m, k), 2 * rows * rows, size)
        need: LongArray = (1 + (len(sources) > 1)) * rows * width + squares
        return need
    needs = np.stack([need_of_sum(source, counts_of) for source in sources])
    need = needs.sum(axis=0) if kinds == {Scattered} else needs.max(axis=0) + size  # rows of a table are joined
    return need


def by_rows(n: Any, m: int, k: int) -> Any:
    """Whether the norm of a sum of n products, m by k, is found by products of the n rows with each other."""
    return n * (m + k) < m * k


def matrix_of(parameter: Parameter) -> tuple[int, int]:
    """The sizes of the matrix that is the gradient of a parameter, where it is a product."""
    m, *others = parameter.shape
    return m, prod(others)


def _rows_of_factors(source: Source, counts_of: CountsOf) -> LongArray:
    """The rows of the factors of a product, per instance."""
    form, vars = source.form, source.forms.derivative.vars
    assert isinstance(form, Product)
    inner = vars[form.left].shape[1] if len(vars[form.left].shape) == 2 else 1
    return round_up(_counts(source, counts_of, form.left, form.right)) * inner


def _columns_of_factors(source: Source) -> int:
    """The columns of both factors of a product, of which a part may be wanted."""
    assert isinstance(source.form, Product)
    return sum(source.forms.derivative.vars[source.form.value].shape)


def _counts(source: Source, counts_of: CountsOf, *values: int) -> LongArray:
    return counts_of(source.type_id, max(NODE, *(source.forms.derivative.vars[value].domain for value in values)))
