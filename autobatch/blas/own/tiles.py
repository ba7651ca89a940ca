"""Tiles of a matrix product in registers: some rows times a panel of columns, in the processor's own instructions.

A panel holds, for each inner index in turn, 64 neighbouring columns; its words are float32 numbers, or pairs of bf16
numbers at two inner indices, of which one instruction multiplies and adds both. Six rows by four vectors of 16 keep
24 of AVX-512's 32 registers busy, enough to hide the latency of a sum; the panel needs four more, a row one. Where
fewer columns are left, 16 rows by one vector are as fast. Data is prefetched: lines of the result when its tile begins,
rows that will be read next while others are multiplied.

NumPy and Numba cannot express this, so the functions below write LLVM's instructions. `autobatch.blas.own.packed` calls
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from autobatch.jit.loops import built, compiled
from autobatch.system.processor import code_features, has_avx512, has_bf16

LANES, VECTORS, ROWS, TALL = 16, 4, 6, 16
WIDTH = LANES * VECTORS  # columns of a panel
WORD, LINE = 4, 64  # bytes; a vector that does not begin where a line of the cache does is read and written as two
Strided: TypeAlias = tuple[int, int]
"""A matrix in memory: its address, and words from one row to the next."""
Grid: TypeAlias = tuple[int, int, int]
"""A matrix in memory: its address, and words from one row and from one inner index to the next."""
Panels: TypeAlias = tuple[int, int, int]
"""A packed matrix: its address, and words from one inner index and from one panel to the next."""
Tile = Callable[..., None]
"""(n_rows, a: Grid, panel: Strided, n_inner, out: Strided, n_columns, adds).

The rows of `panel` are inner indices. Products with the first `n_columns` columns are written to `out`, or added to
what is there; no others are read. Up to 6 rows, which are multiplied by up to 64 columns; or 16, by up to 16.
"""
Rows: TypeAlias = tuple[int, int, int, int]
"""Rows to prefetch: an address, words from row to row, the number of rows, and the words of each."""
NO_ROWS = (0, 0, 0, 0)
VectorIndex: TypeAlias = tuple[int, int]  # of a vector in a tile: its row, and its number in the row
Block = Callable[..., None]
"""(size, a: Grid, panels: Panels, out: Strided, adds, next_rows: Rows, next_columns: Rows).

