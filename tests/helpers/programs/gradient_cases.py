"""Cases of ops that other ops are made of, and of ops along any number of rows; cells that differentiate a case."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import autobatch as ab
from autobatch import ops
from autobatch.ops.elementwise import instead
from autobatch.ops.error_function import ndtr
from autobatch.ops.indexing import pick
from autobatch.ops.shaping import assemble, expand, stand_for
from helpers.programs.inner_gradients import slope
from helpers.programs.op_cases import CASES, Case

WIDTH = 3  # of the rows


def places_of(shape: tuple[int, ...], index: Any) -> Any:
    """Return the flat positions of the elements at an index."""
    return torch.tensor(np.arange(np.prod(shape)).reshape(shape)[index].tolist(), dtype=torch.int64)


def taken(x: Any, index: Any) -> Any:
    """Return the elements at a NumPy index, which may have negative steps."""
    places = places_of(tuple(x.shape), index)
    return x.reshape(-1)[places.reshape(-1)].reshape(places.shape)


def joined(*parts: Any, indices: Any, shape: tuple[int, ...]) -> Any:
    """Return zeros with each part at its index."""
    whole = torch.zeros(math.prod(shape), dtype=torch.float64)
    for part, index in zip(parts, indices, strict=True):
        whole = whole.index_put((places_of(shape, index).reshape(-1),), part.reshape(-1))
    return whole.reshape(shape)


def indexed(index: Any) -> Case:
    """Return the case of a slice, whose gradient is an `assemble`."""
    return Case(f"slice {index}", lambda x: x[index] ** 3, lambda x: taken(x, index) ** 3, ((4, 5),))


def assembled(*indices: Any) -> Case:
    """Return the case of an `assemble` of parts at these indices."""
    shapes = tuple(np.zeros((4, 5))[index].shape for index in indices)
    how = {"indices": indices, "shape": (4, 5)}
    return Case(
        f"assemble {indices}",
        lambda *parts: assemble(*(part**2 for part in parts), **how) ** 2,
        lambda *parts: joined(*(part**2 for part in parts), **how) ** 2,
        shapes,
    )


def picked(x: Any, label: Any) -> Any:
    """Return the elements at the labels, 0 for label 2."""
    return torch.where(label == 2, 0.0, x.gather(-1, label[..., None])[..., 0])


def norm(x: Any) -> Any:
    return ops.sqrt(ops.sum(x * x))


def normalised(x: Any, gain: Any, bias: Any) -> Any:
    """Compute layer_norm from its definition: torch's own third derivatives differ from central differences."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * ((centred * centred).mean(-1, keepdim=True) + 1e-5) ** -0.5 * gain + bias


def attended(x: Any, q: Any) -> Any:
    """Return the sum of the results of self-attention."""
    return ops.sum(ops.softmax((x @ (x * q).T).T) @ x, axis=0)


def paired(x: Any, q: Any) -> Any:
    """Return the sum over rows of the maxima of functions of pairs of rows."""
    return ops.sum(ops.max(ops.tanh(x[:, None] * q - x) @ q, axis=0))


def pointed(x: Any, q: Any) -> Any:
    """Return the sum of the cross-entropies with the most probable classes as labels."""
    scores = x * q @ x.T
    return ops.sum(ops.cross_entropy(scores, ops.argmax(scores, axis=1)))


