"""autobatch for PyTorch: keep your modules, your optimizer and your loop, and write one instance."""

from autobatch.torch.batched import batched as batched
from autobatch.torch.cells import cell as cell
from autobatch.torch.checking import check_batched as check_batched
from autobatch.torch.own import as_torch as as_torch
