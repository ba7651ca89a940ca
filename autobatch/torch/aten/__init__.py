"""The basic ops of torch, ATen's, as ops of ours, by name: `table.OPS`.

Each is given values, parameters and arrays in the place of tensors, and all else as torch gives it. It gives
NotImplemented for what only torch can do.

Source: the operator schemas of torch, `torch.ops.aten`.
"""

from autobatch.torch.aten import elementwise as elementwise
from autobatch.torch.aten import layers as layers
from autobatch.torch.aten import reductions as reductions
from autobatch.torch.aten import shapes as shapes
from autobatch.torch.aten.table import OPS as OPS
