"""Types of the native core, `native/`: ints in, ints out. Each function checks the arrays that it is given.

Raises (all functions): TypeError, an argument of another type, or an array of another dtype; ValueError, an array that
is not contiguous, or numbers that do not fit each other.
"""

import numpy as np
from numpy.typing import NDArray

from autobatch.ir.type_arrays import TypeArrays
from autobatch.jit.arrays import FloatArray, IntArray, LongArray

# native/graph/: see `autobatch.graph`.

def merge_words(parts: IntArray) -> IntArray:
    """Merge encoded graphs that follow one another; nodes, edges and outputs are numbered consecutively."""

def rewrite_words(
    words: IntArray, floats: FloatArray, types: TypeArrays, passes: int
) -> tuple[IntArray, FloatArray, tuple[int, ...]]:
    """Run the passes whose bits are set, bit k for that of `PASSES[k]`; give the arrays themselves if nothing applies.

    Returns:
        The words and floats of the new graph, and the fields of `Rewrites`.

    Raises:
        ValueError: an edge points backwards, too.
        OverflowError: the new graph has more words than int32 counts.
    """

def count_shared(
    words: IntArray, floats: FloatArray, types: TypeArrays, by_rule: bool
) -> tuple[LongArray, LongArray, NDArray[np.bool_]]:
    """Count by type the nodes that are looked up and those that equal an earlier one; say whether these are shared.

    Args:
        by_rule: as pass "share_products" does; "share" otherwise.
    """
