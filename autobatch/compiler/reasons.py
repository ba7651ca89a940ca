"""List the reasons why ops of a compiled stage are not in one loop nest, each with its sentence."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """The reason why two neighbours are not fused, or why an op is interpreted.

    In sentences about neighbours, {maker} and {reader} name the values that the two make; {names[0]}, ... name the
    values that other statements make, and {kinds[0]}, ... are "product" or "op" for each of these.
    """

    PRODUCT = "{names[0]} is a product, which a library computes"
    INTERPRETED = "{names[0]} is interpreted: {rule}"
    OFF = "fusion is switched off"
    ONCE = "one runs once for all rows of the type, the other for every batch"
    # in different kernels
    BETWEEN = "the {kinds[0]} {names[0]} runs between them: it reads the one and is read by the other"
    BOTH_WAIT = "the {kinds[0]} {names[0]} waits for {maker}, and {reader} for the {kinds[1]} {names[1]}"
    EDGES = "one reads from or writes to other nodes, edge by edge"
    READ_BEFORE = "{names[0]} reads {maker} in an earlier kernel, and {reader} waits for the {kinds[1]} {names[1]}"
    WITH_READER = "{reader} is computed where {names[0]} reads it, after the {kinds[1]} {names[1]}"
    # in different loop nests
    ROWS = "one runs for every {rows[0]}, the other for every {rows[1]}"
    COMBINED = "{maker} is a {combine}, known only after its loop"
    AXES = "one loop goes over {axes[0]}, the other over {axes[1]}"
    PART = "{maker} is a part of the value that {reader} reads"
    DATA = "data chooses the element of {maker} that {reader} reads"
    ELEMENTS = "{reader} reads other elements of {maker} than were just made"
    LATER_NEST = "{reader} also reads {names[0]}, which a later loop nest computes"
    NONE = "nothing prevents it; each is in the first loop nest that allows it"

    # why an op is interpreted
    NO_RULE = "it has no rule"
    WEIGHT_NOT_SHARED = "its weight is not shared by all rows, or its input is"
    LEFT_TO_LIBRARY = "a shared matrix times matrices is left to the library"
    NO_TABLE = "its table is computed once for all rows"
    PART_OF_TABLE = "its table is part of a parameter"
    NO_IDS = "its ids are not ints of the node, or too many"
    NOT_IN_LINE = "it reduces one of several axes, or its elements are not contiguous"
    NO_VECTOR = "its logits are not a vector"
    SHARED_LOGITS = "its logits are shared"
    NO_LABEL = "its label is neither a number nor an int of the node"
    NO_INT = "its label is not one int of the node"
    NOT_PER_EDGE = "its argument is not a value per edge"