INTERNAL = (
    *map(indexed, (np.s_[::-1], np.s_[3:0:-2, None, 1], np.s_[..., ::-2], np.s_[None, 1:3, None, -1:0:-3])),
    indexed(np.s_[2, 3]),
    assembled(np.s_[1:3]),
    assembled(np.s_[:2], np.s_[:1:-1]),
    assembled(np.s_[0, ::-1], np.s_[3:0:-2, None, 1], np.s_[2, None, 2:], np.s_[1, 3]),
    Case("pick", lambda x, i: pick(x, i, ignore=2), picked, ((4,),), ids=(((), 4),)),
    Case("pick rows", lambda x, i: pick(x**2, i, ignore=2), lambda x, i: picked(x**2, i), ((5, 4),), ids=(((5,), 4),)),
    Case("instead", lambda x: instead(x**3, ops.exp(x)), lambda x: x**3 + (x.exp() - x**3).detach(), ((3,),)),
    Case("expand", lambda x: expand(x * x, (4, 3)), lambda x: (x * x).expand(4, 3), ((3,),)),
    Case("stand_for", lambda x: stand_for(x * x, dtype="bool"), lambda x: x * x, ((3,),)),
    Case("ndtr", ndtr, torch.special.ndtr, ((2, 3),)),
    Case("norm", norm, torch.linalg.norm, ((3,),)),
    Case("normalised", ops.layer_norm, normalised, ((4,), (4,), (4,))),
    Case("normalised rows", ops.layer_norm, normalised, ((2, 4), (4,), (4,))),
    Case("softmax_n", lambda *xs: ops.softmax_n(xs)[0], lambda *xs: torch.stack(xs).softmax(0)[0], ((3,), (3,))),
    Case("max_n", lambda x, y: ops.max_n([x, y]), lambda *xs: torch.stack(xs).amax(0), ((3,), (3,)), draw="grid"),
)  # fmt: skip


@dataclass(frozen=True)
class RowsCase:
    """A function of an array x (n, 3), where n differs between nodes, and a vector q (3,).

    Attributes:
        compute, expect: the function on autobatch's values, and the same on torch's tensors.
        draw: "grid" for many equal numbers.
    """

    name: str
    compute: Callable[[Any, Any], Any]
    expect: Callable[[Any, Any], Any]
    draw: str = "normal"

    def __str__(self) -> str:
        return f"rows: {self.name}"


def sliced(*index: int | None) -> RowsCase:
    """Return the case of a slice of rows."""
    cut = slice(*index)

    def expect(x: Any, q: Any) -> Any:
        return (x[torch.tensor(list(range(len(x)))[cut], dtype=torch.int64)] ** 3 * q).sum()

    return RowsCase(f"slice {index}", lambda x, q: ops.sum(x[cut] ** 3 * q), expect)


def rotated(x: Any, q: Any) -> Any:
    """Multiply the rows, rotated by one, with the squares of the rows."""
    return ops.sum(ops.concat([x[1:], x[:1]], axis=0) * x * x, axis=0)


def padded(x: Any, q: Any) -> Any:
    """Join constant rows, x and rows of the node."""
    given = ops.reshape(ops.concat((q, q * q)), (2, WIDTH))
    return ops.sum(ops.concat([np.ones((1, WIDTH)), x, given], axis=0)[:-1] ** 2 * ops.concat([given, x], axis=0))


def torch_padded(x: Any, q: Any) -> Any:
    given = torch.stack([q, q * q])
    return (torch.cat([torch.ones(1, WIDTH), x, given])[:-1] ** 2 * torch.cat([given, x])).sum()


def looked_up(x: Any, q: Any) -> Any:
    """Look up for each row one of two rows of the node, by the argmax of its first two elements."""
    return ops.sum(
        ops.lookup(ops.reshape(ops.concat((q, q * q)), (2, WIDTH)), ops.argmax(x[:, :2], axis=1)) * x, axis=0
    )


