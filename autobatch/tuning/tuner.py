"""Decides for one function how its mini-batches run, from the first ones of each class, and watches what it decided.

Mini-batches of one mode whose nodes (or unrecorded instances) have one next power of two are a class. The first of a
class runs as the options say. Then what was decided in another process is taken from the cache; or every choice that
changes its plan, and is not predicted to be slower, gets its turn on the mini-batches that follow, each of which runs
once. Choices that win are tried together in the end. Decisions are kept in the cache; pinned ones are not questioned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from autobatch.blas.choosing import BY_SIZE, MAX_SIZE, Chooser
from autobatch.blas.threads import most_threads
from autobatch.errors import PlanError
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite.passes import rewrite
from autobatch.plan.plan import Plan, PlannedTypes, Planner
from autobatch.runtime.backend import Backend
from autobatch.runtime.planning import Choices, Planning
from autobatch.runtime.step import Clock, Step
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import Frontier, FrontierPolicy
from autobatch.trace.record import MiniBatch, Recorder
from autobatch.tuning.costs import CostModel, Work, measure_work
from autobatch.tuning.seat import Seat
from autobatch.tuning.store import Decision, find_decisions, find_measured, keep_decision, keep_measured, sign_model
from autobatch.tuning.trial import MUCH_WORSE, Trial, Watch
from autobatch.tuning.variant import LAYOUTS, OTHERS, Decisions, Variant, check_threads, read_decisions, write_decisions

Switches: TypeAlias = tuple[bool | str, ...]
NOT_WORSE = 1.1  # times the prediction for the variant in force: what is predicted to take longer is not tried
MOST_TRIED = 4  # beside the variant in force
PAUSE = 200  # mini-batches after falling back to one thread, before more are tried again; then twice as many,
MOST_DOUBLED = 6  # times at most


class Tuning:
    """Chooses for the mini-batches of one function; made by `make_tuning`.

    Args:
        recorder, planning: of the function.
        base: the variant that the options amount to.
        backend: that runs.
        switches: whether rewrites and the planner's switches may change.
        threads: whether the number of threads may.
        pinned: decisions that hold; None to decide here.
        options: all else that decisions depend on.

    Attributes:
        base: as given.
        is_off: whether every mini-batch runs as the options say at the time.
    """

    def __init__(
        self,
        recorder: Recorder,
        planning: Planning,
        base: Variant,
        backend: Backend,
        switches: bool,
        threads: bool,
        pinned: Decisions | None,
        options: Sequence[str],
    ) -> None:
        self.base = base
        self.is_off = pinned == {OTHERS: base}
        self._recorder, self._planner, self._backend = recorder, planning.planner, backend
        self._switches, self._threads, self._pinned = switches, threads, pinned
        self._options = (backend.name, repr(base), f"switches {switches}", f"threads {threads}", *options)
        self._seats: dict[str, Seat] = {}
        self._plannings = {id(planning.planner): planning}
        self._planners: dict[Switches, Planner] = {}
        self._planned: dict[tuple[str, Variant], float] = {}
        self._open: tuple[Step, Seat, Variant, Choices] | None = None
        self._speeds: dict[tuple[int, int, int], float] = {}

    @property
    def decisions(self) -> dict[str, dict[str, Any]]:
        """What is in force, by class of mini-batches; give it as `tune` to have it again."""
        if self._pinned is not None:
            return write_decisions(self._pinned)
        return write_decisions({OTHERS: self.base} | {seat.label: seat.variant for seat in self._seats.values()})

    @property
    def settled(self) -> bool:
        """Whether nothing is being tried, for the classes of mini-batches that were met."""
        return all(seat.trial is None and (seat.begun or self._pinned is not None) for seat in self._seats.values())

    def prepare(self, minibatch: MiniBatch, choices: Choices, clock: Clock, tried: bool = True) -> Step:
        """Plan a mini-batch as decided, or as the variant whose turn it is."""
        seat = self._seat_of(minibatch, training=choices.purpose is not None)
        if not seat.looked_up and minibatch.instances and minibatch.graph is None:
            self._look_up(seat)
        variant = seat.trial.next() if tried and seat.trial is not None else seat.variant
        step = self._plan(variant, minibatch, choices, clock)
        self._open = (step, seat, variant, choices) if tried else None
        return step

    def finish(self, step: Step) -> None:
        """Take the time of the mini-batch that was prepared last and has run."""
        if self._open is None or self._open[0] is not step or self._pinned is not None or not step.graph.n_nodes:
            return
        _, seat, variant, choices = self._open
        self._open = None
        seconds = self._seconds(step, seat, variant)
        if not seat.looked_up:
            self._look_up(seat)
        if not seat.begun:
            self._begin(seat, step.graph, choices)
        elif seat.trial is not None:
            seat.trial.add(variant, seconds)
            if seat.trial.done:
                self._conclude(seat)
        elif seat.watch is not None and seat.watch.add(seconds):
            self._fall_back(seat, seat.watch)
        elif seat.pause:
            seat.pause -= 1
            if not seat.pause:
                self._try_again(seat)

    def describe(self, minibatch: MiniBatch, training: bool) -> str:
        """Say how mini-batches like this one run, and why; nothing where they run as given."""
        if self.is_off:
            return ""
        seat = self._seat_of(minibatch, training)
        going_on = "; others are being tried" if seat.trial is not None else ""
        return f"{seat.label}: {seat.variant.differs_from(self.base)} ({seat.why}{going_on})"

    # Classes.

    def _seat_of(self, minibatch: MiniBatch, training: bool) -> Seat:
        listed, recorded = minibatch.instances, minibatch.graph is None
        size, unit = (sum(g.n_nodes for g in listed), "nodes") if recorded else (len(listed), "instances")
        label = f"{'train' if training else 'infer'} up to {1 << max(size - 1, 0).bit_length()} {unit}"
        if label not in self._seats:
            variant, why = self.base, "as given; nothing is measured yet"
            if self._pinned is not None:
                variant, why = self._pinned.get(label, self._pinned[OTHERS]), "pinned"
            self._seats[label] = Seat(label, variant, why)
        return self._seats[label]

    def _seconds(self, step: Step, seat: Seat, variant: Variant) -> float:
        """Seconds per node of running, and of planning: where a plan was found, as long as it took to make one."""
        nodes = step.graph.n_nodes
        planning = step.clock.total("rewrite", "schedule", "place") / 1e3 / nodes
        if step.plan_hit:
            planning = self._planned.get((seat.label, variant), 0.0)
        self._planned[seat.label, variant] = planning
        return step.clock.total("forward", "backward") / 1e3 / nodes + planning

    # Decisions.

    def _look_up(self, seat: Seat) -> None:
        """Take what the cache holds for a class, unless it is pinned, or more threads than can be had now."""
        seat.looked_up = True
        if self._pinned is not None:
            return
        seat.signature = sign_model(self._recorder.types.types, *self._options)
        known = find_decisions(seat.signature).get(seat.label)
        if known is not None and known.variant.threads <= max(most_threads(), self.base.threads):
            self._adopt(seat, replace(known, why=f"{known.why}; from the cache"))
            seat.begun = True

    def _begin(self, seat: Seat, graph: Graph, choices: Choices) -> None:
        """After the first mini-batch of a class: see what there is to try."""
        seat.begun = True
        works = self._worth_trying(graph, choices)
        seat.works, seat.nodes = works, graph.n_nodes
        if len(works) > 1:
            seat.trial = Trial(list(works))
            seat.why = f"as given; being compared with {_list(self.base, list(works)[1:])}"
        else:
            self._adopt(seat, Decision(self.base, "nothing else would change it, or be predicted to be faster"))

    def _conclude(self, seat: Seat) -> None:
        """Take what has won; try what has won together; keep the outcome."""
        trial, seat.trial = seat.trial, None
        assert trial is not None, "a trial that is done is concluded"
        chosen = trial.chosen
        medians = seat.medians = {**seat.medians, **trial.medians}
        if not seat.pauses:
            self._learn(seat, trial.medians)
        together = trial.variants[0].changed_as(*trial.winners)
        if together not in medians:
            seat.trial = Trial([chosen, together])
            seat.variant, seat.why = chosen, f"the best so far; being compared with {together.differs_from(self.base)}"
            return
        one_thread = medians.get(replace(chosen, threads=1), medians[trial.variants[0]])
        told = ", ".join(f"{v.differs_from(self.base)} {1e9 * s:.0f}" for v, s in medians.items() if v != chosen)
        why = f"measured: {1e9 * medians[chosen]:.0f} ns per node; {told}"
        decision = Decision(chosen, why, 1e9 * one_thread if chosen.threads > 1 else 0.0)
        self._adopt(seat, decision)
        self._forget()
        if chosen.threads == 1 and any(v.threads > 1 and s > MUCH_WORSE * one_thread for v, s in medians.items()):
            self._pause(seat)  # the machine may have been busy: that is not kept
        elif not seat.pauses:
            keep_decision(seat.signature, seat.label, decision)

    def _adopt(self, seat: Seat, decision: Decision) -> None:
        seat.variant, seat.why = decision.variant, decision.why
        chosen = self._threads and decision.variant.threads > 1
        seat.watch = Watch(decision.one_ns / 1e9) if chosen else None

    def _fall_back(self, seat: Seat, watch: Watch) -> None:
        """Use one thread, for a while at least."""
        seat.why = (
            f"back to one thread: the last mini-batches took {watch.ratio:.1f} times as long with "
            f"{seat.variant.threads} as with one when that was measured, as on a busy machine"
        )
        seat.variant, seat.watch = replace(seat.variant, threads=1), None
        self._pause(seat)

    def _try_again(self, seat: Seat) -> None:
        """Compare one thread with as many as can be had; later, if that is one."""
        many = replace(seat.variant, threads=most_threads())
        if many == seat.variant:
            self._pause(seat)
        else:
            seat.trial = Trial([seat.variant, many])

    def _pause(self, seat: Seat) -> None:
        """Try more threads again, but later each time."""
        seat.pause, seat.pauses = PAUSE << min(seat.pauses, MOST_DOUBLED), seat.pauses + 1

    def _learn(self, seat: Seat, medians: dict[Variant, float]) -> None:
        """Keep what mini-batches took on one thread, for predictions; with more, it depends on who else computes."""
        works = seat.works
        found = [(works[v].features(), medians[v] * seat.nodes) for v in medians if v in works and v.threads == 1]
        keep_measured(self._backend.name, [*find_measured(self._backend.name), *found])

    # Predictions.

    def _worth_trying(self, graph: Graph, choices: Choices) -> dict[Variant, Work]:
        """The variant in force, and those that change the plan and are not predicted to take longer, best first."""
        model = CostModel.of(self._backend.name, find_measured(self._backend.name))
        plans: list[tuple[Plan, PlannedTypes]] = []
        works: dict[Variant, Work] = {}
        for variant in self._variants(choices):
            same = next((v for v in works if replace(v, threads=1) == replace(variant, threads=1)), None)
            if same is not None:
                works[variant] = works[same]
                continue
            sketch = self._sketch(variant, graph, choices)
            if not any(_is_same(sketch, other) for other in plans):
                plans.append(sketch)
                works[variant] = measure_work(*sketch, lambda m, n, k: self._speed(m, n, k, choices.dtype.name))
        predicted = {variant: model.seconds(work, variant.threads) for variant, work in works.items()}
        limit = NOT_WORSE * predicted[self.base]
        others = sorted((v for v in works if v != self.base and predicted[v] <= limit), key=predicted.__getitem__)
        return {variant: works[variant] for variant in [self.base, *others[:MOST_TRIED]]}

    def _variants(self, choices: Choices) -> Iterator[Variant]:
        """The variant in force, and what differs in one choice."""
        yield self.base
        max_threads = most_threads() if self._threads else 0
        yield from self.base.neighbours(self._planner if self._switches else None, self._switches, max_threads)

    def _sketch(self, variant: Variant, graph: Graph, choices: Choices) -> tuple[Plan, PlannedTypes]:
        """A plan of the mini-batch under a variant; not by its policy, which may learn from what it is given."""
        planner, training = self._planner_of(variant), choices.purpose is not None
        types, shapes = self._recorder.types, self._recorder.slots.shapes
        cells = PlannedTypes([planner.plan_cell(t, training) for t in types.types], list(shapes), training)
        rewritten, _ = rewrite(graph, variant.rewrites(choices.rewrites))
        return planner.place(rewritten, make_schedule(rewritten, Largest()), cells), cells

    def _speed(self, m: int, n: int, k: int, dtype: str) -> float:
        """GFLOP/s of products of about this size: each is taken to a power of four."""
        size = _coarse(m), _coarse(n), _coarse(k)
        if size not in self._speeds:
            chooser = getattr(self._backend, "chooser", None) or Chooser("numpy")
            self._speeds[size] = chooser.speed(*size, dtype)
        return self._speeds[size]

    # Plans.

    def _plan(self, variant: Variant, minibatch: MiniBatch, choices: Choices, clock: Clock) -> Step:
        planner = self._planner_of(variant)
        if id(planner) not in self._plannings:
            cache_size = next(iter(self._plannings.values())).cache.size
            self._plannings[id(planner)] = Planning(self._recorder, planner, cache_size)
        passes = variant.rewrites(choices.rewrites)
        chosen = replace(choices, rewrites=passes, threads=variant.threads)
        return self._plannings[id(planner)].prepare(minibatch, chosen, clock)

    def _planner_of(self, variant: Variant) -> Planner:
        """The planner of a variant: one object for all variants with its switches, as what it has planned is kept."""
        switches = _switches(variant)
        if switches not in self._planners:
            self._planners[switches] = variant.planner(self._planner)
        return self._planners[switches]

    def _forget(self) -> None:
        """Drop what was planned with switches that no class uses any more."""
        tried = [variant for seat in self._seats.values() if seat.trial is not None for variant in seat.trial.variants]
        used = {_switches(v) for v in [self.base, *tried, *(s.variant for s in self._seats.values())]}
        self._planners = {switches: planner for switches, planner in self._planners.items() if switches in used}
        kept = {id(planner) for planner in self._planners.values()}
        first, *others = self._plannings.items()
        self._plannings = dict([first, *(one for one in others if one[0] in kept)])


class Largest(FrontierPolicy):
    """Runs the type that has most ready nodes."""

    name = "largest"

    def choose(self, frontier: Frontier) -> int:
        """Name the type with the largest number of ready nodes, of equal ones the first."""
        return int(np.argmax(frontier.ready))


def make_tuning(
    recorder: Recorder,
    planning: Planning,
    backend: Backend,
    rewrites: tuple[str, ...],
    precision: str,
    threads: int | str,
    tune: Any,
) -> Tuning:
    """Read the options `threads` and `tune` of `ab.batched`; decisions depend on the others as well.

    Raises:
        BackendError: `threads` is no number of threads, or pinned decisions name a library that is not there.
        PlanError: `tune` is none of its values, or pinned decisions cannot be read.
    """
    check_threads(threads)
    chooser = getattr(backend, "chooser", None)
    given = 1 if threads == "auto" else int(threads)
    base = Variant.of(rewrites, planning.planner, given, "numpy" if chooser is None else chooser.name)
    if tune == "off" or tune == "auto":
        switches, by_measuring = tune == "auto", threads == "auto"
        pinned = None if switches or by_measuring else {OTHERS: base}
        return Tuning(recorder, planning, base, backend, switches, by_measuring, pinned, [precision])
    pinned = read_decisions(tune, base, planning.planner)
    library = pinned[OTHERS].matmul
    if library != base.matmul:
        _choose_library(backend, library)
    return Tuning(recorder, planning, base, backend, False, False, pinned, [precision])


def _choose_library(backend: Any, library: str) -> None:
    """Have a backend multiply by one library."""
    if not hasattr(backend, "chooser"):
        raise PlanError(
            f"reading decisions: the backend {backend.name!r} multiplies by numpy, not by {library!r}; leave matmul "
            f"out, or use backend='cpu'."
        )
    backend.chooser = Chooser(None if library == BY_SIZE else library)


def _is_same(one: tuple[Plan, PlannedTypes], other: tuple[Plan, PlannedTypes]) -> bool:
    """Whether two sketches run the same steps on the same places."""
    (plan, cells), (plan_2, cells_2) = one, other
    if plan.size != plan_2.size or plan.graph.words.tobytes() != plan_2.graph.words.tobytes():
        return False
    return all(
        str(a.program) == str(b.program) and a.layout.__dict__ == b.layout.__dict__
        for a, b in zip(cells.cells, cells_2.cells, strict=True)
    )


def _switches(variant: Variant) -> Switches:
    return tuple(getattr(variant, name) for name in LAYOUTS)


def _coarse(size: int) -> int:
    return int(min(MAX_SIZE, 4 ** round(math.log2(size) / 2)))


def _list(base: Variant, variants: Sequence[Variant]) -> str:
    return "; ".join(variant.differs_from(base) for variant in variants)
