"""Tensors on a GPU, or tensors on the CPU in their place, which the host device holds."""

from __future__ import annotations

from typing import NamedTuple

import pytest
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


def hold_tensors(device: Device, patch: pytest.MonkeyPatch) -> TorchDevice:
    """Return the GPU for torch too; or, for the host device, make it hold all tensors on the CPU from now on."""
    if not isinstance(device, HostDevice):
        return TorchDevice(device, torch.device("cuda"))
    patch.setattr(device, "holds_tensors", True)
    patch.setitem(STORES, "cpu", lambda: device)
    return TorchDevice(device, torch.device("cpu"))
