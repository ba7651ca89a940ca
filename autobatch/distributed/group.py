"""Groups of processes, which `torchrun`, Ray Train or `autobatch train --data-parallel` start, each with its script.

    with ab.distributed.group():
        for share in ab.distributed.shares(graphs, 256, rng):
            value, grads = loss.value_and_grad(share)      # of the whole mini-batch, in every process
            optimizer.step(grads)

`exchange` has the messages of a call, and `wire` what carries them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from autobatch.api import Batched
from autobatch.distributed.exchange import Exchange, Kept
from autobatch.distributed.facts import facts_of
from autobatch.distributed.shares import Share
from autobatch.distributed.wire import Alone, TorchWire, Wire
from autobatch.engine.group import entering
from autobatch.engine.session import GradientRequest
from autobatch.keywords import checked
from autobatch.system.turns import run_lock
from autobatch.trace.record import list_instances

TIMEOUT = 1800.0


@checked()
@contextmanager
def group(timeout: float = TIMEOUT) -> Iterator[Joined]:
    """Within the context, `value_and_grad` computes a mini-batch of which every process of the group has a share.

    It gives the value and the gradients of the whole mini-batch, in every process, so that equal optimizers take equal
    steps. A process that `torchrun` or Ray Train has started joins the others, over `torch.distributed`: the process
    group that there is, or one that is made and ended with the context. Any other process is a group of its own.

    Args:
        timeout: seconds after which a process that waits for the others gives up.

    Raises:
        DistributedError: PyTorch is not installed, or the others do not answer.

    >>> import autobatch as ab
    >>> with ab.distributed.group() as joined:
    ...     joined.rank, joined.size
    (0, 1)
    """
    wire: Wire = TorchWire(timeout) if _has_others() else Alone()
    try:
        joined = Joined(wire)
        with entering(joined):
            yield joined
    finally:
        wire.close()


def _has_others() -> bool:
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return True
    torch = sys.modules.get("torch")  # without it there is no process group yet
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()


class Joined:
    """A group of processes that this one has joined; made by `group`.

    Attributes:
        rank: the number of this process, from 0.
        size: how many there are.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire, self.rank, self.size = wire, wire.rank, wire.size
        self._kept = WeakKeyDictionary[Batched, Kept]()  # a call overwrites the gradients of the same function alone
        self._began = WeakSet[Batched]()

    def __repr__(self) -> str:
        return f"Joined(process {self.rank} of {self.size})"

    def gather(self, x: Any) -> list[Any]:
        """The objects that all processes give, in their order; they travel through pickle.

        Args:
            x: the object of this process.

        Raises:
            DistributedError: a process has ended.
        """
        return self._wire.gather_objects(x)

    def most(self, number: int) -> int:
        """The largest of the ints that all processes give.

        Args:
            number: the int of this process.

        Raises:
            DistributedError: a process has ended.
        """
        return int(self._wire.gather(np.array([number], np.int64)).max())

    def value_and_grad(self, loss: Batched, instances: Iterable[Any], request: GradientRequest) -> Any:
        """Compute the loss and the gradients of a mini-batch; within the context, `loss.value_and_grad` calls this.

        Args:
            instances: those of this process: a share of `autobatch.distributed.shares`; or a list, for which the
                mini-batch is the lists of all processes, one after the other. It may be empty.
            request: as for one process; weights are those of the instances of this process.

        Returns:
            As for one process; what is returned per instance, such as `aux`, is that of this process's instances.

        Raises:
            DistributedError: a process has ended, or does something else than the others.
            AutobatchError: what was raised in another process is raised here too.
        """
        reduce, each = request.reduce, request.each
        with run_lock():
            parameters = loss.refresh_parameters()
        facts = {
            "the trainable parameters": " ".join(parameters.trainable), "the step": str(loss.step),
            "the seed": str(loss.seed), "has_aux": str(request.has_aux),
            "reduce": reduce if isinstance(reduce, str) else "weights",
            "the gradients of each instance": "" if each is None else each.text,
        }  # fmt: skip
        if loss not in self._began:
            facts |= _of_start(loss)
        if isinstance(instances, Share):
            facts |= {"the mini-batch": f"{instances.size} instances, {instances.digest.hex()}"}
        kept = self._kept.setdefault(loss, Kept())
        exchange = Exchange(self._wire, facts, len(parameters.trainable), parameters.store, kept)
        with exchange.guarding():
            if not isinstance(instances, Share):
                listed = list_instances(instances)
                counts = exchange.count(len(listed))
                first = sum(counts[: self.rank])
                instances = Share(listed, range(first, first + len(listed)), sum(counts))
            weights: Any = reduce
            if isinstance(reduce, str) and reduce == "mean":
                weights = np.full(len(instances), 1.0 / max(instances.size, 1))
            if instances or not instances.size:
                keys = instances.positions
                found = loss.differentiate(instances, request._replace(reduce=weights), exchange, keys)
            else:
                found = loss.differentiate_nothing(request, exchange)
        self._began.add(loss)
        return found


def _of_start(loss: Batched) -> dict[str, str]:
    """What all must begin with, at the first call of a function."""
    with run_lock():
        loss.options_now(training=True, has_aux=None)
        recorder = loss.recorder
        return facts_of(recorder.function, recorder.module, recorder.parameters())
