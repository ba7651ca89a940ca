"""The default policy: a rule chosen for the backend, and a learned state machine where that pays.

Planning time is weighed against the time it saves. On the interpreter a batch is so expensive that the rule `score`
pays, but its second direction does not. Compiled for the processor, batches hardly matter. A GPU computes while the
processor plans the next mini-batch, so more planning is free: where `autobatch doctor --calibrate MODEL --backend cuda`
has measured what batches cost there, schedules are those of least predicted time (`autobatch.policies.timed`).
Elsewhere every batch counts the same. Plans that run many times are worth a search.

Learning starts by the ski-rental rule: when the time above the chain bound, over all mini-batches so far, has been as
long as learning will take. The total is then at most twice the cost of never learning. A machine is learned on four of
the first mini-batches, and is adopted if it is predicted to be faster on the next four, including planning. Either
outcome is kept in the user's cache (`autobatch.policies.store`), by the types of the model, the backend and the costs.
All budgets count steps: the same mini-batches and the same cache give the same decisions on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from autobatch.graph.graph import Graph
from autobatch.policies.cost import CostModel, MeasuredCosts, look_up_costs
from autobatch.policies.files import save_policy
from autobatch.policies.fsm.qlearning import QLearning
from autobatch.policies.learning import learn
from autobatch.policies.policy_file import load
from autobatch.policies.rules.directed import Directed, Direction
from autobatch.policies.rules.rules import Score
from autobatch.policies.search.search import STEPS, Search
from autobatch.policies.store import find_entry, keep_entry, sign
from autobatch.policies.timed import Timed
from autobatch.schedule.schedule import Policy, Schedule, chain_lengths, revision_of
from autobatch.system.trust import trusted

LESSONS = 4  # mini-batches to learn from, and the same number to judge on
EPISODE_NS = 200  # per node, of an episode of learning
MACHINE_NS = 40  # per node and direction, that planning with a machine takes longer than with the rule


class Market(NamedTuple):
    """The settings for one backend.

    Attributes:
        batch_us: the cost of a batch beside its rows, where nothing was measured.
        direction, compact: of the rule.
        free: planning costs no time, so that it may weigh measured costs.
    """

    batch_us: float
    direction: Direction
    compact: bool
    free: bool


MARKETS = {
    "reference": Market(150.0, "forward", False, free=False),
    "cpu": Market(3.0, "forward", False, free=False),
    "cuda": Market(50.0, "both", True, free=True),
}


@final
@trusted
class Auto:
    """Chooses a policy for the backend; see the module.

    Args:
        backend: its name; an unknown one counts as "reference".
        reused: whether each plan runs many times, so that a search pays.
        search_steps: of that search, per plan.
        seed: of learning and searching.

    Attributes:
        chosen: the policy that plans now.
        settled: whether the choice is final.
        why: the reason for the choice.

    >>> from autobatch.graph import NamedTypes, make_graph
    >>> auto = Auto("cuda")
    >>> auto.schedule(make_graph(NamedTypes(("a", "b")), [0, 1], [(0, 1)])).n_batches, auto.name
    (2, 'auto (score+both+compact)')
    """

    rule = "auto"

    def __init__(
        self, backend: str = "reference", reused: bool = False, search_steps: int = STEPS, seed: int = 0
    ) -> None:
        self._backend = backend if backend in MARKETS else "reference"
        self._market = MARKETS[self._backend]
        self._seed = seed
        self._measured: MeasuredCosts | None = None
        self.chosen: Policy = Search(search_steps, seed=seed) if reused else self.make_rule()
        self.why = "plans that are used again are searched for" if reused else self._say_rule()
        self.settled = reused
        self._seen = self._n_choices = 0
        self._above_us = 0.0
        self._lessons: list[Graph] = []
        self._signature = ""
        self._worth_from = math.inf

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, without the mini-batches to learn from and their types."""
        return {**vars(self), "_lessons": [], "_above_us": 0.0, "_worth_from": math.inf}

    @property
    def name(self) -> str:
        """`auto`, with the chosen policy."""
        return f"auto ({self.chosen.name})"

    @property
    def revision(self) -> Hashable:
        """Changes when another policy is chosen, or the chosen one learns."""
        return self._n_choices, revision_of(self.chosen)

    @property
    def unseen_share(self) -> float | None:
        """That of the chosen policy; None if it does not learn."""
        return getattr(self.chosen, "unseen_share", None)

    def make_rule(self) -> Score:
        """Make the rule for the backend, used until something better is known."""
        return Score(self._market.direction, self._market.compact)

    def _say_rule(self) -> str:
        weighed = "" if self._measured is None else ", by what batches were measured to cost there"
        return f"the rule for backend {self._backend}{weighed}"

    def schedule(self, graph: Graph) -> Schedule:
        """Plan with the chosen policy; learn if it is time to.

        Raises:
            GraphError: the graph has a cycle.
        """
        self._recall(graph)
        schedule = self.chosen.schedule(graph)
        self.repeat(graph, schedule)
        return schedule

    def repeat(self, graph: Graph, schedule: Schedule) -> None:
        """Count a mini-batch that runs by this schedule, new or cached; learn if it is time to."""
        if not self.settled and graph.n_nodes:
            self._attend(graph, schedule)
            self._seen += 1
            if self._seen >= self._worth_from:
                self._learn()

    def settle(self, graphs: Sequence[Graph], n_uses: int) -> Policy:
        """Make the final choice now: learn if that pays within `n_uses` mini-batches.

        Args:
            graphs: mini-batches as `Batched.merged` gives them; eight are enough.
            n_uses: number of mini-batches that will be planned.

        Returns:
            The chosen policy, which no longer changes with the mini-batches it plans.
        """
        for graph in graphs:
            self._recall(graph)
            if not self.settled and graph.n_nodes:
                self._attend(graph, self.chosen.schedule(graph))
        if not self.settled and n_uses >= self._worth_from:
            self._learn()
        self._conclude()
        return self.chosen

    def _recall(self, graph: Graph) -> None:
        """Use what was measured for these types, and the cached choice of an earlier process, if there is one."""
        if self.settled:
            return
        signature = sign(graph.types.outlines, "auto", self._backend)
        if signature == self._signature:
            return
        self._signature = signature
        measured = look_up_costs(graph.types.outlines, self._backend) if self._market.free else None
        if measured != self._measured:
            self._measured = measured
            self._choose(self.make_rule(), self._say_rule())
        stored = find_entry("policies", self._key(), load)
        if stored is not None:
            self._choose(stored, f"{stored.about.get('why', 'learned')}; from the cache")
            self._conclude()

    def _key(self) -> str:
        """The key of the choice for these types in the cache."""
        return self._signature if self._measured is None else sign([self._signature], repr(self._measured))

    def _costs(self, graph: Graph) -> CostModel:
        """What batches of a graph cost."""
        if self._measured is None:
            return CostModel.counting(len(graph.types), self._market.batch_us)
        return self._measured.of(graph.types.outlines)

    def _timed(self, policy: Policy) -> Policy:
        """A policy that gives the schedules of least predicted time, where costs were measured."""
        return policy if self._measured is None else Timed(policy, self._measured)

    def _attend(self, graph: Graph, schedule: Schedule) -> None:
        """Keep a mini-batch to learn from; once there are enough, compute when learning pays."""
        if self._lessons and graph.types != self._lessons[0].types:  # of another function, whose types differ
            self._lessons, self._above_us, self._worth_from = [], 0.0, math.inf
        if len(self._lessons) == 2 * LESSONS:
            return
        self._lessons.append(graph)
        costs, counts = self._costs(graph), np.bincount(graph.type_id, minlength=graph.n_types)
        self._above_us += costs.schedule_us(schedule) - costs.least_us(chain_lengths(graph), counts)
        if len(self._lessons) < 2 * LESSONS:
            return
        if self._above_us <= 0:
            self.why += ", which needs no more batches than the chain bound"
            self._conclude()
            return
        tables = 4 if self._market.free else 1  # two machines in two directions
        nodes = sum(lesson.n_nodes for lesson in self._lessons)
        learning_us = tables * QLearning.episodes * nodes * EPISODE_NS / 1000
        self._worth_from = math.ceil(learning_us / self._above_us)

    def _learn(self) -> None:
        """Learn a machine, choose it or the rule, and keep the outcome in the cache."""
        to_learn, to_judge = self._lessons[:LESSONS], self._lessons[LESSONS:]
        market, rule = self._market, self.make_rule()
        aim: dict[str, Any] = {"rival": market.free}
        if self._measured is not None:
            aim = {"reward": "time", "costs": self._costs(to_learn[0])}
        machine = learn(to_learn, direction=market.direction, compact=market.compact, seed=self._seed, **aim)
        nodes = sum(graph.n_nodes for graph in to_judge)
        planning_us = 0.0 if market.free else nodes * MACHINE_NS / 1000
        saved_us = self._predict(rule, to_judge) - self._predict(machine, to_judge) - planning_us
        chosen: Directed = machine if saved_us > 0 else rule
        why = (
            f"a machine, learned on {len(to_learn)} mini-batches, is predicted to save {saved_us / len(to_judge):.0f} "
            f"microseconds on each of {len(to_judge)} others, planning included"
        )
        self._choose(chosen, why)
        chosen.about["why"] = self.why
        keep_entry("policies", self._key(), lambda path: save_policy(chosen, path))
        self._conclude()

    def _predict(self, policy: Policy, graphs: Sequence[Graph]) -> float:
        """The time of all batches of some mini-batches, in microseconds."""
        timed = self._timed(policy)
        return sum(self._costs(graph).schedule_us(timed.schedule(graph)) for graph in graphs)

    def _choose(self, policy: Policy, why: str) -> None:
        self.chosen, self.why = self._timed(policy), why
        self._n_choices += 1

    def _conclude(self) -> None:
        """Make the choice final, and drop the mini-batches kept to learn from."""
        self.settled = True
        self._lessons = []
