"""Decides for one function how its mini-batches run, from the first ones of each class, and watches what it decided.

Mini-batches of one mode whose nodes (or unrecorded instances) have one next power of two are a class. The first of a
class runs as the options say. Then what was decided in another process is taken from the cache; or every choice that
is tried and changes its plan gets its turn on the mini-batches that follow, each of which runs once. Choices that win
are tried together in the end. Decisions are kept in the cache; pinned ones are not questioned.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autobatch.blas.choosing import BY_SIZE, Chooser
from autobatch.blas.threads import most_threads
from autobatch.errors import BackendError, PlanError
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite.passes import rewrite
from autobatch.runtime.backend import Backend
from autobatch.runtime.planning import Choices, Planning
from autobatch.runtime.step import Clock, Step
from autobatch.trace.record import MiniBatch, Recorder
from autobatch.tuning.store import Decision, find_decisions, keep_decision, sign_model
from autobatch.tuning.trial import MUCH_WORSE, Trial, Watch
from autobatch.tuning.variant import OTHERS, Decisions, Variant, read_decisions, switches_of, write_decisions

TRIED = ("fold", "share", "recomputes")  # the other switches never won: docs/decisions/choices-that-are-measured.md
PAUSE = 200  # mini-batches after falling back to one thread, before more are tried again; then twice as many,
MOST_DOUBLED = 6  # times at most


@dataclass(eq=False)
class Seat:
    """A class of mini-batches: how they run, and what is being measured about them.

    Attributes:
        variant, why: that is in force, and the reason in words.
        trial, watch: what is going on.
        signature: of the model when the cache was asked; empty before.
        begun: whether it is known what there is to try.
        medians: seconds per node of what was tried, as it was measured last.
        planning: seconds per node of making a plan, under each variant.
        pause: mini-batches left until threads are tried again; 0 for never.
        pauses: how many there were.
    """

    variant: Variant
    why: str
    trial: Trial | None = None
    watch: Watch | None = None
    signature: str = ""
    begun: bool = False
    medians: dict[Variant, float] = field(default_factory=dict)
    planning: dict[Variant, float] = field(default_factory=dict)
    pause: int = 0
    pauses: int = 0


class Tuning:
    """Chooses for the mini-batches of one function; made by `make_tuning`.

    Args:
        recorder, planning, backend: of the function.
        base: the variant that the options amount to.
        pinned: decisions that hold; None to decide here.
        switches, threads: whether rewrites and the planner's switches may change; whether the number of threads may.
        options: all else that decisions depend on.

    Attributes:
        base: as given.
        is_off: whether every mini-batch runs as the options say at the time.
    """

    def __init__(
        self,
        recorder: Recorder,
        planning: Planning,
        backend: Backend,
        base: Variant,
        pinned: Decisions | None,
        switches: bool,
        threads: bool,
        *options: str,
    ) -> None:
        self.base, self.is_off = base, pinned == {OTHERS: base}
        self._recorder, self._backend, self._pinned, self._threads = recorder, backend, pinned, threads
        self._options = (backend.name, repr(base), f"switches {switches}", f"threads {threads}", *options)
        known = {"fold", "share", *switches_of(planning.planner)} if switches else set()
        self._switches = [name for name in TRIED if name in known]
        self._seats: dict[str, Seat] = {}
        self._plannings = {base.switches: planning}
        self._open: tuple[Step, str, Variant, Choices] | None = None

    @property
    def decisions(self) -> dict[str, dict[str, Any]]:
        """What is in force, by class of mini-batches; give it as `tune` to have it again."""
        found = {OTHERS: self.base} | {label: seat.variant for label, seat in self._seats.items()}
        return write_decisions(found if self._pinned is None else self._pinned)

    @property
    def settled(self) -> bool:
        """Whether nothing is being tried, for the classes of mini-batches that were met."""
        return self._pinned is not None or all(s.begun and s.trial is None for s in self._seats.values())

    def prepare(self, minibatch: MiniBatch, choices: Choices, clock: Clock, tried: bool = True) -> Step:
        """Plan a mini-batch as decided, or as the variant whose turn it is."""
        label, seat = self._seat_of(minibatch, training=choices.purpose is not None)
        if minibatch.instances and minibatch.graph is None:
            self._look_up(label, seat)
        variant = seat.trial.next() if tried and seat.trial is not None else seat.variant
        matmul = None if variant.matmul == self.base.matmul else variant.matmul
        passes = variant.rewrites(choices.rewrites)
        chosen = replace(choices, rewrites=passes, threads=variant.threads, matmul=matmul)
        step = self._planning_of(variant).prepare(minibatch, chosen, clock)
        self._open = (step, label, variant, choices) if tried else None
        return step

    def finish(self, step: Step) -> None:
        """Take the time of the mini-batch that was prepared last and has run."""
        if self._open is None or self._open[0] is not step or self._pinned is not None or not step.graph.n_nodes:
            return
        _, label, variant, choices = self._open
        self._open, seat = None, self._seats[label]
        seconds = _seconds_per_node(step, seat, variant)
        self._look_up(label, seat)
        if not seat.begun:
            self._begin(seat, step.graph, choices)
        elif seat.trial is not None:
            seat.trial.add(variant, seconds)
            if seat.trial.done:
                self._conclude(label, seat, seat.trial)
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
        label, seat = self._seat_of(minibatch, training)
        going_on = "; others are being tried" if seat.trial is not None else ""
        return f"{label}: {seat.variant.differs_from(self.base)} ({seat.why}{going_on})"

    def _seat_of(self, minibatch: MiniBatch, training: bool) -> tuple[str, Seat]:
        """The class of a mini-batch, and what is known about it."""
        listed, recorded = minibatch.instances, minibatch.graph is None
        size, unit = (sum(g.n_nodes for g in listed), "nodes") if recorded else (len(listed), "instances")
        label = f"{'train' if training else 'infer'} up to {1 << max(size - 1, 0).bit_length()} {unit}"
        if label not in self._seats:
            variant, why = self.base, "as given; nothing is measured yet"
            if self._pinned is not None:
                variant, why = self._pinned.get(label, self._pinned[OTHERS]), "pinned"
            self._seats[label] = Seat(variant, why)
        return label, self._seats[label]

    def _planning_of(self, variant: Variant) -> Planning:
        """What plans for a variant: the same for all with its switches, as what was planned is kept there."""
        if variant.switches not in self._plannings:
            first = self._plannings[self.base.switches]
            self._plannings[variant.switches] = Planning(
                self._recorder, variant.planner(first.planner), first.cache.size
            )
        return self._plannings[variant.switches]

    def _look_up(self, label: str, seat: Seat) -> None:
        """Take what the cache holds for a class, once, unless it is pinned, or more threads than can be had now."""
        if seat.signature or self._pinned is not None:
            return
        seat.signature = sign_model(self._recorder.types.types, *self._options)
        known = find_decisions(seat.signature).get(label)
        if known is not None and known.variant.threads <= max(most_threads(), self.base.threads):
            self._adopt(seat, replace(known, why=f"{known.why}; from the cache"))

    def _begin(self, seat: Seat, graph: Graph, choices: Choices) -> None:
        """After the first mini-batch of a class: see what there is to try."""
        variants = self._worth_trying(graph, choices)
        if len(variants) == 1:
            self._adopt(seat, Decision(self.base, "nothing else would change it"))
            return
        seat.begun, seat.trial = True, Trial(variants)
        seat.why = f"as given; being compared with {'; '.join(v.differs_from(self.base) for v in variants[1:])}"

    def _worth_trying(self, graph: Graph, choices: Choices) -> list[Variant]:
        """The variant in force, and those that change the graph, the cells or the threads of a mini-batch."""
        found: dict[Hashable, Variant] = {}
        max_threads = most_threads() if self._threads else 0
        for variant in (self.base, *self.base.neighbours(self._switches, max_threads)):
            rewritten, _ = rewrite(graph, variant.rewrites(choices.rewrites))
            cells = self._planning_of(variant).cells(choices.purpose).cells
            layouts = "".join(f"{cell.program}{cell.layout!r}" for cell in cells)
            found.setdefault((variant.threads, rewritten.words.tobytes(), layouts), variant)
        return list(found.values())

    def _conclude(self, label: str, seat: Seat, trial: Trial) -> None:
        """Take what has won; try what has won together; keep the outcome."""
        medians = seat.medians = {**seat.medians, **trial.medians}
        chosen, together = trial.chosen, trial.variants[0].changed_as(*trial.winners)
        if together not in medians:
            seat.trial, seat.variant = Trial([chosen, together]), chosen
            seat.why = f"the best so far; being compared with {together.differs_from(self.base)}"
            return
        one_thread = medians.get(replace(chosen, threads=1), medians[trial.variants[0]])
        told = ", ".join(f"{v.differs_from(self.base)} {1e9 * s:.0f}" for v, s in medians.items() if v != chosen)
        why = f"measured: {1e9 * medians[chosen]:.0f} ns per node; {told}"
        decision = Decision(chosen, why, 1e9 * one_thread if chosen.threads > 1 else 0.0)
        self._adopt(seat, decision)
        if chosen.threads == 1 and any(v.threads > 1 and s > MUCH_WORSE * one_thread for v, s in medians.items()):
            _pause(seat)  # the machine may have been busy: that is not kept
        elif not seat.pauses:
            keep_decision(seat.signature, label, decision)

    def _adopt(self, seat: Seat, decision: Decision) -> None:
        """Run a class as decided; forget what was planned with switches that no class uses any more."""
        seat.variant, seat.why, seat.begun, seat.trial = decision.variant, decision.why, True, None
        watched = self._threads and decision.variant.threads > 1
        seat.watch = Watch(decision.one_ns / 1e9) if watched else None
        used = {self.base.switches}
        for other in self._seats.values():
            used |= {other.variant.switches, *(v.switches for v in (other.trial.variants if other.trial else ()))}
        self._plannings = {switches: planning for switches, planning in self._plannings.items() if switches in used}

    def _fall_back(self, seat: Seat, watch: Watch) -> None:
        """Use one thread, for a while at least."""
        seat.why = (
            f"back to one thread: the last mini-batches took {watch.ratio:.1f} times as long with "
            f"{seat.variant.threads} as with one when that was measured, as on a busy machine"
        )
        seat.variant, seat.watch = replace(seat.variant, threads=1), None
        _pause(seat)

    def _try_again(self, seat: Seat) -> None:
        """Compare one thread with as many as can be had; later, if that is one."""
        many = replace(seat.variant, threads=most_threads())
        if many == seat.variant:
            _pause(seat)
        else:
            seat.trial = Trial([seat.variant, many])


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
    _check_threads(threads)
    chooser = getattr(backend, "chooser", None)
    given = 1 if threads == "auto" else int(threads)
    base = Variant.of(rewrites, planning.planner, given, "numpy" if chooser is None else chooser.name)
    may_switch, may_thread = tune == "auto", threads == "auto"
    pinned = None if may_switch or may_thread else {OTHERS: base}
    if not (may_switch or tune == "off"):
        may_thread, pinned = False, read_decisions(tune, base, planning.planner)
        if pinned[OTHERS].matmul != base.matmul:
            _check_library(backend, pinned[OTHERS].matmul)
    return Tuning(recorder, planning, backend, base, pinned, may_switch, may_thread, precision)


def _check_threads(threads: int | str) -> None:
    """Refuse what is no number of threads with a BackendError."""
    is_number = isinstance(threads, int | np.integer) and not isinstance(threads, bool) and threads >= 1
    if not is_number and not (isinstance(threads, str) and threads == "auto"):
        raise BackendError(f"threads={threads!r} is no number of threads; give an int of at least 1, or 'auto'.")


def _check_library(backend: Backend, library: str) -> None:
    """Refuse a library that a backend does not multiply by (PlanError), or that is not there (BackendError)."""
    if not hasattr(backend, "chooser"):
        raise PlanError(
            f"reading decisions: the backend {backend.name!r} multiplies by numpy, not by {library!r}; leave matmul "
            f"out, or use backend='cpu'."
        )
    Chooser(None if library == BY_SIZE else library)


def _seconds_per_node(step: Step, seat: Seat, variant: Variant) -> float:
    """Seconds of running, and of planning: where a plan was found, as long as it took to make one."""
    nodes = step.graph.n_nodes
    planning = step.clock.total("rewrite", "schedule", "place") / 1e3 / nodes
    if step.plan_hit:
        planning = seat.planning.get(variant, 0.0)
    seat.planning[variant] = planning
    return step.clock.total("forward", "backward") / 1e3 / nodes + planning


def _pause(seat: Seat) -> None:
    """Try more threads again, but later each time."""
    seat.pause, seat.pauses = PAUSE << min(seat.pauses, MOST_DOUBLED), seat.pauses + 1
