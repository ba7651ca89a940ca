"""The types that a batched function has met, as any of its graphs has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import autobatch as ab
from autobatch.ir.typetable import NodeType, TypeTable


def types_met(loss: ab.Batched) -> Sequence[NodeType]:
    """The types, with their programs, in the order of their numbers."""
    return cast(TypeTable, loss.merged([]).types).types
