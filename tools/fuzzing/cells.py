"""Draw cells with their arguments and results, and instances with their losses."""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from fuzzing.body import Body
from fuzzing.derivatives import derivative, of_one, over_rows
from fuzzing.drawing import Drawing, Rng, is_tame, pick
from fuzzing.lines import WIDTHS, draw_line, weave
from fuzzing.maps import draw_map
from fuzzing.program import Argument, Function, Program, numbers
from fuzzing.specs import Data, Each, Several, Shape, Spec, Structure, Tree, Use, Value, shape_tree

LENGTHS = (0, 1, 1, 2, 2, 3, 6)  # of lists
PAIRS = ("tuple", "list", "dict", "State", "Pair")


def draw_program(seed: int, derivatives: bool = False) -> Program:
    """Draw a program by number; the same number always yields the same program.

    Args:
        derivatives: whether instances and cells ask for derivatives, and instances hold arrays.
    """
    rng = np.random.default_rng(seed)
    sizes = tuple(int(n) for n in rng.choice((1, 2, 3, 4, 5), size=3))
    if rng.random() < 0.06:
        sizes = (*sizes, 0)
    drawing = Drawing(rng, smooth=bool(rng.random() < 0.6), sizes=sizes, derivatives=derivatives)
    with ab.randomness():  # drawn lines are run, and their values decide what follows
        if not derivatives and rng.random() < 0.2:
            instances = draw_woven(drawing)
        else:
            draw_cells(drawing)
            instances = draw_instances(drawing)
    program = Program(tuple(drawing.parameters), tuple(drawing.cells), tuple(instances), drawing.smooth)
    return program.without_the_unread()


def draw_cells(drawing: Drawing) -> None:
    """Draw the cells of a program; later ones may call earlier ones."""
    rng = drawing.rng
    for number in range(rng.choice(4, p=(0.05, 0.5, 0.3, 0.15))):
        chance = rng.random()
        n_lines = int(rng.integers(40, 70)) if chance < 0.015 else int(1 + rng.geometric(0.22))
        drawing.define(draw_cell(drawing, f"cell_{number}", n_lines, is_wide=bool(0.015 < chance < 0.035)))


def draw_cell(drawing: Drawing, name: str, n_lines: int, is_wide: bool) -> Function:
    """Draw a cell."""
    rng = drawing.rng
    body = CallingBody(drawing)
    takes = []
    for k in range(int(rng.integers(18, 24)) if is_wide and rng.random() < 0.5 else int(rng.integers(1, 4))):
        spec, keyword = draw_spec(drawing), bool(rng.random() < 0.15)
        static = spec == Data("id") and bool(rng.random() < 0.2)
        takes.append(Argument(f"a{k}", spec, keyword, static))
        body.take(f"a{k}", spec, example(spec, rng))
    takes.sort(key=lambda argument: argument.keyword)
    for use in [*body.lists]:
        if rng.random() < 0.9:
            body.variadic(use)
    for _ in range(n_lines):
        body.line()
    returns = draw_returns(body, [a.spec for a in takes], n=int(rng.integers(20, 28)) if is_wide else None)
    return Function(name, tuple(takes), tuple(body.lines), returns, is_method=bool(rng.random() < 0.8))


def draw_woven(drawing: Drawing) -> list[Function]:
    """Draw a cell of two vectors that joins and cuts values and reads them across products; and its calls."""
    rng, body = drawing.rng, CallingBody(drawing)
    spec = Value((pick(rng, WIDTHS),))
    takes = (Argument("a0", spec), Argument("a1", spec))
    for take in takes:
        body.take(take.name, spec, example(spec, rng))
    woven = weave(body, spec.shape[0], int(rng.integers(3, 11))) or body.value(spec.shape)
    drawing.define(Function("woven", takes, tuple(body.lines), woven))
    instances = []
    for number in range(2):
        calls = CallingBody(drawing, "r")
        for _ in range(2 + number):
            calls.add("self.woven({0}, {1})", calls.value(spec.shape), drawing.data(spec.shape), spec=spec)
        loss = calls.add("ab.sum({0})", calls.values[-1]) or Use("np.zeros(())", Value(()))
        returns = Structure("tuple", (loss, Structure("list", ())))
        instances.append(Function(f"instance_{number}", (), tuple(calls.lines), returns))
    return instances


