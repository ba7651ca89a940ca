"""The options of a batched function: one immutable record, checked once and passed down to the backend."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from autobatch.devices.store import HOST, Store
from autobatch.errors import BackendError
from autobatch.schedule.schedule import BasePolicy


class ByInstance(NamedTuple):
    """What a call asks of each instance: gradients of its own, or one scaled by its norm; see `backends/by_instance`.

    Attributes:
        parameters: the `id`s of the parameters whose gradients these are.
        clips: whether gradients are scaled, and then added up.
        result_bytes: of the gradients that the call returns for each instance.
    """

    parameters: frozenset[int]
    clips: bool
    result_bytes: int


class Options(NamedTuple):
    """How the mini-batches of a function are planned and run. The last five fields are facts of a call.

    Attributes:
        policy: makes schedules.
        rewrites: names of the passes over graphs.
        precision: of matrix products, see `autobatch.ir.precision`.
        threads: of one run, each of which takes scratch memory; as many as were asked for, or there are cores to use.
        max_bytes: upper bound on the memory that a run holds and keeps for the next one, unless the plan alone needs
            more; None is no limit. A mini-batch that needs more runs in parts.
        seed: of random numbers.
        max_rounds: the most rounds of a mini-batch of async programs, see `autobatch.batched`; None for no limit.
        on_error: "raise" the first error of an async program, or "return" errors in the place of results.
        dtype: float type of all values.
        store: the memory of the device on which the parameters are, and to which their gradients are added.
        purpose: the names of the trainable parameters in training; None in inference.
        has_aux: in training, whether the function returns more than the loss; None if all may have gradients.
        by_instance: what is asked of each instance; None if the gradients are of their sum.
    """

    policy: BasePolicy
    rewrites: tuple[str, ...] = ()
    precision: str = "float32"
    threads: int = 1
    max_bytes: int | None = None
    seed: int = 0
    max_rounds: int | None = None
    on_error: str = "raise"
    dtype: np.dtype[Any] = np.dtype(np.float32)
    store: Store = HOST
    purpose: frozenset[str] | None = None
    has_aux: bool | None = False
    by_instance: ByInstance | None = None

    def check_store(self, backend: str, *stores: Store) -> None:
        """Raise a BackendError if the parameters are in none of the memories that a backend reads them in."""
        if self.store not in stores:
            raise BackendError(
                f"the parameters are on {self.store.kind}, where backend {backend!r} does not read them: call "
                f'to("{stores[0].kind}") on the module, or choose another backend.'
            )
