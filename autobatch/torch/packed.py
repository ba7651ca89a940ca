"""Packed sequences of recorded values: torch packs row indices, which then select the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autobatch.ops.operators import STAGE
from autobatch.torch.adopting import to_arrays
from autobatch.torch.cells import cell_of_function
from autobatch.trace.handles import Value

VF: Any = torch._VF
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions that take a packed sequence as data and batch sizes."""


def pack_padded(input: Any, lengths: torch.Tensor, batch_first: bool) -> tuple[Any, torch.Tensor]:
    """Pack a padded batch of sequences; return the data (a value) and the batch sizes."""
    places = torch.arange(input.shape[0] * input.shape[1]).reshape(tuple(input.shape[:2]))
    packed, sizes = VF._pack_padded_sequence(places, lengths, batch_first)
    return input.reshape(-1, *input.shape[2:])[packed], sizes


def pad_packed(
    data: Any, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Any, torch.Tensor]:
    """Undo `pack_padded`; return the padded batch (a value) and the lengths."""
    # Place 0 is the padding, which is put in front of the data.
    numbered = torch.arange(1.0, 1 + len(data), dtype=torch.float64)
    places, lengths = VF._pad_packed_sequence(numbered, batch_sizes, batch_first, 0.0, total_length)
    padding = torch.full((1, *data.shape[1:]), padding_value, dtype=data.dtype)
    return torch.cat([padding, data])[places.long()], lengths


@dataclass(frozen=True)
class OverPacked:
    """A recurrent function of packed data; the batch sizes are part of its type.

    Attributes:
        __name__: the name of the function.
    """

    __name__: str

    def __call__(self, data: Any, sizes: bytes, *rest: Any) -> Any:
        """Apply the function; the sizes are the bytes of an int tensor."""
        batch_sizes = torch.frombuffer(bytearray(sizes), dtype=torch.int64)
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)  # its fused op cannot be decomposed
        try:
            return getattr(torch, self.__name__)(data, batch_sizes, *rest)
        finally:
            torch._C._set_mkldnn_enabled(before)


def run_recurrent(name: str, *args: Any) -> Any:
    """Record a recurrent function of packed data; NotImplemented for data that is not packed."""
    sizes = args[1]
    if isinstance(sizes, Value) or not isinstance(sizes, torch.Tensor) or sizes.dtype is not torch.int64:
        return NotImplemented
    cell = cell_of_function(OverPacked(name))
    given = map(to_arrays, args[2:])
    return STAGE.current.call_cell(cell, None, (to_arrays(args[0]), sizes.numpy().tobytes(), *given), {})
