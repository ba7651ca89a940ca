"""The steps of a compiled stage.

A step runs for tile k of the batches of a type. A plan binds it (`autobatch.backends.cpu.compiled`): a compiled step
then has three addresses, of its function, of the memory of its stage (the addresses of the arrays of a run), and of its
own numbers. The functions of products are native (`native/run`); any other step is a Python function. Plans with
batches of about the same size share bound steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch._native import pack, step_addresses
from autobatch.arrays import address_of, aligned
from autobatch.backends.cpu.stage_values import StageValues
from autobatch.blas.choosing import Chooser
from autobatch.blas.packed import NAME as PACKED
from autobatch.blas.packed import panel_words
from autobatch.blas.product import describe_product, readable
from autobatch.blas.provider import Provider
from autobatch.compiler.llvm.loading import Code
from autobatch.compiler.llvm.source import Source
from autobatch.compiler.statement import Interpreted, Product
from autobatch.compiler.tiles import letter_of
from autobatch.compiler.view import View
from autobatch.ir.program import NODE

Array = NDArray[Any]
LongArray = NDArray[np.int64]

ADDRESSES = np.dtype([("function", np.int64), ("memory", np.int64), ("own", np.int64)])
"""The addresses of a step: of its function, of the memory of its stage, of its own numbers."""
FUNCTIONS = step_addresses()
"""The addresses of native steps by name; see `native/run/steps.h`."""
ROUTINE, BETA, FIELDS, ROWS, N, INNER, ITEMSIZE, A, OUT = 0, 1, 2, 3, 4, 5, 6, 7, 11
B_FLIPPED, B, B_STEP, SCRATCH, SIZE = 15, 16, 17, 18, 19
"""The own numbers of a product, which `native/run/products.cpp` reads. A and OUT each have four: the slot of the array,
the field of a tile that holds where rows begin, the bytes from there, and the elements from one row to the next.
SCRATCH is the place of rounded rows in scratch memory, see `autobatch.backends.cpu.rounding`."""


class Sizes(NamedTuple):
    """What the choice of a step's function depends on.

    Attributes:
        place: the name of the type of destinations.
        mean_rows: mean rows of tiles, per domain; see `autobatch.backends.tiles.Tiles`.
        n_rows: rows of the type, per domain.
        n_threads: that share tiles.
        chooser: chooses the library for each product.
    """

    place: str
    mean_rows: LongArray
    n_rows: LongArray
    n_threads: int
    chooser: Chooser


class BoundStep(Protocol):
    """A step of which a plan knows how it runs; one without a function can be called with the number of a tile.

    Attributes:
        function: the address of the native or generated function; 0 if Python runs the step.
        own_address: that of the step's own numbers, which stay where they are.
        calls_library: whether it may call a library of matrix products, whose threads are to be limited.
    """

    function: int
    own_address: int
    calls_library: bool

    def refresh(self) -> None:
        """Take the parameters as the stage has them now, if they changed."""


class KernelStep:
    """A generated kernel.

    Args:
        find_code: finds the machine code of its stage for a type of destinations.
    """

    def __init__(self, find_code: Callable[[str], Code], source: Source) -> None:
        self._find_code, self.source = find_code, source
        self._bound: dict[str, BoundKernel] = {}

    def bind(self, sizes: Sizes) -> BoundKernel:
        """Find the kernel for the type of a plan's destinations."""
        if sizes.place not in self._bound:
            address = self._find_code(sizes.place).address(self.source.name)
            self._bound[sizes.place] = BoundKernel(self.source, address)
        return self._bound[sizes.place]


class BoundKernel:
    """A kernel for a type of destinations; see `BoundStep`."""

    calls_library = False

    def __init__(self, source: Source, function: int) -> None:
        self.function, self._own = function, source.own
        self.own_address = address_of(self._own)

    def refresh(self) -> None:
        """Do nothing: kernels read parameters by the memory of their stage."""


