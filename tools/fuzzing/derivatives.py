"""Draw derivatives inside programs: of functions that a body defines, which may read everything before them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import autobatch as ab
from fuzzing.drawing import is_tame, pick
from fuzzing.program import Argument, Inner, Line
from fuzzing.specs import Data, Each, Several, Spec, State, Structure, Tree, Use, Value, parts_of

if TYPE_CHECKING:
    from fuzzing.cells import CallingBody

DEPTH_CHANCES = (1.0, 0.6, 0.15)  # chances that a function at this depth asks for derivatives
OF_ONE = (
    "ab.grad(lambda t: ab.sum(ab.sin(t) * {0}))({0})", "ab.jvp(lambda t: t * t * {0}, ({0},), (0.5 * {0},))[1]",
    "ab.hvp(lambda t: ab.sum(t ** 3) * 0.1, ({0},), ({0},))[1][0]", "ab.vjp(ab.tanh, {0})[1](ab.sigmoid({0}))[0]",
    "ab.grad(lambda t: ab.sum(ab.grad(lambda u: ab.sum(ab.sin(u) * t))({0}) * t))({0})",
    "ab.value_and_grad(lambda t: ab.sum(ab.log(1.5 + t * t)))({0})[1]",
)  # fmt: skip
"""Derivatives of element-wise functions of one value, which may occur wherever values do."""


def of_one(body: CallingBody) -> None:
    """Add a derivative on one line."""
    body.add(pick(body.rng, OF_ONE), _variable(body))


def over_rows(body: CallingBody) -> None:
    """Add a line that reads a matrix row by row."""
    wide = [use for use in body.values if len(use.shape) == 2 and use.shape[0] <= 4]
    if not wide:
        return
    x, rng = pick(body.rng, wide), body.rng
    m, n = x.shape
    rows = f"[{{0}}[k] for k in range({m})]"
    forms = [f"ab.sum_n([ab.tanh(r) * r for r in {rows}], shape={(n,)})", f"ab.sum_n({rows}[::2], shape={(n,)})"]
    if m:
        forms += [f"sum(ab.sin(r) for r in {rows})", "{0}[0] * {0}[-1]", "{0}[:1]", f"ab.concat({rows})"]
    body.add(pick(rng, forms), x)


def derivative(body: CallingBody) -> None:
    """Add a function, and a line that asks for a derivative of it and calls this derivative, perhaps of several
    arguments.
    """
    rng = body.rng
    if rng.random() > DEPTH_CHANCES[min(body.depth, len(DEPTH_CHANCES) - 1)] or body.depth > 2:
        return
    target = f"{body.prefix}{len(body.lines)}"
    name = f"of_{target}"
    args = _arguments(body)
    takes = tuple(Argument(f"{target}_x{k}", _spec(arg)) for k, arg in enumerate(args))
    if rng.random() < 0.25:  # read outside as well, but by another name
        body.data = body.data[-2:]
    inner = body.inside(f"{target}_")
    for take, arg in zip(takes, args, strict=True):
        inner.take(take.name, take.spec, body.evaluate(str(arg)))
    for use in [*inner.lists]:
        if any(use.reads(take.name) for take in takes) and rng.random() < 0.8:
            inner.variadic(use)
    for _ in range(int(rng.integers(1, 5 if body.depth == 0 else 3))):
        inner.line()
    draws = {"grad": _grad, "value_and_grad": _grad, "vjp": _vjp, "jvp": _jvp, "hvp": _jvp}
    kind = pick(rng, tuple(draws))
    returns, form, more = draws[kind](body, inner, name, kind, takes, args)
    add(body, form, (*args, *more), Inner(name, takes, tuple(inner.lines), returns))


def add(body: CallingBody, form: str, args: tuple[Tree, ...], inner: Inner) -> None:
    """Add a line and the function before it, unless its values are too large."""
    target = f"{body.prefix}{len(body.lines)}"
    line = Line(target, form, args, Value(()), inner)
    before = dict(body.samples)
    try:
        namespace = body.drawing.globals | body.samples
        with np.errstate(all="ignore"):
            exec("\n".join(line.text), namespace)
        result = namespace[target]
    except (ab.GraphError, ab.ShapeError, ValueError, IndexError):
        body.samples = before
        return
    if not all(is_tame(x) for x in _numbers(result)):
        return
    line = Line(target, form, args, _spec_of(result), inner)
    body.lines.append(line)
    body.take(target, line.spec, result)


def _arguments(body: CallingBody) -> list[Tree]:
    """Draw the arguments of a function, which can be differentiated by the first."""
    rng = body.rng
    made: list[Tree] = []
    for k in range(int(rng.choice((1, 2, 3), p=(0.5, 0.35, 0.15)))):
        structures = [use for use in body.known if isinstance(use.spec, (Several, Each))]
        chance = rng.random()
        if chance < 0.55:
            made.append(_variable(body))
        elif chance < 0.65 and structures:
            made.append(pick(rng, structures))
        elif chance < 0.8:
            parts = tuple(_variable(body) for _ in range(2))
            made.append(Structure(pick(rng, ("tuple", "list", "dict", "State", "Pair")), parts))
        elif chance < 0.92 or k == 0:
            shape = body.drawing.shape()
            made.append(Structure("list", tuple(_variable(body, shape) for _ in range(rng.integers(1 - bool(k), 4)))))
        else:
            made.append(pick(rng, [*body.data, Use("2", Data("id")), Use("True", Data("flag"))]))
    return made


def _variable(body: CallingBody, shape: Any = None) -> Use:
    """Draw a value, an array or a parameter."""
    rng = body.rng
    fitting = [use for use in body.values if shape is None or use.shape == shape]
    if fitting and rng.random() < 0.8:
        return fitting[-min(len(fitting), int(rng.geometric(0.35)))]
    shape = body.drawing.shape() if shape is None else shape
    known = [p for p in body.drawing.parameters if p.shape == shape]
    if known and rng.random() < 0.4:
        return Use(f"self.{pick(rng, known).name}", Value(shape))
    return body.drawing.data(shape)


def _by(body: CallingBody, takes: tuple[Argument, ...], along: bool = False) -> tuple[str, list[Use]]:
    """Draw the variables with respect to which a function is differentiated.

    Args:
        along: whether it gets tangents, one for each value.

    Returns:
        The text of `wrt`, empty if it is the default, and the uses that it selects.
    """
    rng = body.rng
    variables = [Use(take.name, take.spec) for take in takes]
    found = [part for use in variables for part in (use, *parts_of(use)) if not isinstance(part.spec, Data)]
    found = [use for k, use in enumerate(found) if use not in found[:k] and _size(use.spec)]
    found = [use for use in found if not along or _has_known_size(use.spec)]
    parameters = [Use(f"self.{p.name}", Value(p.shape)) for p in body.drawing.parameters]
    chosen = [pick(rng, found)] if found and rng.random() < 0.8 else []
    if rng.random() < 0.35 or not chosen:
        chosen.append(pick(rng, parameters))
    if found and rng.random() < 0.35:
        chosen.append(pick(rng, found))
    whole = [use for k, use in enumerate(chosen) if not any(_overlap(use, other) for other in chosen[:k])]
    names = ", ".join(take.name for take in takes)
    text = ", ".join(use.text for use in whole)
    if len(whole) > 1 or rng.random() < 0.3:
        text = f"({text},)"
    return f"wrt=lambda {names}: {text}", whole


def _overlap(one: Use, other: Use) -> bool:
    return one.reads(other.text) or other.reads(one.text)


def _size(spec: Spec) -> int:
    """Return the number of values in something; a list counts as at least one."""
    if isinstance(spec, Several):
        return sum(map(_size, spec.parts))
    return 0 if isinstance(spec, Data) else 1


def _has_known_size(spec: Spec) -> bool:
    """Return whether it has no floats of the data, because NumPy's floats count as values and Python's do not."""
    return all(map(_has_known_size, spec.parts)) if isinstance(spec, Several) else spec != Data("float")


def _scalar(body: CallingBody, inner: CallingBody, has_aux: bool = False) -> Tree:
    """Draw a scalar that a function returns, perhaps with something else."""
    loss = inner.loss()
    return Structure("tuple", (loss, inner.result())) if has_aux else loss


def _grad(
    body: CallingBody, inner: CallingBody, name: str, kind: str, takes: tuple[Argument, ...], args: list[Tree]
) -> tuple[Tree, str, list[Tree]]:
    has_aux = bool(body.rng.random() < 0.15)
    returns = _scalar(body, inner, has_aux)
    by, _ = _by(body, takes)
    options = [name, *([by] if body.rng.random() < 0.65 or not _size(takes[0].spec) else [])]
    options += ["has_aux=True"] if has_aux else []
    return returns, f"ab.{kind}({', '.join(options)})({_places(args)})", []


def _vjp(
    body: CallingBody, inner: CallingBody, name: str, kind: str, takes: tuple[Argument, ...], args: list[Tree]
) -> tuple[Tree, str, list[Tree]]:
    returns = _returned(body, inner)
    by, _ = _by(body, takes)
    gradients = _like(body, returns)
    options = [name, *(f"{{{k}}}" for k in range(len(args)))] + ([by] if body.rng.random() < 0.5 else [])
    if not any(_size(take.spec) for take in takes) and by not in options:
        options.append(by)
    form = f"(lambda r: (r[0], r[1]({{{len(args)}}})))(ab.vjp({', '.join(options)}))"
    if body.rng.random() < 0.2:
        form = form.replace("(r[0], ", f"(r[1]({{{len(args)}}}), ")  # twice
    return returns, form, [gradients]


def _jvp(
    body: CallingBody, inner: CallingBody, name: str, kind: str, takes: tuple[Argument, ...], args: list[Tree]
) -> tuple[Tree, str, list[Tree]]:
    returns = _scalar(body, inner) if kind == "hvp" else _returned(body, inner)
    by, variables = _by(body, takes, along=True)
    options = [by]
    if body.rng.random() < 0.4 and all(_size(take.spec) and _has_known_size(take.spec) for take in takes):
        options, variables = [], [Use(take.name, take.spec) for take in takes]
    if not variables:
        options, variables = (
            [f"wrt=lambda {', '.join(take.name for take in takes)}: (self.p0,)"],
            [Use("self.p0", Value(()))],
        )
    tangents = [_tangent(body, use, dict(zip([t.name for t in takes], args, strict=True))) for use in variables]
    n = len(args)
    given = "".join(f"{{{n + k}}}, " for k in range(len(tangents)))
    return returns, f"ab.{', '.join([f'{kind}({name}', f'({_places(args)},)', f'({given})', *options])})", tangents


def _places(args: list[Tree]) -> str:
    return ", ".join(f"{{{k}}}" for k in range(len(args)))


def _returned(body: CallingBody, inner: CallingBody) -> Tree:
    """Draw what a function returns."""
    leaves: list[Tree] = [inner.result() for _ in range(int(body.rng.choice((1, 2, 3), p=(0.6, 0.25, 0.15))))]
    if len(leaves) == 1:
        return leaves[0]
    return Structure(
        pick(body.rng, ("tuple", "list", "dict", "State") if len(leaves) == 2 else ("tuple",)), tuple(leaves)
    )


def _like(body: CallingBody, tree: Tree) -> Tree:
    """Draw gradients of what a function returns."""
    if isinstance(tree, Structure):
        return Structure(tree.kind, tuple(_like(body, part) for part in tree.parts))
    return _variable(body, tree.shape)


def _tangent(body: CallingBody, use: Use, args: dict[str, Tree]) -> Tree:
    """Draw a tangent of something that a function takes: of an array, of a structure, or of a list of any length."""
    name = next((name for name in args if use.reads(name)), None)
    arg = None if name is None else args[name]
    if isinstance(use.spec, Value):
        return _variable(body, use.spec.shape)
    if arg is not None and use.text == name:
        return _along(body, arg)
    assert isinstance(arg, Use)
    assert name is not None
    return _along(body, Use(f"{arg.text}{use.text[len(name) :]}", use.spec))


def _along(body: CallingBody, arg: Tree) -> Tree:
    """Draw a tangent of an argument."""
    if isinstance(arg, Structure):
        return Structure(arg.kind, tuple(_along(body, part) for part in arg.parts))
    match arg.spec:
        case Value(shape) | Data("untamed", shape):
            return _variable(body, shape)
        case Each():
            return arg  # as many as there are
        case Several(kind, parts):
            paths = [Use(f"{arg.text}{path}", part) for path, part in zip(arg.spec.paths, parts, strict=True)]
            return Structure(kind, tuple(_along(body, part) for part in paths))
    return Use("None", Data("nothing"))


def _spec(tree: Tree) -> Spec:
    if isinstance(tree, Use):
        return tree.spec
    return Several(tree.kind, tuple(map(_spec, tree.parts)))


def _spec_of(result: Any) -> Spec:
    match result:
        case None:
            return Data("nothing")
        case State(h, c):
            return Several("State", (_spec_of(h), _spec_of(c)))
        case dict():
            return Several("dict", tuple(map(_spec_of, result.values())))
        case tuple() if hasattr(result, "_fields"):
            return Several("Pair", tuple(map(_spec_of, result)))
        case tuple() | list():
            return Several(type(result).__name__, tuple(map(_spec_of, result)))
    return Value(np.shape(result))


def _numbers(result: Any) -> list[Any]:
    """Return the arrays in a result."""
    match result:
        case None:
            return []
        case State(h, c):
            return [*_numbers(h), *_numbers(c)]
        case dict():
            return [x for part in result.values() for x in _numbers(part)]
        case tuple() | list():
            return [x for part in result for x in _numbers(part)]
    return [result]
