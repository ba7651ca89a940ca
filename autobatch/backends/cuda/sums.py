"""Sum values that several nodes add to one place, in the order of the nodes, so that equal runs are bit-identical.

On the CPU, each node adds its value in place. On the device, the nodes of a batch run at the same time, so each writes
its value to a place of its own behind the buffer; after the batch, these values are added up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch._native import find_sums as find_in_plan
from autobatch.backends.tables import arrays_of
from autobatch.plan.plan import Plan

LongArray = NDArray[np.int64]


class Sums(NamedTuple):
    """The places where values are written, and the sums to add up after each batch.

    Attributes:
        to: for each destination of the plan, the place where its value is written: the destination, or one behind the
            buffer.
        table: [sums, 4] the place of each sum, its number of elements, and the first and the end of its parts.
        parts: the places of the parts, in the order in which they are added.
        ptr: [batches + 1] after batch b, sums ptr[b]:ptr[b + 1] are added up; empty without sums.
        size: elements behind the buffer.
    """

    to: LongArray
    table: LongArray
    parts: LongArray
    ptr: LongArray
    size: int


def find_sums(plan: Plan, widths: LongArray) -> Sums:
    """Find the sums of a plan, given the elements of each output of all types.

    Cost: O(destinations log(destinations of a batch)).
    """
    if not plan.adds.any():
        none = np.zeros(0, np.int64)
        return Sums(plan.dest, none.reshape(0, 4), none, none, 0)
    return Sums(*find_in_plan(arrays_of(plan), plan.dest.astype(np.int64), widths, plan.size))
