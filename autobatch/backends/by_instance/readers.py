"""What a run is given to read the rows that backward has left, before its weight stage adds them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.by_instance.forms import Forms
from autobatch.backends.by_instance.needs import chunks, need_of_sum
from autobatch.backends.by_instance.norms import Norms
from autobatch.backends.by_instance.rows import InstanceRows
from autobatch.backends.by_instance.sources import Source, forms_of, reads_of
from autobatch.backends.by_instance.sums import TypeRows
from autobatch.backends.interpret import Interpreter
from autobatch.backends.values import Activity, Array, Values
from autobatch.ir.program import NODE


class ReadGradients:
    """Adds the gradients of each instance to arrays.

    Args:
        into: zeros (B, *shape), C-contiguous, by `id` of the parameter, in its store; B are the instances of the run.
    """

    def __init__(self, into: Mapping[int, Array]) -> None:
        self._into = into

    def __call__(self, interpreter: Interpreter, activity: Activity) -> bool:
        """Read the rows; the weight stage need not run."""
        forms = forms_of(interpreter.plan, interpreter.cells)
        types = {type_id: TypeRows(interpreter, type_id, own, activity) for type_id, own in forms.items()}
        for read in reads_of(forms, self._into.keys(), joined=False):
            out = self._into[id(read.parameter)]
            for number, source in enumerate(read.sources):
                need = need_of_sum(source, lambda type_id, domain: types[type_id].rows(domain).counts)
                for first, end in chunks(need):
                    _add(interpreter, types[source.type_id], source, out[first:end], first, number == 0)
        return False


def _add(interpreter: Interpreter, rows: TypeRows, source: Source, out: Array, first: int, is_zero: bool) -> None:
    """Add a contribution to gradients of the instances from `first` on, which may be on the host; as `TypeRows.add`."""
    store = interpreter.store
    if interpreter.options.store is store:
        rows.add(source, out, first, is_zero)
    else:
        there = store.xp.zeros(out.shape, interpreter.options.dtype)
        rows.add(source, there, first, is_zero=True)
        out += store.get(there)


class ScaleRows:
    """Scales what each instance adds to the gradients by a factor that depends on the norm of its own gradient.

    Args:
        parameters: the `id`s of those whose gradients count for the norm.
        factors_of: the factors (B,) for these norms (B,), float64.
    """

    def __init__(
        self, parameters: frozenset[int], factors_of: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    ) -> None:
        self._parameters, self._factors_of = parameters, factors_of

    def __call__(self, interpreter: Interpreter, activity: Activity) -> bool:
        """Scale the rows that are linear in the gradients of outputs; the weight stage then adds them up."""
        plan, cells = interpreter.plan, interpreter.cells
        forms = forms_of(plan, cells)
        types = {type_id: TypeRows(interpreter, type_id, own, activity) for type_id, own in forms.items()}
        norms = Norms(types, plan.graph.n_instances, interpreter.store, interpreter.options.dtype)
        factors = self._factors_of(np.sqrt(norms.squares(reads_of(forms, self._parameters, joined=True))))
        for type_id, own in forms.items():
            scale_rows(interpreter.values, type_id, own, factors, types[type_id].rows)
        return True


def scale_rows(
    values: Values,
    type_id: int,
    forms: Forms,
    factors: NDArray[np.float64],
    rows_of: Callable[[int], InstanceRows],
) -> None:
    """Multiply the saved rows of a type that are linear in the gradients by the factors of their instances.

    Each column once: a value may lie within another one.
    """
    layout, plan, store = values.cells.cells[type_id].layout, values.plan, values.store
    places = [layout.saved[index] for index in forms.linear]
    for domain in {place.domain for place in places}:
        width = layout.saved_width[domain - NODE]
        columns = np.zeros(width + 2, bool)
        for place in places:
            if place.domain == domain:
                columns[1 + place.column : 1 + place.column + place.width] = True
        instance = rows_of(domain).instance
        first = int(plan.saved_base[plan.first_block(type_id) + domain - NODE])
        area: Any = values.buffer[first : first + instance.size * width].reshape(instance.size, width)
        per_row = store.put(factors[instance].astype(values.buffer.dtype)[:, None])
        edges = np.flatnonzero(columns[1:] != columns[:-1]).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            area[:, begin:end] *= per_row
