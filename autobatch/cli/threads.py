"""How many threads a matrix product uses.

The matrices of dynamic batches are small, and a BLAS library that splits them over threads on a machine with other
work to do took 25 times as long here (0.68 against 0.027 s for a step of the demo, dim 64, batch 64). So
commands use one thread by default.
"""

from __future__ import annotations

from threadpoolctl import threadpool_info, threadpool_limits

DEFAULT_THREADS = 1


def use_threads(n_threads: int | str) -> None:
    """Let matrix products use at most so many threads; "auto": as many as the libraries begin with."""
    if isinstance(n_threads, int):
        threadpool_limits(n_threads, user_api="blas")


def threads_in_force() -> int:
    """Tell how many threads matrix products use."""
    return max((int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)
