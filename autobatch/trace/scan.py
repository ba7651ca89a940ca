"""Scans: recursions over sequences as values."""

from __future__ import annotations

from typing import Any

import numpy as np

from autobatch._native import Forest
from autobatch.errors import DataError
from autobatch.keywords import checked
from autobatch.trace.handles import Value
from autobatch.trace.recursion import GIVEN, ForestRecursion, Function, count_items, field_of, show_fields


class Scan(ForestRecursion):
    """A recursion over sequences, see `autobatch.scan`.

    Attributes:
        initial, reverse: the arguments of `autobatch.scan`.
    """

    kind = "scan"

    def __init__(
        self,
        step: Function,
        initial: Any,
        reverse: bool,
        each: Function | None,
        last: Function | None,
        where: str | None,
    ) -> None:
        super().__init__(step, each, last, where)
        self.initial, self.reverse = initial, reverse

    def describe(self) -> dict[str, Any]:
        """Return the arguments of `autobatch.scan` that are given."""
        found = {"step": self.node, "initial": self.initial, "each": self.each, "last": self.root, "where": self.where}
        return {name: x for name, x in found.items() if x is not None} | ({"reverse": True} if self.reverse else {})

    def find_initial(self, owner: object, initial: Any) -> Any:
        """Return the state before the first item: that of a call, an attribute of the owner, or what a method returns.

        Raises:
            GraphError: the owner has no such attribute.
        """
        found = self.initial if initial is GIVEN else initial
        if isinstance(found, str):
            name, found = found, getattr(owner, found, None)
            if found is None:
                raise self.refuse(owner, name, "a state, or a method that returns one,", found)
            if callable(found):
                found = found()
        return tuple(found) if isinstance(found, list) else found

    def compute(self, forest: Forest, node: Any, leaf: Any, each: Any, where: int, initial: Any) -> Any:
        """Call the functions for all items, in order; return the states unless there are other functions."""
        return forest.scan(node, True if each is None and self.root is None else each, where, initial)

    def read(self, instance: Any, names: tuple[str, ...]) -> Forest:
        """Read a sequence, or the fields of an instance, which are sequences."""
        if isinstance(instance, (list, tuple, np.ndarray, Value)):
            if len(names) != 1:
                raise DataError(
                    f"an instance of {self!r} must have the fields {', '.join(names) or 'of its items'}, got a single "
                    f"sequence."
                )
            items = [*instance] if isinstance(instance, Value) else instance
            return Forest.from_sequence(len(items), self.reverse, names, (items,))
        values = tuple(field_of(instance, name) for name in names)
        n = count_items(names, values)
        if n is None:
            raise DataError(
                f"an instance of {self!r} must be a sequence, or have one of the fields {', '.join(names)}, got "
                f"{show_fields(instance)}."
            )
        return Forest.from_sequence(n, self.reverse, names, values)

    def __repr__(self) -> str:
        return f"<scan {self.name}>" if self.name else "<scan>"


@checked()
def scan(
    step: Function,
    initial: Any = None,
    *,
    reverse: bool = False,
    each: Function | None = None,
    last: Function | None = None,
    where: str | None = None,
) -> Any:
    """Define a recursion over sequences as a value.

    `step` computes the state of an item from the state before it. Its other parameters are fields of the item, by name;
    one with a default may be missing. The scan means

        for i in range(n):
            states.append(step(states[-1] if i else initial, word=instance["word"][i], ...))

    except that calls of cells cost some tens of nanoseconds while a batched function is recorded.

    An instance is a dict or an object whose fields are arrays or lists with an item for each step; or a sequence
    itself, if the functions take one field.

    Args:
        step: a cell or another function, or the name of a method if the scan is an attribute of a class.
        initial: the state before the first item: arrays or values in any structure, None, the name of an attribute that
            holds one, such as a Parameter, or the name of a method that returns one. A call may give another.
        reverse: whether to go from the last item to the first. Results keep the order of the items.
        each: a function of the state of an item and of its fields. If given, here or in a call, the result is the list
            of its results.
        last: a function of the state after all items and of the fields of the last one, for the result without `each`.
        where: the field that says for which items there are results; see `autobatch.fold`.

    Returns:
        A callable of an instance and the optional keywords `each`, `where` and `initial`. It returns the list of all
        states, or what `each` or `last` makes of states.

    Raises:
        DataError: when called: fields differ in length, or an item lacks one.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> class Tagger(ab.Module):
    ...     forward = ab.scan("step", "start")
    ...     backward = ab.scan("step", "start", reverse=True)
    ...     def __init__(self):
    ...         self.start = ab.Parameter(np.float32(1.0))
    ...     @ab.cell
    ...     def step(self, state, word):
    ...         return 0.5 * state + word
    ...     def both(self, words):
    ...         return [a * b for a, b in zip(self.forward(words), self.backward(words))]
    >>> tagger = Tagger()
    >>> [float(x) for x in tagger.forward([2, 4])], [float(x) for x in tagger.backward([2, 4])]
    ([2.5, 5.25], [4.25, 4.5])
    >>> [[float(x) for x in one] for one in ab.batched(tagger.both)([[2, 4], [3]])]
    [[10.625, 23.625], [12.25]]
    """
    return Scan(step, initial, reverse, each, last, where)
