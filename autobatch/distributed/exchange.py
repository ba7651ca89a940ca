"""One call of `value_and_grad` in a group: what each process says of it, and the sums over all of them.

    "here I am": errors, what the call is about ─▶ value ─▶ which gradients are rows ─▶ arrays in buckets, rows by id

All processes send the same messages in the same order. A process that fails says so in place of its next message, so
that none waits for it: all raise.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any

import numpy as np

from autobatch import errors
from autobatch.devices.store import HOST, Store
from autobatch.distributed.wire import IntArray, Wire
from autobatch.engine.counts import Clock
from autobatch.engine.losses import LateLosses
from autobatch.errors import AutobatchError, DistributedError, NumericError
from autobatch.params.gradients import Gradients
from autobatch.params.sparse_rows import Gradient, Rows

BUCKET_BYTES = 4 << 20  # of gradients that are added up in one message
ERROR, COUNT, VALUE, LATE = range(4)  # what a message is about
IS_ARRAY, IS_ANY = -1, -2  # in place of the number of rows of a gradient


class Buckets:
    """Adds up arrays of all processes, small ones together in one message; keeps the memory that they travel in."""

    def __init__(self) -> None:
        self._memory: dict[tuple[int, np.dtype[Any]], Any] = {}

    def add_up(self, wire: Wire, arrays: Iterable[Any], store: Store) -> None:
        """Replace each array by its sum over all processes, in place."""
        under_way = list[tuple[Callable[[], None], Any, list[Any]]]()
        for flat, members in self._fill(list(arrays), store):
            under_way.append((wire.begin_sum(flat, store), flat, members))
        for wait, flat, members in under_way:
            wait()
            at = 0
            for array in members:
                array[...] = flat[at : at + array.size].reshape(array.shape)
                at += array.size

    def _fill(self, arrays: Sequence[Any], store: Store) -> Iterator[tuple[Any, list[Any]]]:
        """Flat arrays to add up, each with the arrays that it holds a copy of; a large one travels as it is."""
        for dtype in sorted({array.dtype for array in arrays}, key=str):
            own = [array for array in arrays if array.dtype == dtype]
            small = [x for x in own if x.nbytes < BUCKET_BYTES or not x.flags.c_contiguous]
            for array in own:
                if not any(array is x for x in small):
                    yield array.reshape(-1), []
            memory, at, begin, members = self._room(sum(x.size for x in small), dtype, store), 0, 0, list[Any]()
            for array in small:
                memory[at : at + array.size].reshape(array.shape)[...] = array
                members.append(array)
                at += array.size
                if (at - begin) * dtype.itemsize >= BUCKET_BYTES or array is small[-1]:
                    yield memory[begin:at], members
                    begin, members = at, []

    def _room(self, size: int, dtype: np.dtype[Any], store: Store) -> Any:
        key = id(store), dtype
        if key not in self._memory or self._memory[key].size < size:
            self._memory[key] = store.empty(size, dtype)
        return self._memory[key]


class Exchange:
    """The messages of one call.

    Args:
        wire: to the other processes.
        facts: what all must agree on, by what an error calls it.
        store: of the gradients.
        buckets: adds them up.
    """

    def __init__(self, wire: Wire, facts: Mapping[str, str], store: Store, buckets: Buckets) -> None:
        self._wire, self._facts, self._store, self._buckets = wire, facts, store, buckets
        (self._digest,) = struct.unpack("<q", sha256(repr(facts).encode()).digest()[:8])
        self._is_told = False  # an error, by one side or the other

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Within the context, an error is told to the other processes, which wait for a message."""
        try:
            yield
        except DistributedError:
            raise
        except Exception as error:
            if not self._is_told:
                with suppress(DistributedError):
                    self._meet(ERROR, error=error)
            raise

    def count(self, n_instances: int) -> list[int]:
        """The instances that each process has."""
        found: list[int] = self._meet(COUNT, n_instances)[:, 1].tolist()
        return found

    def add(self, value: np.generic, grads: dict[str, Gradient], clock: Clock) -> np.generic:
        """See `autobatch.engine.group.Exchange`."""
        return self._add(value, [*grads], lambda _: grads, clock)[0]()

    def add_late(self, losses: LateLosses, grads: dict[str, Gradient], clock: Clock) -> Callable[[], np.generic]:
        """See `autobatch.engine.group.Exchange`."""
        return self._add(losses, [*grads], lambda _: grads, clock)[0]

    def add_nothing(
        self, dtype: np.dtype[Any], names: Sequence[str], zeros: Callable[[Collection[str]], Gradients], clock: Clock
    ) -> tuple[np.generic, dict[str, Gradient]]:
        """See `autobatch.engine.group.Exchange`."""
        whole, grads = self._add(dtype.type(0), names, zeros, clock, is_empty=True)
        return whole(), grads

    def _add(
        self,
        own: np.generic | LateLosses,
        names: Sequence[str],
        gradients: Callable[[Collection[str]], dict[str, Gradient]],
        clock: Clock,
        is_empty: bool = False,
    ) -> tuple[Callable[[], np.generic], dict[str, Gradient]]:
        """Add up values and gradients; give what reads the value, and the gradients, which are changed.

        Args:
            gradients: gives them, where the names of those are known that are `Rows` in other processes, and nowhere
                an array.
            is_empty: whether this process has no instance.
        """
        if isinstance(own, LateLosses):
            heads = self._meet(LATE)
        else:
            heads = self._meet(VALUE, int(np.array(own, np.float64).view(np.int64)))
        clock.lap("wait")
        n_rows = np.full(len(names), IS_ANY)
        if not is_empty:
            n_rows[:] = [g.ids.size if isinstance(g, Rows) else IS_ARRAY for g in gradients(()).values()]
        counts = dict(zip(names, self._wire.gather(n_rows).T.tolist(), strict=True))
        grads = gradients([name for name, n in counts.items() if IS_ARRAY not in n and max(n) > IS_ARRAY])
        self._add_gradients(grads, counts)
        whole = self._late_sum(own, grads) if (heads[:, 0] == LATE).any() else _sum_of(heads[:, 1], own)
        clock.lap("reduce")
        return whole, grads

    def _add_gradients(self, grads: dict[str, Gradient], counts: Mapping[str, list[int]]) -> None:
        """Add up gradients in place; what is `Rows` here, and an array elsewhere, becomes an array."""
        arrays = []
        for name, gradient in grads.items():
            if isinstance(gradient, Rows):
                if IS_ARRAY not in counts[name]:
                    grads[name] = self._all_rows(gradient, [max(n, 0) for n in counts[name]])
                    continue
                grads[name] = self._store.put(np.asarray(gradient))
            arrays.append(grads[name])
        self._buckets.add_up(self._wire, arrays, self._store)

    def _all_rows(self, rows: Rows, counts: Sequence[int]) -> Rows:
        """The sum of the rows of all processes, of which each has so many."""
        if not max(counts):
            return rows
        ids = self._wire.gather_rows(rows.ids, counts, HOST)
        values = self._wire.gather_rows(rows.values, counts, self._store)
        return Rows.summed(ids, values, rows.shape, self._store)

    def _late_sum(self, own: np.generic | LateLosses, grads: dict[str, Gradient]) -> Callable[[], np.generic]:
        """Begin to add up values on the device; note whether all are finite."""
        store = self._store
        if isinstance(own, LateLosses):
            total, finite = own.total, own.finite.astype(own.total.dtype)
        else:
            total, finite = store.put(np.array([own])), store.put(np.ones(1, own.dtype))
        both = store.xp.concatenate([total, finite])
        self._wire.begin_sum(both, store)()
        assert isinstance(grads, Gradients), "losses are late where no gradients were given"
        grads.finite = both[1:] == self._wire.size
        read = store.copy_out(both)

        def whole() -> np.generic:
            value, n_finite = read()
            if n_finite != self._wire.size:
                raise NumericError(
                    "the loss of an instance in another process is not finite; no gradient of this mini-batch is used. "
                    "That process says which."
                )
            found: np.generic = value
            return found

        return whole

    def _meet(self, kind: int, word: int = 0, error: Exception | None = None) -> IntArray:
        """Send the head of a message, and receive those of all: kind, word, digest of the facts; int64 (size, 3).

        Raises:
            AutobatchError: of another process; not if there is one here.
            DistributedError: the processes do not agree.
        """
        heads = self._wire.gather(np.array([kind, word, self._digest], np.int64))
        if (heads[:, 0] == ERROR).any():
            self._is_told = True
            told = self._wire.gather_objects(None if error is None else (type(error).__name__, str(error)))
            if error is None:
                raise _error_of(told)
        elif (heads[:, 2] != self._digest).any() or len({*heads[:, 0].tolist()} - {LATE, VALUE}) > 1:
            self._is_told = True
            raise _difference(self._wire.gather_objects(self._facts))
        return heads


