"""Read the functions of the running Python's standard library as trees for tree models.

The leaves are names and constants in source order: `self`, `path`, `None`; strings, floats and other constants appear
only as their types, `<str>`. Keywords, operators and brackets are left out, so that a model must infer the kind of a
construct from its parts. The label of a node is its kind, one of `KINDS`. The label of the root is the first word of
the function's name, one of `VERBS`; the name itself is not in the tree.

In binary trees, parts are added one at a time: `f(a, b)` is `((f a) b)`, where both inner nodes have the construct's
label. A construct of one part, such as `return x`, is that part with the construct's label.

Source of the task: Allamanis, Peng and Sutton 2016, A convolutional attention network for extreme summarization of
source code (arXiv:1602.03001), which predicts names of functions from their bodies.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import TypeVar

import numpy as np

from autobatch.errors import DataError
from autobatch.models.data.labelled_tree import LabelledTree
from autobatch.models.data.tree import Tree

T = TypeVar("T")
KINDS: dict[str, tuple[type[ast.AST], ...]] = {
    "other": (),
    "name": (ast.Name, ast.arg, ast.alias),
    "constant": (ast.Constant, ast.JoinedStr),
    "attribute": (ast.Attribute,),
    "call": (ast.Call,),
    "subscript": (ast.Subscript, ast.Slice),
    "operation": (ast.BinOp, ast.UnaryOp, ast.BoolOp),
    "comparison": (ast.Compare,),
    "collection": (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    "assignment": (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.Delete),
    "return": (ast.Return, ast.Yield, ast.YieldFrom),
    "branch": (ast.If, ast.IfExp, ast.Match, ast.match_case),
    "loop": (ast.For, ast.AsyncFor, ast.While, ast.comprehension),
    "exception": (ast.Try, ast.TryStar, ast.ExceptHandler, ast.Raise, ast.Assert, ast.With, ast.AsyncWith),
    "definition": (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.arguments),
}
VERBS = (
    "init", "get", "set", "repr", "is", "add", "read", "write", "close", "open", "parse", "format", "create", "make",
    "check", "find",
)  # fmt: skip
CLASSES = (*KINDS, *VERBS)
N_CLASSES = len(CLASSES)

_KIND_OF = {cls: kind for kind, classes in KINDS.items() for cls in classes}
_LEFT_OUT = {"test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "encodings", "site-packages"}
_FIRST_WORD = re.compile("_*([a-z]+)")
_NO_PARTS = ast.expr_context | ast.operator | ast.unaryop | ast.boolop | ast.cmpop


def draw_trees(n_trees: int, rng: np.random.Generator, *, min_leaves: int = 4, max_leaves: int = 40) -> list[Tree[str]]:
    """Read up to `n_trees` functions as binary trees, file by file in a random order.

    Args:
        n_trees: largest number of trees; CPython 3.11 has 2,953 of this size.
        rng: draws the order of the files.
        min_leaves, max_leaves: functions of fewer or more leaves are left out.

    Returns:
        Distinct trees, reproducible for a version of Python; labels are indices of `CLASSES`.

    Raises:
        DataError: the source of the standard library is missing.
    """
    return _draw(n_trees, rng, min_leaves, max_leaves, _to_binary)


def draw_functions(
    n_trees: int, rng: np.random.Generator, *, min_leaves: int = 4, max_leaves: int = 40
) -> list[LabelledTree[str]]:
    """Read up to `n_trees` functions as in `draw_trees`, as trees with all parts of a construct as its children.

    Names and constants are words of leaves; other nodes have the word "". All have labels from `CLASSES`.

    Raises:
        DataError: the source of the standard library is missing.
    """
    return _draw(n_trees, rng, min_leaves, max_leaves, lambda tree: tree)


def to_labelled_tree(function: ast.FunctionDef | ast.AsyncFunctionDef) -> LabelledTree[str] | None:
    """Convert a function to a tree; return None if its name does not start with one of `VERBS`, or it has no leaves.

    >>> to_labelled_tree(ast.parse("def get(self): return self.items").body[0]).children[1].children
    [{"word": "", "label": "attribute", "children": [{"word": "self", "label": "name"}, \
{"word": "items", "label": "attribute"}]}]
    """
    verb = _FIRST_WORD.match(function.name)
    if verb is None or verb[1] not in VERBS:
        return None
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    parts = [tree for node in (function.args, *body) if (tree := _to_part(node)) is not None]
    return LabelledTree("", parts, verb[1]) if parts else None


def to_tree(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Tree[str] | None:
    """Convert a function to a binary tree, or return None, as in `to_labelled_tree`.

    >>> to_tree(ast.parse("def get_size(self): return len(self.items)").body[0])
    (16 (14 self) (10 (1 len) (3 (1 self) (3 items))))
    """
    tree = to_labelled_tree(function)
    return None if tree is None else _to_binary(tree)


def _draw(
    n_trees: int, rng: np.random.Generator, min_leaves: int, max_leaves: int, convert: Callable[[LabelledTree[str]], T]
) -> list[T]:
    """Read functions and convert their trees, without duplicates."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(root.rglob("*.py")) if _LEFT_OUT.isdisjoint(path.relative_to(root).parts)]
    trees: dict[str, T] = {}
    for place in rng.permutation(len(files)):
        for tree in _read_functions(files[place], max_leaves):
            if min_leaves <= sum(not node.children for node in tree.postorder()) <= max_leaves:
                converted = convert(tree)
                trees.setdefault(repr(converted), converted)
        if len(trees) >= n_trees:
            break
    if not trees:
        raise DataError(
            f"cannot read functions of the standard library: {root} holds no source; use a Python that includes it, or "
            f"other data."
        )
    return list(trees.values())[:n_trees]


