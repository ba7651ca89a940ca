"""The number of BLAS threads.

Matrices of dynamic batches are small. On a busy machine, a multithreaded BLAS took 25 times as long for a step of the
demo at dim 64 and batch size 64 (0.68 s instead of 0.027 s), so commands use one thread by default.
"""

from __future__ import annotations

from threadpoolctl import threadpool_info, threadpool_limits

DEFAULT_THREADS = 1


def use_threads(n_threads: int | str) -> None:
    """Limit the threads of matrix products to `n_threads`; "auto" leaves the libraries' defaults."""
    if isinstance(n_threads, int):
        threadpool_limits(n_threads, user_api="blas")


def threads_in_force() -> int:
    """Return the number of threads of matrix products."""
    return max((int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)