def draw_spec(drawing: Drawing) -> Spec:
    """Draw the spec of an argument."""
    rng = drawing.rng

    def value() -> Value:
        return Value(drawing.shape())

    match pick(rng, ("value",) * 8 + ("pair",) * 3 + ("data",) * 4 + ("each",) * 3 + ("nested", "memory")):
        case "pair":
            return Several(pick(rng, PAIRS), (value(), value()))
        case "data":
            kind = pick(rng, ("id", "id", "ids", "float", "flag", "word"))
            return Data(kind, pick(rng, ((2,), (0,), (2, 2))) if kind == "ids" else ())
        case "each":
            pair = Several("tuple", (value(), value()))
            return Each(pick(rng, list[Spec]((value(), value(), pair))))
        case "nested":
            inner = pick(rng, list[Spec]((Data("float"), Data("id"), Each(value()))))
            return Several(pick(rng, PAIRS), (Several("tuple", (value(), value())), inner))
        case "memory":
            size = pick(rng, drawing.sizes)
            return Several("tuple", (Each(Value((size,))), Each(value())))
    return value()


def example(spec: Spec, rng: Rng, n: int = 2) -> Any:
    """Return an example of an argument."""
    match spec:
        case Value(shape):
            return np.round(rng.standard_normal(shape), 2)
        case Data("ids", shape):
            return np.full(shape, 1)
        case Data(kind):
            return {"id": 1, "float": 0.5, "flag": True, "word": "twice"}[kind]
        case Each(element):
            return [example(element, rng) for _ in range(n)]
        case Several(_, parts):
            return spec.build([example(part, rng) for part in parts])


def draw_returns(body: CallingBody, takes: list[Spec], n: int | None) -> Tree:
    """Draw what a cell returns: mostly late values, some arguments unchanged, some values twice."""
    rng = body.rng
    n = n or int(rng.choice((1, 2, 3, 5), p=(0.35, 0.35, 0.2, 0.1)))
    shapes = [spec.shape for spec in takes if isinstance(spec, Value)]
    leaves: list[Tree] = []
    for _ in range(n):
        if shapes and rng.random() < 0.4:
            leaves.append(body.shaped(pick(rng, shapes)))
        else:
            leaves.append(body.result())
    if n > 1 and rng.random() < 0.1:
        leaves[1] = leaves[0]
    if rng.random() < 0.02:
        leaves.append(draw_untamed(body))
        n += 1
    if n == 1 and rng.random() < 0.9:
        return leaves[0]
    if n == 2:
        return Structure(pick(rng, PAIRS), tuple(leaves))
    if n > 2 and rng.random() < 0.3:
        leaves = [Structure(pick(rng, PAIRS), (leaves[0], leaves[1])), *leaves[2:]]
    return Structure(pick(rng, ("tuple", "tuple", "list")), tuple(leaves))


def draw_untamed(body: CallingBody) -> Tree:
    """Draw a value that may be infinite or have an infinite gradient; nothing ever reads it."""
    x = body.value()
    form = pick(body.rng, ("ab.log(ab.relu({0}))", "ab.sqrt({0} * 0.0)", "1.0 / ({0} * 0.0)", "ab.relu({0}) ** 0.5"))
    use = body.add(form, x, spec=Data("untamed", x.shape))
    return use or x


def _is_returned(spec: Spec) -> bool:
    """Return whether an instance may return it, which must have the same structure of values in every mini-batch."""
    return all(map(_is_returned, spec.parts)) if isinstance(spec, Several) else not isinstance(spec, Data)


def spec_of(tree: Tree) -> Spec:
    """Return the spec of a tree of values."""
    if isinstance(tree, Use):
        return tree.spec
    return Several(tree.kind, tuple(spec_of(part) for part in tree.parts))


