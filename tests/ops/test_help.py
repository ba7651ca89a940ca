"""Test the help of ops: signature, shapes, gradient, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import pydoc
import re
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.ops.define import Op
from helpers.runs.ways import each
from list_ops import public_ops


@each("name, op", public_ops().items())
def test_help_shows_signature_shapes_gradient_and_example(name: str, op: Any) -> None:
    shown = pydoc.plain(pydoc.render_doc(op))
    arguments = inspect.signature(op).parameters
    assert arguments
    assert not {"xp", "out", "args", "kwargs", "random", "segments"} & set(arguments)
    assert re.search(rf"\n{op.__name__}\(\s*{next(iter(arguments))}", shown)  # Python 3.13 breaks long lines
    for part in ("Shapes: ", "Gradient: ", ">>> "):
        assert f"\n    {part}" in shown, f"the docstring of ab.{name} has no line that starts with {part!r}"
    if isinstance(op, Op) and op.pullback is None:
        assert "Gradient: none" in shown


@each("name, op", public_ops().items())
def test_examples_of_ops(name: str, op: Any) -> None:
    example = doctest.DocTestParser().get_doctest(op.__doc__, {"ab": ab, "np": np}, name, None, None)
    assert example.examples
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=told.append)
    assert not told, "".join(told)


def test_an_op_is_itself_in_a_class() -> None:
    class Model:
        activation = ab.tanh

    assert Model.activation is Model().activation is ab.tanh
