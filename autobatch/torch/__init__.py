"""autobatch for PyTorch: keep your modules, your optimizer and your loop, and write one instance."""

from autobatch.torch.batched import batched
from autobatch.torch.cells import cell
from autobatch.torch.checking import check_batched
from autobatch.torch.own import as_torch

__all__ = ["as_torch", "batched", "cell", "check_batched"]
