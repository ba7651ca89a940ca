"""Show the registers, shared memory and spilled bytes of a cell's CUDA kernels, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autobatch.backends.cuda.device_cell import fit_rows
from autobatch.cli.results import format_table
from autobatch.compiler.cuda.resources import COMPILER, GPUS, has_compiler, measure_resources
from autobatch.compiler.cuda.source import CudaSource

NO_COMPILER = f"{COMPILER} is missing: install NVIDIA's CUDA toolkit to see the resources of the kernels"
NO_KERNELS = "no kernels"
PLACE = "int32"  # type of places, enough for up to 2**31 elements of values
COLUMNS = ("kernel", "GPU", "threads per row", "registers", "spilled bytes", "shared bytes")


def show_resources(sources: Sequence[CudaSource], dtype: str, about: str) -> str:
    """Format a table with a line for each kernel of these stages on each GPU, or the reason why there is none.

    Registers and spilled bytes are per thread, shared bytes per block.

    Args:
        dtype: the model's dtype.
        about: subject of error messages.

    Raises:
        BackendError: the kernels cannot be compiled.
    """
    if not has_compiler():
        return NO_COMPILER
    texts = {name: text for source in sources for name, text in source.texts.items()}
    if not texts:
        return NO_KERNELS
    resources = measure_resources(texts, dtype, PLACE, about)
    rows = []
    for source in sources:
        for number, kernel in enumerate(source.kernels):
            if kernel is None:
                continue
            for gpu, most_shared_bytes in GPUS.items():
                found = resources[gpu][kernel.name]
                fit = fit_rows(kernel, source.stage.storage.row_width, np.dtype(dtype).itemsize, most_shared_bytes)
                shared_bytes = found.shared_bytes + fit.shared_bytes
                figures = (fit.team, found.registers, found.spilled_bytes, shared_bytes)
                rows.append([f"{source.stage.lowered.stage}, step {number}", gpu, *map(str, figures)])
    return format_table(COLUMNS, rows)
