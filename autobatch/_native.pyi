"""Types of the native core, `native/`: ints in, ints out. Each function checks the arrays that it is given.

Raises (all functions): TypeError, an argument of another type, or an array of another dtype; ValueError, an array that
is not contiguous, or numbers that do not fit each other.
"""

from autobatch.jit.arrays import IntArray

# native/graph/: see `autobatch.graph`.

def merge_words(parts: IntArray) -> IntArray:
    """Merge encoded graphs that follow one another; nodes, edges and outputs are numbered consecutively."""
