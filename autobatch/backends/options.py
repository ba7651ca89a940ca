"""Define the options of a batched function: one immutable record, checked once and passed down to the backend."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from autobatch.devices.store import HOST, Store
from autobatch.errors import BackendError
from autobatch.schedule.schedule import BasePolicy


class ByInstance(NamedTuple):
    """A request for per-instance gradients, or for their sum after clipping; see `backends/by_instance`.

    Attributes:
        parameters: the `id`s of the parameters to differentiate by.
        clips: whether the gradients are scaled and then added up.
        result_bytes: bytes of all per-instance gradients that the call returns.
    """

    parameters: frozenset[int]
    clips: bool
    result_bytes: int


class Options(NamedTuple):
    """The options of planning and running the mini-batches of a function. The last five fields are facts of a call.

    Attributes:
        policy: makes schedules.
        rewrites: the names of the passes over graphs.
        precision: the precision of matrix products; see `autobatch.ir.precision`.
        threads: the number of threads of one run, each with scratch memory of its own; at most the usable cores.
        max_bytes: an upper bound on the memory that a run holds and keeps for the next one, unless the plan alone needs
            more; None for no limit. A mini-batch that needs more runs in parts.
        seed: the seed of random numbers.
        max_rounds: the most rounds of a mini-batch of async programs, see `autobatch.batched`; None for no limit.
        on_error: "raise" to raise the first error of an async program, "return" to return errors as results.
        dtype: the float type of all values.
        store: the memory of the device that holds the parameters and their gradients.
        purpose: the names of the trainable parameters in training; None in inference.
        has_aux: in training, whether the function returns more than the loss; None if any result may have gradients.
        by_instance: the per-instance request; None for the gradients of the sum of the losses.
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
        """Raise a BackendError unless the parameters are in one of the memories that a backend can read."""
        if self.store not in stores:
            raise BackendError(
                f"the parameters are on {self.store.kind}, which backend {backend!r} cannot read. Call "
                f'to("{stores[0].kind}") on the module, or choose another backend.'
            )
