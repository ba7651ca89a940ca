"""Random async programs for the fuzzer of the native recorder, `helpers.runs.recordings`."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from autobatch._native import AsyncProgram, Request

if TYPE_CHECKING:
    from helpers.runs.recordings import World


class DrawnRequest(Request):
    """A request that does something else before it is awaited in Python."""

    world: World

    def _await_slowly(self) -> Any:
        self.world.meddle()
        return self.world.thing() if self.world.rng.random() < 0.1 else iter([self])


class DrawnProgram(AsyncProgram):
    """A program that awaits values of a world, and meddles in between.

    Args:
        world: the world.
    """

    def __init__(self, world: World) -> None:
        self.world, self.body = world, self.run()
        self.steps, self.draw = self.body, world.one_of([None, lambda: 3])

    async def run(self) -> Any:
        """Await some requests; some are awaited twice."""
        world, requests, answer = self.world, list[Any](), None
        for _ in range(int(world.rng.integers(1, 5))):
            requests.append(draw_request(world))
            answer = await (world.one_of(requests) if world.rng.random() < 0.1 else requests[-1])
            world.attempt(world.meddle)
            if world.rng.random() < 0.1:
                raise world.one_of([ValueError, KeyboardInterrupt, StopIteration, GeneratorExit])
            if world.rng.random() < 0.2:
                requests[-1].values = answer
        return answer

    def resumed(self, status: int, found: Any) -> None:
        """Take over from the core."""
        self.steps = self.world.one_of([None, self.steps, found])
        self.world.meddle()


def draw_request(world: World) -> DrawnRequest:
    """Draw a request, mostly for one or two values."""
    one, other = world.one_of(world.handles), world.one_of(world.handles)
    found = DrawnRequest(world.one_of([one, one, (one, other), (one,), (), [one], world.thing()]))
    found.world = world
    return found


def drive(world: World) -> None:
    """Resume and answer some programs, with arguments that may be wrong."""
    programs: list[Any] = [DrawnProgram(world) for _ in range(3)]
    with closing(programs[0].body), closing(programs[1].body), closing(programs[2].body):
        known: dict[Any, Any] = {kind: number for number, kind in enumerate(world.values)}
        if world.rng.random() < 0.1:
            known[world.thing()] = 0
        places = world.one_of([[0, 1, 2], [1], [0, 2], [0, world.number()]])
        caught = world.one_of([Exception, OSError, 3])
        world.lists += [programs, places]
        for _ in range(3):
            refs, slots, log_ptr, output_ptr = (list[Any]([0] * n) for n in (0, 0, 1, 1))
            asked = dict[Any, Any]()
            world.lists += [refs, slots, log_ptr]
            go_on = world.one_of([lambda place: world.meddle(), programs.append, world.thing()])
            with suppress(KeyboardInterrupt, GeneratorExit):
                world.log().advance(programs, places, known, caught, go_on, refs, slots, log_ptr, output_ptr, asked)
            if world.rng.random() < 0.2:
                asked[world.one_of([0, 1, -1, world.thing()])] = world.one_of([None, 2, -2, 2**70, world.thing()])
            numbers = world.one_of([[world.thing() for _ in range(9)], range(9), [1], world.thing()])
            world.log().answer(programs, asked, numbers, lambda *_: world.meddle())
        world.log().read_request(draw_request(world), known, [], [])
