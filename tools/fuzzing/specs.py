"""Specs of values, arguments and results, and the structures that hold them, as data and as Python text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Shape: TypeAlias = tuple[int, ...]
LABELS: dict[str, tuple[Any, ...]] = {"dict": ("first", 2), "State": ("h", "c")}
N_IDS = 3  # ids are below this


@dataclass
class State:
    """A structure that cells take and return."""

    h: Any
    c: Any


class Pair(NamedTuple):
    """Another structure that cells take and return."""

    left: Any
    right: Any


@dataclass(frozen=True)
class Value:
    """A value of this shape."""

    shape: Shape


@dataclass(frozen=True)
class Data:
    """An "id", "ids" (an int array of this shape), a "float", a "flag", a "word", "nothing", or an "untamed" value."""

    kind: str
    shape: Shape = ()


@dataclass(frozen=True)
class Several:
    """Parts in a "tuple", "list", "dict", "State" or "Pair"; the last three have two."""

    kind: str
    parts: tuple[Spec, ...]

    @property
    def labels(self) -> Sequence[Any]:
        """Return the indices, keys or attributes of the parts."""
        return LABELS.get(self.kind, range(len(self.parts)))

    @property
    def paths(self) -> list[str]:
        """Return the text after the structure's that accesses each part."""
        return [f".{label}" if self.kind == "State" else f"[{label!r}]" for label in self.labels]

    def build(self, parts: list[Any]) -> Any:
        """Make the structure from its parts."""
        match self.kind:
            case "tuple":
                return tuple(parts)
            case "dict":
                return dict(zip(self.labels, parts, strict=True))
            case "State" | "Pair":
                return (State if self.kind == "State" else Pair)(*parts)
        return parts


@dataclass(frozen=True)
class Each:
    """A list of any length, of values or of tuples of values."""

    element: Spec


Spec: TypeAlias = Value | Data | Several | Each


@dataclass(frozen=True)
class Use:
    """A text with its spec, such as `v3`, `a0[1]`, `self.p2[::-1]` or `np.ones((2, 1))`."""

    text: str
    spec: Spec

    @property
    def shape(self) -> Shape:
        """Return the shape of a value or ids."""
        assert isinstance(self.spec, (Value, Data))
        return self.spec.shape

    def reads(self, name: str) -> bool:
        """Return whether the text is that name, or a part of what it names."""
        return self.text == name or self.text.startswith((f"{name}[", f"{name}."))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Structure:
    """Parts combined in a "tuple", "list", "dict", "State" or "Pair"."""

    kind: str
    parts: tuple[Tree, ...]

    def __str__(self) -> str:
        parts = [str(part) for part in self.parts]
        match self.kind:
            case "tuple":
                return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
            case "list":
                return f"[{', '.join(parts)}]"
            case "dict":
                return f"{{{', '.join(f'{k!r}: {part}' for k, part in zip(LABELS['dict'], parts, strict=True))}}}"
        return f"{self.kind}({', '.join(parts)})"


Tree: TypeAlias = Use | Structure


def uses_in(tree: Tree) -> Iterator[Use]:
    """Yield the texts in a structure, in order."""
    if isinstance(tree, Use):
        yield tree
        return
    for part in tree.parts:
        yield from uses_in(part)


def parts_of(use: Use) -> list[Use]:
    """Return all parts of a structure, nested ones included; or the value itself."""
    if not isinstance(use.spec, Several):
        return [use]
    parts = [Use(f"{use.text}{path}", spec) for path, spec in zip(use.spec.paths, use.spec.parts, strict=True)]
    return [inner for part in parts for inner in (part, *(parts_of(part) if isinstance(part.spec, Several) else ()))]


def shape_tree(spec: Spec) -> Any:
    """Return the shape of a value, or a tuple of shapes for a tuple, as `shape=` takes it."""
    if isinstance(spec, Value):
        return spec.shape
    assert isinstance(spec, Several)
    return tuple(shape_tree(part) for part in spec.parts)


def constant(spec: Spec) -> Tree:
    """Return the simplest text for a spec."""
    match spec:
        case Value(shape):
            return Use(f"np.full({shape}, 0.5)", spec)
        case Data("ids", shape):
            return Use(f"np.full({shape}, 1)", spec)
        case Data("untamed", shape):
            return Use(f"np.full({shape}, 0.5)", spec)
        case Data(kind):
            return Use({"id": "1", "float": "0.5", "flag": "True", "word": "'twice'", "nothing": "None"}[kind], spec)
        case Several(kind, parts):
            return Structure(kind, tuple(constant(part) for part in parts))
        case Each(element):
            return Structure("list", (constant(element),))
