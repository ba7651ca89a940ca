"""Counterparts of torch's basic ops, ATen's, by name: `table.OPS`.

Each takes torch's arguments, with values, parameters and arrays in place of tensors. It returns NotImplemented for
unsupported arguments, which are left to torch.

Source: the operator schemas of torch, `torch.ops.aten`.
"""

from autobatch.torch.aten import elementwise as elementwise
from autobatch.torch.aten import layers as layers
from autobatch.torch.aten import shapes as shapes
from autobatch.torch.aten.table import OPS as OPS
