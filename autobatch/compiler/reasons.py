"""The reasons why ops of a compiled stage are not in one loop nest, each with its sentence."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """Why two neighbours are not fused, or why an op is interpreted.

    In sentences about neighbours, {maker} and {reader} name the values that the two make; {names[0]}, ... name the
    values that other statements make, and {kinds[0]}, ... say whether those are products or ops.
    """

    PRODUCT = "{names[0]} is a product, which a library computes"
    INTERPRETED = "{names[0]} is interpreted: {rule}"
    OFF = "fusion is switched off"
    ONCE = "one runs once for all rows of the type, the other for every batch"
    # in different kernels
    BETWEEN = "the {kinds[0]} {names[0]} stands between: it reads the one and is read by the other"
    BOTH_WAIT = "the {kinds[0]} {names[0]} waits for {maker}, and {reader} for the {kinds[1]} {names[1]}"
    EDGES = "one goes to or from other nodes, edge by edge"
    READ_BEFORE = "{names[0]} reads {maker} in an earlier kernel, and {reader} waits for the {kinds[1]} {names[1]}"
    WITH_READER = "{reader} is made where {names[0]} reads it, after the {kinds[1]} {names[1]}"
    # in different loop nests
    ROWS = "one runs for every {rows[0]}, the other for every {rows[1]}"
    COMBINED = "{maker} is a {combine}, known only after its loop"
    AXES = "one loop goes over {axes[0]}, the other over {axes[1]}"
    PART = "{maker} is a part of what {reader} reads"
    DATA = "data chooses the element of {maker} that {reader} reads"
    ELEMENTS = "{reader} reads other elements of {maker} than were just made"
    LATER_NEST = "{reader} reads {names[0]} too, which a later loop nest makes"
    NONE = "nothing stands between; each is in the first loop nest that it may be in"

    # why an op is interpreted
    NO_RULE = "it has no rule"
    WEIGHT_NOT_SHARED = "its weight is not shared by all rows, or its input is"
    LEFT_TO_LIBRARY = "a shared matrix times matrices is left to the library"
    NO_TABLE = "its table is computed once for all rows"
    PART_OF_TABLE = "its table is part of a parameter"
    NO_IDS = "its ids are not of the node, or many"
    NOT_IN_LINE = "its elements are not in a line"
    NO_VECTOR = "its logits are not a vector"
    SHARED_LOGITS = "its logits are shared"
    NO_LABEL = "its label is neither a number nor an int of the node"
    NO_INT = "its label is not one int of the node"
    NOT_PER_EDGE = "its argument is not one per edge"
