"""Choose how the mini-batches of one function run, by measuring the first ones of each class, and monitor the choice.

A class is the mini-batches of one mode whose number of nodes (or of unrecorded instances) has the same next power of
two. The first of a class runs with the given options. Then a decision of an earlier process is taken from the cache. If
there is none, every tried choice that changes the plan gets its turn on the following mini-batches, each of which runs
once. The choices that win are finally tried together. Decisions are kept in the cache; pinned decisions are not
measured.
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
PAUSE = 200  # mini-batches from a fallback to one thread until more are tried; doubled each time,
MOST_DOUBLED = 6  # at most this often


@dataclass(eq=False)
class SizeClass:
    """A class of mini-batches: how they run, and the measurements in progress.

    Attributes:
        variant, why: the current variant, and the reason as text.
        trial, watch: the measurements in progress.
        signature: of the model when the cache was read; empty before.
        begun: whether the variants to try are known.
        medians: seconds per node of the variants tried, as last measured.
        planning: seconds per node of making a plan, under each variant.
        pause: mini-batches left until threads are tried again; 0 for never.
        pauses: number of pauses so far.
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
        recorder, planning, backend: those of the function.
        base: the variant that the options describe.
        pinned: decisions to use as they are; None to measure.
        switches, threads: whether rewrites and planner switches may change; whether the number of threads may.
        options: everything else that decisions depend on.

    Attributes:
        base: as given.
        is_off: whether every mini-batch runs with the current options.
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
        self._classes: dict[str, SizeClass] = {}
        self._plannings = {base.switches: planning}
        self._open: tuple[Step, str, Variant, Choices] | None = None

    @property
    def decisions(self) -> dict[str, dict[str, Any]]:
        """The current decisions by class of mini-batches; pass them as `tune` to reuse them."""
        found = {OTHERS: self.base} | {label: size_class.variant for label, size_class in self._classes.items()}
        return write_decisions(found if self._pinned is None else self._pinned)

    @property
    def settled(self) -> bool:
        """Whether no trial is in progress for the classes met so far."""
        return self._pinned is not None or all(s.begun and s.trial is None for s in self._classes.values())

    def prepare(self, minibatch: MiniBatch, choices: Choices, clock: Clock, tried: bool = True) -> Step:
        """Plan a mini-batch under the decided variant, or the one whose turn it is."""
        label, size_class = self._class_of(minibatch, training=choices.purpose is not None)
        if minibatch.instances and minibatch.graph is None:
            self._look_up(label, size_class)
        variant = size_class.trial.next() if tried and size_class.trial is not None else size_class.variant
        matmul = None if variant.matmul == self.base.matmul else variant.matmul
        passes = variant.rewrites(choices.rewrites)
        chosen = replace(choices, rewrites=passes, threads=variant.threads, matmul=matmul)
        step = self._planning_of(variant).prepare(minibatch, chosen, clock)
        self._open = (step, label, variant, choices) if tried else None
        return step

    def finish(self, step: Step) -> None:
        """Add the time of the mini-batch that was prepared last and has run."""
        if self._open is None or self._open[0] is not step or self._pinned is not None or not step.graph.n_nodes:
            return
        _, label, variant, choices = self._open
        self._open, size_class = None, self._classes[label]
        seconds = _seconds_per_node(step, size_class, variant)
        self._look_up(label, size_class)
        if not size_class.begun:
            self._begin(size_class, step.graph, choices)
        elif size_class.trial is not None:
            size_class.trial.add(variant, seconds)
            if size_class.trial.done:
                self._conclude(label, size_class, size_class.trial)
        elif size_class.watch is not None and size_class.watch.add(seconds):
            self._fall_back(size_class, size_class.watch)
        elif size_class.pause:
            size_class.pause -= 1
            if not size_class.pause:
                self._try_again(size_class)

    def describe(self, minibatch: MiniBatch, training: bool) -> str:
        """Describe how mini-batches like this one run, and why; empty if they run as given."""
        if self.is_off:
            return ""
        label, size_class = self._class_of(minibatch, training)
        going_on = "; others are being tried" if size_class.trial is not None else ""
        return f"{label}: {size_class.variant.differs_from(self.base)} ({size_class.why}{going_on})"

    def _class_of(self, minibatch: MiniBatch, training: bool) -> tuple[str, SizeClass]:
        """The label of the class of a mini-batch, and the class."""
        listed, recorded = minibatch.instances, minibatch.graph is None
        size, unit = (sum(g.n_nodes for g in listed), "nodes") if recorded else (len(listed), "instances")
        label = f"{'train' if training else 'infer'} up to {1 << max(size - 1, 0).bit_length()} {unit}"
        if label not in self._classes:
            variant, why = self.base, "as given; nothing is measured yet"
            if self._pinned is not None:
                variant, why = self._pinned.get(label, self._pinned[OTHERS]), "pinned"
            self._classes[label] = SizeClass(variant, why)
        return label, self._classes[label]

    def _planning_of(self, variant: Variant) -> Planning:
        """The planning for a variant: shared by all variants with the same switches, because it caches plans."""
        if variant.switches not in self._plannings:
            first = self._plannings[self.base.switches]
            self._plannings[variant.switches] = Planning(
                self._recorder, variant.planner(first.planner), first.cache.size
            )
        return self._plannings[variant.switches]

    def _look_up(self, label: str, size_class: SizeClass) -> None:
        """Read the cached decision of a class, once; not if pinned, or if it needs more threads than are available."""
        if size_class.signature or self._pinned is not None:
            return
        size_class.signature = sign_model(self._recorder.types.types, *self._options)
        known = find_decisions(size_class.signature).get(label)
        if known is not None and known.variant.threads <= max(most_threads(), self.base.threads):
            self._adopt(size_class, replace(known, why=f"{known.why}; from the cache"))

    def _begin(self, size_class: SizeClass, graph: Graph, choices: Choices) -> None:
        """Find the variants to try, after the first mini-batch of a class."""
        variants = self._worth_trying(graph, choices)
        if len(variants) == 1:
            self._adopt(size_class, Decision(self.base, "nothing else would change it"))
            return
        size_class.begun, size_class.trial = True, Trial(variants)
        size_class.why = f"as given; being compared with {'; '.join(v.differs_from(self.base) for v in variants[1:])}"

    def _worth_trying(self, graph: Graph, choices: Choices) -> list[Variant]:
        """The current variant, and those that change the graph, the cells or the threads of a mini-batch."""
        found: dict[Hashable, Variant] = {}
        max_threads = most_threads() if self._threads else 0
        for variant in (self.base, *self.base.neighbours(self._switches, max_threads)):
            rewritten, _ = rewrite(graph, variant.rewrites(choices.rewrites))
            cells = self._planning_of(variant).cells(choices.purpose).cells
            layouts = "".join(f"{cell.program}{cell.layout!r}" for cell in cells)
            found.setdefault((variant.threads, rewritten.words.tobytes(), layouts), variant)
        return list(found.values())

    def _conclude(self, label: str, size_class: SizeClass, trial: Trial) -> None:
        """Adopt the winner; try several winners together; keep the outcome."""
        medians = size_class.medians = {**size_class.medians, **trial.medians}
        chosen, together = trial.chosen, trial.variants[0].changed_as(*trial.winners)
        if together not in medians:
            size_class.trial, size_class.variant = Trial([chosen, together]), chosen
            size_class.why = f"the best so far; being compared with {together.differs_from(self.base)}"
            return
        one_thread = medians.get(replace(chosen, threads=1), medians[trial.variants[0]])
        told = ", ".join(f"{v.differs_from(self.base)} {1e9 * s:.0f}" for v, s in medians.items() if v != chosen)
        why = f"measured: {1e9 * medians[chosen]:.0f} ns per node; {told}"
        decision = Decision(chosen, why, 1e9 * one_thread if chosen.threads > 1 else 0.0)
        self._adopt(size_class, decision)
        if chosen.threads == 1 and any(v.threads > 1 and s > MUCH_WORSE * one_thread for v, s in medians.items()):
            _pause(size_class)  # the machine may have been busy: not kept in the cache
        elif not size_class.pauses:
            keep_decision(size_class.signature, label, decision)

    def _adopt(self, size_class: SizeClass, decision: Decision) -> None:
        """Run a class as decided; drop plans made with switches that no class uses any more."""
        size_class.variant, size_class.why = decision.variant, decision.why
        size_class.begun, size_class.trial = True, None
        watched = self._threads and decision.variant.threads > 1
        size_class.watch = Watch(decision.one_ns / 1e9) if watched else None
        used = {self.base.switches}
        for other in self._classes.values():
            used |= {other.variant.switches, *(v.switches for v in (other.trial.variants if other.trial else ()))}
        self._plannings = {switches: planning for switches, planning in self._plannings.items() if switches in used}

    def _fall_back(self, size_class: SizeClass, watch: Watch) -> None:
        """Use one thread, until the pause ends."""
        size_class.why = (
            f"back to one thread: the last mini-batches took {watch.ratio:.1f} times as long with "
            f"{size_class.variant.threads} as with one when that was measured, as on a busy machine"
        )
        size_class.variant, size_class.watch = replace(size_class.variant, threads=1), None
        _pause(size_class)

    def _try_again(self, size_class: SizeClass) -> None:
        """Compare one thread with as many as are available; try later if only one is."""
        many = replace(size_class.variant, threads=most_threads())
        if many == size_class.variant:
            _pause(size_class)
        else:
            size_class.trial = Trial([size_class.variant, many])