ROWS = (
    RowsCase("sum", lambda x, q: ops.sum(x * x * q, axis=0) ** 2, lambda x, q: (x * x * q).sum(0) ** 2),
    RowsCase("mean", lambda x, q: ops.mean(x * x, axis=0) * q, lambda x, q: (x * x).mean(0) * q),
    RowsCase("max", lambda x, q: ops.max(x * x, axis=0) * q, lambda x, q: (x * x).amax(0) * q),
    RowsCase("max ties", lambda x, q: ops.max(x, axis=0) * q, lambda x, q: x.amax(0) * q, draw="grid"),
    RowsCase("softmax", lambda x, q: ops.sum(ops.softmax(x, axis=0) * q), lambda x, q: (x.softmax(0) * q).sum()),
    RowsCase("logsumexp", lambda x, q: ops.logsumexp(x * q, axis=0), lambda x, q: (x * q).logsumexp(0)),
    RowsCase("attend", lambda x, q: ops.attend(q, x, ops.tanh(x)), lambda x, q: (x @ q).softmax(0) @ x.tanh()),
    RowsCase("norm", lambda x, q: ops.sum(ops.layer_norm(x, q, q) * x), lambda x, q: (normalised(x, q, q) * x).sum()),
    RowsCase("one row", lambda x, q: x[0] * x[-1] * q + x[-1] ** 2, lambda x, q: x[0] * x[-1] * q + x[-1] ** 2),
    *(sliced(*index) for index in ((1, None), (None, None, -1), (1, -1, 2), (-2, None, -3))),
    RowsCase("rotated", rotated, lambda x, q: (x.roll(-1, 0) * x * x).sum(0)),
    RowsCase("padded", padded, torch_padded),
    RowsCase("chosen", lambda x, q: x[ops.argmax(x[:, 0])] ** 3 * q, lambda x, q: x[x[:, 0].argmax()] ** 3 * q),
    RowsCase("top_k", lambda x, q: ops.top_k(x @ q, 1)[0] ** 3, lambda x, q: (x @ q).topk(1)[0] ** 3),
    RowsCase("label", lambda x, q: ops.cross_entropy(x @ q, 0), lambda x, q: -(x @ q).log_softmax(0)[0]),
    RowsCase("attention", attended, lambda x, q: ((x * q @ x.T).softmax(1) @ x).sum(0)),
    RowsCase("pairs", paired, lambda x, q: ((x[:, None] * q - x).tanh() @ q).amax(0).sum()),
    RowsCase("heads", pointed, lambda x, q: -(x * q @ x.T).log_softmax(1).amax(1).sum()),
    RowsCase("lookup", looked_up, lambda x, q: (torch.stack([q, q * q])[x[:, :2].argmax(1)] * x).sum(0)),
)  # fmt: skip

EVERY: tuple[Case | RowsCase, ...] = (*CASES, *INTERNAL, *ROWS)


def instances_of(case: Case | RowsCase) -> list[tuple[tuple[Any, ...], Any, tuple[Any, ...]]]:
    """Draw values, the gradient of the result and ints, for a few instances."""
    rng, instances = np.random.default_rng(0), []
    for n in (2, 1, 5):
        shapes = ((n, WIDTH), (WIDTH,)) if isinstance(case, RowsCase) else case.shapes
        of_case = Case(case.name, case.compute, case.expect, shapes, getattr(case, "ids", ()), case.draw)
        floats, ints = of_case.arguments(rng)
        shape = tuple(case.expect(*map(torch.as_tensor, (*floats, *ints))).shape)
        instances.append((tuple(map(np.asarray, floats)), rng.standard_normal(shape), tuple(ints)))
    return instances


def slope_cell(
    case: Case | RowsCase, order: int, note: Callable[[Sequence[Any]], None] | None = None
) -> Callable[..., Any]:
    """Return a function of an instance whose gradients contain the derivatives of a case up to an order, see `slope`.

    Args:
        note: called with the traced values, once the cell is traced.
    """

    def differentiated(values: Sequence[Any], g: Any, ints: Sequence[Any]) -> Any:
        number = slope(lambda *values: case.compute(*values, *ints), values, g, order)
        if note is not None:
            note(values)
        return number + 0.0 * sum(map(ops.sum, (*values, g)))

    @ab.cell(ragged=("x",))
    def of_rows(x: Any, q: Any, g: Any) -> Any:
        return differentiated((x, q), g, ())

    @ab.cell
    def of_values(values: Any, g: Any, ints: Any) -> Any:
        return differentiated(values, g, ints)

    if isinstance(case, RowsCase):
        return lambda instance: of_rows(instance[0][0], instance[0][1], instance[1])
    return lambda instance: of_values(*instance)
