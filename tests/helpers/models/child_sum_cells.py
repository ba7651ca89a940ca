"""A child-sum Tree-LSTM whose children are a tuple, so that the cell has a type for each number of children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.ir.program import CellProgram
from autobatch.trace.record import Recorder


class ChildSum(ab.Module):
    """Computes its gates with one product (`joint`), or with one product each."""

    iou_x: ab.Linear
    iou_h: ab.Linear

    def __init__(self, dim: int = 4, joint: bool = True, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.dim, self.joint = dim, joint
        self.embedding = ab.Parameter(rng.standard_normal((5, dim)))
        for gate in ("iou",) if joint else ("i", "o", "u"):
            setattr(self, f"{gate}_x", ab.Linear(dim, len(gate) * dim, rng=rng))
            setattr(self, f"{gate}_h", ab.Linear(dim, len(gate) * dim, rng=rng, bias=False))
        self.f_x, self.f_h = ab.Linear(dim, dim, rng=rng), ab.Linear(dim, dim, rng=rng)

    @ab.cell
    def leaf(self, word: int) -> Any:
        x = ab.lookup(self.embedding, word)
        return x, ab.tanh(x)

    @ab.cell
    def node(self, word: int, children: Sequence[Any]) -> Any:
        x, total = ab.lookup(self.embedding, word), ab.sum_n([h for h, _ in children])
        fx = self.f_x(x)
        forgotten = [ab.sigmoid(fx + self.f_h(h)) * ck for h, ck in children]
        i, o, u = self._gates(x, total)
        c = ab.sigmoid(i) * ab.tanh(u) + sum(forgotten[1:], start=forgotten[0])
        return ab.sigmoid(o) * ab.tanh(c), c

    def _gates(self, x: Any, total: Any) -> Sequence[Any]:
        if self.joint:
            return ab.split(self.iou_x(x) + self.iou_h(total), 3)
        return [getattr(self, f"{gate}_x")(x) + getattr(self, f"{gate}_h")(total) for gate in "iou"]

    def loss(self, arity: int) -> Any:
        """Return the loss of a tree of two levels with `arity` children each."""
        inner = self.node(0, tuple(self.leaf(k % 5) for k in range(arity)))
        h, c = self.node(1, (inner, *(self.leaf(k % 5) for k in range(1, arity))))
        return ab.sum(h * h) + ab.sum(c)


def node_program(arity: int, joint: bool = True) -> CellProgram:
    """Return the traced program of a node with this many children."""
    model = ChildSum(joint=joint)
    recorder = Recorder(model.loss, model)
    recorder.record([arity])
    return next(t.program for t in recorder.types.types if t.name == "node")
