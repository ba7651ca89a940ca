"""Tensors on a GPU, or tensors on the CPU in their place, which the host device holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import nn

from autobatch.devices.device import Device
from autobatch.torch.memory import STORES
from host_device import HostDevice


class TorchDevice(NamedTuple):
    """The device of tensors, for autobatch and for torch."""

    store: Device
    place: torch.device

    def hold(self, module: nn.Module) -> None:
        """Move a module to the device: on the CPU, to other memory."""
        module.to(self.place)
        if self.place.type == "cpu":
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.data = tensor.data.clone()


@contextmanager
def holding_tensors(device: Device) -> Iterator[TorchDevice]:
    """Yield the GPU for torch too; or make the host device hold all tensors on the CPU within the context."""
    if not isinstance(device, HostDevice):
        yield TorchDevice(device, torch.device("cuda"))
        return
    with patch.object(device, "holds_tensors", True), patch.dict(STORES, cpu=lambda: device):
        yield TorchDevice(device, torch.device("cpu"))
