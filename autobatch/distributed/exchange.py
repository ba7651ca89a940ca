"""The messages of a `value_and_grad` call in a group: checks that processes agree, and sums over all processes.

    head: an error, or a digest of the call, the value and the kinds of gradients ─▶ arrays ─▶ rows by id

All processes send the same messages in the same order. A process that fails sends its error in place of its next
head, so that all processes raise and none waits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np

from autobatch import errors
from autobatch.devices.store import HOST, Store
from autobatch.distributed.wire import IntArray, Wire
from autobatch.engine.counts import Clock
from autobatch.engine.results import LateLosses
from autobatch.errors import AutobatchError, DistributedError, NumericError
from autobatch.params.gradients import Gradients
from autobatch.params.sparse_rows import Gradient, Rows

LARGE_BYTES = 4 << 20  # arrays of this size or more are sent on their own, without a copy
ERROR, COUNT, VALUE, LATE = range(4)  # kinds of messages
HEAD, ROUNDED = 3, 64  # ints of a head before the row counts; the number of row counts is padded to a multiple of this
MOST_SHOWN = 60  # characters of two differing facts in a message; digests are longer and not shown
# Sent instead of a row count: IS_ARRAY if the gradient is dense, IS_ANY if a process without instances cannot know.
IS_ARRAY, IS_ANY = -1, -2


class Kept:
    """Message buffers reused from call to call; allocating them costs more than sending them."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, int, np.dtype[Any]], Any] = {}
        self._tables: dict[str, Rows] = {}

    def room(self, what: str, size: int, dtype: np.dtype[Any], store: Store = HOST) -> Any:
        """Return a flat array of a store; it is valid until the next call with the same `what`."""
        key = what, id(store), dtype
        if key not in self._memory or self._memory[key].size < size:
            self._memory[key] = store.empty(size * 5 // 4, dtype)
        return self._memory[key][:size]

    def rows(self, name: str, like: Rows) -> Rows:
        """Return empty rows for the table `name`, of the shape, dtype and store of `like`."""
        known = self._tables.get(name)
        if known is None or (known.shape, known.dtype, known.store) != (like.shape, like.dtype, like.store):
            known = self._tables[name] = Rows.zeros(like.shape, like.dtype, like.store)
        known.clear()
        return known


class Exchange:
    """The messages of one call; implements `autobatch.engine.results.Exchange`.

    Args:
        wire: connection to the other processes.
        facts: values on which all processes must agree, by their names in errors.
        n_gradients: number of gradients.
        store: device memory of the gradients.
        kept: message buffers.
    """

    def __init__(self, wire: Wire, facts: Mapping[str, str], n_gradients: int, store: Store, kept: Kept) -> None:
        self._wire, self._facts, self._store, self._kept = wire, facts, store, kept
        (self._digest,) = struct.unpack("<q", sha256(repr(facts).encode()).digest()[:8])
        # Padded, so that processes with slightly different models still exchange heads of one size, and can compare.
        self._n_rows = -(-n_gradients // ROUNDED) * ROUNDED
        self._is_over = False  # whether the other processes expect no further message

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Send errors raised in the block to the other processes, which wait for a message."""
        try:
            yield
        except DistributedError:  # the other processes have raised it as well, or cannot be reached
            raise
        except Exception as error:
            if not self._is_over:
                with suppress(DistributedError):
                    self._meet(ERROR, error=error)
            raise

    def count(self, n_instances: int) -> list[int]:
        """Return the number of instances of each process."""
        found: list[int] = self._meet(COUNT, n_instances)[:, 1].tolist()
        return found

    def add(self, value: np.generic, grads: dict[str, Gradient], clock: Clock) -> np.generic:
        return self._add(value, [*grads], lambda _: grads, clock)[0]()

    def add_late(self, losses: LateLosses, grads: dict[str, Gradient], clock: Clock) -> Callable[[], np.generic]:
        return self._add(losses, [*grads], lambda _: grads, clock)[0]

    def add_nothing(
        self, dtype: np.dtype[Any], names: Sequence[str], zeros: Callable[[Collection[str]], Gradients], clock: Clock
    ) -> tuple[np.generic, dict[str, Gradient]]:
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
        """Sum values and gradients over the processes; gradients are summed in place.

        Args:
            gradients: returns the gradients; takes the names of those that are `Rows` in all other processes that have
                instances.
            is_empty: whether this process has no instances.

        Returns:
            A function that returns the total value, and the gradients.
        """
        n_rows = [IS_ANY] * len(names)
        if not is_empty:
            n_rows = [g.ids.size if isinstance(g, Rows) else IS_ARRAY for g in gradients(()).values()]
        if isinstance(own, LateLosses):
            heads = self._meet(LATE, 0, n_rows)
        else:
            # Heads are ints, so the bits of the loss are sent.
            heads = self._meet(VALUE, int(np.array(own, np.float64).view(np.int64)), n_rows)
        clock.mark("wait")
        counts = dict(zip(names, heads[:, HEAD : HEAD + len(names)].T.tolist(), strict=True))
        # IS_ANY < IS_ARRAY < 0: the gradient is an array in no process, and rows in at least one.
        grads = gradients([name for name, n in counts.items() if IS_ARRAY not in n and max(n) > IS_ARRAY])
        self._add_gradients(grads, counts)
        # A process without instances sends VALUE, even if the losses of the others are late.
        whole = self._late_sum(own, grads) if (heads[:, 0] == LATE).any() else _sum_of(heads[:, 1], own)
        clock.mark("reduce")
        self._is_over = True
        return whole, grads

    def _add_gradients(self, grads: dict[str, Gradient], counts: Mapping[str, list[int]]) -> None:
        """Sum gradients in place; `Rows` that are dense in another process become dense."""
        arrays, tables = list[Any](), dict[str, Rows]()
        for name, gradient in grads.items():
            if not isinstance(gradient, Rows):
                arrays.append(gradient)
            elif IS_ARRAY in counts[name]:
                grads[name] = self._store.put(np.asarray(gradient))
                arrays.append(grads[name])
            else:
                tables[name] = gradient
        for dtype in sorted({array.dtype for array in arrays}, key=str):  # in the same order everywhere
            self._add_arrays([array for array in arrays if array.dtype == dtype], dtype)
        if tables:
            self._add_rows(grads, tables, {name: [max(n, 0) for n in counts[name]] for name in tables})

    def _add_arrays(self, arrays: Sequence[Any], dtype: np.dtype[Any]) -> None:
        """Sum arrays of one dtype: large ones in place, and all others in one message."""
        small = [x for x in arrays if x.nbytes < LARGE_BYTES or not x.flags.c_contiguous]
        for array in arrays:
            if not any(array is x for x in small):  # `in` would compare elements
                self._wire.add_up(array.reshape(-1), self._store)
        ends = np.cumsum([0, *(x.size for x in small)]).tolist()
        message = self._kept.room("arrays", ends[-1], dtype, self._store)
        places = [message[begin:end] for begin, end in pairwise(ends)]
        for array, place in zip(small, places, strict=True):
            place.reshape(array.shape)[...] = array
        if small:
            self._wire.add_up(message, self._store)
        for array, place in zip(small, places, strict=True):
            array[...] = place.reshape(array.shape)

    def _add_rows(
        self, grads: dict[str, Gradient], tables: Mapping[str, Rows], counts: Mapping[str, Sequence[int]]
    ) -> None:
        """Sum the rows of all tables in one message, in the order of the processes; `counts` are rows per process."""
        # For each table, a process sends its int64 ids and then its values; `lies_at` has the ends of both, by process.
        lies_at, size = dict[str, list[tuple[int, int]]](), np.zeros(self._wire.size, np.int64)
        for name, rows in tables.items():
            n, row_bytes = np.array(counts[name]), rows.dtype.itemsize * math.prod(rows.shape[1:])
            lies_at[name] = list(zip((size + 8 * n).tolist(), (size + n * (8 + row_bytes)).tolist(), strict=True))
            size += 8 * n + -(-n * row_bytes // 8) * 8  # so that ids are aligned
        sent, rank = self._kept.room("rows", int(size.max()), np.dtype(np.uint8)), self._wire.rank
        for name, rows in tables.items():
            ids_end, end = lies_at[name][rank]
            sent[ids_end - 8 * rows.ids.size : ids_end].view(np.int64)[:] = rows.ids
            sent[ids_end:end].view(rows.dtype)[:] = self._store.get(rows.values).reshape(-1)
        received = self._wire.gather_bytes(sent)
        for name, rows in tables.items():
            places = [(k, n, *lies_at[name][k]) for k, n in enumerate(counts[name])]
            ids = [received[k, middle - 8 * n : middle].view(np.int64) for k, n, middle, _ in places]
            values = [received[k, middle:end].view(rows.dtype) for k, _, middle, end in places]
            whole = self._kept.rows(name, rows)
            whole.add(np.concatenate(ids), self._store.put(np.concatenate(values)))
            grads[name] = whole

    def _late_sum(self, own: np.generic | LateLosses, grads: dict[str, Gradient]) -> Callable[[], np.generic]:
        """Start to sum the losses on the device, and set `grads.finite`; return a function that waits for the sum."""
        store = self._store
        if isinstance(own, LateLosses):
            total, finite = own.total, own.finite.astype(own.total.dtype)
        else:
            total, finite = store.put(np.array([own])), store.put(np.ones(1, own.dtype))
        both = store.xp.concatenate([total, finite])
        self._wire.add_up(both, store)
        assert isinstance(grads, Gradients), "late losses need gradients that autobatch allocated, not out="
        grads.finite = both[1:] == self._wire.size  # whether all processes have only finite losses
        read = store.copy_out(both)

        def whole() -> np.generic:
            value, n_finite = read()
            if n_finite != self._wire.size:
                raise NumericError(
                    "the loss of an instance in another process must be finite; the gradients of this mini-batch are "
                    "not used. See the error of that process for the instance."
                )
            found: np.generic = value
            return found

        return whole

    def _meet(self, kind: int, word: int = 0, n_rows: Sequence[int] = (), error: Exception | None = None) -> IntArray:
        """Send a head and receive those of all processes: kind, word (instances or bits of the value), digest, row
        counts.

        Returns:
            The heads, int64 (size, n).

        Raises:
            AutobatchError: the error of another process, unless `error` is given.
            DistributedError: the processes do not agree on the facts.
        """
        head = np.zeros(HEAD + self._n_rows, np.int64)
        head[: HEAD + len(n_rows)] = kind, word, self._digest, *n_rows
        heads = self._wire.gather(head)
        if (heads[:, 0] == ERROR).any():
            self._is_over = True
            told = self._wire.gather_objects(None if error is None else (type(error).__name__, str(error)))
            if error is None:
                raise _error_of(told)
        elif (heads[:, 2] != self._digest).any():
            self._is_over = True
            raise _difference(self._wire.gather_objects(self._facts))
        return heads


def _sum_of(bits: IntArray, own: Any) -> Callable[[], np.generic]:
    """Return a function that returns the sum of the values, added in the order of the processes."""
    total: np.generic = np.ascontiguousarray(bits).view(np.float64).sum().astype(own.dtype)
    return lambda: total


def _error_of(told: Sequence[tuple[str, str] | None]) -> AutobatchError:
    """Make the error of the first failed process, to raise it in this one."""
    rank, (kind, text) = next((rank, one) for rank, one in enumerate(told) if one is not None)
    known = getattr(errors, kind, None)
    where = f"process {rank} of {len(told)}"
    return DistributedError(f"{where} stopped: {kind}: {text}") if known is None else known(f"{where}: {text}")


def _difference(told: Sequence[Mapping[str, str]]) -> DistributedError:
    """Describe the first difference of a process from process 0; there must be one."""
    pairs = ((rank, name) for rank, facts in enumerate(told) for name in {**told[0], **facts})
    rank, name = next((rank, name) for rank, name in pairs if told[rank].get(name) != told[0].get(name))
    own, first = told[rank].get(name, "nothing"), told[0].get(name, "nothing")
    shown = f": {own} instead of {first}" if len(own) + len(first) < MOST_SHOWN else ""
    return DistributedError(
        f"process {rank} of {len(told)} differs from process 0 in {name}{shown}; start all processes with the same "
        f"code, data and parameters, and call value_and_grad in the same order."
    )
