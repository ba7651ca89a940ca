"""Random async programs that await their own values, to run eagerly and in mini-batches.

A program is a list of statements. They call cells on earlier values, await values, branch and loop on them, gather
branches, raise and catch. A program stores each awaited value under a key that depends only on its place in the
program, so that it can run again with the same decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import autobatch as ab

DIM, WORDS = 3, 5
MOST_TURNS = 4  # of a loop
PLAIN = (
    "step",
    "turn",
    "scale",
    "add",
    "mean",
    "score",
    "surprise",
    "choose",
    "bag",
    "forget",
    "drop",
    "stack",
    "layer",
    "attend",
    "slice",
    "row",
)
WAITING = ("wait", "wait for word", "wait for vector", "wait twice", "wait for all", "wait for data", "wait for rows")


class Boom(Exception):
    """Raised by programs."""


@dataclass(frozen=True)
class Pair:
    """A structure of values and data."""

    left: Any
    right: Any


@dataclass(frozen=True)
class Do:
    """A statement: its kind, numbers that choose its inputs, and nested statements."""

    kind: str
    picks: tuple[int, ...] = (0, 0)
    bodies: tuple[tuple[Do, ...], ...] = ()


@dataclass(frozen=True)
class Instance:
    """The program of an instance: its number in the mini-batch, data, and statements."""

    number: int
    data: tuple[float, ...]
    does: tuple[Do, ...]


@dataclass
class Known:
    """The values available to a program or to a branch of it.

    Attributes:
        path, n_told: its place in the program, and the number of values awaited there.
        depth: the number of sequential waits before it.
    """

    states: list[Any]
    vectors: list[Any] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)
    words: list[Any] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    path: tuple[int, ...] = ()
    n_told: int = 0
    n_gathers: int = 0
    depth: int = 0

    def vector(self, k: int) -> Any:
        """Return a vector, or that of a state."""
        found = [*self.vectors, *(h for h, _ in self.states)]
        return found[k % len(found)]

    def word(self, k: int) -> Any:
        """Return an int, either Python's or computed."""
        return self.words[k % len(self.words)]

    def table(self, k: int) -> Any:
        """Return a table with any number of rows."""
        return self.tables[k % len(self.tables)]

    def branch(self, place: int) -> Known:
        """Return the values for the start of a branch."""
        states, vectors, scalars, words, tables, numbers = map(list, self.lists())
        path = *self.path, self.n_gathers, place
        return Known(states, vectors, scalars, words, tables, numbers, path, depth=self.depth)

    def join(self, other: Known) -> None:
        """Add the last value of each kind from a branch."""
        for mine, its in zip(self.lists(), other.lists(), strict=True):
            mine.extend(its[-1:])

    def lists(self) -> tuple[list[Any], ...]:
        """Return all values by kind."""
        return self.states, self.vectors, self.scalars, self.words, self.tables, self.numbers


