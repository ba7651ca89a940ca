"""autobatch for PyTorch: keep your modules, your optimizer and your loop, and write one instance."""

from importlib.util import find_spec

from autobatch.release import pip_install

if find_spec("torch") is None:
    raise ModuleNotFoundError(f"autobatch.torch needs the package torch; {pip_install('torch')}.", name="torch")

from autobatch.torch.batched import batched
from autobatch.torch.cells import cell
from autobatch.torch.checking import check_batched
from autobatch.torch.modules import as_torch

__all__ = ["as_torch", "batched", "cell", "check_batched"]


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return sorted(__all__)
