"""Schedules (which nodes run together, and in which order), the policies that make them, and a lower bound.

A schedule is a sequence of batches; a batch holds ready nodes of one type. A policy turns a graph into a schedule. Most
policies choose a type, and all its ready nodes then run (`native/schedule/simulator.h`). Built-in policies do so in the
core (`autobatch.policies`); a user's own policy subclasses `FrontierPolicy`, which calls Python for every batch.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from autobatch._native import Simulation, longest_chains
from autobatch.arguments import show
from autobatch.arrays import IntArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import cost_of, to_dag, type_costs
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import naming_cycles
from autobatch.keywords import checked

MAX_BATCHES_PRINTED = 40
MAX_NODES_PRINTED = 12


@dataclass(frozen=True, eq=False)
class Schedule:
    """K batches over N nodes, in the order in which they run; iterating gives (type id, nodes).

    Attributes:
        batch_type: int32[K], the type of each batch.
        batch_ptr: int32[K+1]; batch k runs order[batch_ptr[k]:batch_ptr[k+1]].
        order: int32[N], the nodes.
    """

    batch_type: IntArray
    batch_ptr: IntArray
    order: IntArray

    @property
    def n_batches(self) -> int:
        """Return K, the number of batches."""
        return self.batch_type.size

    @property
    def n_nodes(self) -> int:
        """Return N, the number of nodes."""
        return self.order.size

    @checked()
    def cost(self, graph: Graph) -> float:
        """Sum the costs of the batches, given the costs of the types in `graph`; K if it has none."""
        return cost_of(to_dag(graph), self.batch_type)

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[tuple[int, IntArray]]:
        bounds = self.batch_ptr.tolist()
        for type_id, first, end in zip(self.batch_type.tolist(), bounds, bounds[1:], strict=False):
            yield type_id, self.order[first:end]

    def __repr__(self) -> str:
        return f"Schedule(batches={self.n_batches}, nodes={self.n_nodes})"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.draw()

    @checked()
    def draw(self, names: Sequence[str] | None = None) -> str:
        """Draw the batches as an SVG element; `names`, from a table of types, replace type ids."""
        from autobatch.display.batches import draw_batches

        return draw_batches(self.batch_type, self.batch_ptr, self.order, names)

    @checked()
    def text(self, names: Sequence[str] | None = None) -> str:
        """Write a line per batch, long ones shortened; `names`, from a table of types, replace type ids."""
        lines = [repr(self)]
        for k, (type_id, nodes) in enumerate(islice(self, MAX_BATCHES_PRINTED)):
            shown = " ".join(map(str, nodes[:MAX_NODES_PRINTED])) + (" ..." if nodes.size > MAX_NODES_PRINTED else "")
            lines.append(f"  {k}: {names[type_id] if names else f'type {type_id}'} x {nodes.size}: {shown}")
        if self.n_batches > MAX_BATCHES_PRINTED:
            lines.append("  ...")
        return "\n".join(lines)


class Policy(Protocol):
    """The interface of a policy, which turns a graph into a schedule and sees ints only.

    A policy of your own needs no more than this. One that learns may also have `unseen_share` and `revision`, see
    `BasePolicy`.
    """

    @property
    def name(self) -> str:
        """Return the name of the policy for users."""

    def schedule(self, graph: Graph) -> Schedule:
        """Order all nodes of `graph` into batches."""


class CoreRule(NamedTuple):
    """A rule of the native core, and its options.

    Attributes:
        number: the number of the rule in `native/policies/rules.h`.
        directions: 1 to plan from the inputs, 2 from the outputs, 3 for the better of both.
        compacts: whether to delete superfluous batches.
        weights: the weights of the rule `score`; see `autobatch.policies.rules.rules.Weights`.
    """

    number: int
    directions: int
    compacts: bool
    weights: tuple[float, float, float, float]


class BasePolicy(ABC):
    """The full interface of a policy: the base of the package's policies, and of the wrappers that `adapt` makes."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the policy for users."""

    @property
    def unseen_share(self) -> float | None:
        """Return the share of the last schedule's batches chosen in unlearned states; None if it does not learn."""
        return None

    @property
    def revision(self) -> Hashable:
        """Return a value that changes when schedules may change; plans of earlier revisions are not reused."""
        return 0

    @property
    def given(self) -> Policy:
        """Return the policy as the user gave it."""
        return self

    @property
    def core_rule(self) -> CoreRule | None:
        """Return the core rule that makes the same schedules; None if `schedule` has to be called."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _repr_html_(self) -> str:
        """Return the name, and the first line of the class docstring, for notebooks."""
        from autobatch.display.html import write_heading

        return write_heading(self.name, (type(self).__doc__ or "").partition("\n")[0])

    @abstractmethod
    def schedule(self, graph: Graph) -> Schedule:
        """Order all nodes of `graph` into batches."""


class _Adapted(BasePolicy):
    """A wrapper of a policy that is not a `BasePolicy`."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    @property
    def given(self) -> Policy:
        given: Policy = self._policy
        return given

    @property
    def name(self) -> str:
        return str(self._policy.name)

    @property
    def unseen_share(self) -> float | None:
        share: float | None = getattr(self._policy, "unseen_share", None)
        return share

    @property
    def revision(self) -> Hashable:
        revision: Hashable = getattr(self._policy, "revision", 0)
        return revision

    def schedule(self, graph: Graph) -> Schedule:
        schedule: Schedule = self._policy.schedule(graph)
        return schedule


