"""Interpret the weight stages that `WeightStage` cannot run directly, with fast products and sums of rows."""

from __future__ import annotations

from collections.abc import Iterable

from autobatch.backends.cpu.rounding import add_outer
from autobatch.backends.interpreter.frame import Frame
from autobatch.backends.interpreter.interpreter import Interpreter
from autobatch.backends.interpreter.values import Values
from autobatch.backends.options import Options
from autobatch.blas.choosing import Chooser
from autobatch.blas.product import readable
from autobatch.compiler.numba.support import add_rows
from autobatch.ir.passes.autodiff import ROW_SUM
from autobatch.ir.precision import rounded_args
from autobatch.ir.program import Instruction
from autobatch.ops.randomness import Randomness


class FastProducts(Interpreter):
    """Interprets cells; products that are added to a gradient go to the fastest library, sums of rows take one pass.

    Args:
        chooser: chooses the library.
        jitted: whether loops are compiled.
    """

    def __init__(
        self, values: Values, options: Options, randomness: Randomness, chooser: Chooser, jitted: bool
    ) -> None:
        super().__init__(values, options, randomness)
        self._chooser, self._jitted = chooser, jitted

    def run(self, frame: Frame, indices: Iterable[int]) -> None:
        """Run instructions of a weight stage."""
        for index in indices:
            if self._add_product(frame, index) or self._add_rows_at_once(frame, index):
                frame.env[index] = frame.targets[index]
                self.launches += 1
            else:
                super().run(frame, (index,))

    def _add_product(self, frame: Frame, index: int) -> bool:
        """If an instruction is an outer product of rows with a target, add it there; return whether it was."""
        source, target = frame.vars[index].source, frame.targets.get(index)
        assert isinstance(source, Instruction)
        if target is None or source.op.name != "row_sum_outer":
            return False
        x, y = (frame.env[arg].astype(target.dtype, copy=False) for arg in source.args)  # ints of data are floats now
        if len(x) != len(y):
            return False
        x, y = readable(x), readable(y)
        provider = self._chooser.choose(x.shape[1], y.shape[1], len(x), x.dtype.name, a_flipped=True)
        if self.options.precision == "bf16" and rounded_args(frame.vars, index):
            way = self._chooser.choose_bf16(x.shape[1], y.shape[1], len(x), a_flipped=True)
            add_outer(x, y, target[0], way, provider)
        else:
            provider.multiply(x.T, y, target[0], accumulate=True)
        return True

    def _add_rows_at_once(self, frame: Frame, index: int) -> bool:
        """If an instruction is a sum of rows with a target, add it there; return whether it was."""
        source, target = frame.vars[index].source, frame.targets.get(index)
        assert isinstance(source, Instruction)
        if target is None or source.op is not ROW_SUM or not self._jitted or frame.env[source.args[0]].ndim != 2:
            return False
        add_rows(frame.env[source.args[0]], target[0])
        return True