def _read_functions(path: Path, max_leaves: int) -> Iterator[LabelledTree[str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in strings
            module = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # some files are invalid on purpose, for tests of tools
        return
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_small(node, max_leaves):
            tree = to_labelled_tree(node)
            if tree is not None:
                yield tree


def _is_small(function: ast.AST, max_leaves: int) -> bool:
    """Return whether a function may have few enough leaves, a cheap test before its conversion."""
    # A docstring is counted, although it is not in the tree.
    return sum(isinstance(node, ast.Name | ast.Constant | ast.arg) for node in ast.walk(function)) <= max_leaves + 1


def _to_part(node: ast.AST) -> LabelledTree[str] | None:
    """Convert a construct to a tree, or return None if it has no leaves. Recurses to the nesting depth of the code."""
    kind = _KIND_OF.get(type(node), "other")
    if isinstance(node, ast.Constant):
        return LabelledTree(_name_constant(node.value), label=kind)
    parts = []
    for _, value in ast.iter_fields(node):
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str):
                parts.append(LabelledTree(item, label=kind))
            elif isinstance(item, ast.AST) and not isinstance(item, _NO_PARTS):
                tree = _to_part(item)
                if tree is not None:
                    parts.append(tree)
    if not parts and isinstance(node, ast.stmt):
        return LabelledTree(type(node).__name__.lower(), label=kind)  # pass, return
    if len(parts) == 1 and kind == "other":
        return parts[0]
    if len(parts) == 1 and not parts[0].children:
        return LabelledTree(parts[0].word, label=kind)
    return LabelledTree("", parts, kind) if parts else None


def _to_binary(tree: LabelledTree[str]) -> Tree[str]:
    """Convert to a binary tree, adding parts one at a time; a single part gets the construct's label."""
    label = CLASSES.index(tree.label or "other")
    if not tree.children:
        return Tree.leaf(label, tree.word)
    first, *others = map(_to_binary, tree.children)
    if others:
        return reduce(lambda before, part: Tree.inner(label, before, part), others, first)
    return Tree.leaf(label, first.word) if first.is_leaf else Tree.inner(label, first.left, first.right)


def _name_constant(value: object) -> str:
    if value is None or isinstance(value, bool) or (isinstance(value, int) and 0 <= value < 10):
        return str(value)
    return f"<{type(value).__name__}>"
