"""The kinds of lines that bodies are drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from fuzzing.body import Body
from fuzzing.drawing import pick
from fuzzing.forms import BENT, BENT_BINARY, BENT_SAME, BINARY, IDENTITIES, SAME, UNARY
from fuzzing.specs import Data, Shape, Tree, Use, Value

LITERAL_IDS = (
    Use("2", Data("id")), Use("np.array([0, 2, 0])", Data("ids", (3,))),
    Use("np.array([[1], [0]])", Data("ids", (2, 1))),
)  # fmt: skip


WIDTHS = (2, 4, 4, 4, 4, 6)  # of vectors that are cut in halves


def unary(body: Body) -> None:
    """Add an element-wise op of one value."""
    forms = UNARY + IDENTITIES + (() if body.smooth else BENT + BENT)
    x, form = body.value(), pick(body.rng, forms)
    # Outside cells there is no `ab.normal`, dropout takes results of cells only, and values may be made of arrays only.
    if body.in_cell or not ("dropout" in form or "ab.normal" in form):
        body.add(form, x)


def binary(body: Body) -> None:
    """Add an element-wise op of two values, of equal shapes or not."""
    x, bent = body.value(), not body.smooth and body.rng.random() < 0.3
    if body.rng.random() < 0.35:
        forms = BENT_SAME if bent else SAME
        body.add(pick(body.rng, forms), x, body.value(x.shape))
        return
    y = body.value(*partners(body, x.shape))
    both = (x, y) if body.rng.random() < 0.7 else (y, x)
    body.add(pick(body.rng, BENT_BINARY if bent else BINARY), *both)


def partners(body: Body, shape: Shape) -> list[Shape]:
    """Return shapes that broadcast with a shape: with fewer axes, size one along some, or more axes."""
    sizes, found = body.drawing.sizes, [shape, shape]
    for _ in range(3):
        other = tuple(1 if body.rng.random() < 0.4 else n if n != 1 else pick(body.rng, sizes) for n in shape)
        found.append(other[int(body.rng.integers(len(shape) + 1)) :] if body.rng.random() < 0.4 else other)
    if len(shape) < 3 and body.rng.random() < 0.3:
        found.append((pick(body.rng, sizes), *found[-1]) if len(found[-1]) == len(shape) else found[-1])
    return found


def product(body: Body) -> None:
    """Add a product: of a value with a weight, another value, a constant, or a matrix of equal rows."""
    rng, x = body.rng, body.value()
    size, weight = pick(rng, body.drawing.sizes), body.drawing.weight
    match len(x.shape):
        case 1:
            (n,) = x.shape
            w, v = (size, n), (n, size)
            options = [
                lambda: body.add("{1} @ {0}", x, weight(w)),
                lambda: body.add("{1} @ {0}", x, weight(w)),
                lambda: body.add("{0} @ {1}", x, weight(v)),
                lambda: body.add("ab.affine({1}, {0}, {2})", x, weight(w), weight((size,))),
                lambda: body.add("{1} @ {0} + {2}", x, weight(w), weight((size,))),
                lambda: body.add("{1} @ ({0} * 0.0 + 1.0)", x, weight(w)),
                lambda: body.add("ab.sum({1} @ {0})", x, weight(w)),
                lambda: body.add("-ab.sum({1} @ {0})", x, weight(w)),
                lambda: body.add("ab.mean(ab.affine({1}, {0}, {2}))", x, weight(w), weight((size,))),
                lambda: body.add("ab.sum(({1} @ {0}) * {2})", x, weight(w), body.source(pick(rng, [(2, 1), (size,)]))),
                lambda: body.add("ab.outer({0}, {1})", x, body.value((size,))),
                lambda: body.add("ab.dot({0}, {1})", x, body.value(x.shape)),
                lambda: body.add("{0} @ {1}", x, weight((2, n, size))),
                lambda: body.add("ab.einsum('i,jik->kj', {0}, {1})", x, weight((2, n, size))),
                lambda: body.add("ab.einsum('i,j->ji', {0}, {1})", x, body.value((size,))),
                lambda: body.add("{0} @ {1}", x, body.value(x.shape)),
                lambda: body.add("{1} @ {0}", x, body.value(w)),
                lambda: body.add("ab.outer({0}, {0}) @ {0}", x),
                lambda: body.add("{1} @ {0} + {2} @ {3}", x, weight(w), weight((size, size)), body.value((size,))),
                lambda: body.add("{1} @ np.ones({2}) * ab.sum({0})", x, weight(w), Use(str((n,)), Value(()))),
            ]
            if not body.smooth:
                options += [
                    lambda: body.add("{1} @ {0} + {2} @ ab.stop_gradient({0})", x, weight(w), weight(w)),
                    lambda: body.add("ab.stop_gradient({1}) @ {0} + {2} @ {0}", x, weight(w), weight(w)),
                ]
        case 2:
            m, n = x.shape
            options = [
                lambda: body.add("{1} @ {0}", x, weight((size, m))),
                lambda: body.add("{0} @ {1}", x, weight((n, size))),
                lambda: body.add("{0} @ {1}", x, weight((n,))),
                lambda: body.add("{1} @ {0}", x, weight((m,))),
                lambda: body.add("{0} @ {1}", x, body.value((n,))),
                lambda: body.add("{1} @ {0}", x, body.value((size, m), (m,))),
                lambda: body.add("ab.transpose({0}) @ {0}", x),
                lambda: body.add("ab.einsum('ij,kj->ki', {0}, {1})", x, weight((size, n))),
                lambda: body.add("ab.einsum('ij,ij->i', {0}, {1})", x, body.value(x.shape)),
                lambda: body.add("{0} @ ab.transpose({0})", x),
                lambda: body.add("ab.matmul({0}, {1})", x, body.value((n, size))),
                lambda: body.add("{0} @ ({1} * np.ones({2}))", x, body.value((n, 1)), Use(str((n, 2)), Value(()))),
                lambda: body.add("{0}[0] @ {1}", x, weight((n, size))),
                lambda: body.add("ab.transpose({0})[0] @ {1}", x, weight((m, size))),
            ]
        case _:
            options = [
                lambda: body.add("ab.reshape({0}, (-1,)) @ {1}", x, weight((math.prod(x.shape), size))),
                lambda: body.add("{0} * {1}", x, weight(pick(rng, partners(body, x.shape)))),
            ]
            if len(x.shape) == 3:
                options += [
                    lambda: body.add("{0} @ {1}", x, weight((x.shape[2], size))),
                    lambda: body.add("{0} @ {1}", x, weight((x.shape[0], x.shape[2], size))),
                ]
    pick(rng, options)()


def reduction(body: Body) -> None:
    """Add a sum, mean or maximum over any axes."""
    x = body.value()
    ndim = len(x.shape)
    some = [a for a in range(ndim) if body.rng.random() < 0.5]
    one = int(body.rng.integers(-ndim, ndim)) if ndim else None
    axis = pick(body.rng, [None, one, one, tuple(some)])
    names = ["sum", "sum", "mean"] + ([] if body.smooth else ["max", "min"])
    names += ["logsumexp"]
    name, keep = pick(body.rng, names), pick(body.rng, ["", "", ", keepdims=True"])
    if name != "sum" and 0 in x.shape:
        return
    form = f"ab.{name}({{0}})" if axis is None and not keep else f"ab.{name}({{0}}, axis={axis}{keep})"
    body.add(pick(body.rng, [form, form, form, f"-{form}", f"{form} * {{0}}"]), x)


def normal(body: Body) -> None:
    """Add a softmax, a norm, or the loss of a choice."""
    x, rng = body.value(), body.rng
    if not x.shape or 0 in x.shape:
        return
    axis, n = int(rng.integers(-len(x.shape), len(x.shape))), x.shape[-1]
    labels = [use for use in body.data if use.spec == Data("id") and n >= 3]
    one = pick(rng, labels) if labels and rng.random() < 0.6 else Use(str(int(rng.integers(n))), Data("id"))
    many = Use(f"np.full({x.shape[:-1]}, {int(rng.integers(n))})", Data("ids", x.shape[:-1]))
    scales = (body.value((n,)), body.value((n,)))
    options: list[tuple[str, tuple[Use, ...]]] = [
        (f"ab.softmax({{0}}, axis={axis})", (x,)),
        (f"ab.log_softmax({{0}}, axis={axis})", (x,)),
        ("ab.softmax({0}) * ab.log_softmax({0})", (x,)),
        ("ab.layer_norm({0}, {1}, {2}, eps=0.1)", (x, *scales)),
        ("ab.layer_norm({0} * {0}, {1}, {1}, eps=0.5)", (x, scales[0])),
        ("ab.cross_entropy({0}, {1})", (x, one if len(x.shape) == 1 else many)),
        ("ab.cross_entropy({0}, {1})", (x, one if len(x.shape) == 1 else many)),
    ]
    form, args = pick(rng, options)
    body.add(form, *args)


def shaping(body: Body) -> None:
    """Add a view: reshaped, transposed, or cut."""
    x, rng = body.value(), body.rng
    ndim, size = len(x.shape), math.prod(x.shape)
    options = [f"ab.reshape({{0}}, {pick(rng, factors(size))})", "{0}[None]", "{0}[..., None]", "{0}[...]"]
    if ndim:
        start, step = int(rng.integers(-1, x.shape[0] + 1)), pick(rng, [-2, -1, -1, 1, 2, 2])
        options += [f"{{0}}[{start}::{step}]", f"{{0}}[::{step}]", "{0}[:1]", "{0}[1:]", f"{{0}}[..., ::{step}]"]
        options += ["ab.reshape({0}, -1)", "{0}[..., :1]", "{0}[:0]" if rng.random() < 0.1 else "{0}[:2]"]
        parts = [n for n in range(1, 5) if x.shape[-1] % n == 0]
        n = pick(rng, parts)
        options += [f"ab.split({{0}}, {n})[{int(rng.integers(n))}]", f"sum(ab.split({{0}}, {n}))"]
        options += [f"{{0}}[{int(rng.integers(-x.shape[0], x.shape[0]))}]"] * 2 if x.shape[0] else []
    if ndim > 1:
        axes = tuple(int(a) for a in rng.permutation(ndim))
        options += ["ab.transpose({0})", f"ab.transpose({{0}}, {axes})", "{0}[:, 0]" if x.shape[1] else "{0}"]
    body.add(pick(rng, options), x)


def joined(body: Body) -> None:
    """Join values along an axis."""
    x, rng = body.value(), body.rng
    if not x.shape:
        return
    axis = int(rng.integers(-len(x.shape), len(x.shape)))
    parts = [x, *(body.value(x.shape) for _ in range(rng.integers(0, 3)))]
    if rng.random() < 0.3:
        parts.append(parts[0])
    names = ", ".join(f"{{{k}}}" for k in range(len(parts)))
    extra = pick(rng, ["", ", {0}[::-1]" if axis % len(x.shape) else ", {0}[:1]"])
    body.add(f"ab.concat(({names},{extra[1:]}), axis={axis})", *parts)


def woven(body: Body) -> None:
    """Weave a few vectors of one width."""
    weave(body, pick(body.rng, WIDTHS), int(body.rng.integers(2, 10)))


def weave(body: Body, width: int, n: int) -> Use | None:
    """Weave vectors of one width: join slices, regroup the parts of joins, multiply, and sum some of the results."""
    rng, weight = body.rng, body.drawing.weight
    made = [body.value((width,)) for _ in range(2)]

    def thread() -> Use | None:
        x, y = pick(rng, made), pick(rng, made)
        match pick(rng, ("turned", "grouped", "grouped", "stacked", "product", "map", "map", "scaled", "pair", "pair")):
            case "turned":
                cut = pick(rng, (width // 2, width // 2, int(rng.integers(width + 1))))
                return body.add(f"ab.concat(({{0}}[{cut}:], {{1}}[:{cut}]))", x, y)
            case "grouped":
                parts = (x, y, *(pick(rng, made) for _ in range(rng.integers(2))))
                shape = (len(parts), *pick(rng, [(width,), *((n, width // n) for n in (2, 3) if width % n == 0)]))
                axes = tuple(int(axis) for axis in rng.permutation(len(shape)))
                names = ", ".join(f"{{{k}}}" for k in range(len(parts)))
                seen = f"ab.transpose(ab.reshape(ab.concat(({names})), {shape}), {axes})"
                return body.add(f"ab.reshape({seen}, {(len(parts), width)})[{rng.integers(len(parts))}]", *parts)
            case "stacked":
                whole = body.add("ab.stack([{0}, {1}])", x, y)
                forms = ("{0}[0]", "{0}[1]", "{0}[::-1][0]", "ab.sum({0}, axis=0)")
                return whole and body.add(pick(rng, forms), whole)
            case "product":
                return body.add("{1} @ {0}", x, weight((width, width)))
            case "map":
                return body.add(pick(rng, ("ab.tanh({0})", "0.3 * {0}", "{0} * {1}")), x, weight((width,)))
            case "scaled":
                return body.add("{1} * {0}", x, weight((1,)))
        return body.add(pick(rng, ("{0} + {1}", "{0} * {1}", "{0} - 0.3 * {1}")), x, y)

    for _ in range(n):
        use = thread()
        made += [use] if use else []
    last = made[-6:]
    chosen = [pick(rng, last) for _ in range(rng.integers(3, 8))]
    terms = " + ".join(f"0.3 * {{{k}}}" for k in range(2, 2 + len(chosen)))
    return body.add(f"ab.tanh(0.3 * ({{1}} @ {{0}}) + {terms})", made[0], weight((width, width)), *chosen)


def looked_up(body: Body) -> None:
    """Look up rows of a table, which may be a parameter that is also used in products."""
    ids = [use for use in body.data if use.spec in (Data("id"), Data("ids", use.shape))]
    tables = [p.shape for p in body.drawing.parameters if p.shape and p.shape[0] >= 3]
    shape = pick(body.rng, tables) if tables and body.rng.random() < 0.6 else (5, pick(body.rng, body.drawing.sizes))
    found = pick(body.rng, ids) if ids and body.rng.random() < 0.8 else pick(body.rng, LITERAL_IDS)
    body.add("ab.lookup({0}, {1})", body.drawing.weight(shape), found)


def gates(body: Body) -> None:
    """Add gates of sums of products, as in recurrent cells."""
    rng, width = body.rng, pick(body.rng, body.drawing.sizes)
    vectors = [use for use in body.values if len(use.shape) == 1]
    if not vectors:
        return
    inputs = [pick(rng, vectors) for _ in range(rng.integers(1, 4))]
    made = []
    for _ in range(rng.integers(2, 5)):
        chosen = [x for x in inputs if rng.random() < 0.8] or inputs[:1]
        weights = [body.drawing.weight((width, *x.shape)) for x in chosen]
        terms = [f"{{{2 * k + 1}}} @ {{{2 * k}}}" for k in range(len(chosen))]
        args: list[Tree] = [use for pair in zip(chosen, weights, strict=True) for use in pair]
        if rng.random() < 0.6:
            terms.append(f"{{{len(args)}}}")
            args.append(body.drawing.weight(pick(rng, [(width,), (width,), (1,), ()])))
        gate = body.add(f"{pick(rng, ['ab.sigmoid', 'ab.tanh', '1.0 * '])}({' + '.join(terms)})", *args)
        made += [gate] if gate else []
    forms = ["{0} * {1}", "{0} + {1}", "{0} * ab.tanh({1})", "ab.concat(({0}, {1}))"]
    if not body.smooth and rng.random() < 0.5:
        forms = ["ab.where({0} > 0.1, {1}, 0.5)", "ab.where({1} < 0.3, {1}, {0})", "ab.stop_gradient({0}) * {1}"]
    for x, y in pairwise(made):
        body.add(pick(rng, forms), x, y)


def spread(body: Body) -> None:
    """Broadcast a value with fewer or smaller axes to a matrix or a vector, which products and reductions read."""
    x = body.value()
    wide = body.drawing.shape(int(body.rng.integers(1, 3)))
    body.add(pick(body.rng, ["{0} + {1}", "{0} * {1}"]), x, Use(f"np.ones({wide})", Value(wide)))


def chosen(body: Body) -> None:
    """Add a choice by something static, or a product with a number that is data."""
    if not body.data:
        return
    x, data = body.value(), pick(body.rng, body.data)
    match data.spec:
        case Data("flag"):
            body.add("(ab.tanh({0}) if {1} else 2 * {0})", x, data)
        case Data("word"):
            body.add("({0} + {0} if {1} == 'twice' else {0})", x, data)
        case Data("float") | Data("id"):
            body.add(pick(body.rng, ["{0} * {1}", "{1} + {0}", "{0} - 0.1 * {1}"]), x, data)


def again(body: Body) -> None:
    """Repeat an earlier line."""
    lines = [line for line in body.lines if not line.inner]
    if lines:
        line = pick(body.rng, lines)
        body.add(line.form, *line.args, spec=line.spec)


def factors(size: int) -> list[Shape]:
    """Return shapes with the same number of elements."""
    pairs: list[Shape] = [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    return [(size,), *pairs, (1, size, 1)]


KINDS: dict[Callable[[Body], None], float] = {
    unary: 4, binary: 5, product: 6, reduction: 4, normal: 3, shaping: 3, joined: 1.5, woven: 1.5, looked_up: 2,
    gates: 2, spread: 2, chosen: 1, again: 1,
}  # fmt: skip


def draw_line(body: Body) -> None:
    """Draw a line of any kind, or a few that belong together."""
    weights = np.array(list(KINDS.values()))
    list(KINDS)[int(body.rng.choice(len(KINDS), p=weights / weights.sum()))](body)