class CallingBody(Body):
    """A body that calls cells, reads lists, and asks for derivatives."""

    depth = 0

    def inside(self, prefix: str) -> CallingBody:
        """Return the body of a function that is defined here, and may read all that is known."""
        made = CallingBody(self.drawing, prefix)
        made.known, made.data, made.samples, made.depth = [*self.known], [*self.data], {**self.samples}, self.depth + 1
        return made

    def loss(self) -> Tree:
        """Draw a scalar."""
        return draw_loss(self)

    @property
    def lists(self) -> list[Use]:
        return [use for use in self.known if isinstance(use.spec, Each)]

    def line(self) -> None:
        """Draw a line, a call, or a derivative."""
        if self.drawing.derivatives and self.rng.random() < (0.3 if self.depth < 2 else 0.1):
            pick(self.rng, (derivative, derivative, derivative, of_one, over_rows))(self)
        elif self.drawing.cells and self.rng.random() < (0.1 if self.in_cell else 0.75):
            self.call(pick(self.rng, self.drawing.cells))
        else:
            draw_line(self)

    def call(self, cell: Function) -> None:
        """Add a call of a cell, unless its values are too large."""
        args = tuple(self.argument(take.spec) for take in cell.takes)
        places = [f"{take.name}={{{k}}}" if take.keyword else f"{{{k}}}" for k, take in enumerate(cell.takes)]
        owner = "self." if cell.is_method else ""
        spec = spec_of(cell.returns)
        n_lines = len(self.lines)
        made = self.add(f"{owner}{cell.name}({', '.join(places)})", *args, spec=spec)
        leaves = [use for use in self.known if made and use.reads(made.text) and isinstance(use.spec, Value)]
        if any(not is_tame(self.evaluate(use.text)) for use in leaves):
            del self.lines[n_lines:]
            self.known = [use for use in self.known if made is None or not use.reads(made.text)]

    def argument(self, spec: Spec, n: int | None = None) -> Tree:
        """Draw an argument."""
        rng = self.rng
        match spec:
            case Value(shape):
                return self.value(shape)
            case Data("ids", shape):
                return Use(f"np.array({rng.integers(3, size=shape).tolist()}, int).reshape({shape})", spec)
            case Data(kind):
                given = [use for use in self.data if use.spec == spec]
                if given and rng.random() < 0.5:
                    return pick(rng, given)
                texts = {
                    "id": pick(rng, ("{}", "{}", "np.int64({})", "np.int32({})")).format(rng.integers(3)),
                    "float": pick(rng, ("{:.2f}", "np.float64({:.2f})")).format(rng.standard_normal()),
                    "flag": f"{bool(rng.random() < 0.5)}", "word": f"{pick(rng, ('twice', 'once'))!r}",
                }  # fmt: skip
                return Use(texts[kind], spec)
            case Each(Value(shape)) if n is None and self.drawing.derivatives and (wide := self.rows(shape)):
                return Structure("list", tuple(wide))
            case Each(element):
                parts = [self.argument(element) for _ in range(pick(rng, LENGTHS) if n is None else n)]
                return Structure("list", tuple(parts))
            case Several(kind, parts):
                known = [use for use in self.known if use.spec == spec]
                if known and rng.random() < 0.7:
                    return pick(rng, known)
                n = pick(rng, LENGTHS) if all(isinstance(part, Each) for part in parts) else None
                return Structure(kind, tuple(self.argument(part, n) for part in parts))

    def rows(self, shape: Shape) -> list[Use]:
        """Draw the rows of a value; empty if no value has rows of this shape."""
        wide = [use for use in self.values if use.shape and use.shape[1:] == shape and use.shape[0] <= 6]
        if not wide or self.rng.random() < 0.5:
            return []
        chosen = pick(self.rng, wide)
        return [Use(f"{chosen.text}[{k}]", Value(shape)) for k in range(chosen.shape[0])]

    def variadic(self, use: Use) -> None:
        """Read a list, by one of the forms for any length, or by its elements."""
        rng, element = self.rng, element_of(use)
        shape, size = shape_tree(element), pick(rng, self.drawing.sizes)
        whole = use.text.rpartition("[")[0]  # lists in one structure are equally long
        others = [o for o in self.lists if whole and o.text.rpartition("[")[0] == whole and o.text != use.text]
        if not isinstance(element, Several) and rng.random() < 0.5:
            draw_map(self, use, shape, [other for other in others if element_of(other) == element])
            return
        names = ["sum_n", "sum_n", "mean_n"] + ([] if self.smooth else ["max_n"])
        plain = f"ab.{pick(rng, names)}({{0}}, shape={shape})"
        if isinstance(element, Several):
            first = element.parts[0]
            assert isinstance(first, Value)
            if len(first.shape) == 1 and rng.random() < 0.4:
                form = f"ab.sum_n([ab.sigmoid({{1}} @ h) for h, c in {{0}}], shape={(size,)})"
                self.add(form, use, self.drawing.weight((size, *first.shape)))
            self.add(plain, use, spec=element)
            return
        if others and len(shape) == 1:
            value = shape_tree(element_of(others[0]))
            form = f"ab.attend({{2}}, {{0}}, {{1}}, scale={pick(rng, ('1.0', '0.5'))}, shape={value})"
            self.add(form, use, others[0], self.value(shape))
        options = [plain, plain, f"ab.sum_n([ab.tanh(x) * {{1}} for x in {{0}}], shape={shape})"]
        options += [f"(sum({{0}}) if len({{0}}) else np.zeros({shape}))", "{1} * (1.0 + len({0}))"]
        options += [f"ab.sum_n([x * y for x, y in zip({{0}}, {{0}}[::-1])], shape={shape})"]
        self.add(pick(rng, options), use, self.drawing.weight(shape))


