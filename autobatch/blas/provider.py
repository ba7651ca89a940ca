"""The common interface of the libraries that multiply matrices.

NumPy is always available. The others are searched for only when they are named or listed: MKL in its wheel, SciPy and
torch in their packages.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.lib.stride_tricks import as_strided

from autobatch._native import repeat_product
from autobatch.blas.product import Matrix, check_product, describe_product
from autobatch.errors import BackendError, ShapeError

ONE_PAIR = (1, 0, 0)
"""For `repeat_product`: the number of pairs of operands used in turn, and the bytes between consecutive ones."""


class Provider(ABC):
    """A library that multiplies matrices.

    Attributes:
        name: the name that selects it.
        version: the version of the library.
        addresses: the addresses of its routines for native code (`native/blas/calling.h`), by the dtype of the
            operands: "float32" and "float64". Native code cannot call a routine without an address.
    """

    def __init__(self, name: str, version: str, addresses: Mapping[str, int]) -> None:
        self.name = name
        self.version = version
        self.addresses = addresses

    @abstractmethod
    def multiply(self, a: Matrix, b: Matrix, out: Matrix, accumulate: bool = False) -> None:
        """Write a @ b to `out`, or add it to `out`.

        Args:
            a, b, out: (m, k), (k, n), (m, n), all float32 or all float64, row-strided views or transposes of such;
                none is copied. `out` shares no memory with `a` and `b`.
            accumulate: add to `out` instead of overwriting it.

        Raises:
            ShapeError: shapes, dtypes or strides do not fit.
        """

    def __repr__(self) -> str:
        return f"<{self.name} {self.version}>"


class ByAddress(Provider):
    """A library that is called by the addresses of its routines."""

    def multiply(self, a: Matrix, b: Matrix, out: Matrix, accumulate: bool = False) -> None:
        product = describe_product(a, b, out)
        dtype = a.dtype.name
        if dtype not in self.addresses:
            raise ShapeError(f"{self.name} does not multiply matrices of {dtype}; convert them, or choose numpy.")
        if product.m and product.n:
            repeat_product(1, a.dtype.itemsize, self.addresses[dtype], tuple(product), float(accumulate), ONE_PAIR)


class ByNumPy(Provider):
    """NumPy; native code calls the routines of its BLAS by address, if they can be found."""

    def __init__(self, addresses: Mapping[str, int]) -> None:
        super().__init__("numpy", np.__version__, addresses)
        self._adding = ByAddress(self.name, self.version, addresses)

    def multiply(self, a: Matrix, b: Matrix, out: Matrix, accumulate: bool = False) -> None:
        if accumulate and self.addresses:
            self._adding.multiply(a, b, out, accumulate=True)
            return
        check_product(a, b, out)
        if accumulate:
            out += a @ b
        else:
            np.matmul(a, b, out=out)


class ByTorch(Provider):
    """torch, on tensors that share the arrays' memory; native code calls its library, if that can be found."""

    def __init__(self, name: str, version: str, addresses: Mapping[str, int]) -> None:
        import torch

        super().__init__(name, version, addresses)
        with warnings.catch_warnings():  # torch warns once of a read-only array; operands may be read-only
            warnings.simplefilter("ignore")
            torch.from_numpy(np.broadcast_to(np.zeros(1, np.float32), 1))

    def multiply(self, a: Matrix, b: Matrix, out: Matrix, accumulate: bool = False) -> None:
        import torch

        check_product(a, b, out)
        left, right, target = (torch.from_numpy(_forward(x)) for x in (a, b, out))
        if accumulate:
            torch.addmm(target, left, right, out=target)
        else:
            torch.mm(left, right, out=target)


def _forward(x: Matrix) -> Matrix:
    """Return a view of the matrix without negative strides, which torch rejects; only axes of length one have any."""
    return x if min(x.strides) >= 0 else as_strided(x, strides=(abs(x.strides[0]), abs(x.strides[1])))


class Absent(BackendError):
    """The error for a provider whose library is missing."""

    def __init__(self, name: str, why: str, remedy: str) -> None:
        super().__init__(f"the matmul provider {name!r} is not available: {why}; {remedy}.")
        self.why = why
