"""The cuda backend without a GPU: the processor as its device, which `AUTOBATCH_CUDA=host` chooses in a checkout."""

from host_device.device import HostArray, HostDevice

__all__ = ["HostArray", "HostDevice"]