Multiplies as a `Tile` does; size is (m, n, inner), of m rows by n columns. Meanwhile it fetches what will be read next,
evenly over the time.
"""


def can_tile() -> bool:
    """Tell whether compiled code may multiply tiles of float32."""
    return has_avx512() and "+avx512f" in code_features()


def can_tile_bf16() -> bool:
    """Tell whether compiled code may multiply tiles of bf16."""
    return can_tile() and has_bf16() and "+avx512bf16" in code_features()


@built
def block_float32() -> Block:
    """Multiply a block of float32 numbers."""
    return _build_block(is_bf16=False)


@built
def block_bf16() -> Block:
    """Multiply a block of pairs of bf16 numbers; sums are float32. It is compiled only where `can_tile_bf16` holds."""
    assert can_tile_bf16(), "LLVM ends the process where it cannot select the instruction"
    return _build_block(is_bf16=True)


@built
def fetch() -> Callable[[int], None]:
    """Build (address): prefetch the cache line of an address, which need not be valid."""
    import numba

    intrinsic: Any = numba.extending.intrinsic
    types: Any = numba.types

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _write_fetch(builder, builder.inttoptr(args[0], context.get_value_type(types.voidptr)), writes=False)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def make(typing: Any, address: Any) -> Any:
        return types.void(types.int64), emit

    @numba.njit(error_model="numpy")
    def fetch_line(address: int) -> None:
        make(address)

    return fetch_line


@built
def turn() -> Callable[[int, int, int, int], None]:
    """Build (source, source_row, out, out_row): write the transpose of 16 x 16 words; addresses, and steps in words."""
    import numba

    intrinsic: Any = numba.extending.intrinsic
    types: Any = numba.types

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _write_turn(builder, *args)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def make(typing: Any, source: Any, source_row: Any, out: Any, out_row: Any) -> Any:
        return types.void(*4 * [types.int64]), emit

    @numba.njit(error_model="numpy")
    def turn_block(source: int, source_row: int, out: int, out_row: int) -> None:
        make(source, source_row, out, out_row)

    return turn_block


def _write_turn(builder: Any, source: Any, source_row: Any, out: Any, out_row: Any) -> None:
    """Swap quarters, then quarters of these, and so on, in registers."""
    from llvmlite import ir

    word, long = ir.IntType(32), ir.IntType(64)
    line = ir.VectorType(word, LANES)

    def place(base: Any, row: Any, number: int) -> Any:
        step = builder.mul(row, ir.Constant(long, WORD * number))
        return builder.inttoptr(builder.add(base, step), line.as_pointer())

    lines = [builder.load(place(source, source_row, number), align=WORD) for number in range(LANES)]
    for apart in (1, 2, 4, 8):
        low = [j if not j & apart else LANES + j - apart for j in range(LANES)]
        high = [j + apart if not j & apart else LANES + j for j in range(LANES)]
        for first in (number for number in range(LANES) if not number & apart):
            pair = lines[first], lines[first + apart]
            lines[first], lines[first + apart] = (
                builder.shuffle_vector(*pair, ir.Constant(line, taken)) for taken in (low, high)
            )
    for number, turned in enumerate(lines):
        builder.store(turned, place(out, out_row, number), align=WORD)


@compiled
def fetch_share(rows: Rows, begin: int, end: int, whole: int) -> None:
    """Prefetch the share of `rows` that belongs to the steps from `begin` to `end` out of `whole`."""
    address, row, n_rows, words = rows
    for r in range(n_rows * begin // whole, n_rows * end // whole):
        for word in range(0, words, LANES):
            fetch(address + WORD * (r * row + word))


def _build_block(is_bf16: bool) -> Block:
    import numba

    tile = _build_tile(is_bf16)

    @numba.njit(error_model="numpy")
    def multiply(
        size: tuple[int, int, int], a: Grid, panels: Panels, out: Strided, adds: int, next_rows: Rows,
        next_columns: Rows,
    ) -> None:  # fmt: skip
        (m, n, inner), (first_row, a_row, a_inner), (place, out_row) = size, a, out
        first_panel, panel_inner, panel_step = panels
        for left in range(0, n, WIDTH):
            width, panel, i = min(WIDTH, n - left), first_panel + WORD * (left // WIDTH * panel_step), 0
            while i < m:
                is_tall = m - i >= TALL and width <= WIDTH - LANES
                n_rows = TALL if is_tall else min(ROWS, m - i)
                begin, end = left * m + i * width, left * m + (i + n_rows) * width
                fetch_share(next_rows, begin, end, m * n)
                fetch_share(next_columns, begin, end, m * n)
                for j in range(0, width, LANES if is_tall else WIDTH):
                    tile(
                        n_rows, (first_row + WORD * i * a_row, a_row, a_inner), (panel + WORD * j, panel_inner), inner,
                        (place + WORD * (i * out_row + left + j), out_row), width - j, adds,
                    )  # fmt: skip
                i += n_rows

    return multiply


def _build_tile(is_bf16: bool) -> Tile:
    import numba

    one, two, three, four, five, six = (_build_rows(n_rows, VECTORS, is_bf16) for n_rows in range(1, ROWS + 1))
    tall = _build_rows(TALL, 1, is_bf16)

    @numba.njit(error_model="numpy")
    def multiply(n_rows: int, a: Grid, panel: Strided, n_inner: int, out: Strided, n_columns: int, adds: int) -> None:
        if n_rows == 6:
            six(a, panel, n_inner, out, n_columns, adds)
        elif n_rows == TALL:
            tall(a, panel, n_inner, out, n_columns, adds)
        elif n_rows == 5:
            five(a, panel, n_inner, out, n_columns, adds)
        elif n_rows == 4:
            four(a, panel, n_inner, out, n_columns, adds)
        elif n_rows == 3:
            three(a, panel, n_inner, out, n_columns, adds)
        elif n_rows == 2:
            two(a, panel, n_inner, out, n_columns, adds)
        else:
            one(a, panel, n_inner, out, n_columns, adds)

    return multiply


def _build_rows(n_rows: int, n_vectors: int, is_bf16: bool) -> Callable[..., None]:
    """Build the product of a number of rows with some vectors of a panel, n_inner > 0, for compiled code."""
    import numba
    from numba.core import cgutils

    toolbox: Any = cgutils
    intrinsic: Any = numba.extending.intrinsic
    types: Any = numba.types

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, panel, n_inner, out, n_columns, adds = args
        a, panel, out = (toolbox.unpack_tuple(builder, one) for one in (a, panel, out))
        _Writer(builder, n_rows, n_vectors, is_bf16).write(a, panel, n_inner, out, n_columns, adds)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply(typing: Any, a: Any, panel: Any, n_inner: Any, out: Any, n_columns: Any, adds: Any) -> Any:
        pair, triple = (types.UniTuple(types.int64, n) for n in (2, 3))
        return types.void(triple, pair, types.int64, pair, types.int64, types.int64), emit

    found: Callable[..., None] = multiply
    return found


class _Writer:
    """Writes the instructions of a tile; all its values are LLVM's."""

    def __init__(self, builder: Any, n_rows: int, n_vectors: int, is_bf16: bool) -> None:
        from llvmlite import ir

        self.ir, self.builder, self.is_bf16 = ir, builder, is_bf16
        self.n_rows, self.n_vectors = n_rows, n_vectors
        self.byte, self.int, self.long = ir.IntType(1), ir.IntType(32), ir.IntType(64)
        self.ints, self.reals = ir.VectorType(self.int, LANES), ir.VectorType(ir.FloatType(), LANES)

    def write(
        self, a: Sequence[Any], panel: Sequence[Any], n_inner: Any, out: Sequence[Any], n_columns: Any, adds: Any
    ) -> None:
        """Sums begin with zero or with what is in `out`, stay in registers for all inner indices, and are written."""
        (first_row, a_row, a_inner), (line, panel_inner), (target, out_row) = a, panel, out
        builder, tile = self.builder, [(r, v) for r in range(self.n_rows) for v in range(self.n_vectors)]
        masks = self._masks(n_columns)
        places = {
            (r, v): self._address(target, (out_row, self._long(r)), (self._long(v), self._long(LANES)), of=self.reals)
            for r, v in tile
        }
        for place in places.values():
            _write_fetch(builder, place, writes=True)
        starts = self._starts(places, masks, adds)
        before, loop, end = builder.block, builder.append_basic_block("inner"), builder.append_basic_block("end")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(self.long)
        k.add_incoming(self._long(0), before)
        sums, ends = {}, {}
        for at in tile:
            sums[at] = builder.phi(self.reals)
            sums[at].add_incoming(starts[at], before)
        columns = [
            self._read(self._address(line, (k, panel_inner), (self._long(v), self._long(LANES)), of=self.reals), mask)
            for v, mask in enumerate(masks)
        ]
        for r in range(self.n_rows):
            word = self._address(first_row, (a_inner, k), (a_row, self._long(r)), of=self.int)
            row = self._splat(builder.load(word, align=WORD), self.ints)
            for v in range(self.n_vectors):
                ends[r, v] = self._add_product(sums[r, v], row, columns[v])
                sums[r, v].add_incoming(ends[r, v], loop)
        following = builder.add(k, self._long(1))
        k.add_incoming(following, loop)
        self._stay_rolled()
        builder.cbranch(builder.icmp_signed("<", following, n_inner), loop, end)
        builder.position_at_end(end)
        for (r, v), place in places.items():
            self._call("llvm.masked.store.v16f32.p0", None, ends[r, v], place, self._align(), masks[v])

    def _starts(self, places: Mapping[VectorIndex, Any], masks: Sequence[Any], adds: Any) -> dict[VectorIndex, Any]:
        """Write the first values of the sums: zero, or the content of `out`, which is read only then."""
        builder, zero = self.builder, self.ir.Constant(self.reals, LANES * [0.0])
        before = builder.block
        with builder.if_then(builder.icmp_signed("!=", adds, self._long(0))):
            read = {at: self._read(place, masks[at[1]]) for at, place in places.items()}
            reading = builder.block
        starts = {at: builder.phi(self.reals) for at in places}
        for at, start in starts.items():
            start.add_incoming(zero, before)
            start.add_incoming(read[at], reading)
        return starts

    def _masks(self, n_columns: Any) -> list[Any]:
        """Compute, for each vector, a mask of the lanes that have columns."""
        ir, builder = self.ir, self.builder
        lanes = ir.Constant(self.ints, list(range(LANES)))
        left = builder.trunc(n_columns, self.int)
        bounds = [builder.sub(left, ir.Constant(self.int, LANES * v)) for v in range(self.n_vectors)]
        return [builder.icmp_signed("<", lanes, self._splat(bound, self.ints)) for bound in bounds]

    def _read(self, place: Any, mask: Any) -> Any:
        zero = self.ir.Constant(self.reals, LANES * [0.0])
        return self._call("llvm.masked.load.v16f32.p0", self.reals, place, self._align(), mask, zero)

    def _add_product(self, total: Any, row: Any, column: Any) -> Any:
        if not self.is_bf16:
            factors = [self.builder.bitcast(x, self.reals) for x in (row, column)]
            return self._call("llvm.fma.v16f32", self.reals, *factors, total)
        pairs = self.ir.VectorType(_bf16_type(), 2 * LANES)
        factors = [self.builder.bitcast(x, pairs) for x in (row, column)]
        return self._call("llvm.x86.avx512bf16.dpbf16ps.512", self.reals, total, *factors)

    def _address(self, base: Any, *moves: tuple[Any, Any], of: Any) -> Any:
        """Compute a pointer: `base`, in bytes, plus products of words."""
        words = self._long(0)
        for factor, step in moves:
            words = self.builder.add(words, self.builder.mul(factor, step))
        moved = self.builder.add(base, self.builder.mul(words, self._long(WORD)))
        return self.builder.inttoptr(moved, of.as_pointer())

    def _stay_rolled(self) -> None:
        """Write an empty instruction that keeps LLVM from unrolling the loop, which would need too many registers."""
        self.builder.asm(self.ir.FunctionType(self.ir.VoidType(), []), "", "", [], side_effect=True)

    def _splat(self, number: Any, vector: Any) -> Any:
        nothing = self.ir.Constant(vector, self.ir.Undefined)
        first = self.builder.insert_element(nothing, number, self.ir.Constant(self.int, 0))
        return self.builder.shuffle_vector(first, nothing, self.ir.Constant(self.ints, LANES * [0]))

    def _call(self, name: str, result: Any, *args: Any) -> Any:
        return _call(self.builder, name, self.ir.VoidType() if result is None else result, *args)

    def _align(self) -> Any:
        return self.ir.Constant(self.int, WORD)

    def _long(self, number: int) -> Any:
        return self.ir.Constant(self.long, number)


@cache
def _bf16_type() -> Any:
    """Make LLVM's type bf16, which llvmlite lacks."""
    from llvmlite import ir

    class Bf16(ir.Type):  # type: ignore[misc]
        def _to_string(self) -> str:
            return "bfloat"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Bf16)

        def __hash__(self) -> int:
            return hash(Bf16)

    return Bf16()


def _write_fetch(builder: Any, place: Any, writes: bool) -> None:
    """Prefetch a line into the nearest cache, to read or to write it."""
    from llvmlite import ir

    nearest, of_data = 3, 1
    options = [ir.Constant(ir.IntType(32), number) for number in (int(writes), nearest, of_data)]
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), place, *options)


def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Call one of LLVM's own functions."""
    from llvmlite import ir
    from numba.core import cgutils

    toolbox: Any = cgutils
    made = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(toolbox.get_or_insert_function(builder.module, made, name), args)