def adapt(policy: object) -> BasePolicy:
    """Return a policy with the full interface: the policy itself if it is a `BasePolicy`, else a wrapper.

    Raises:
        PolicyError: the policy has no `schedule` or no name.
    """
    if isinstance(policy, BasePolicy):
        return policy
    if isinstance(policy, type) or not hasattr(policy, "schedule"):
        raise PolicyError(
            f"policy must be an object with a name and schedule(graph), such as ab.policies.get(name), got "
            f"{show(policy)}; ab.batched also takes a name of ab.policies.names() or the path of a saved policy."
        )
    if not isinstance(getattr(policy, "name", None), str):
        raise PolicyError(
            f"a policy must have a name for reports, but class {type(policy).__name__} has none; give it one, such as "
            f"name = {type(policy).__name__.lower()!r}."
        )
    return _Adapted(policy)


@checked()
def min_batches(graph: Graph) -> int:
    """Return a lower bound on the number of batches of any schedule of `graph`.

    Two nodes on one path never share a batch, so a type needs at least as many
    batches as its most crowded path holds; the types' needs add up.

    Args:
        graph: N nodes in topological order, E edges, T types.

    Returns:
        Batches (launch sequences), not seconds; 0 for an empty graph.

    Raises:
        GraphError: an edge points backwards; the message names it.

    Cost: O(T * (N + E)) time, O(N) ints.
    Source: ED-Batch (arXiv:2302.03851), the lower bound on batches.

    >>> from autobatch.graph import NamedTypes, make_graph
    >>> min_batches(make_graph(NamedTypes(("cell", "add")), [0, 1, 0], [(0, 1), (1, 2)]))
    3
    """
    return int(chain_lengths(graph).sum())


@checked()
def min_cost(graph: Graph) -> float:
    """Return a lower bound on the cost of any schedule of `graph`: `min_batches`, with batches weighted by the costs of
    their types.

    Raises:
        GraphError: an edge points backwards; the message names it.

    >>> from autobatch.graph.dag import Dag
    >>> from autobatch.graph.sketch import to_graph
    >>> min_cost(to_graph(Dag.from_edges([0, 1, 0], [(0, 1), (1, 2)], costs=[1, 5])))
    7.0
    """
    return float(chain_lengths(graph) @ type_costs(to_dag(graph)))


@checked()
def chain_lengths(graph: Graph) -> IntArray:
    """Count, per type, the most nodes of that type on any one path: int32[T].

    Raises:
        GraphError: an edge points backwards; the message names it.

    Cost: O(T * (N + E)) time, O(N) ints; only types that have nodes are swept.
    """
    with naming_cycles(graph):
        return longest_chains(to_dag(graph))


@dataclass(frozen=True)
class Frontier:
    """The input of a policy before each batch: counts of nodes by type.

    Attributes:
        ready: [T] nodes that can run now.
        remaining: [T] nodes that have not run, including ready ones.
    """

    ready: IntArray
    remaining: IntArray

    @property
    def types(self) -> list[int]:
        """Return the ids of the types that have ready nodes."""
        ids: list[int] = np.flatnonzero(self.ready).tolist()
        return ids


class FrontierPolicy(ABC):
    """A policy that names the type to run next; subclass it to write your own.

    It is called in Python before every batch, which costs microseconds where a compiled policy costs nanoseconds. The
    same simulator runs the choices.
    """

    name: str

    def prepare(self, graph: Graph) -> None:  # noqa: B027, a hook that may stay empty
        """Inspect `graph` before its first batch; does nothing unless overridden."""

    @abstractmethod
    def choose(self, frontier: Frontier) -> int:
        """Return the id of the type to run next, one of `frontier.types`."""

    def schedule(self, graph: Graph) -> Schedule:
        """Run the simulator to the end, calling `choose` before every batch.

        Raises:
            PolicyError: the choice is not a type, or is a type without ready nodes.
        """
        dag = to_dag(graph)
        self.prepare(graph)
        with naming_cycles(graph):
            sim, n_batches = Simulation(dag, is_measured=False), 0
        while (ready := sim.ready()).any():
            sim.step(self._choice(graph, Frontier(ready, sim.unrun()), n_batches))
            n_batches += 1
        return Schedule(*sim.batches())

    def _choice(self, graph: Graph, frontier: Frontier, n_batches: int) -> int:
        choice = self.choose(frontier)
        ready = {type_id: graph.types.names[type_id] for type_id in frontier.types}
        try:
            type_id = operator.index(choice)
        except TypeError:
            type_id = -1  # not a type, so refused below
        if type_id not in ready:
            raise PolicyError(
                f"policy {self.name!r} chose {choice!r} for batch {n_batches}, but the types with ready nodes "
                f"are {ready}; choose() must return one of frontier.types."
            )
        return type_id
