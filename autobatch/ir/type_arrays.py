"""Properties of node types as int arrays, for the core."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from autobatch.arrays import IntArray


class TypeArrays(NamedTuple):
    """Properties of T types, as int32 arrays."""

    int_width: IntArray  # [T] int attributes per node, not counting data of any length
    float_width: IntArray  # [T] float attributes per node
    data_ptr: IntArray  # [T+1] data of any length that type t takes: data_ptr[t]:data_ptr[t+1]
    data_group: IntArray  # [data] the variadic group, of the type, whose edges are the elements
    data_ints: IntArray  # [data] ints per element
    data_floats: IntArray  # [data] floats per element
    out_ptr: IntArray  # [T+1] outputs of type t: out_ptr[t]:out_ptr[t+1]
    pass_port: IntArray  # [outputs] the port that the output equals if that port has one edge, or -1
    port_ptr: IntArray  # [T+1] ports of type t: port_ptr[t]:port_ptr[t+1]; none at all where ports are not known
    port_plain: IntArray  # [ports] 1 for a plain port, 0 for one of a variadic group
    port_group: IntArray  # [ports] the variadic group whose edges are those of the port, if it is its first one; or -1
    group_ptr: IntArray  # [T+1] variadic groups of type t: group_ptr[t]:group_ptr[t+1]
    part_ptr: IntArray  # [T+1] slices that derived groups of type t are joined from: part_ptr[t]:part_ptr[t+1]
    part_group: IntArray  # [parts] the derived group, which comes after those that it is derived from
    part_times: IntArray  # [parts] the group whose rows are all paired with each row of the slice; or -1
    part_of: IntArray  # [parts] the group that it is a slice of, or -1 for a number of rows
    part_cut: NDArray[np.int64]  # [parts, 4] that number of rows; start, stop and step of the slice
    sum_type: IntArray  # [T] the variadic sum that computes the same (for such a sum its own id), or -1
    range_ptr: IntArray  # [T+1] ranges of type t: range_ptr[t]:range_ptr[t+1]
    range_data: IntArray  # [ranges] the data of any length whose every element is limited, by number in the type, or -1
    range_column: IntArray  # [ranges] the int attribute that is limited, of the node or of an element ...
    range_size: IntArray  # [ranges] ... to 0..size-1; or, -1 - g, to the rows of group g
    range_ignore: IntArray  # [ranges] a number that is allowed outside
    random: IntArray  # [T] 1 if the cell draws random numbers
    product_work: NDArray[np.int64]  # [T] multiply-adds of a node's products with matrices, one edge in each group


Arrays = TypeVar("Arrays", bound=tuple[Any, ...])


def extended(before: Arrays, more: Arrays) -> Arrays:
    """Append the properties of more types.

    Args:
        before, more: named tuples of arrays; those named `*_ptr` hold the offsets of each type's parts.

    Cost: a copy; nothing is recomputed per type.
    """
    names: tuple[str, ...] = before._fields  # type: ignore[attr-defined]
    kind: Any = type(before)
    pairs = zip(names, before, more, strict=True)
    # Offsets continue after the last known one, which takes the place of the 0 that the new ones begin with.
    whole: Arrays = kind(*[np.concatenate((x, x[-1] + y[1:] if name.endswith("_ptr") else y)) for name, x, y in pairs])
    return whole
