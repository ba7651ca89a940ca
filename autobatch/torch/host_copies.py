"""Host copies of those tensors in the instances of a mini-batch that are on a device.

Nodes of a graph keep their data on the host. Reading one tensor after the other would wait for the device each time, so
all tensors in tuples, lists, dicts and dataclasses are copied together, one copy per dtype, and their rows and other
views are found in these copies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from autobatch.devices.store import HOST
from autobatch.torch.memory import store_at
from autobatch.torch.structures import tensors_in


class Copied(NamedTuple):
    """A copied tensor.

    Attributes:
        first, end: its elements in the storage.
        tensor: the tensor, kept alive because its storage is identified by address.
        version: its version when it was copied.
        copy: the same numbers on the host.
    """

    first: int
    end: int
    tensor: torch.Tensor
    version: int
    copy: torch.Tensor


FIRST = attrgetter("first")


class HostCopies:
    """The copies of the contiguous tensors of instances.

    Args:
        instances: the instances of a mini-batch.
    """

    def __init__(self, instances: Any) -> None:
        self._of_storage: dict[tuple[int, torch.dtype], list[Copied]] = defaultdict(list)
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = defaultdict(list)
        found = [x for x in tensors_in(instances) if issubclass(type(x), torch.Tensor)]  # without recorded values
        for x in {id(x): x for x in found}.values():
            if _is_plain(x) and x.is_contiguous() and x.numel() and store_at(x.device) is not HOST:
                kinds[x.dtype, x.device].append(x.detach())
        for tensors in kinds.values():
            flat = torch.cat([x.reshape(-1) for x in tensors]).cpu()
            for x, copy in zip(tensors, torch.split(flat, [x.numel() for x in tensors]), strict=True):
                first = int(x.storage_offset())
                self._of_storage[_storage_of(x)].append(Copied(first, first + x.numel(), x, x._version, copy))
        for copies in self._of_storage.values():
            copies.sort(key=FIRST)

    def read(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the host with the numbers of `x`, part of a copy if `x` is unchanged since it was made."""
        found = self._find(x) if self._of_storage and _is_plain(x) else None
        if found is None:
            return x.cpu()
        # All copies of a dtype are parts of one tensor: shift the offset of `x` to the place of its copy there.
        return found.copy.as_strided(
            x.shape, x.stride(), found.copy.storage_offset() + x.storage_offset() - found.first
        )

    def _find(self, x: torch.Tensor) -> Copied | None:
        copies = self._of_storage.get(_storage_of(x), ())
        # The last copy that begins at `x` or before it. If only an earlier, longer one holds `x`, it is not found here,
        # and `x` is copied alone.
        place = bisect_right(copies, x.storage_offset(), key=FIRST) - 1
        if place < 0 or not x.numel():
            return None
        found = copies[place]
        # Strides of tensors are never negative, so the last element is that with the largest index along each axis.
        last = x.storage_offset() + sum(step * (n - 1) for step, n in zip(x.stride(), x.shape, strict=True))
        return found if last < found.end and x._version == found.version else None


def _is_plain(x: torch.Tensor) -> bool:
    return x.layout is torch.strided and not (x.is_conj() or x.is_neg() or x.is_inference())


def _storage_of(x: torch.Tensor) -> tuple[int, torch.dtype]:
    return x.untyped_storage()._cdata, x.dtype
