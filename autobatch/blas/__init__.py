"""Matrix products with the library that is fastest on this machine: NumPy, MKL, torch, SciPy or our own.

`get_provider(name)` and `Chooser` return a `Provider`, which multiplies views without copies, and which native code
calls by address. `limit_threads` limits its threads. `packed` is our own provider, which multiplies by pre-packed
matrices, in float32 or bf16.
"""

from autobatch.blas.choosing import Chooser, measure
from autobatch.blas.finding import get_provider, list_absent, list_providers
from autobatch.blas.provider import Provider, describe_product
from autobatch.blas.threads import limit_threads, most_threads, threads_in_force

__all__ = [
    "Chooser",
    "Provider",
    "describe_product",
    "get_provider",
    "limit_threads",
    "list_absent",
    "list_providers",
    "measure",
    "most_threads",
    "threads_in_force",
]