def element_of(use: Use) -> Spec:
    """Return the spec of a list's elements."""
    assert isinstance(use.spec, Each)
    return use.spec.element


def draw_instances(drawing: Drawing, n: int | None = None) -> list[Function]:
    """Draw instances, of very different sizes."""
    rng = drawing.rng
    made = []
    for number in range(n or int(rng.choice((1, 2, 3, 5), p=(0.2, 0.4, 0.3, 0.1)))):
        body, takes = CallingBody(drawing, "r"), list[Argument]()
        for _ in range(rng.integers(0, 3) if drawing.derivatives else 0):
            spec = Value(drawing.shape())
            drawing.n_numbers += 1
            takes.append(Argument(f"d{drawing.n_numbers}", spec))
            body.take(takes[-1].name, spec, np.asarray(numbers(drawing.n_numbers, spec.shape)))
        n_lines = int(rng.integers(15, 40)) if rng.random() < 0.02 else int(rng.integers(2, 8))
        for _ in range(n_lines if rng.random() < 0.97 else 0):
            body.line()
        loss = draw_loss(body)
        known = [use for use in body.known if _is_returned(use.spec)]
        aux: list[Tree] = [pick(rng, known) for _ in range(rng.integers(0, 3)) if known]
        if aux and rng.random() < 0.3:
            aux[0] = Structure(pick(rng, PAIRS), (aux[0], aux[-1]))
        returns = Structure("tuple", (loss, Structure("list", tuple(aux))))
        made.append(Function(f"instance_{number}", tuple(takes), tuple(body.lines), returns))
    return made


TERMS = (
    "ab.sum(ab.tanh({0}))", "ab.sum(ab.tanh({0}))", "ab.sum({0})", "ab.mean({0})", "-ab.sum({0})", "ab.sum({0} * {0})",
)  # fmt: skip


def draw_loss(body: CallingBody) -> Tree:
    """Draw a scalar made of some of the values, each of which may be used twice."""
    rng, values = body.rng, body.values
    chosen = [body.result() for _ in range(rng.integers(1, 5))] if values else []
    scalars = [use for use in values if use.shape == ()]
    if scalars and rng.random() < 0.15:
        return scalars[-1]
    terms: list[Tree] = []
    for use in chosen:
        made = body.add(pick(rng, TERMS) if 0 not in use.shape else "ab.sum({0})", use)
        terms += [made] if made else []
    names = [f"{{{k}}}" for k in range(len(terms))]
    form = pick(rng, (" + ".join(names), f"sum([{', '.join(names)}])", f"ab.sum_n([{', '.join(names)}], shape=())"))
    return (body.add(form, *terms) if terms else None) or Use("np.zeros(())", Value(()))