def _sum_of(bits: IntArray, own: Any) -> Callable[[], np.generic]:
    """What gives the sum of values, in the order of the processes."""
    total: np.generic = np.ascontiguousarray(bits).view(np.float64).sum().astype(own.dtype)
    return lambda: total


def _error_of(told: Sequence[tuple[str, str] | None]) -> AutobatchError:
    """The error of the first process that has one, as it is raised in the others."""
    rank, (kind, text) = next((rank, one) for rank, one in enumerate(told) if one is not None)
    known = getattr(errors, kind, None)
    where = f"process {rank} of {len(told)}"
    return DistributedError(f"{where} stopped: {kind}: {text}") if known is None else known(f"{where}: {text}")


def _difference(told: Sequence[Mapping[str, str]]) -> DistributedError:
    """Say in what a process differs from the first one."""
    for rank, facts in enumerate(told):
        for name in {**told[0], **facts}:
            mine, first = facts.get(name, "nothing"), told[0].get(name, "nothing")
            if mine != first:
                shown = f": {mine} where process 0 has {first}" if len(mine) + len(first) < 60 else ""
                return DistributedError(
                    f"process {rank} of {len(told)} differs from process 0 in {name}{shown}; start all with the same "
                    f"code, data and parameters, and let them call value_and_grad in the same order."
                )
    return DistributedError(
        "one process gave value_and_grad a share of ab.distributed.shares and another one a list; give all the same."
    )