class RoundModel(ab.Module):
    """Cells of several shapes, and the interpreter of programs.

    Attributes:
        told: the awaited values by instance, path and count.
        depths: the depth of each finished instance.
        holds: whether programs read values from `told` instead of awaiting them.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.embedding = ab.Parameter(rng.standard_normal((WORDS, DIM)))
        self.lstm = ab.LSTMCell(DIM, DIM, rng=rng)
        self.output = ab.Linear(DIM, WORDS, rng=rng)
        self.mixing = ab.Parameter(rng.standard_normal((DIM, DIM)))
        self.told: dict[Any, Any] = {}
        self.depths: dict[int, int] = {}
        self.holds = False
        self.astype("float64")

    @ab.cell
    def start(self, x: Any) -> Any:
        return ab.tanh(x), 0.5 * x

    @ab.cell
    def step(self, state: Any, word: Any) -> Any:
        return self.lstm(ab.lookup(self.embedding, word), state)

    @ab.cell
    def turn(self, x: Any) -> Any:
        return ab.tanh(self.mixing @ x)

    @ab.cell
    def scale(self, x: Any, number: float) -> Any:
        return x * (0.1 * number)

    @ab.cell
    def mean(self, xs: list[Any]) -> Any:
        return ab.mean_n(xs)

    @ab.cell
    def drop(self, x: Any) -> Any:
        return ab.dropout(x, 0.4)

    @ab.cell
    def score(self, x: Any) -> Any:
        return ab.sum(x * x) - 0.4, ab.max(x)

    @ab.cell
    def surprise(self, x: Any, word: Any) -> Any:
        return ab.cross_entropy(self.output(x), word)

    @ab.cell
    def likeliest(self, x: Any) -> Any:
        return ab.argmax(self.output(x))

    @ab.cell
    def two_best(self, x: Any) -> Any:
        return ab.top_k(self.output(x), 2)

    @ab.cell
    def sample(self, x: Any) -> Any:
        return ab.categorical(self.output(x))

    @ab.cell
    def bag(self, words: Any) -> Any:
        return ab.sum(ab.lookup(self.embedding, words), axis=0)

    @ab.cell
    def stacked(self, xs: list[Any]) -> Any:
        return ab.tanh(ab.stack(xs))

    @ab.cell(ragged=("rows",))
    def layer(self, rows: Any) -> Any:
        return ab.tanh(rows @ self.mixing), ab.max(rows, axis=0)

    @ab.cell(ragged=("rows",))
    def attended(self, x: Any, rows: Any) -> Any:
        return ab.attend(x, rows, ab.tanh(rows))

    async def loss(self, instance: Instance) -> Any:
        return (await self.everything(instance))[0]

    async def everything(self, instance: Instance) -> Any:
        """Return a scalar, and the last values of each kind."""
        known = Known([self.start(np.array(instance.data))], words=[1], tables=[np.eye(DIM)], numbers=[0.3])
        try:
            await self.run(instance, known, instance.does)
        finally:
            self.depths[instance.number] = known.depth
        total = ab.sum_n([ab.tanh(x) for x in known.scalars], shape=())
        return total, [made[-2:] for made in known.lists()]

    async def tell(self, instance: Instance, known: Known, asked: Any) -> Any:
        """Await values and store them, or return the stored ones."""
        known.depth += 1
        known.n_told += 1
        key = instance.number, known.path, known.n_told
        if not self.holds:
            self.told[key] = await ab.value(asked)
        return self.told[key]

    async def run(self, instance: Instance, known: Known, does: tuple[Do, ...]) -> None:
        for do in does:
            await self.do(instance, known, do)

    async def do(self, instance: Instance, known: Known, do: Do) -> None:
        """Run one statement."""
        if do.kind in PLAIN:
            self.make(known, do)
        elif do.kind in WAITING:
            await self.wait(instance, known, do)
        else:
            await self.control(instance, known, do)

    def make(self, known: Known, do: Do) -> None:
        """Call a cell."""
        a, b = do.picks
        match do.kind:
            case "step":
                known.states.append(self.step(known.states[a % len(known.states)], known.word(b)))
            case "turn":
                known.vectors.append(self.turn(known.vector(a)))
            case "scale":
                known.vectors.append(self.scale(known.vector(a), known.numbers[b % len(known.numbers)]))
            case "add":
                known.vectors.append(known.vector(a) - 0.5 * known.vector(b))
            case "mean":
                known.vectors.append(self.mean([known.vector(a + k) for k in range(1 + b % 3)]))
            case "drop":
                known.vectors.append(self.drop(known.vector(a)))
            case "score":
                known.scalars.append(self.score(known.vector(a))[b % 2])
            case "surprise":
                known.scalars.append(self.surprise(known.vector(a), known.word(b)))
            case "choose":
                known.words.append((self.likeliest, self.sample)[b % 2](known.vector(a)))
            case "stack":
                known.tables.append(self.stacked([known.vector(a + k) for k in range(1 + b)]))
            case "layer":
                rows, most = self.layer(known.table(a))
                known.tables.append(rows)
                known.vectors.append(most)
            case "attend":
                known.vectors.append(self.attended(known.vector(a), known.table(b)))
            case "slice":
                rows = known.table(a)
                known.tables.append((rows[::-1], rows[: 1 + b], rows[-2:])[b % 3])
            case "row":
                known.vectors.append(known.table(a)[-1])
            case "bag":
                known.vectors.append(self.bag(self.two_best(known.vector(a))[1]))
            case _:
                assert do.kind == "forget"
                for made in known.lists():
                    del made[:-1]

    async def wait(self, instance: Instance, known: Known, do: Do) -> None:
        a, b = do.picks
        match do.kind:
            case "wait":
                known.numbers.append(float(await self.tell(instance, known, self.scalar(known, a))))
            case "wait for word":
                known.words.append(int(await self.tell(instance, known, self.likeliest(known.vector(a)))))
            case "wait for vector":
                known.vectors.append(await self.tell(instance, known, known.vector(a)))
            case "wait twice":
                asked = self.score(known.vector(a))
                first, again = await self.tell(instance, known, asked), await self.tell(instance, known, asked)
                assert first == again
                known.numbers.append(float(first[0]))
            case "wait for rows":
                known.tables.append(np.array(await self.tell(instance, known, known.table(a))))
            case "wait for data":
                known.vectors.append(np.array(await self.tell(instance, known, np.array(instance.data))))
            case _:
                assert do.kind == "wait for all"
                await self.wait_for_all(instance, known, known.vector(a), known.word(b))

    async def control(self, instance: Instance, known: Known, do: Do) -> None:
        """Run nested statements, or raise."""
        a, b = do.picks
        match do.kind:
            case "if":
                is_positive = await self.tell(instance, known, self.scalar(known, a)) > 0
                await self.run(instance, known, do.bodies[0 if is_positive else 1])
            case "loop":
                for _ in range(1 + b % MOST_TURNS):
                    await self.run(instance, known, do.bodies[0])
                    known.vectors.append(self.turn(known.vector(-1)))
                    if await self.tell(instance, known, self.score(known.vectors[-1])[1]) > 0.5:
                        break
            case "gather":
                known.n_gathers += 1
                branches = [known.branch(k) for k in range(len(do.bodies))]
                runs = zip(branches, do.bodies, strict=True)
                await ab.gather(*(self.run(instance, branch, body) for branch, body in runs))
                known.depth = max((branch.depth for branch in branches), default=known.depth)
                for branch in branches:
                    known.join(branch)
            case "try":
                try:
                    await self.run(instance, known, do.bodies[0])
                except Boom:
                    known.scalars.append(self.score(known.vector(a))[0])
            case "finally":
                try:
                    await self.run(instance, known, do.bodies[0])
                finally:
                    known.vectors.append(self.turn(known.vector(a)))
            case _:
                assert do.kind == "raise"
                if known.numbers[-1] > 0.25 * (a % 3):
                    raise Boom("told so")

    def scalar(self, known: Known, k: int) -> Any:
        """Return an existing scalar or a new one."""
        return known.scalars[k % len(known.scalars)] if known.scalars else self.score(known.vector(k))[0]

    async def wait_for_all(self, instance: Instance, known: Known, x: Any, word: Any) -> None:
        """Await a structure of values and data."""
        asked = {
            "rows": known.table(0),
            "x": (x, 2.5),
            "pair": Pair(self.score(x), word),
            "list": [self.turn(x), "text", self.score(x)[0]],
        }
        found = await self.tell(instance, known, asked)
        assert found["x"][1] == 2.5
        known.tables.append(np.array(found["rows"]))
        assert found["list"][1] == "text"
        known.vectors.append(np.array(found["x"][0] + found["list"][0]))
        known.numbers.append(float(found["pair"].left[0]))
        known.words.append(int(found["pair"].right))


picks = st.tuples(st.integers(0, 5), st.integers(0, 5))


@st.composite
def blocks(draw: Any, depth: int, raises: bool) -> tuple[Do, ...]:
    """Draw statements, nested up to a depth."""
    kinds = [*PLAIN, *WAITING, *(["raise"] if raises else [])]
    nested = ["if", "loop", "gather", "finally", *(["try"] if raises else [])] if depth else []
    does = list[Do]()
    for kind in draw(st.lists(st.sampled_from([*kinds, *nested, *nested]), max_size=6 if depth > 1 else 4)):
        counts = {"if": 2, "loop": 1, "finally": 1, "try": 1, "gather": draw(st.integers(0, 3))}
        n = counts[kind] if kind in nested else 0
        does.append(Do(kind, draw(picks), tuple(draw(blocks(depth - 1, raises)) for _ in range(n))))
    return tuple(does)


@st.composite
def minibatches(draw: Any, depth: int = 2, most: int = 4, raises: bool = False) -> list[Instance]:
    """Draw instances, some of which run the same program on other data."""
    programs = draw(st.lists(blocks(depth, raises), min_size=1, max_size=3))
    numbers = st.tuples(*[st.integers(-20, 20).map(lambda x: 0.1 * x + 0.013)] * DIM)
    n = draw(st.integers(1, most))
    return [Instance(i, draw(numbers), draw(st.sampled_from(programs))) for i in range(n)]
