"""Draw maps over lists: the function of each element, its notation, and the reduction of the results."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzing.body import Body
from fuzzing.drawing import pick
from fuzzing.forms import BENT, BENT_BINARY, BINARY, UNARY
from fuzzing.specs import Shape, Tree, Use

PARTS = ("({0} * ab.sum({0}))", "ab.concat([{0}[:1], {0}[1:]])", "ab.softmax({0})", "{0}[::-1]", "({0} * {0}[:1])")


class Map:
    """A list of results computed from the elements of one list, and perhaps of another of the same length.

    Args:
        use: the list; its elements have shape `shape`.
        others: lists of the same length, whose elements also have shape `shape`.
    """

    def __init__(self, body: Body, use: Tree, shape: Shape, others: Sequence[Tree]) -> None:
        self.body, self.rng, self.shape = body, body.rng, shape
        self.args: list[Tree] = [use]
        self.names = ["x"]
        if others and self.rng.random() < 0.5:
            self.args.append(pick(self.rng, others))
            self.names.append("y")
        self.n_lists = len(self.args)

    def read(self, use: Use) -> str:
        """Return the place of a value that all elements read."""
        self.args.append(use)
        return f"{{{len(self.args) - 1}}}"

    def element(self) -> str:
        """Draw what is computed from an element, and set `self.shape` to the result's shape."""
        rng, text, shape = self.rng, "x", self.shape
        bent = not self.body.smooth
        for _ in range(int(rng.integers(1, 4))):
            chance = rng.random()
            if chance < 0.25 and len(shape) == 1:
                shape = (pick(rng, self.body.drawing.sizes), *shape)
                weight, shape = self.read(self.body.drawing.weight(shape)), shape[:1]
                is_affine = rng.random() < 0.5
                bias = self.read(self.body.drawing.weight(shape)) if is_affine else ""
                text = f"ab.affine({weight}, {text}, {bias})" if is_affine else f"({weight} @ {text})"
            elif chance < 0.4 and len(shape) == 1 and shape[0] > 0:
                text = pick(rng, PARTS).replace("{0}", text)
            elif chance < 0.65:
                text = f"({pick(rng, (*UNARY, *BENT) if bent else UNARY).replace('{0}', text)})"
            else:
                form = pick(rng, (*BINARY, *BENT_BINARY) if bent else BINARY)
                same = [name for name in self.names if shape == self.shape]
                other = pick(rng, same) if same and rng.random() < 0.4 else self.read(self.body.value(shape))
                text = f"({form.replace('{0}', text).replace('{1}', other)})"
        self.shape = shape
        return text

    def written(self, text: str) -> str:
        """Write the list of results as a comprehension, or with `ab.each`."""
        names, lists = ", ".join(self.names), [f"{{{k}}}" for k in range(self.n_lists)]
        if self.rng.random() < 0.5:
            return f"ab.each(lambda {names}: {text}, {', '.join(lists)})"
        over = lists[0] if len(lists) == 1 else f"zip({', '.join(lists)})"
        return f"[{text} for {names} in {over}]"


def draw_map(body: Body, use: Tree, shape: Shape, others: Sequence[Tree]) -> None:
    """Draw a line that maps over a list, and reduces the results to one value."""
    rng, element = body.rng, shape
    drawn = Map(body, use, shape, others)
    made = drawn.written(drawn.element())
    shape = drawn.shape
    options = [f"ab.sum_n({made}, shape={shape})", f"ab.mean_n({made}, shape={shape})"]
    options += [f"(sum({made}) if len({{0}}) else np.zeros({shape}))"]
    options += [f"ab.dot_n(ab.softmax_n({made}), {made}, shape={shape})"]
    options += [f"(ab.logsumexp_n({made}) if len({{0}}) else np.zeros({shape}))"]
    options += [f"sum([0.5 * z for z in {made}], start=np.zeros({shape}))"]
    if len(shape) == 1:
        options.append(f"ab.attend({drawn.read(body.value(shape))}, {made}, {made}, shape={shape})")
        options.append(f"({stacked(drawn, made, shape)} if len({{0}}) else np.zeros({shape}))")
    if not body.smooth:
        options.append(f"ab.max_n({made}, shape={shape})")
    known = f"ab.sum(ab.sum_n({{0}}, shape={element})) + " if rng.random() < 0.5 else ""  # handles an empty list, too
    body.add(known + pick(rng, options), *drawn.args)


def stacked(drawn: Map, made: str, shape: Shape) -> str:
    """Draw a vector computed from the results stacked as rows: selected rows, or attention among all of them."""
    rows, query = f"ab.stack({made})", drawn.read(drawn.body.value(shape))
    forms = [f"ab.sum(ab.softmax({rows} @ {rows}.T) @ {rows}, axis=0)"]
    forms += [f"ab.sum(ab.tanh({rows}[:, None] - {rows}), axis=(0, 1))"]
    forms += [f"({rows}[0] * ab.cross_entropy({rows} @ {query}, 0))"]
    if not drawn.body.smooth:
        forms += [f"{rows}[ab.argmax({rows} @ {query})]", f"{rows}[ab.top_k({rows} @ {query}, 1)[1]][0]"]
        forms += [f"{rows}[ab.argmax(ab.tanh({rows}) @ {rows}.T, axis=1)][-1]"]
    return pick(drawn.rng, forms)
