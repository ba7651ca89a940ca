"""Run the cuda backend without a GPU: `AUTOBATCH_CUDA=host` selects the CPU as its device in a checkout."""

from host_device.device import HostArray, HostDevice

__all__ = ["HostArray", "HostDevice"]
