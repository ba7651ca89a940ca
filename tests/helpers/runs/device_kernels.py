"""Handwritten kernels for the tests of devices, and functions that compile them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import autobatch
from autobatch.devices.device import Device, Launch

SUPPORT = Path(autobatch.__file__).parent / "compiler" / "cuda" / "support.cuh"

REDUCTIONS = r"""
// The sum and the largest of each row: row r is x[starts[r]:starts[r + 1]].
struct Rows { const real *x; const int64 *starts; real *sums, *largest; int64 n; };

extern "C" __global__ void reduce_rows(int64 rows_at, int64 size, int64) {
    BLOCK_MEMORY(memory);
    const Worker worker = {memory, blockIdx.x, gridDim.x};
    const Team team(worker, (int)size);
    const Rows &rows = *(const Rows *)rows_at;
    for (int64 r = team.first; r < rows.n; r += team.step) {
        real sum = 0, most = -INF;
        for (int64 i = rows.starts[r] + team.lane; i < rows.starts[r + 1]; i += team.size) {
            sum = plus(sum, rows.x[i]);
            most = larger(most, rows.x[i]);
        }
        sum = team.reduce(sum, Plus());
        most = team.reduce(most, Larger());
        if (team.lane == team.size - 1) rows.sums[r] = sum, rows.largest[r] = most;
    }
}
"""

NEIGHBOURS = r"""
// Row r of `out` is row r of x, turned by one: through shared memory, with barriers or without.
struct Turn { const real *x; real *out; int64 n_rows, n; };

template <bool waits> __device__ void turn(const Turn &rows, int size) {
    BLOCK_MEMORY(memory);
    const Worker worker = {memory, blockIdx.x, gridDim.x};
    const Team team(worker, size);
    real *row = team.row(worker, nullptr, rows.n);
    for (int64 r = team.first; r < rows.n_rows; r += team.step) {
        for (int64 i = team.lane; i < rows.n; i += team.size) row[i] = rows.x[r * rows.n + i];
        if (waits) team.sync();
        for (int64 i = team.lane; i < rows.n; i += team.size) rows.out[r * rows.n + i] = row[(i + 1) % rows.n];
        if (waits) team.sync();
    }
}

extern "C" __global__ void turn_rows(int64 rows, int64 size, int64) { turn<true>(*(const Turn *)rows, (int)size); }

extern "C" __global__ void turn_rows_without_barrier(int64 rows, int64 size, int64) {
    turn<false>(*(const Turn *)rows, (int)size);
}
"""

WARPS = r"""
// What the threads of a warp get from each other, a column per function; groups of `width` lanes.
extern "C" __global__ void exchange(int64 out_at, int64 width, int64) {
    int lane = threadIdx.x;
    int64 *out = (int64 *)out_at + 8 * lane;
    out[0] = __shfl_sync(0xffffffffu, (float)lane, 5, width);
    out[1] = __shfl_xor_sync(0xffffffffu, (double)lane, 3, width);
    out[2] = __shfl_down_sync(0xffffffffu, lane, 2, width);
    out[3] = __shfl_sync(0xffffffffu, (int64)lane << 40, lane + 1, width) >> 40;
    out[4] = __shfl_xor_sync(0xffffffffu, (unsigned)lane, 1, width);
    out[5] = __ballot_sync(0xffffffffu, lane % 3 == 0);
    out[6] = __any_sync(0xffffffffu, lane == 30);
    out[7] = __any_sync(0xffffffffu, lane == 32);
}

// The sum of what all blocks left, again and again; a count of arrivals serves once.
extern "C" __global__ void add_places(int64 places_at, int64 out, int64 arrived_at) {
    int *places = (int *)places_at, i = blockIdx.x * blockDim.x + threadIdx.x, total = 0;
    unsigned long long *arrived = (unsigned long long *)arrived_at;
    for (int round = 0; round < 3; ++round) {
        places[i] = i + round;
        grid_arrive(arrived + 2 * round), grid_wait(arrived + 2 * round);
        for (int j = 0; j < gridDim.x * blockDim.x; ++j) total += places[j];
        grid_arrive(arrived + 2 * round + 1), grid_wait(arrived + 2 * round + 1);
    }
    ((int *)out)[i] = total;
}

// Counts of threads, added by all of them.
extern "C" __global__ void count(int64 ints, int64 unsigneds, int64 wide) {
    atomicAdd((int *)ints, -1);
    atomicAdd((unsigned *)unsigneds, 1u);
    atomicAdd((unsigned long long *)wide, 1ull << 33);
}
"""

FUNCTIONS = r"""
// Functions of each element: `which` numbers them.
extern "C" __global__ void apply(int64 x_at, int64 out_at, int64 which) {
    int64 i = blockIdx.x * blockDim.x + threadIdx.x;
    real x = ((const real *)x_at)[i], y = 0;
    switch (which) {
        case 0: y = exp(x); break;
        case 1: y = log(x); break;
        case 2: y = sqrt(x); break;
        case 3: y = sin(x); break;
        case 4: y = cos(x); break;
        case 5: y = tanh(x); break;
        case 6: y = sigmoid(x); break;
        case 7: y = softplus(x); break;
        case 8: y = erf(x); break;
        case 9: y = ndtr(x); break;
        case 10: y = gelu(x); break;
        case 11: y = gelu_tanh(x); break;
        case 12: y = power(x, (real)1.5); break;
        case 13: y = larger(x, (real)0.5); break;
        case 14: y = larger((real)0.5, x); break;
    }
    ((real *)out_at)[i] = y;
}
"""
APPLIED = (
    "exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "softplus", "erf", "ndtr", "gelu", "gelu_tanh", "power",
    "larger", "larger_flipped",
)  # fmt: skip


class Module(NamedTuple):
    """The source of some kernels, and their names."""

    text: str
    names: tuple[str, ...]

    def source(self, dtype: Any = np.float32) -> str:
        """Return the source that a device compiles."""
        real = {"float32": "float", "float64": "double"}[np.dtype(dtype).name]
        return f"typedef {real} real;\ntypedef int index_type;\n{SUPPORT.read_text()}\n{self.text}"

    def load(self, device: Device, dtype: Any = np.float32) -> Any:
        """Return the only kernel, or all kernels by name."""
        kernels = device.load(self.source(dtype), self.names, "cell 'tested' (forward)")
        return kernels[self.names[0]] if len(self.names) == 1 else kernels


MODULES = {
    "reductions": Module(REDUCTIONS, ("reduce_rows",)),
    "neighbours": Module(NEIGHBOURS, ("turn_rows", "turn_rows_without_barrier")),
    "warps": Module(WARPS, ("exchange", "count", "add_places")),
    "functions": Module(FUNCTIONS, ("apply",)),
}


def apply(device: Device, kernel: Any, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Apply one of `FUNCTIONS` to each element."""
    held, out = device.put(x), device.empty(x.size, x.dtype)
    args = device.address(held), device.address(out), APPLIED.index(name)
    device.launch(kernel, Launch(x.size, 1, 0, args))
    return device.get(out)
