"""Draw a program: modules with straight-line bodies, a recursion over trees or chains, and calls of it.

Lines are run as they are drawn, on the values of an instance; a line is drawn again if torch raises an error or its
values are large.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fuzzing_torch.blocks import Block
from fuzzing_torch.templates import CHANGES, HOOKS, KINDS, LAYERS, WEIGHTED
from fuzzing_torch.worlds import Norm, Triple

T = TypeVar("T")
HEADER = (
    "import copy", "import torch", "from torch import nn", "from torch.nn import functional as F",
    "from fuzzing_torch.worlds import Norm, Triple, chain, is_float, total, tree, weaker",
)  # fmt: skip
HOLE = re.compile(r"\{([fibtm])\}")
DATA = {"t": ("token", "label"), "m": ("mask",)}
"""The names of data, by hole."""
MAX_ELEMENTS, MAX_NUMBER, N_TRIES = 40, 50.0, 40
FORMS = ("tree", "tree", "list", "chain")
STATES = (("{h}", "{s}"), ("({h}, {n})", "{s}[0]"), ("{{'h': {h}, 'n': {n}}}", "{s}['h']"))
"""How a cell returns its state, and how another reads its float."""


class Drawing:
    """A program while it is drawn.

    Args:
        seed: its number.
    """

    def __init__(self, seed: int) -> None:
        self.rng, self.seed = np.random.default_rng([seed, 7]), seed
        self.dim, self.form, self.wants = int(self.rng.integers(2, 4)), self.pick(FORMS), bool(self.rng.random() < 0.5)
        self.made, self.read = self.pick(STATES)
        self.extra = self.pick(("int", "bool", "float"))
        self.names: dict[str, dict[str, Any]] = {}

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.integers(len(choices)))]

    def program(self) -> Block:
        """Draw the whole program."""
        floats = torch.zeros(self.dim, dtype=torch.float64)
        item = {"x": floats + 0.3, "token": torch.tensor(1), "mask": torch.arange(self.dim) > 0}
        state = {"s": floats - 0.2}
        cells = [
            self.cell("Leaf", ("x", "token", "mask"), item),
            self.cell("Merge", ("a", "b", "x"), {"a": state["s"], "b": state["s"] + 0.5, "x": item["x"]}),
            self.cell("Out", ("s", "label"), {"s": state["s"], "label": torch.tensor(2)}),
        ]
        lines = [Block(line) for line in HEADER]
        model = self.model()
        return Block("", (*lines, *cells, model, Block("def program(world):", self.script())))

    def cell(self, name: str, takes: Sequence[str], given: dict[str, Any]) -> Block:
        """Draw a module class and its lines."""
        layers: dict[str, str] = {}
        owner: Any = nn.Module()
        owner.scale, owner.flag = 1.3, False
        owner.register_buffer("shift", torch.full((), 0.4, dtype=torch.float64))
        scope = {"torch": torch, "nn": nn, "F": functional, "Triple": Triple, "Norm": Norm, "self": owner, "copy": copy}
        values = dict(given)
        lines = [] if name == "Leaf" else [f"{k} = {self.read.format(s=k)}" for k in takes if k in "abs"]
        is_list = self.form == "list" and name == "Merge"
        if is_list:
            part = self.read.format(s="child")
            over = self.pick(("{}.sum(0)", "{}.amax(0)", "({}.softmax(0) * {}).sum(0)", "{}.mean(0)", "{}[-1]"))
            lines = [f"hs = torch.stack([{part} for child in b])", f"b = {over.format('hs', 'hs')}"]
            lines += [f"a = {self.read.format(s='a')}"]
        for _ in range(int(self.rng.integers(2, 8))):
            drawn = self.layer(values, scope, layers) if self.rng.random() < 0.3 else self.line(values, scope)
            if drawn:
                lines.append(drawn)
        body = [Block(line) for line in lines]
        if self.rng.random() < 0.15 and (target := self.tensor(values, "f")):
            changed = Block(f"{target} = {target} * 2")
            body.append(Block(self.pick(("if self.flag:", "if self.training:", "with torch.no_grad():")), (changed,)))
        if self.rng.random() < 0.1 and (target := self.tensor(values, "f")):
            body.append(Block(f"if {target}.requires_grad:", (Block(f"{target}.register_hook(lambda g: g * 3)"),)))
        body.append(Block(f"return {self.returns(name, values, takes)}"))
        init = [Block("super().__init__()"), Block("self.scale, self.flag = 1.3, False")]
        init += [Block("self.register_buffer('shift', torch.full((), 0.4, dtype=torch.float64))")]
        init += [Block(f"self.{layer} = {made}") for layer, made in layers.items()]
        self.names[name] = dict(layers)
        parts = Block("def __init__(self):", tuple(init)), Block(f"def forward(self, {', '.join(takes)}):", tuple(body))
        return Block(f"class {name}(nn.Module):", parts)

    def line(self, values: dict[str, Any], scope: dict[str, Any]) -> str:
        """Draw a line that torch accepts."""
        kinds = np.array(WEIGHTED) / sum(WEIGHTED)
        for _ in range(N_TRIES):
            template = self.pick(KINDS[int(self.rng.choice(len(KINDS), p=kinds))])
            if line := self.run(template, values, scope):
                return line
        return ""

    def layer(self, values: dict[str, Any], scope: dict[str, Any], layers: dict[str, str]) -> str:
        """Draw a layer, and a line that calls it."""
        for _ in range(N_TRIES):
            made, call = self.pick([*LAYERS.items()])
            text = made.format(d=self.dim, e=int(self.rng.integers(2, 4)))
            name = f"l{len(layers)}"
            setattr(scope["self"], name, eval(text, scope).double())
            form = f"self.{name}({call})" + ("[0]" if "Multihead" in made else "")
            if line := self.run(form, values, scope):
                layers[name] = text
                return line
        return ""

    def run(self, template: str, values: dict[str, Any], scope: dict[str, Any]) -> str:
        """Return a line from a template if torch accepts it and its values are few, finite and not too large."""
        names = [self.tensor(values, kind) for kind in HOLE.findall(template)]
        if not all(names):
            return ""
        left = iter(names)
        text = HOLE.sub(lambda _: next(left), template)
        target = f"v{len(values)}"
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                result = eval(text, {**scope, **values})
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AssertionError):
            return ""
        if not isinstance(result, Tensor) or not 0 < result.numel() <= MAX_ELEMENTS or result.dim() > 3:
            return ""
        if not bool(result.isfinite().all()) or float(result.double().abs().max()) > MAX_NUMBER:
            return ""
        values[target] = result
        return f"{target} = {text}"

    def tensor(self, values: dict[str, Any], kind: str) -> str:
        """Draw a value of a kind, more likely a late one; empty if there is none."""
        names = [name for name, x in values.items() if (name in DATA[kind] if kind in DATA else _kind(x) == kind)]
        if not names:
            return ""
        return names[max(int(self.rng.integers(len(names))) for _ in range(2))]

    def returns(self, name: str, values: dict[str, Any], takes: Sequence[str]) -> str:
        """Draw what a cell returns: a state, or a loss."""
        names = [k for k, x in values.items() if _kind(x) == "f"]
        late = names[-3:]
        if name == "Out":
            return " + ".join(f"{k}.double().sin().sum()" for k in late)
        fitting = [k for k in names if values[k].shape == (self.dim,)]
        h = " + ".join(f"{k}.double().mean()" for k in late)
        state = f"torch.tanh({self.pick(fitting)}.double() + {h})"
        condition = f"{self.pick(late)}.mean() > 0.1"
        n = {"int": f"({condition}).long() + 1", "bool": condition, "float": f"{self.pick(late)}.double().mean()"}
        return self.made.format(h=state, n=n[self.extra])

    def model(self) -> Block:
        """Draw the class of the whole model."""
        init = ["super().__init__()"]
        for name in ("Leaf", "Merge", "Out"):
            runs = self.pick(("auto",) * 14 + ("torch", "torch", "autobatch"))
            way = "" if runs == "auto" else f", runs={runs!r}"
            init.append(f"self.{name.lower()} = world.cell({name}().double(){way})")
        everything = [(part, layer, made) for part, layers in self.names.items() for layer, made in layers.items()]
        same = [(one, other) for one in everything for other in everything if one < other and one[2] == other[2]]
        if same and self.rng.random() < 0.5:
            (part, layer, made), (second, at, _) = self.pick(same)
            if made.startswith(("nn.Linear", "nn.Embedding")):
                init.append(f"self.{part.lower()}.{layer}.weight = self.{second.lower()}.{at}.weight")
        leaf = "self.leaf(node['x'], node['token'], node['mask'])"
        out = "self.out(s, node['label'])"
        if self.form == "chain":
            parts = (
                Block(f"node = instance[0]; s = {leaf}"),
                Block(f"y = {out}"),
                Block("for node in instance[1:]:", (
                    Block(f"s = self.merge(s, {leaf}, node['x'])"),
                    Block(f"y = y + {out}"),
                )),
            )  # fmt: skip
            methods = [Block("def loss(self, instance):", (*parts, Block("return y")))]
            last = Block(f"return {self.read.format(s='s')}")
            methods.append(Block("def other(self, instance):", (*parts, last)))
        else:
            below = [Block(f"s = {leaf}")]
            if self.form == "list":
                below.append(Block("children = [self.state(child, losses) for child in node['children']]"))
                below.append(Block("if children:", (Block("s = self.merge(s, children, node['x'])"),)))
            else:
                merge = Block("s = self.merge(s, self.state(child, losses), node['x'])")
                below.append(Block("for child in node['children']:", (merge,)))
            below += [Block(f"losses.append({out})"), Block("return s")]
            how = self.pick(("sum(losses)", "torch.stack(losses).sum()", "torch.stack(losses).mean()", "losses[-1]"))
            loss = Block("losses = []"), Block("s = self.state(instance, losses)"), Block(f"return {how}")
            other = self.pick((self.read.format(s="s"), "{'h': " + self.read.format(s="s") + ", 'y': losses[0] * 2}"))
            methods = [
                Block("def state(self, node, losses):", tuple(below)),
                Block("def loss(self, instance):", loss),
                Block("def other(self, instance):", (*loss[:2], Block(f"return {other}"))),
            ]
        made = Block("def __init__(self, world):", tuple(map(Block, init)))
        return Block("class Model(nn.Module):", (made, *methods))

    def script(self) -> tuple[Block, ...]:
        """Draw the calls of the model."""
        lines = ["torch.default_generator.manual_seed(1)", "model = Model(world)"]
        make = "chain({}, {}, {}, {})" if self.form == "chain" else "tree({}, {}, {}, {})"
        sizes = [int(self.rng.integers(1, 4)) for _ in range(3)]
        made = [make.format(self.seed % 1000 * 10 + k, self.dim, n, self.wants) for k, n in enumerate(sizes)]
        lines.append(f"instances = [{', '.join(made)}]")
        bind = ["loss = world.batched(model.loss, model)", "other = world.batched(model.other, model)"]
        lines += bind
        live: list[str] = []
        n_calls = int(self.rng.integers(1, 5))
        for k in range(n_calls):
            lines += self.change(bind) if not live else []
            some = self.pick(("instances", "instances", "instances[1:]", "instances[::-1]"))
            lines += [f"y{k} = {self.pick(('loss', 'loss', 'other'))}({some})", f"world.log('output {k}', y{k})"]
            live.append(f"y{k}")
            if self.rng.random() < 0.2:
                lines.append(self.pick(("model.train()", "model.eval()", "model.leaf.scale = 0.9")))
            if self.rng.random() < 0.6 or k == n_calls - 1:
                for y in live:
                    lines += [f"if torch.is_tensor(total({y})): total({y}).backward()"]
                lines += ["world.gradients(model, instances)"]
                live = []
                if self.rng.random() < 0.3:
                    lines += ["torch.optim.SGD(model.parameters(), 0.01).step()"]
        return tuple(map(Block, lines))

    def change(self, bind: Sequence[str]) -> list[str]:
        """Draw changes of the model's state."""
        lines = []
        for _ in range(int(self.rng.integers(0, 3))):
            parts = [
                (part.lower(), layer, made) for part, layers in self.names.items() for layer, made in layers.items()
            ]
            part = self.pick(("leaf", "merge", "out"))
            weighted = [
                f"model.{p}.{layer}.weight" for p, layer, made in parts if made.startswith(("nn.Lin", "nn.Emb"))
            ]
            if self.rng.random() < 0.2:
                where = self.pick([f"model.{part}", *(f"model.{p}.{layer}" for p, layer, _ in parts)])
                lines.append(self.pick(HOOKS).format(m=where))
                continue
            text = self.pick(CHANGES)
            if "{p}" in text and not weighted:
                continue
            text = text.format(p=self.pick(weighted) if weighted else "", c=f"model.{part}")
            lines.append(text)
            if text.startswith("model = "):
                lines += bind
        return lines


def _kind(x: Any) -> str:
    if not isinstance(x, Tensor):
        return ""
    return "f" if x.is_floating_point() else "b" if x.dtype == torch.bool else "i"


def draw_program(seed: int) -> Block:
    """Draw a program by number."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        return Drawing(seed).program()
