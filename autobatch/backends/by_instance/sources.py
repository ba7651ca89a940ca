"""Find where the gradient of each parameter comes from: the types that read it, alone or as part of a stack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from autobatch.backends.by_instance.forms import Form, Forms
from autobatch.params.parameter import Parameter
from autobatch.params.rectangles import Rectangle
from autobatch.params.stacks import Stack, parts_of
from autobatch.plan.plan import Plan, PlannedTypes


class Source(NamedTuple):
    """A type that contributes to the gradient of a parameter.

    Attributes:
        type_id: of the type; forms: of its derivative.
        form: of the contribution.
        where: the part of it that is the parameter's, if the type reads the parameter in a stack.
    """

    type_id: int
    forms: Forms
    form: Form
    where: Rectangle | None


class Read(NamedTuple):
    """A parameter and all that contributes to its gradient.

    Attributes:
        parameter: or a stack, whose gradient holds that of several parameters.
        sources: none if no type of the mini-batch reads it.
    """

    parameter: Parameter
    sources: list[Source]


def forms_of(plan: Plan, cells: PlannedTypes) -> dict[int, Forms]:
    """The forms of the types that the mini-batch has nodes of."""
    present = np.flatnonzero(np.diff(plan.type_ptr)).tolist()
    derivatives = {type_id: cells.cells[type_id].derivative for type_id in present}
    return {type_id: Forms(derivative) for type_id, derivative in derivatives.items() if derivative is not None}


def reads_of(forms: dict[int, Forms], wanted: Collection[int], joined: bool) -> list[Read]:
    """Find the sources of the gradients of parameters, in no particular order.

    Args:
        forms: of the types.
        wanted: the `id`s of the parameters.
        joined: whether to give a stack in place of its parts where no part is read in another way, and all are wanted.
    """
    found: dict[int, list[Source]] = defaultdict(list)
    parameters: dict[int, Parameter] = {}
    readers: dict[int, set[int]] = defaultdict(set)  # by part, what it is read in
    for type_id, of_type in forms.items():
        for index, form in of_type.of:
            parameter = of_type.derivative.parameter(index)
            parameters[id(parameter)] = parameter
            found[id(parameter)].append(Source(type_id, of_type, form, None))
            for part in parts_of(parameter):
                readers[id(part)].add(id(parameter))
    reads: dict[int, Read] = {}
    for key, sources in found.items():
        parameter = parameters[key]
        parts = parts_of(parameter)
        if joined and all(id(part) in wanted and len(readers[id(part)]) == 1 for part in parts):
            reads[key] = Read(parameter, sources)
            continue
        places = parameter.rectangles if isinstance(parameter, Stack) else (None,)
        for part, where in zip(parts, places, strict=True):
            if id(part) in wanted:
                read = reads.setdefault(id(part), Read(part, []))
                read.sources.extend(source._replace(where=where) for source in sources)
    return list(reads.values())
