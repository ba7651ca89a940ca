"""Groups of processes for data-parallel training.

`torchrun`, Ray Train or `autobatch train --data-parallel` starts the processes, which all run the same code:

    with ab.distributed.group():
        for share in ab.distributed.shares(graphs, 256, rng):
            value, grads = loss.value_and_grad(share)      # of the whole mini-batch, in every process
            optimizer.step(grads)

`exchange` contains the messages of a call, and `wire` their transport.

All processes of a group must agree on digests of the code and the parameters.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from autobatch.api import Batched
from autobatch.distributed.exchange import Exchange, Kept
from autobatch.distributed.shares import Share
from autobatch.distributed.wire import Alone, TorchWire, Wire
from autobatch.engine.group import entering
from autobatch.engine.session import GradientRequest
from autobatch.keywords import checked
from autobatch.params.module import Module, modules_in
from autobatch.params.parameter import Parameter
from autobatch.system.locks import run_lock
from autobatch.trace.record import list_instances
from autobatch.trace.scanning import functions_in, methods_of


def facts_of(function: Any, module: Module | None, parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """Return versions, and digests of code and parameters, by their names in error messages."""
    shapes = [(name, p.shape, p.dtype.name, p.trainable) for name, p in parameters.items()]
    return {
        "Python and NumPy": f"{platform.python_version()}, {np.__version__}",
        "the code of the model": _digest(_codes(function, module)),
        "the parameters' names and shapes": _digest([repr(shapes).encode()]),
        "the parameters": _digest(p.store.get(p.array).tobytes() for p in parameters.values()),
    }


def _codes(function: Any, module: Module | None) -> list[bytes]:
    """Return the code of a function, and of the methods and cells of all modules in `module`."""
    kinds = dict.fromkeys(type(part) for part in ([] if module is None else modules_in(module)))
    functions = [*functions_in(function), *(method for kind in kinds for method in methods_of(kind))]
    return [_spell(f.__code__).encode() for f in functions]


def _spell(x: Any) -> str:
    """Format code, or one of its constants, independently of the process and of the file's path."""
    if isinstance(x, CodeType):
        constants = ",".join(map(_spell, x.co_consts))
        return f"{x.co_qualname}{x.co_code.hex()}{x.co_names}{x.co_varnames}{x.co_freevars}({constants})"
    if isinstance(x, frozenset):  # its order depends on the process's hash seed
        return f"{{{','.join(sorted(map(_spell, x)))}}}"
    return f"({','.join(map(_spell, x))})" if isinstance(x, tuple) else repr(x)


def _digest(parts: Iterable[bytes]) -> str:
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()


TIMEOUT = 1800.0  # seconds


@checked()
@contextmanager
def group(timeout: float = TIMEOUT) -> Iterator[Joined]:
    """Make `value_and_grad` sum over the processes of a group while the block runs.

    Each process passes its share of a mini-batch and gets the value and the gradients of the whole mini-batch, so that
    equal optimizers take equal steps. Processes started by `torchrun` or Ray Train join over `torch.distributed`, in
    the existing process group or in one that ends with the block. Any other process is a group of its own.

    Args:
        timeout: longest wait for the other processes, in seconds.

    Raises:
        DistributedError: PyTorch is not installed, or another process does not answer.

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
        rank: number of this process, from 0.
        size: number of processes.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire, self.rank, self.size = wire, wire.rank, wire.size
        # Per function, so that a call overwrites only that function's gradients.
        self._kept = WeakKeyDictionary[Batched, Kept]()
        self._began = WeakSet[Batched]()

    def __repr__(self) -> str:
        return f"Joined(process {self.rank} of {self.size})"

    def gather(self, x: Any) -> list[Any]:
        """Return the objects of all processes, in order of rank; they are pickled.

        Args:
            x: the object of this process.

        Raises:
            DistributedError: a process has ended.
        """
        return self._wire.gather_objects(x)

    def most(self, number: int) -> int:
        """Return the largest of the ints of all processes.

        Args:
            number: the int of this process.

        Raises:
            DistributedError: a process has ended.
        """
        return int(self._wire.gather(np.array([number], np.int64)).max())

    def value_and_grad(self, loss: Batched, instances: Iterable[Any], request: GradientRequest) -> Any:
        """Compute the loss and the gradients of a mini-batch; called by `loss.value_and_grad` in a group.

        Args:
            instances: this process's share from `autobatch.distributed.shares`; or a list, possibly empty; the
                mini-batch is then the concatenation of all processes' lists.
            request: as for one process; weights are those of this process's instances.

        Returns:
            As for one process; results per instance, such as `aux`, are those of this process's instances.

        Raises:
            DistributedError: a process has ended, or makes a different call.
            AutobatchError: another process raised this error.
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
        if loss not in self._began:  # only once, as these read all parameters
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
                weights = np.full(len(instances), 1.0 / max(instances.size, 1))  # summed over all processes, the mean
            # With an empty mini-batch, all processes call `differentiate`, which raises the error.
            if instances or not instances.size:
                keys = instances.positions
                found = loss.differentiate(instances, request._replace(reduce=weights), exchange, keys)
            else:
                found = loss.differentiate_nothing(request, exchange)
        self._began.add(loss)
        return found


def _of_start(loss: Batched) -> dict[str, str]:
    """Return the facts on which all processes must agree at the first call of a function."""
    with run_lock():
        loss.options_now(training=True, has_aux=None)
        recorder = loss.recorder
        return facts_of(recorder.function, recorder.module, recorder.parameters())
