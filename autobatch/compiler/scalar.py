"""The scalar expressions of element-wise ops, as text for generated source.

An op says `1 / (1 + exp(-x))` in its arguments' names; here names become {0}, {1}, ... and numbers too, for they have
to be of the model's float type, or NumPy's rules and Numba's would widen the whole expression.
"""

from __future__ import annotations

import ast
import re
from functools import cache

from autobatch.ops.define import Op

FUNCTIONS = {
    "exp": "exp",
    "log": "log",
    "log1p": "log1p",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "abs": "abs",
    "max": "larger",
}
WHOLE = ("sigmoid", "softplus", "erf", "ndtr", "gelu", "gelu_tanh")  # ops that have a function of their own
POWERS = {
    2.0: "{0} * {0}",
    1.0: "{0}",
    0.5: "sqrt({0})",
    -1.0: "{1} / {0}",
    -0.5: "{1} / sqrt({0} + {2})",
}  # of -0 infinity


@cache
def to_text(op: Op) -> tuple[str, tuple[float, ...]]:
    """The expression of an op with its arguments as {0}, {1}, ..., and the numbers that follow them.

    >>> from autobatch.ops.elementwise import relu
    >>> to_text(relu)
    ('larger({0}, {1})', (0.0,))
    """
    assert op.scalar is not None
    if op.name in WHOLE:
        return f"{op.name}({{0}})", ()
    translator = _Translator(op.names)
    tree = translator.visit(ast.parse(op.scalar, mode="eval").body)
    text = re.sub(r"_read(\d+)", r"{\1}", ast.unparse(tree))
    return text, tuple(translator.numbers)


class _Translator(ast.NodeTransformer):
    """Replaces names and numbers by `_read0`, ...; comparisons become 1 or 0."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names, self.numbers = names, list[float]()

    def number(self, data: float) -> ast.expr:
        """A number as a further argument."""
        if data not in self.numbers:
            self.numbers.append(data)
        return ast.Name(f"_read{len(self.names) + self.numbers.index(data)}")

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """An argument."""
        return ast.Name(f"_read{self.names.index(node.id)}")

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """A number."""
        assert isinstance(node.value, (int, float))
        return self.number(float(node.value))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A function."""
        assert isinstance(node.func, ast.Name)
        return ast.Call(ast.Name(FUNCTIONS[node.func.id]), [self.visit(arg) for arg in node.args], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Arithmetic; a power is a function."""
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Pow):
            return ast.Call(ast.Name("power"), [left, right], [])
        return ast.BinOp(left, node.op, right)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """A choice; its condition stays a condition."""
        assert isinstance(node.test, ast.Compare)
        return ast.IfExp(self._condition(node.test), self.visit(node.body), self.visit(node.orelse))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """A comparison used as a number."""
        return ast.IfExp(self._condition(node), self.number(1.0), self.number(0.0))

    def _condition(self, node: ast.Compare) -> ast.Compare:
        return ast.Compare(self.visit(node.left), node.ops, [self.visit(right) for right in node.comparators])