class ProductStep:
    """A term of a product: rows times a matrix that all rows share, written to the target or added to it.

    Attributes:
        own: the numbers that do not depend on the library.
        bound: the products that plans have bound, by the name of the library and the way to use it.
    """

    def __init__(self, stage: StageValues, product: Product, number: int, once: bool) -> None:
        self.stage, self.term, self.once = stage, product.terms[number], once
        self.accumulate = product.adds or number > 0
        self.out = View(product.target, 0, (stage.lowered.sizes[product.target],), (1,))
        self.own = np.zeros(SIZE, np.int64)
        self.own[BETA], self.own[ITEMSIZE] = self.accumulate, stage.dtype.itemsize
        self.domain, self.own[FIELDS] = product.domain, len(stage.fields)
        self.own[ROWS] = stage.fields.index(f"rows_{letter_of(product.domain)}")
        self.own[A : A + 4] = stage.place(self.term.rows)
        self.own[OUT : OUT + 4] = stage.place(self.out)
        shape = stage.lowered.vars[self.term.weight].shape
        self.inner, self.n = shape[::-1] if self.term.transposed else shape
        self._chosen: dict[tuple[int, str], BoundProduct] = {}
        self.bound: dict[tuple[Any, ...], BoundProduct] = {}

    def bind(self, sizes: Sizes) -> BoundProduct:
        """Choose the library by the mean number of rows."""
        of_tile, of_whole = sizes.mean_rows[self.domain - NODE].tolist()
        n_rows = (self.once and of_whole) or of_tile
        chosen_for = n_rows.bit_length(), sizes.chooser.name
        if chosen_for not in self._chosen:
            provider, *way = self._choose(max(n_rows, 1), sizes.chooser)
            names = provider.name, *way
            if names not in self.bound:
                self.bound[names] = self._make(provider, *way)
            self._chosen[chosen_for] = self.bound[names]
        return self._chosen[chosen_for]

    def _choose(self, n_rows: int, chooser: Chooser) -> tuple[Any, ...]:
        """The library, by which this step is bound."""
        return (chooser.choose(n_rows, self.n, self.inner, self.stage.dtype.name),)

    def _make(self, provider: Provider) -> BoundProduct:
        return BoundProduct(self, provider)


class BoundProduct:
    """A product by a library, with the matrix as that reads it; see `BoundStep`."""

    def __init__(self, step: ProductStep, provider: Provider) -> None:
        self.step, self.provider, self.own, self.function = step, provider, step.own.copy(), 0
        self.own_address, self.calls_library = address_of(self.own), provider.name != PACKED or not self._is_compiled
        self._weight: Array | None = None
        self._panels: Array = np.empty(0, np.uint32)
        self._packing: tuple[Array, Array] | None = None
        self._version = self._n_moved = -1

    @property
    def _is_compiled(self) -> bool:
        return self.step.inner > 0 and self.step.n > 0

    def refresh(self) -> None:
        """Take the matrix as the stage has it now."""
        if self._version != self.step.stage.version:
            self._refresh()
            self._version = self.step.stage.version  # last, as compiling may be interrupted

    def _refresh(self) -> None:
        stage, term = self.step.stage, self.step.term
        if self.provider.name == PACKED and self._is_compiled:
            if self._packing and self._n_moved == stage.n_moved:
                pack(*self._packing, False)
                return
            whole = stage.shared.arrays[term.weight][0]
            matrix = readable(whole)
            packing = self._pack(matrix.T if term.transposed else matrix)
            self._packing, self._n_moved = packing if matrix is whole else None, stage.n_moved
            self.function = FUNCTIONS["multiply_by_panels"]
            return
        weight = stage.matrix(term.weight, term.transposed)
        if weight is not self._weight:
            self._take(weight)
            self.function = FUNCTIONS["multiply_by_library"] if self.own[ROUTINE] and self._is_compiled else 0

    def _take(self, weight: Array) -> None:
        """Take a weight, and store its address for a library."""
        self._weight = weight
        if weight.size:
            inner, n = weight.shape
            rows = np.empty((2, inner + n), weight.dtype)
            product = describe_product(rows[:1, :inner], weight, rows[:1, inner:])
            self.own[N], self.own[INNER] = n, inner
            self.own[B_FLIPPED], self.own[B], self.own[B_STEP] = product.b_flipped, product.b, product.b_step
        self.own[ROUTINE] = self.provider.addresses.get(self.step.stage.dtype.name, 0)

    def _pack(self, weight: Array, is_bf16: bool = False) -> tuple[Array, Array]:
        """Pack the weight for our own product; return what it is packed from, and into."""
        inner, n = weight.shape
        n_words = panel_words(inner, n, is_bf16)
        if self._panels.size < n_words:
            self._panels = aligned(n_words, np.dtype(np.uint32))
        self.own[N], self.own[INNER], self.own[B] = n, inner, address_of(self._panels)
        pack(weight, self._panels, is_bf16)
        return weight, self._panels

    def _rows(self, k: int) -> Array:
        rows: Array = self.step.stage.run.view(self.step.term.rows, k)
        return rows

    def __call__(self, k: int) -> None:
        """Multiply by the library's Python function."""
        left, out = self._rows(k), self.step.stage.run.view(self.step.out, k)
        assert self._weight is not None, "steps are refreshed before they run"
        if left.size:
            self.provider.multiply(left, self._weight, out, accumulate=self.step.accumulate)
        elif not self.step.accumulate:
            out[...] = 0


class InterpretedStep:
    """An instruction that runs as in the reference backend; see `BoundStep`."""

    def __init__(self, stage: StageValues, interpreted: Interpreted) -> None:
        self.stage, self.interpreted, self.function, self.own_address = stage, interpreted, 0, 0
        self.calls_library = True  # NumPy's

    def bind(self, sizes: Sizes) -> InterpretedStep:
        """Return itself: it runs alike in all plans."""
        return self

    def refresh(self) -> None:
        """Do nothing: the instruction reads the values of its stage."""

    def __call__(self, k: int) -> None:
        """Run."""
        self.stage.run.run_interpreted(self.interpreted, k)
