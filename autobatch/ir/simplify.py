"""Simplification of a cell's program.

- Constant folding: ops on constants alone are computed now, in float64; a float32 model rounds their result once.
- Algebraic identities (`autobatch.ir.identities`).
- Common-subexpression elimination, except of random ops: each place in a program draws its own numbers.
- Dead-code elimination: instructions that no output needs are removed.

The results are bit-identical, except for constants in float32. Gradients of a value that was computed twice are added
before they are pulled back instead of after, so they may differ by rounding. All ports and attributes stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from autobatch.ir.autodiff import with_values
from autobatch.ir.derivative import Derivative
from autobatch.ir.identities import COMMUTATIVE, RULES, stretches
from autobatch.ir.program import (
    SHARED,
    Attribute,
    CellProgram,
    Constant,
    Incoming,
    Instruction,
    Port,
    Var,
    cone,
    draws_of,
    int_limit,
    origin,
    renumber,
)  # fmt: skip
from autobatch.ir.program_check import check_derivative, check_rewritten
from autobatch.ops.define import Op, run_kernel, static_key
from autobatch.ops.shaping import slice_
from autobatch.system.unchecked import checking

MAX_CONSTANT = 2**16  # elements of a constant that is computed or compared
COMMON, FOLDED, KNOWN, SIMPLER, UNUSED = "computed twice", "constant", "known", "simpler", "no longer needed"
CHEAP = {
    "add", "sub", "mul", "div", "neg", "relu", "where", "squared_error",
    "less", "less_equal", "greater", "greater_equal", "equal", "not_equal",
}  # fmt: skip


class Simplified(NamedTuple):
    """A simplified program, and the number of instructions changed for each reason.

    Attributes:
        why: instructions are removed because they are computed already (`COMMON`), constant (`FOLDED`), equal to
            another value (`KNOWN`), or without a reader (`UNUSED`). `SIMPLER` counts those with another op, or that now
            read an argument of their argument.
    """

    program: CellProgram
    why: Counter[str]


def simplify(program: CellProgram) -> CellProgram:
    """Simplify the program of a cell, see `simplify_why`."""
    return simplify_why(program).program


def simplify_why(program: CellProgram) -> Simplified:
    """Simplify the program of a cell, and count the changes.

    Args:
        program: the program, as traced.

    Returns:
        A program with the same name, ports, attributes, outputs and domains, or the program itself; and the counts.

    Cost: linear in the values; constants are computed.

    >>> import autobatch as ab
    >>> from autobatch.ir.arguments import Key
    >>> from autobatch.trace.tracer import Tracer
    >>> body = lambda given: (ab.tanh(given["x"]) * (3.0 - 2.0), ab.exp(ab.tanh(given["x"])))
    >>> print(simplify(Tracer("twice", {}).trace(body, {"x": Key("value", (2,))})[0]))
    twice(%0 x: (2,))
      %1: (2,) = tanh(%0)
      %2: (2,) = exp(%1)
      return %1, %2
    """
    # An identity that drops an argument may leave a port or attribute without a reader; if so, start again without such
    # identities.
    for drops in (True, False):
        rewriting = _Rewriting((), drops, differentiated=False)
        number = rewriting.extend(program.vars)
        roots = [number[output] for output in program.outputs]
        keep = sorted(cone(rewriting.vars, [*roots, *draws_of(rewriting.vars)]))
        if _n_leaves(rewriting.vars[i] for i in keep) == _n_leaves(program.vars):
            break
    if not rewriting.why and len(keep) == len(program.vars):
        return Simplified(program, rewriting.why)
    rewriting.note_unused(keep)
    place = {old: new for new, old in enumerate(keep)}
    made = tuple(renumber(rewriting.vars, keep, place))
    simple = replace(program, vars=made, outputs=tuple(place[root] for root in roots))
    if checking():
        check_rewritten(program, simple)
    return Simplified(simple, rewriting.why)


def simplify_derivative(derivative: Derivative) -> Derivative:
    """Simplify the backward stages of a cell; the forward stage, simplified before differentiation, stays.

    A value that forward computes is saved, unless recomputing it is cheaper.

    Args:
        derivative: the derivative of a program.

    Returns:
        A derivative with the same gradients, or the derivative itself.
    """
    n_forward = len(derivative.program.vars)
    rewriting = _Rewriting(derivative.vars[:n_forward], drops=True, differentiated=True)
    number = {i: i for i in range(n_forward)} | rewriting.extend(derivative.vars[n_forward:], n_forward)
    roots = [number[root] for root in derivative.roots]
    used = cone(rewriting.vars, roots)
    # The values of the program keep their numbers, and gradients of outputs stay even if nothing reads them.
    keep = [i for i, v in enumerate(rewriting.vars) if i < n_forward or i in used or isinstance(v.source, Incoming)]
    if not rewriting.why:
        return derivative
    place = {old: new for new, old in enumerate(keep)}
    made = (*derivative.program.vars, *(_moved(rewriting.vars[i], place) for i in keep[n_forward:]))
    simple = with_values(derivative, made, {old: place[new] for old, new in number.items() if new in place})
    if checking():
        check_derivative(simple)
    return simple


def _moved(var: Var, place: dict[int, int]) -> Var:
    if not isinstance(var.source, Instruction):
        return var
    return replace(var, source=replace(var.source, args=tuple(place[arg] for arg in var.source.args)))


def _n_leaves(vars: Iterable[Var]) -> int:
    return sum(isinstance(v.source, (Port, Attribute)) for v in vars)


class _Rewriting:
    """Grow a list of values, simplifying each when it is added; implements `Values` for the rules.

    Args:
        start: values that stay unchanged; rules look into them only if they are views.
        drops: whether an identity may leave an argument without readers.
        differentiated: whether the gradients are derived already.
    """

    def __init__(self, start: Sequence[Var], drops: bool, differentiated: bool) -> None:
        self.vars: list[Var] = list(start)
        self.drops, self.differentiated = drops, differentiated
        self.why: Counter[str] = Counter()
        self._n_fixed = len(start)
        self._known: dict[Hashable, int] = {}
        # Cheap ops of forward are left out: backward computes them again instead of reading a saved value.
        for index, var in enumerate(start):
            source = var.source
            if not isinstance(source, Instruction) or source.op.view or source.op.name not in CHEAP:
                self._known.setdefault(self._key(var), index)

    def extend(self, vars: Sequence[Var], first: int = 0) -> dict[int, int]:
        """Append values, numbered from `first` on; return the new number of each."""
        number = {i: i for i in range(first)}
        for index, var in enumerate(vars, start=first):
            source = var.source
            if isinstance(source, Instruction):
                source = replace(source, args=tuple(number[arg] for arg in source.args))
                number[index] = self._instruction(replace(var, source=source))
            elif isinstance(source, Constant):
                number[index] = self._append(var)
            else:
                self.vars.append(var)
                number[index] = len(self.vars) - 1
        return {index: number[index] for index in range(first, first + len(vars))}

    def note_unused(self, keep: Sequence[int]) -> None:
        """Count the instructions that are not kept."""
        kept = set(keep)
        unused = sum(isinstance(v.source, Instruction) for i, v in enumerate(self.vars) if i not in kept)
        if unused:
            self.why[UNUSED] += unused

    # For rules, see `Values`.

    def inner(self, index: int, op: Op) -> Instruction | None:
        source = self.vars[index].source
        # Looking through another op of forward would make backward read its argument, which may not be saved.
        if isinstance(source, Instruction) and source.op is op and (index >= self._n_fixed or op.view):
            return source
        return None

    def constant(self, data: Any) -> int:
        return self._append(Var(Constant(data), np.shape(data), SHARED))

    def view(self, op: Op, value: int, /, **static: Any) -> int:
        var = self.vars[value]
        return self._instruction(Var(Instruction(op, (value,), static), op.shape(var.shape, **static), var.domain))

    # How a value is added.

    def _instruction(self, var: Var) -> int:
        """Add the simplified result of an instruction; return its number."""
        while True:
            assert isinstance(var.source, Instruction)
            source = self._without_expansions(var, var.source)
            var = replace(var, source=source)
            folded = self._folded(var, source)
            if folded is not None:
                self.why[FOLDED] += 1
                return self.constant(folded)
            rule = RULES.get(source.op)
            found = None if rule is None else rule(self, var, source)
            if isinstance(found, Instruction):
                self.why[SIMPLER] += 1
                var = replace(var, source=found)
            elif found is not None and self._can_replace(var, source, found):
                self.why[KNOWN] += 1
                return found
            else:
                return self._append(var)

    def _can_replace(self, var: Var, source: Instruction, index: int) -> bool:
        """Return whether a value has the shape and domain of the result, and is a float unless the op is a view."""
        other = self.vars[index]
        if (var.shape, var.domain) != (other.shape, other.domain):
            return False
        # An op on ints returns floats: `ids * 1` must not become the ids, which are stored as ints.
        return source.op.view or _is_float(self.vars, index)

    def _without_expansions(self, var: Var, source: Instruction) -> Instruction:
        """Remove the expansions of arguments from an element-wise op, which broadcasts by itself."""
        if source.op.scalar is None or source.op.random:
            return source
        args = list(source.args)
        for k, arg in enumerate(args):
            inner = self.vars[arg].source
            if isinstance(inner, Instruction) and inner.op.name == "expand":
                shapes = [self.vars[inner.args[0] if j == k else a].shape for j, a in enumerate(args)]
                if source.op.shape(*shapes, **source.static) == var.shape:
                    args[k] = inner.args[0]
                    self.why[SIMPLER] += 1
        return replace(source, args=tuple(args))

    def _folded(self, var: Var, source: Instruction) -> Any:
        """Return the result of an op on constants; None if an argument is not constant, or if the result is large."""
        op = source.op
        sources = [self.vars[arg].source for arg in source.args]
        data = [s.data for s in sources if isinstance(s, Constant)]
        if len(data) < len(sources) or not data or op.random or op.segments is not None or op.sums_rows or op.below:
            return None
        # A view that repeats elements, such as an expansion, stays a view.
        if var.size > (max(map(np.size, data)) if op.view else MAX_CONSTANT):
            return None
        arrays = [x if isinstance(x, (int, float)) and op.scalar is not None else _as_row(x) for x in data]
        if op.view:
            return op.kernel(np, arrays[0], **source.static)[0].copy()
        out = np.empty((1, *var.shape))
        with np.errstate(all="ignore"):
            run_kernel(op, np, arrays, out, source.static)
        return out[0] if var.shape else float(out[0])

    def _append(self, var: Var) -> int:
        """Add a value unless there is an equal one; return its number."""
        key = self._key(var)
        if key is not None and key in self._known:
            if isinstance(var.source, Instruction):
                self.why[COMMON] += 1
            return self._known[key]
        self.vars.append(var)
        if key is not None:
            self._known[key] = len(self.vars) - 1
        return len(self.vars) - 1

    def _key(self, var: Var) -> Hashable | None:
        """Return a key that is equal for equal values; None for a value that equals no other."""
        match var.source:
            case Instruction(op, args, static) if not op.random:
                ordered = tuple(sorted(args)) if op in COMMUTATIVE else args
                where = stretches(self.vars[args[0]].shape, static["index"]) if op is slice_ else None
                how = static_key(static) if where is None else tuple(where)
                return op, ordered, how, var.shape, var.domain
            # An int and the float that equals it are one number to every op; constant ids are arrays, see `Builder`.
            case Constant(int() | float() as number):
                return "number", float(number).hex()
            case Constant(data) if np.size(data) <= MAX_CONSTANT:
                array = np.asarray(data)
                return array.dtype.str, array.shape, array.tobytes()
        return None


def _is_float(vars: Sequence[Var], index: int) -> bool:
    """Return whether a value is a float of the model's type; data, constants and computed values may be ints."""
    source = origin(vars, index).source
    if isinstance(source, Constant):
        return isinstance(source.data, float) or np.asarray(source.data).dtype.kind == "f"
    return source.is_float if isinstance(source, Attribute) else not int_limit(vars, index)


def _as_row(data: Any) -> Any:
    array = np.asarray(data)
    return (array if array.dtype.kind in "iu" else array.astype(np.float64))[None]