def make_tuning(
    recorder: Recorder,
    planning: Planning,
    backend: Backend,
    rewrites: tuple[str, ...],
    precision: str,
    threads: int | str,
    tune: Any,
) -> Tuning:
    """Read the options `threads` and `tune` of `ab.batched`; decisions also depend on the other options.

    Raises:
        BackendError: `threads` is not a number of threads, or pinned decisions name a library that is not available.
        PlanError: `tune` is not a valid value, or pinned decisions cannot be read.
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
    """Raise a BackendError if `threads` is not a number of threads."""
    is_number = isinstance(threads, int | np.integer) and not isinstance(threads, bool) and threads >= 1
    if not is_number and not (isinstance(threads, str) and threads == "auto"):
        raise BackendError(f"threads={threads!r} is no number of threads; give an int of at least 1, or 'auto'.")


def _check_library(backend: Backend, library: str) -> None:
    """Refuse a library that a backend cannot use (PlanError), or that is not available (BackendError)."""
    if not hasattr(backend, "chooser"):
        raise PlanError(
            f"reading decisions: the backend {backend.name!r} multiplies by numpy, not by {library!r}; leave matmul "
            f"out, or use backend='cpu'."
        )
    Chooser(None if library == BY_SIZE else library)


def _seconds_per_node(step: Step, size_class: SizeClass, variant: Variant) -> float:
    """Seconds of running and planning; a plan from the cache counts with the time that making it took."""
    nodes = step.graph.n_nodes
    planning = step.clock.total("rewrite", "schedule", "place") / 1e3 / nodes
    if step.plan_hit:
        planning = size_class.planning.get(variant, 0.0)
    size_class.planning[variant] = planning
    return step.clock.total("forward", "backward") / 1e3 / nodes + planning


def _pause(size_class: SizeClass) -> None:
    """Set the pause until more threads are tried; longer each time."""
    size_class.pause, size_class.pauses = PAUSE << min(size_class.pauses, MOST_DOUBLED), size_class.pauses + 1
